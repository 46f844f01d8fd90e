//! A wire's reading of a request: what is refused is refused as the client's fault and in the wire's form; what is taken can be
//! written for a policy, and a reply to it can be written.

use bytes::Bytes;

use crate::call::{Call, Failure};
use crate::wire::{ReplyHead, Wire};
use crate::{encode, json, policy};

/// Reads `data` as a body of the chosen wire.
pub fn run(data: &[u8]) {
    check(crate::chosen_wire(), data);
}

/// Reads `data` as a body of `wire`.
pub fn check(wire: &dyn Wire, data: &[u8]) {
    match wire.parse(&Bytes::copy_from_slice(data)) {
        Err(failure) => refused(wire, &failure),
        Ok(call) => taken(wire, &call),
    }
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
    let head = ReplyHead { call_id: encode::call_id(), created: 1, model: call.model.clone() };
    let mut out = Vec::new();
    wire.encoder(call, head.clone()).whole(&encode::short_reply(), &mut out);
    json::ours(&out);
}
