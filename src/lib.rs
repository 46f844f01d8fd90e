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
