//! What `OpenAI`'s APIs have in common about tools.

use bytes::Bytes;
use serde_json::value::RawValue;

use crate::call::{Text, ToolKind};

/// What a tool of an earlier turn was called with.
pub(super) fn arguments(body: &Bytes, kind: ToolKind, given: Option<&RawValue>) -> Text {
    // Some clients send the object itself where its text belongs.
    let given = given.map(|value| Text::of(body, value).unwrap_or_else(|| Text::new(value.get())));
    match kind {
        // Templates read a function's arguments as JSON, which nothing is not.
        ToolKind::Function => given.filter(|text| !text.is_empty()).unwrap_or_else(|| Text::new("{}")),
        ToolKind::Custom => given.unwrap_or_else(|| Text::new("")),
    }
}

/// A custom tool's description with its grammar. Policies are offered the tool as a function, which has none: the model must be
/// told it to be able to keep to it.
pub(super) fn with_grammar(description: Option<&Text>, syntax: &str, definition: &str) -> Text {
    let before = description.map(Text::decode).unwrap_or_default();
    Text::new(&format!("{before}\n\nThe input must fit this {syntax} grammar:\n{definition}"))
}
