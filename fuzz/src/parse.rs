//! A wire's reading of a request: what is refused is refused as the client's fault and in the wire's form; what is taken can be
//! written for a policy, and a reply to it can be written.

use bytes::Bytes;

use crate::call::{Call, Failure};
use crate::wire::{ReplyHead, Target, Wire};
use crate::{encode, json, policy};

/// Reads `data` as a body of the chosen wire.
pub fn run(data: &[u8]) {
    check(crate::chosen_wire(), data);
}

/// Reads `data` as a body of `wire`. A first byte that no JSON begins with chooses where it is posted.
pub fn check(wire: &dyn Wire, data: &[u8]) {
    let targets = targets(wire);
    let (target, body) = match data {
        [choice, body @ ..] if usize::from(*choice) < targets.len() => (&targets[usize::from(*choice)], body),
        body => (&targets[0], body),
    };
    match wire.parse(Target::read(target), &Bytes::copy_from_slice(body)) {
        Err(failure) => refused(wire, &failure),
        Ok(calls) => {
            assert!(!calls.is_empty());
            // The calls of one request differ in their seeds and prompts.
            calls.first().into_iter().chain(calls.last()).for_each(|call| taken(wire, call));
        }
    }
}

/// Where requests of this wire are posted.
fn targets(wire: &dyn Wire) -> Vec<String> {
    let verbs = ["generateContent", "streamGenerateContent?alt=sse", "streamGenerateContent", "countTokens", "embedContent"];
    let target = |path: &&str| match path.strip_suffix("{*model}") {
        Some(folder) => verbs.iter().map(|verb| format!("{folder}m:{verb}")).collect(),
        None => vec![(*path).to_owned()],
    };
    wire.paths().iter().flat_map(target).take(9).collect()
}

fn refused(wire: &dyn Wire, failure: &Failure) {
    assert!((400..500).contains(&failure.status), "{failure:?}");
    assert!(!failure.message.is_empty(), "{failure:?}");
    json::ours(&wire.failure(failure));
}

fn taken(wire: &dyn Wire, call: &Call) {
    assert_eq!(call.wire, wire.name());
    assert!(call.notes.iter().all(|note| !note.is_empty()));
    for written in policy::written(call) {
        // What a client sent twice inside a value that nobody here reads stays as it is, so this is serde's leniency.
        let read = serde_json::from_slice::<serde::de::IgnoredAny>(&written);
        assert!(read.is_ok(), "{read:?}: {}", String::from_utf8_lossy(&written));
    }
    let head = ReplyHead { call_id: encode::call_id(), choice: 0, created: 1, model: call.model.clone() };
    let mut out = Vec::new();
    wire.encoder(call, head).whole(&[encode::short_reply()], &mut out);
    json::read(&out).unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&out)));
}
