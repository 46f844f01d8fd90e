//! What waits for the writer's thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::call::CallEnd;
use crate::store::{StoreError, Write};

/// Bytes that may wait, beside the bound on their number.
const MOST_BYTES: usize = 64 << 20;
/// Bytes that may wait for a store that can't be written, before the oldest are given up: memory ends, too.
const MOST_KEPT: usize = 256 << 20;
/// Writes in one transaction at most.
const BATCH: usize = 512;
/// Bytes in one transaction, about.
const BATCH_BYTES: usize = 32 << 20;
/// While there is traffic the thread looks by itself so often: waking it costs the caller more than the look costs.
const LOOK: Duration = Duration::from_millis(10);
/// Without traffic for this long, it sleeps until it is woken.
const QUIET: Duration = Duration::from_millis(500);

/// One write that waits.
#[derive(Debug)]
pub(super) struct Item {
    write: Write,
    answer: Option<oneshot::Sender<Result<(), StoreError>>>,
    kept: bool,
    within: Duration,
    bytes: usize,
    place: Option<OwnedSemaphorePermit>,
}

impl Item {
    /// A write that is to be committed `within` this time.
    pub(super) fn new(write: Write, within: Duration) -> Self {
        let bytes = size(&write);
        Self { write, answer: None, kept: false, within, bytes, place: None }
    }

    pub(super) fn with_place(self, place: Option<OwnedSemaphorePermit>) -> Self {
        Self { place, ..self }
    }

    pub(super) fn answering(self, answer: oneshot::Sender<Result<(), StoreError>>) -> Self {
        Self { answer: Some(answer), ..self }
    }

    pub(super) fn kept(self) -> Self {
        Self { kept: true, ..self }
    }

    /// The write by itself, and what goes with it.
    pub(super) fn split(self) -> (Write, Rest) {
        (self.write, Rest { answer: self.answer, kept: self.kept, _place: self.place })
    }
}

/// What goes with a write: who waits for it, and its place in the queue until it is answered.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) answer: Option<oneshot::Sender<Result<(), StoreError>>>,
    /// Tried again when the store could not be written, since nobody waits who could be told.
    pub(super) kept: bool,
    _place: Option<OwnedSemaphorePermit>,
}

/// About the memory that a write holds.
pub(super) fn size(write: &Write) -> usize {
    match write {
        Write::CallStart(start) => start.request.len(),
        Write::CallEnd(end) => end_size(end),
        _ => 0,
    }
}

fn end_size(end: &CallEnd) -> usize {
    let raw = &end.raw;
    let tokens = end.capture.prompt_ids.len() + end.capture.completion_ids.len() * 3;
    // The request waits with it where its start was not kept.
    end.start.request.len() + raw.upstream.len() + raw.response.len() + raw.prompt.len() + tokens * 4
}

/// The queue: many push, one takes.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    places: Arc<Semaphore>,
    depth: u32,
}

#[derive(Debug)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// When something that waits must be committed.
    due: Option<Instant>,
    /// Until when the thread sleeps unless it is woken; `None` while it is awake.
    asleep_until: Option<Instant>,
    last_push: Instant,
    /// Writes that could not be kept by the store and are to be tried again.
    kept: VecDeque<Item>,
    kept_bytes: usize,
    kept_at: Instant,
    kept_turn: bool,
    closed: bool,
    refused: usize,
}

impl Queue {
    pub(super) fn new(depth: usize) -> Self {
        let depth = u32::try_from(depth.clamp(1, Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let state = State {
            items: VecDeque::new(),
            bytes: 0,
            due: None,
            asleep_until: None,
            last_push: Instant::now(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            kept_at: Instant::now(),
            kept_turn: false,
            closed: false,
            refused: 0,
        };
        Self { state: Mutex::new(state), work: Condvar::new(), places: Arc::new(Semaphore::new(depth as usize)), depth }
    }

    /// Waits for room for a write of so many bytes; a large one takes several places. `None` once the queue is closed.
    pub(super) async fn place(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let places = 1 + bytes.saturating_mul(self.depth as usize) / MOST_BYTES;
        let places = u32::try_from(places).unwrap_or(u32::MAX).min(self.depth);
        Arc::clone(&self.places).acquire_many_owned(places).await.ok()
    }

    /// Puts a write at the end. A closed queue refuses it: who waits for its answer is told by the answer's end.
    pub(super) fn push(&self, item: Item) {
        let mut state = self.lock();
        if state.closed {
            state.refused += 1;
            return;
        }
        let now = Instant::now();
        state.add(item, now);
        if state.due.is_some_and(|due| state.asleep_until.is_some_and(|until| due < until)) {
            state.asleep_until = None;
            drop(state);
            self.work.notify_one();
        }
    }

    /// Keeps writes for another try after `pause`, apart from the others, which need not wait for them. Gives the oldest up
    /// where too much would wait, and says how many.
    pub(super) fn keep(&self, items: Vec<Item>, pause: Duration) -> usize {
        let mut state = self.lock();
        state.kept_at = Instant::now() + pause;
        state.kept_bytes += items.iter().map(|item| item.bytes).sum::<usize>();
        for item in items.into_iter().rev() {
            state.kept.push_front(item);
        }
        let mut given_up = 0;
        while state.kept_bytes > MOST_KEPT
            && let Some(oldest) = state.kept.pop_front()
        {
            state.kept_bytes -= oldest.bytes;
            given_up += 1;
        }
        given_up
    }

    /// Waits for a batch that is due, and takes it; `None` once the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Item>> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            let due = !state.items.is_empty() && (state.closed || state.due.is_some_and(|due| due <= now));
            let again = !state.kept.is_empty() && (state.closed || state.kept_at <= now);
            if due || again {
                state.asleep_until = None;
                // Turn by turn: neither waits for the end of the other.
                let kept = again && (state.kept_turn || !due);
                return Some(if kept { state.kept_batch() } else { state.batch(now) });
            }
            if state.closed {
                return None;
            }
            let look = (now.duration_since(state.last_push) <= QUIET).then(|| now + LOOK);
            let kept = (!state.kept.is_empty()).then_some(state.kept_at);
            let until = [state.due, look, kept].into_iter().flatten().min();
            // Without anything to come, far enough to be woken for whatever comes.
            let until = until.unwrap_or(now + Duration::from_hours(1));
            state.asleep_until = Some(until);
            state = self.work.wait_timeout(state, until - now).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Refuses writes from now on.
    pub(super) fn close(&self) {
        self.places.close();
        self.lock().closed = true;
        self.work.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Lets go of all that waits: there is nobody to take it.
    pub(super) fn abandon(&self) {
        self.close();
        // Dropped outside the lock: answers wake their tasks.
        let mut state = self.lock();
        let items = (std::mem::take(&mut state.items), std::mem::take(&mut state.kept));
        drop(state);
        drop(items);
    }

    /// How many writes came after the end.
    pub(super) fn refused(&self) -> usize {
        self.lock().refused
    }

    pub(super) fn waiting(&self) -> usize {
        let state = self.lock();
        state.items.len() + state.kept.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, item: Item, now: Instant) {
        self.last_push = now;
        self.bytes += item.bytes;
        let full = self.items.len() + 1 >= BATCH || self.bytes >= BATCH_BYTES;
        let at = if full { now } else { now + item.within };
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        self.items.push_back(item);
    }

    fn batch(&mut self, now: Instant) -> Vec<Item> {
        self.kept_turn = true;
        let (batch, bytes) = front(&mut self.items);
        self.bytes -= bytes;
        self.due = if self.items.is_empty() { None } else { Some(now) };
        batch
    }

    fn kept_batch(&mut self) -> Vec<Item> {
        self.kept_turn = false;
        let (batch, bytes) = front(&mut self.kept);
        self.kept_bytes -= bytes;
        batch
    }
}

/// Takes as much as goes into one transaction off the front, and says how many bytes that is.
fn front(items: &mut VecDeque<Item>) -> (Vec<Item>, usize) {
    let (mut count, mut bytes) = (0, 0);
    while count < items.len().min(BATCH) && (count == 0 || bytes + items[count].bytes <= BATCH_BYTES) {
        bytes += items[count].bytes;
        count += 1;
    }
    (items.drain(..count).collect(), bytes)
}
