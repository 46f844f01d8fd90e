//! The one writer: a bounded queue that pushes back, group commit, drain.

use std::sync::Arc;

use crate::call::{CallEnd, CallStart};
use crate::ids::CallId;
use crate::store::{StoreError, Write, Writer};

/// Hands writes to the store's one writer, which commits them in groups on a thread of its own. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Recorder {
    _todo: Arc<()>,
}

impl Recorder {
    /// Starts the writer's thread. `depth` bounds the queue: when it is full, whoever writes waits.
    #[must_use]
    pub fn start(_writer: Box<dyn Writer>, _depth: usize) -> Self {
        todo!()
    }

    /// Makes a call known from its start. Waits for a place in the queue, not for the commit.
    pub async fn call_started(&self, _start: Arc<CallStart>) {
        todo!()
    }

    /// Records a call's end, and returns once it is committed. If it could not be, the reply must not count as given.
    ///
    /// # Errors
    /// If the store could not commit.
    pub async fn call_ended(&self, _end: Box<CallEnd>) -> Result<(), StoreError> {
        todo!()
    }

    /// Records a call's end from where nothing can be waited for (a client hung up). Never blocks, never loses it while the
    /// process lives: past the queue's bound it waits in memory.
    pub fn call_abandoned(&self, _end: Box<CallEnd>) {
        todo!()
    }

    /// Notes that a reply's last byte was handed to the client. Committed within a second, not waited for.
    pub fn delivered(&self, _call: CallId) {
        todo!()
    }

    /// Writes anything else and waits for the commit.
    ///
    /// # Errors
    /// If the store could not commit.
    pub async fn write(&self, _write: Write) -> Result<(), StoreError> {
        todo!()
    }

    /// Writes waiting, for metrics and readiness.
    #[must_use]
    pub fn waiting(&self) -> usize {
        todo!()
    }

    /// Takes no more writes, commits what waits, and ends the thread. Says how many writes were lost, if any.
    pub async fn drain(&self) -> usize {
        todo!()
    }
}
