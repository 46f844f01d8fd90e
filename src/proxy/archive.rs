//! Replies that clients refer to in later requests, or ask for again.

use bytes::Bytes;

use crate::call::{Call, Failure, FailureKind};
use crate::export::Earlier;
use crate::ids::RolloutId;
use crate::store::StoreError;
use crate::wire::{Target, Wire};

use super::{App, Live};

/// Reads a request of this rollout, with what it goes on from.
pub(super) async fn read(
    app: &App,
    wire: &dyn Wire,
    rollout: RolloutId,
    target: &str,
    body: &Bytes,
) -> Result<Vec<Call>, Failure> {
    Earlier::new(app.store.as_ref(), rollout).read(wire, target, body).await.map_err(|error| unread(&error))?
}

/// Answers a request about a reply that was given before. A rollout sees its own calls only; `None` is nobody's rollout.
///
/// # Errors
/// If the wire keeps no replies, has none of that name for this rollout, or the store fails.
pub async fn recall(app: &App, wire: &dyn Wire, rollout: Option<&Live>, method: &str, target: &str) -> Result<Vec<u8>, Failure> {
    let target = Target::read(target);
    let Some(archive) = wire.archive() else {
        return Err(Failure::new(FailureKind::NotFound, format!("{} keeps no replies", wire.name())));
    };
    let call = archive.about(method, target)?;
    let Some(rollout) = rollout else { return archive.answer(method, target, None, &[]) };
    let mut earlier = Earlier::new(app.store.as_ref(), rollout.id());
    let (kept, others) = earlier.kept(wire, call).await.map_err(|error| unread(&error))??;
    archive.answer(method, target, kept, &others)
}

fn unread(error: &StoreError) -> Failure {
    Failure::new(FailureKind::NotRecorded, format!("what was said before could not be read: {error}"))
}
