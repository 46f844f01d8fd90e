//! Whether a store still gives what it was given: every request read anew, every sample built anew.

use serde::Serialize;

use super::{Earlier, ExportError, build};
use crate::call::{CallRecord, CallStatus, CaptureLevel, RawKind};
use crate::store::{Checked, Fault, Rollout, RolloutFilter, Store, StoreError};
use crate::trajectory::Drift;
use crate::{trajectory, wire};

/// What a look at all of a store, and at what is made of it, came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verified {
    #[serde(flatten)]
    pub store: Checked,
    /// Requests that were read anew by their wire.
    pub requests: u64,
    /// Samples that were built anew and hold their invariants.
    pub samples: u64,
}

/// Looks at all of a store. `trained` says of a policy's name whether it is trained.
///
/// # Errors
/// If the store can't be read at all; what is wrong in it is a fault.
pub async fn verify(store: &dyn Store, trained: &(dyn Fn(&str) -> bool + Sync)) -> Result<Verified, StoreError> {
    let mut verified = Verified { store: store.check().await?, ..Verified::default() };
    let mut filter = RolloutFilter { limit: 100, ..RolloutFilter::default() };
    loop {
        let page = match store.rollouts(&filter).await {
            Ok(page) if page.is_empty() => return Ok(verified),
            Ok(page) => page,
            Err(error) => {
                let what = error.to_string();
                verified.store.faults.push(Fault { rollout: None, call: None, part: "rollouts".to_owned(), what });
                return Ok(verified);
            }
        };
        filter.after = page.last().map(|rollout| rollout.id);
        for rollout in page {
            verified.rollout(store, &rollout, trained).await?;
        }
    }
}

impl Verified {
    async fn rollout(
        &mut self,
        store: &dyn Store,
        rollout: &Rollout,
        trained: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<(), StoreError> {
        // Calls that the store can't read are its own faults, named already.
        let Ok(records) = store.calls(rollout.id).await else { return Ok(()) };
        let mut earlier = Earlier::new(store, rollout.id);
        for record in &records {
            self.request(store, record, &mut earlier).await;
            if let Some(what) = counts(record) {
                self.fault(record, "record", what);
            }
        }
        match build(store, rollout, trained, Drift::Fork).await {
            Ok(built) => match trajectory::check(&built.samples) {
                Ok(()) => self.samples += built.samples.len() as u64,
                Err(broken) => self.of_rollout(rollout, broken.to_string()),
            },
            // Again the store's own.
            Err(ExportError::Store(_)) => {}
            Err(error) => self.of_rollout(rollout, error.to_string()),
        }
        Ok(())
    }

    async fn request(&mut self, store: &dyn Store, record: &CallRecord, earlier: &mut Earlier<'_>) {
        let Some(wire) = wire::named(&record.wire) else {
            return self.fault(record, "record", format!("there is no wire {}", record.wire));
        };
        // One that was refused may be anything.
        if record.status != CallStatus::Done {
            return;
        }
        let Ok(Some(body)) = store.raw(record.id, RawKind::Request).await else { return };
        match earlier.read(wire, &record.target, &body).await {
            Ok(Ok(calls)) if calls.len() > record.choice as usize => self.requests += 1,
            Ok(Ok(calls)) => {
                self.fault(record, "request", format!("it asks for {} replies, and this is {}", calls.len(), record.choice));
            }
            Ok(Err(failure)) => self.fault(record, "request", format!("its wire does not read it: {}", failure.message)),
            // The store's own.
            Err(_) => {}
        }
    }

    fn fault(&mut self, record: &CallRecord, part: &str, what: String) {
        let (rollout, call) = (Some(record.rollout_id), Some(record.id));
        self.store.faults.push(Fault { rollout, call, part: part.to_owned(), what });
    }

    fn of_rollout(&mut self, rollout: &Rollout, what: String) {
        self.store.faults.push(Fault { rollout: Some(rollout.id), call: None, part: "samples".to_owned(), what });
    }
}

/// What does not fit among a record's counts.
fn counts(record: &CallRecord) -> Option<String> {
    let capture = &record.capture;
    if capture.level != CaptureLevel::Full {
        return None;
    }
    let (prompt, completion, logprobs) = (capture.prompt_ids.len(), capture.completion_ids.len(), capture.logprobs.len());
    let usage = record.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens));
    let holds = completion == logprobs && usage.is_none_or(|usage| usage == (prompt as u64, completion as u64));
    (!holds).then(|| {
        format!("{prompt} prompt ids, {completion} completion ids, {logprobs} log-probabilities; the server counted {usage:?}")
    })
}
