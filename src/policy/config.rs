//! The `[policies.NAME]` section.

use serde::Deserialize;

/// One policy's settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct PolicyConfig {}
