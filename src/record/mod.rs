//! The one writer: a bounded queue that pushes back, group commit, drain.
//!
//! Writes come from every call's task and are committed by one plain thread, many in a transaction. What somebody waits for is
//! committed at once, and whatever else waits goes with it; what nobody waits for (a call's start, the note that a reply was
//! delivered) lets a moment pass for company, so that a quick call costs one commit and not three.

mod config;
mod queue;
mod thread;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use crate::call::{CallEnd, CallStart};
use crate::ids::CallId;
use crate::store::{StoreError, Write, Writer};

pub use config::RecordConfig;

use queue::{Item, Queue};

/// How long a call's start may wait for company: a crash in this time leaves no trace of a call that had no answer yet.
const START_WITHIN: Duration = Duration::from_millis(10);
/// How long the note of a delivery may wait.
const DELIVERED_WITHIN: Duration = Duration::from_millis(100);

/// Hands writes to the store's one writer, which commits them in groups on a thread of its own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Arc<Queue>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
    /// How many writes were lost, once the thread has ended.
    ended: watch::Receiver<Option<usize>>,
}

impl Recorder {
    /// Starts the writer's thread. `depth` bounds the queue: when so many writes wait, or 64 MiB, whoever writes waits.
    ///
    /// # Panics
    /// If the system can't start a thread.
    #[must_use]
    pub fn start(writer: Box<dyn Writer>, depth: usize) -> Self {
        let queue = Arc::new(Queue::new(depth));
        let (sender, ended) = watch::channel(None);
        let worker = thread::Worker::new(writer, Arc::clone(&queue));
        let run = move || {
            let lost = worker.run();
            sender.send_replace(Some(lost));
        };
        let thread = std::thread::Builder::new().name("gleaner-recorder".into()).spawn(run);
        let thread = thread.unwrap_or_else(|error| panic!("can't start the recorder's thread: {error}"));
        Self { queue, thread: Arc::new(Mutex::new(Some(thread))), ended }
    }

    /// Makes a call known from its start. Waits for a place in the queue, not for the commit.
    pub async fn call_started(&self, start: Arc<CallStart>) {
        let place = self.queue.place(start.request.len()).await;
        self.queue.push(Item::new(Write::CallStart(start), START_WITHIN).with_place(place));
    }

    /// Records a call's end, and returns once it is committed. If it could not be, the reply must not count as given.
    ///
    /// # Errors
    /// If the store could not commit.
    pub async fn call_ended(&self, end: Box<CallEnd>) -> Result<(), StoreError> {
        self.write(Write::CallEnd(end)).await
    }

    /// Records a call's end from where nothing can be waited for (a client hung up). Never blocks, never loses it while the
    /// process lives: past the queue's bound it waits in memory, and while the store can't be written it is tried again.
    pub fn call_abandoned(&self, end: Box<CallEnd>) {
        self.queue.push(Item::new(Write::CallEnd(end), START_WITHIN).kept());
    }

    /// Notes that a reply's last byte was handed to the client. Committed within a second, not waited for.
    pub fn delivered(&self, call: CallId) {
        self.queue.push(Item::new(Write::Delivered(call), DELIVERED_WITHIN).kept());
    }

    /// Writes anything else and waits for the commit.
    ///
    /// # Errors
    /// If the store could not commit.
    pub async fn write(&self, write: Write) -> Result<(), StoreError> {
        let place = self.queue.place(queue::size(&write)).await;
        let (answer, answered) = oneshot::channel();
        self.queue.push(Item::new(write, Duration::ZERO).with_place(place).answering(answer));
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    /// Waits until all that was written so far is committed, notes of deliveries too.
    ///
    /// # Errors
    /// If the store could not commit.
    pub async fn flush(&self) -> Result<(), StoreError> {
        self.write(Write::Barrier).await
    }

    /// Writes waiting, for metrics and readiness.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    /// Takes no more writes, commits what waits, and ends the thread. Says how many writes were lost, if any.
    pub async fn drain(&self) -> usize {
        self.queue.close();
        let mut ended = self.ended.clone();
        let lost = match ended.wait_for(Option::is_some).await {
            Ok(lost) => lost.unwrap_or_default(),
            // The thread panicked, which was printed.
            Err(_) => self.queue.waiting().max(1),
        };
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // It has said its last word: this takes no time.
            let _ = thread.join();
        }
        lost + self.queue.refused()
    }
}

fn closed() -> StoreError {
    StoreError::Other("the recorder takes no more writes; the server is shutting down".into())
}

#[cfg(test)]
mod tests;
