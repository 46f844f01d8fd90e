//! Threads: conversations that clients leave to the server. They go on from a reply by its name, and send what is new; the rest is
//! in the store. The SDKs' tool runners do so of themselves.

use std::collections::HashSet;

use bytes::Bytes;

use super::error::LOST_THREAD;
use super::reply;
use super::turns::{MESSAGE, State, Turns};
use crate::call::{CallStatus, Failure, FailureKind, Kept};
use crate::ids::CallId;
use crate::wire::fields::{self, At, Fields};

/// The field of a request that its place in a thread depends on.
const LINK: [&str; 1] = ["thread"];

/// What stands before a request's own messages.
#[derive(Default)]
pub(super) struct Held<'a> {
    pub(super) state: State,
    /// The request that began the thread, whose system prompt and tools are those of all.
    pub(super) first: Option<&'a Bytes>,
}

/// The name of a call's message.
pub(super) fn name(call: CallId) -> String {
    format!("msg_{}", reply::hex(call))
}

/// The call that a request goes on from.
///
/// # Errors
/// If no message of ours could have that name.
pub(super) fn previous<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Option<CallId>, Failure> {
    let Some(thread) = fields.object(at, "thread", &["previous_message_id"])? else { return Ok(None) };
    let Some(name) = thread.string(&At::Field(at, "thread"), "previous_message_id")? else { return Ok(None) };
    message(&name).map(Some).ok_or_else(|| lost(&name))
}

/// The same of a request that was read before.
pub(super) fn needs(request: &Bytes) -> Vec<CallId> {
    let link = fields::read_plain(request, &LINK);
    link.and_then(|link| previous(&At::Body, &link)).ok().flatten().into_iter().collect()
}

/// What the thread of a request holds, of the calls that are known.
///
/// # Errors
/// If a whole reply that the request goes on from is not among them.
pub(super) fn held<'a>(request: &Bytes, earlier: &[&'a Kept]) -> Result<Held<'a>, Failure> {
    let (mut chain, mut seen, mut next) = (Vec::new(), HashSet::new(), needs(request).pop());
    while let Some(call) = next {
        let kept = earlier.iter().copied().find(|kept| kept.record.id == call);
        let kept = kept.filter(|kept| kept.record.status == CallStatus::Done && seen.insert(call));
        let kept = kept.ok_or_else(|| lost(&name(call)))?;
        next = needs(&kept.request).pop();
        chain.push(kept);
    }
    let mut state = State::default();
    for kept in chain.iter().rev() {
        let mut turns = Turns::after(state, &kept.request);
        fields::read(&kept.request, &LINK, "messages", &MESSAGE, &mut turns)?;
        state = turns.state();
        if let Some(message) = &kept.record.message {
            state.reply(message);
        }
    }
    Ok(Held { state, first: chain.last().map(|kept| &kept.request) })
}

/// The call whose message has this name.
fn message(name: &str) -> Option<CallId> {
    CallId::from_digits(name.strip_prefix("msg_")?)
}

/// SDKs send all of the conversation again where its thread is lost.
fn lost(name: &str) -> Failure {
    let what = format!("there is no thread at {name:?}: it must be a whole reply of the same rollout");
    Failure { param: Some(LOST_THREAD.to_owned()), ..Failure::new(FailureKind::NotFound, what) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        let call = CallId(uuid::Uuid::from_u128(0xabc));
        assert_eq!(message(&name(call)), Some(call));
        for other in ["", "msg_", "msg_1", "msg_00000000-0000-0000-0000-000000000abc", "msg_00000000000000000000000000000ABC"] {
            assert_eq!(message(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_not_known_is_lost() {
        let request = Bytes::from_static(br#"{"thread":{"type":"continue","previous_message_id":"msg_1"},"messages":[]}"#);
        let link = fields::read_plain(&request, &LINK).unwrap();
        let failure = previous(&At::Body, &link).unwrap_err();
        assert_eq!((failure.status, failure.param.as_deref()), (404, Some(LOST_THREAD)));
        assert_eq!(needs(&request), vec![]);
        let call = CallId(uuid::Uuid::from_u128(7));
        let request = Bytes::from(format!(r#"{{"thread":{{"type":"continue","previous_message_id":"{}"}}}}"#, name(call)));
        assert_eq!(needs(&request), vec![call]);
        assert!(held(&request, &[]).is_err_and(|failure| failure.message.contains(&name(call))));
    }
}
