//! What the fuzz targets do with their input, each in its module, and the parts of Gleaner that they do it to.
//!
//! Gleaner's pure modules are compiled here from their sources, not taken from its library: so their private seams stay private,
//! and a build with coverage takes seconds, since no server, store or engine comes with them.

#![allow(dead_code, unfulfilled_lint_expectations, reason = "the sources are whole, the targets use a part of each")]

#[path = "../../src/call/mod.rs"]
pub mod call;
#[path = "../../src/ids.rs"]
pub mod ids;
pub mod policy;
#[path = "../../src/wire/mod.rs"]
pub mod wire;

pub mod decode;
pub mod encode;
pub mod json;
pub mod output;
pub mod parse;
pub mod readers;
pub mod sse;

/// The wire that a target is run for, named by the environment: each wire has a corpus of its own.
pub fn chosen_wire() -> &'static dyn wire::Wire {
    let name = std::env::var("FUZZ_WIRE").expect("FUZZ_WIRE names the wire");
    wire::named(&name).unwrap_or_else(|| panic!("there is no wire {name:?}"))
}
