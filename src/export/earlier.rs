//! Requests that go on from earlier calls, read whole: what they leave out is in the store.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use crate::call::{Call, Capture, Failure, Kept, RawKind};
use crate::ids::{CallId, RolloutId};
use crate::store::{Store, StoreError};
use crate::wire::{Target, Wire};

/// How many earlier calls one request may need, and how many bytes their requests may have: as much as the history of one that
/// sends it itself.
const MOST: usize = 4096;
const MOST_BYTES: usize = 64 << 20;

/// Earlier calls of one rollout, each read once.
pub struct Earlier<'a> {
    store: &'a dyn Store,
    rollout: RolloutId,
    known: HashMap<CallId, Option<Kept>>,
}

impl<'a> Earlier<'a> {
    /// The calls of this rollout, none of them read yet.
    #[must_use]
    pub fn new(store: &'a dyn Store, rollout: RolloutId) -> Self {
        Self { store, rollout, known: HashMap::new() }
    }

    /// Reads a request that was posted to `target`, with what it goes on from.
    ///
    /// # Errors
    /// The outer one if the store fails, the inner if it is no request of the wire or goes on from what is not there.
    pub async fn read(&mut self, wire: &dyn Wire, target: &str, body: &Bytes) -> Result<Result<Vec<Call>, Failure>, StoreError> {
        let calls = match wire.parse(Target::read(target), body) {
            Ok(calls) => calls,
            Err(failure) => return Ok(Err(failure)),
        };
        let needed: Vec<CallId> =
            calls.iter().flat_map(|call| call.previous.into_iter().chain(call.quotes.iter().copied())).collect();
        if needed.is_empty() {
            return Ok(Ok(calls));
        }
        match self.gather(wire, needed).await? {
            Ok(earlier) => Ok(wire.resume(Target::read(target), body, &earlier)),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// The call of this id, with all that it goes on from; `None` if the rollout has none of this wire.
    ///
    /// # Errors
    /// As [`Earlier::read`].
    pub async fn kept(
        &mut self,
        wire: &dyn Wire,
        id: CallId,
    ) -> Result<Result<(Option<&Kept>, Vec<&Kept>), Failure>, StoreError> {
        match self.gather(wire, vec![id]).await? {
            Ok(earlier) => Ok(Ok((earlier.iter().copied().find(|kept| kept.record.id == id), earlier))),
            Err(failure) => Ok(Err(failure)),
        }
    }

    /// The calls of these ids and those that they need in turn, as far as there are any.
    async fn gather(&mut self, wire: &dyn Wire, needed: Vec<CallId>) -> Result<Result<Vec<&Kept>, Failure>, StoreError> {
        let (mut wanted, mut seen, mut bytes) = (needed, HashSet::new(), 0);
        while let Some(id) = wanted.pop() {
            if !seen.insert(id) {
                continue;
            }
            if let Some(kept) = self.load(wire, id).await? {
                bytes += kept.request.len();
                wanted.extend(wire.needs(Target::read(&kept.record.target), &kept.request));
            }
            if seen.len() > MOST || bytes > MOST_BYTES {
                let message = format!(
                    "this goes on from more than {MOST} calls or {MOST_BYTES} bytes of requests; send the conversation itself"
                );
                return Ok(Err(Failure::invalid("previous_response_id", message)));
            }
        }
        Ok(Ok(self.known.iter().filter(|(id, _)| seen.contains(id)).filter_map(|(_, kept)| kept.as_ref()).collect()))
    }

    async fn load(&mut self, wire: &dyn Wire, id: CallId) -> Result<Option<&Kept>, StoreError> {
        if !self.known.contains_key(&id) {
            let kept = self.fetch(wire, id).await?;
            self.known.insert(id, kept);
        }
        Ok(self.known.get(&id).and_then(Option::as_ref))
    }

    async fn fetch(&self, wire: &dyn Wire, id: CallId) -> Result<Option<Kept>, StoreError> {
        let Some(mut record) = self.store.call(id).await? else { return Ok(None) };
        // Another rollout's are none of this one's business.
        if record.rollout_id != self.rollout || record.wire != wire.name() {
            return Ok(None);
        }
        let Some(request) = self.store.raw(id, RawKind::Request).await? else { return Ok(None) };
        // Tokens are most of a record, and say nothing here.
        record.capture = Capture::default();
        Ok(Some(Kept { record, request }))
    }
}
