//! Gleaner records every model call of unmodified agent harnesses as exact training tokens, and runs those harnesses in
//! containers.
//!
//! # The way of a call
//! ```text
//! harness -> http -> wire.parse -> Call -> place (which rollout?) -> policy.prepare, send -> upstream
//! harness <- wire.encode <- tee <------------ Event stream <-------- policy.next <--------- upstream
//!                            \-> fold -> CallEnd -> recorder (group commit) -> store
//! store -> trajectory.build -> samples -> export | API
//! ```
//!
//! # What never happens
//! - A client sees a reply as whole that is not in the store.
//! - A token's id or log-probability is made up: what the server did not tell lowers the call's level, and says why.
//! - A sampled token is trained twice, or one of a reply that was not delivered at all.
//! - A call is dropped without a reason, or a body or a credential is logged.
//! - A wire knows another wire, or a policy a wire: both know [`call`] alone.
//! - A request builds a tree of its whole body on its way, or a rollout's key opens the API.
//!
//! `ARCHITECTURE.md` has the words, the layers and the decisions.

pub mod call;
pub mod config;
pub mod engine;
pub mod export;
pub mod harness;
pub mod http;
pub mod ids;
pub mod policy;
pub mod proxy;
pub mod record;
pub mod store;
pub mod telemetry;
pub mod trajectory;
pub mod wire;

pub mod cli;
