//! Tells what became of a run by what the harness itself wrote; its exit code only where it wrote nothing.

use serde_json::{Map, Value};

use super::run::Exit;
use super::spec::{Meaning, OutcomeRule, OutcomeSpec, ResultForm};

/// What a harness's result says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub meaning: Meaning,
    /// What is kept of it as evidence.
    pub detail: Map<String, Value>,
}

/// Reads a result. `None` if it has nothing that a rule fits.
#[must_use]
pub fn read(spec: &OutcomeSpec, result: &[u8]) -> Option<Reading> {
    match spec.form {
        ResultForm::Json => reading(spec, &serde_json::from_slice(result).ok()?),
        ResultForm::Lines => {
            let mut lines = result.split(|byte| *byte == b'\n').rev();
            lines.find_map(|line| reading(spec, &serde_json::from_slice(line).ok()?))
        }
    }
}

/// What a run without a readable result means: its exit code is all that is left.
#[must_use]
pub fn by_exit(exit: Exit) -> Meaning {
    if exit.code == Some(0) { Meaning::Completed } else { Meaning::Error }
}

fn reading(spec: &OutcomeSpec, value: &Value) -> Option<Reading> {
    let rule = spec.rules.iter().find(|rule| fits(rule, value))?;
    let found = spec.detail.iter().filter_map(|pointer| Some((pointer.clone(), bounded(value.pointer(pointer)?))));
    Some(Reading { meaning: rule.means, detail: found.collect() })
}

/// Evidence is for people: long texts are cut.
fn bounded(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if text.len() > 2_000 => Value::String(text.chars().take(2_000).chain(['…']).collect()),
        _ => value.clone(),
    }
}

fn fits(rule: &OutcomeRule, value: &Value) -> bool {
    rule.when.iter().all(|(pointer, pattern)| match value.pointer(pointer) {
        Some(Value::String(text)) => matches_pattern(pattern, text),
        Some(other) => matches_pattern(pattern, &other.to_string()),
        None => false,
    })
}

/// Whether `text` fits `pattern` as a whole: `*` is any text, `?` any character.
#[must_use]
pub fn matches_pattern(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut seen) = (0, 0);
    // Where the last star stands, and how much of the text it has taken.
    let mut star: Option<(usize, usize)> = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(&expected) if expected == '?' || expected == text[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match star {
                Some((place, taken)) => {
                    star = Some((place, taken + 1));
                    at = place + 1;
                    seen = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests {
    use super::super::catalog::Catalog;
    use super::*;

    fn outcome(harness: &str, result: &str) -> Option<Meaning> {
        let catalog = Catalog::load(None).unwrap();
        read(&catalog.get(harness).unwrap().spec.outcome, result.as_bytes()).map(|reading| reading.meaning)
    }

    #[test]
    fn the_last_fitting_line_of_codex_decides() {
        let retried = "{\"type\":\"thread.started\"}\n{\"type\":\"error\",\"message\":\"Reconnecting... 1/2\"}\nnot json\n";
        assert_eq!(outcome("codex", retried), None);
        assert_eq!(outcome("codex", &format!("{retried}{{\"type\":\"turn.completed\"}}\n")), Some(Meaning::Completed));
        let failed = format!("{retried}{{\"type\":\"turn.failed\",\"error\":{{\"message\":\"stream disconnected\"}}}}\n");
        assert_eq!(outcome("codex", &failed), Some(Meaning::Error));
        let cut = failed.replace("stream disconnected", "Incomplete response returned, reason: max_output_tokens");
        assert_eq!(outcome("codex", &cut), Some(Meaning::Truncated));
    }

    #[test]
    fn the_trajectory_of_mini_decides() {
        let says = |status: &str| outcome("mini-swe-agent", &format!("{{\"info\":{{\"exit_status\":\"{status}\"}}}}"));
        assert_eq!(says("Submitted"), Some(Meaning::Completed));
        assert_eq!(says("RepeatedFormatError"), Some(Meaning::GaveUp));
        assert_eq!(says("LimitsExceeded"), Some(Meaning::GaveUp));
        assert_eq!(says("ContextWindowExceededError"), Some(Meaning::Truncated));
        assert_eq!(says("InternalServerError"), Some(Meaning::Error));
        assert_eq!(says(""), None);
        assert_eq!(outcome("mini-swe-agent", "{\"info\""), None);
    }

    #[test]
    fn evidence_is_bounded() {
        let long = format!("{{\"type\":\"turn.failed\",\"error\":{{\"message\":\"{}\"}}}}", "ä".repeat(9_000));
        let catalog = Catalog::load(None).unwrap();
        let reading = read(&catalog.get("codex").unwrap().spec.outcome, long.as_bytes()).unwrap();
        assert_eq!(reading.detail["/error/message"].as_str().unwrap().chars().count(), 2_001);
        assert_eq!(reading.detail["/type"], "turn.failed");
    }

    #[test]
    fn patterns_fit_whole_texts() {
        for (pattern, text, fits) in [
            ("", "", true),
            ("*", "", true),
            ("?*", "", false),
            ("a*c", "abbc", true),
            ("a*c", "abbcd", false),
            ("*ab*ab", "ababab", true),
            ("a?c", "aüc", true),
            ("abc", "ab", false),
        ] {
            assert_eq!(matches_pattern(pattern, text), fits, "{pattern:?} on {text:?}");
        }
    }
}
