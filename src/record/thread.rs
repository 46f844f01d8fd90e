//! The thread that commits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{Item, Queue};
use crate::store::{StoreError, Write, Writer};

/// How long to wait before writes that nobody waits for are tried again.
const PAUSE: Duration = Duration::from_millis(250);
/// How often they are tried again when the recorder is to end.
const LAST_TRIES: usize = 8;

/// Takes batches from the queue and has them written.
pub(super) struct Worker {
    writer: Box<dyn Writer>,
    queue: Arc<Queue>,
    lost: usize,
    tries_left: usize,
    failing: bool,
}

impl Worker {
    pub(super) fn new(writer: Box<dyn Writer>, queue: Arc<Queue>) -> Self {
        Self { writer, queue, lost: 0, tries_left: LAST_TRIES, failing: false }
    }

    /// Runs until the queue is closed and empty, and says how many writes were lost.
    pub(super) fn run(mut self) -> usize {
        while let Some(batch) = self.queue.take() {
            metrics::gauge!("gleaner_recorder_queue").set(gauge(self.queue.waiting()));
            self.commit(batch);
            self.writer.idle();
        }
        self.lost
    }

    fn commit(&mut self, batch: Vec<Item>) {
        let began = Instant::now();
        let (writes, rest): (Vec<Write>, Vec<_>) = batch.into_iter().map(Item::split).unzip();
        let results = self.writer.apply(&writes);
        metrics::histogram!("gleaner_recorder_commit_seconds").record(began.elapsed().as_secs_f64());
        metrics::counter!("gleaner_recorder_commits_total").increment(1);
        let failed = results.iter().filter_map(|result| result.as_ref().err());
        self.report(failed.clone().count(), failed.clone().next());
        let mut again = Vec::new();
        for ((write, rest), result) in writes.into_iter().zip(rest).zip(results) {
            match (rest.answer, result) {
                // Who waited may have gone; then there is nobody to tell.
                (Some(answer), result) => drop(answer.send(result)),
                (None, Ok(())) => {}
                (None, Err(error)) if rest.kept && error.is_passing() => again.push(Item::new(write, PAUSE).kept()),
                // A start comes again with its end.
                (None, Err(_)) if matches!(write, Write::CallStart(_)) => {}
                (None, Err(error)) => {
                    tracing::error!(%error, "a write that nobody waited for was lost");
                    self.lost += 1;
                }
            }
        }
        if !again.is_empty() {
            self.try_again(again);
        }
    }

    /// Logs a failure once, not once a batch, and the end of it.
    fn report(&mut self, failed: usize, error: Option<&StoreError>) {
        metrics::counter!("gleaner_recorder_failures_total").increment(failed as u64);
        match error {
            Some(error) if !self.failing => tracing::error!(%error, writes = failed, "could not record"),
            None if self.failing => tracing::info!("recording goes on"),
            _ => {}
        }
        self.failing = error.is_some();
    }

    fn try_again(&mut self, items: Vec<Item>) {
        let given_up = if !self.queue.is_closed() {
            self.queue.keep(items, PAUSE)
        } else if self.tries_left > 0 {
            self.tries_left -= 1;
            std::thread::sleep(PAUSE);
            self.queue.keep(items, PAUSE)
        } else {
            items.len()
        };
        if given_up > 0 {
            tracing::error!(writes = given_up, "writes were lost: the store could not be written for too long");
            self.lost += given_up;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Empty in the ordinary way; after a panic, whoever waits must be told.
        self.queue.abandon();
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of a queue that is far shorter")]
fn gauge(count: usize) -> f64 {
    count as f64
}
