//! Runs unmodified harnesses in sandboxes.

pub mod helper;
