//! Docker.

/// A Docker engine.
pub struct Docker;
