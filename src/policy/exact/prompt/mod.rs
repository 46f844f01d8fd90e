//! From a call to its prompt's ids: what was sampled before is spliced in, only what is new is rendered and encoded.

use super::model::Model;
use crate::call::{Call, Failure};
use crate::policy::names::Names;
use crate::policy::{PolicyConfig, Prompted, Transcript};

/// Makes a call's prompt; adds to `notes` what people should know.
///
/// # Errors
/// If the template refuses the conversation, or the server that should render it can't be reached.
pub(super) async fn make(
    _model: &Model,
    _config: &PolicyConfig,
    _call: &Call,
    _names: &Names,
    _transcript: &Transcript,
    _notes: &mut Vec<String>,
) -> Result<Prompted, Failure> {
    Err(Failure::new(crate::call::FailureKind::Unavailable, "not built yet"))
}
