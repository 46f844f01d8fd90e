//! What a trainer reads.

use serde::{Deserialize, Serialize};

/// One leaf of the forest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {}
/// S
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {}
/// L
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LeftOut {}
/// R
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reason {}
