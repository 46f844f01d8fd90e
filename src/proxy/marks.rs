//! What a call's headers say of its place among its rollout's conversations.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::call::Mark;
use crate::harness::matches_pattern;

/// The headers by which harnesses tell the calls of sub-agents and other calls beside the conversation, as real ones were seen to.
const HEADERS: [&str; 4] = ["x-openai-subagent", "x-codex-parent-thread-id", "x-claude-code-agent-id", "x-parent-session-id"];
/// Codex says in a field of this one's JSON what a call is for.
const TURN_METADATA: &str = "x-codex-turn-metadata";
/// Of a longer value no more is kept.
const VALUE_BYTES: usize = 200;

/// Reads the marks of a call. `signature` is what all calls of its rollout's harness look like: header names and patterns of
/// their values; empty where that is not known.
pub fn marks_of<'a>(header: impl Fn(&str) -> Option<&'a str>, signature: &BTreeMap<String, String>) -> Vec<Mark> {
    let sent = HEADERS.iter().filter_map(|name| Some(mark(name, header(name)?)));
    let kind = header(TURN_METADATA).and_then(request_kind).map(|kind| mark(Mark::REQUEST_KIND, &kind));
    let foreign = signature.iter().find_map(|(name, pattern)| match header(name) {
        Some(value) if matches_pattern(pattern, value) => None,
        Some(value) => Some(mark(Mark::FOREIGN, &format!("{name} is {value:?}, not {pattern:?}"))),
        None => Some(mark(Mark::FOREIGN, &format!("it has no header {name}"))),
    });
    sent.chain(kind).chain(foreign).collect()
}

fn mark(name: &str, value: &str) -> Mark {
    Mark { name: name.to_owned(), value: value[..value.floor_char_boundary(VALUE_BYTES)].to_owned() }
}

fn request_kind(metadata: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Metadata {
        request_kind: Option<String>,
    }
    serde_json::from_str::<Metadata>(metadata).ok()?.request_kind
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(headers: &[(&str, &str)], signature: &[(&str, &str)]) -> Vec<(String, String)> {
        let signature = signature.iter().map(|(name, pattern)| ((*name).to_owned(), (*pattern).to_owned())).collect();
        let header = |wanted: &str| headers.iter().find(|(name, _)| *name == wanted).map(|(_, value)| *value);
        marks_of(header, &signature).into_iter().map(|mark| (mark.name, mark.value)).collect()
    }

    #[test]
    fn what_harnesses_say_of_a_call_is_kept() {
        assert_eq!(marks(&[("user-agent", "x"), ("x-codex-turn-metadata", "not json")], &[]), []);
        let long = "é".repeat(VALUE_BYTES);
        let said = marks(
            &[
                ("x-openai-subagent", "collab_spawn"),
                ("x-codex-turn-metadata", r#"{"turn_id":"a","request_kind":"compaction"}"#),
                ("x-parent-session-id", &long),
            ],
            &[],
        );
        let expected = [
            ("x-openai-subagent", "collab_spawn".to_owned()),
            ("x-parent-session-id", "é".repeat(VALUE_BYTES / 2)),
            ("request_kind", "compaction".to_owned()),
        ];
        assert_eq!(said, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn a_call_without_the_harness_s_signature_is_foreign() {
        let signature = [("user-agent", "codex*")];
        assert_eq!(marks(&[("user-agent", "codex_exec/0.171.0")], &signature), []);
        let foreign = |why: &str| vec![("foreign".to_owned(), why.to_owned())];
        assert_eq!(marks(&[("user-agent", "curl/8.5")], &signature), foreign("user-agent is \"curl/8.5\", not \"codex*\""));
        assert_eq!(marks(&[], &signature), foreign("it has no header user-agent"));
    }
}
