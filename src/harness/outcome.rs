//! Tells what became of a run by what the harness itself wrote; its exit code only where it wrote nothing.

use serde_json::{Map, Value};

use super::run::Exit;
use super::spec::{Meaning, OutcomeRule, OutcomeSpec, ResultForm};

/// How many bytes of a harness's own words are repeated.
const WORDS: usize = 300;

/// What a harness's result says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    pub meaning: Meaning,
    /// What is kept of it as evidence.
    pub detail: Map<String, Value>,
}

/// What a harness printed, and how it ended: rules name it `stdout`, `stderr` and `exit`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Printed {
    stdout: Value,
    stderr: Value,
    exit: Value,
}

/// Of what was printed, rules see so many bytes of the end.
const PRINTED_BYTES: usize = 64 << 10;

impl Printed {
    /// What rules may name.
    pub const NAMES: [&str; 3] = ["stdout", "stderr", "exit"];

    /// Keeps the end of what was printed.
    #[must_use]
    pub fn new(stdout: &[u8], stderr: &[u8], exit: Option<Exit>) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(PRINTED_BYTES)..]).into();
        Self { stdout: text(stdout), stderr: text(stderr), exit: exit.and_then(|exit| exit.code).into() }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        Some(match name {
            "stdout" => &self.stdout,
            "stderr" => &self.stderr,
            "exit" => &self.exit,
            _ => return None,
        })
    }
}

/// What a result says in words: the longest of its texts, in one line.
#[must_use]
pub fn words(reading: &Reading) -> Option<String> {
    let longest = reading.detail.values().filter_map(Value::as_str).max_by_key(|text| text.len())?;
    last_line(longest.as_bytes())
}

/// The last line of an output that says something, cut where it is long.
#[must_use]
pub fn last_line(output: &[u8]) -> Option<String> {
    let line = output.trim_ascii().rsplit(|byte| *byte == b'\n').next()?.trim_ascii();
    let line: String = String::from_utf8_lossy(&line[..line.len().min(WORDS)]).into_owned();
    (!line.is_empty()).then_some(line)
}

/// Reads a result. `None` if it has nothing that a rule fits.
#[must_use]
pub fn read(spec: &OutcomeSpec, result: &[u8], printed: &Printed) -> Option<Reading> {
    match spec.form {
        ResultForm::Json => reading(spec, &serde_json::from_slice(result).ok()?, printed),
        ResultForm::Text => reading(spec, &Value::Null, printed),
        ResultForm::Lines => {
            let mut lines = result.split(|byte| *byte == b'\n').rev();
            lines.find_map(|line| reading(spec, &serde_json::from_slice(line).ok()?, printed))
        }
    }
}

/// Reads the exit code of a run whose result says nothing. `None` if the harness's description does not know it.
#[must_use]
pub fn read_exit(spec: &OutcomeSpec, exit: Exit) -> Option<Reading> {
    let code = exit.code?;
    let meaning = *spec.exit.get(&code.to_string())?;
    Some(Reading { meaning, detail: Map::from_iter([("exit".to_owned(), code.into())]) })
}

/// What a run without a readable result means: its exit code is all that is left.
#[must_use]
pub fn by_exit(exit: Exit) -> Meaning {
    if exit.code == Some(0) { Meaning::Completed } else { Meaning::Error }
}

fn reading(spec: &OutcomeSpec, value: &Value, printed: &Printed) -> Option<Reading> {
    // Pointers begin with a slash, and no name of what was printed does.
    let told = |name: &str| printed.get(name).or_else(|| value.pointer(name));
    let rule = spec.rules.iter().find(|rule| fits(rule, told))?;
    let found = spec.detail.iter().filter_map(|name| Some((name.clone(), bounded(told(name)?))));
    Some(Reading { meaning: rule.means, detail: found.collect() })
}

/// Evidence is for people: long texts are cut.
fn bounded(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if text.len() > 2_000 => Value::String(text.chars().take(2_000).chain(['…']).collect()),
        _ => value.clone(),
    }
}

fn fits<'a>(rule: &OutcomeRule, told: impl Fn(&str) -> Option<&'a Value>) -> bool {
    rule.when.iter().all(|(name, pattern)| match told(name) {
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
        let outcome = &catalog.get(harness).unwrap().spec.outcome;
        read(outcome, result.as_bytes(), &Printed::default()).map(|reading| reading.meaning)
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
    fn words_are_one_line_and_the_longest_text() {
        let spec = &Catalog::load(None).unwrap().get("codex").unwrap().spec.outcome.clone();
        let said = r#"{"type":"turn.failed","error":{"message":"first\nstream disconnected\n"}}"#;
        assert_eq!(words(&read(spec, said.as_bytes(), &Printed::default()).unwrap()).as_deref(), Some("stream disconnected"));
        assert_eq!(last_line(b"one\n two \n\n").as_deref(), Some("two"));
        assert_eq!((last_line(b" \n"), last_line(&[b'x'; 5_000]).unwrap().len()), (None, WORDS));
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
    fn each_harness_says_in_its_own_words_how_it_ended() {
        use Meaning::{Completed, Error, GaveUp, Truncated};
        for (harness, result, meaning) in [
            ("claude-code", r#"{"type":"result","subtype":"success","is_error":false,"result":"Done."}"#, Completed),
            ("claude-code", r#"{"type":"result","subtype":"error_max_turns","is_error":true}"#, GaveUp),
            (
                "claude-code",
                r#"{"type":"result","subtype":"success","is_error":true,"result":"Prompt is too long · x"}"#,
                Truncated,
            ),
            ("claude-code", r#"{"type":"result","is_error":true,"terminal_reason":"rapid_refill_breaker"}"#, Truncated),
            ("claude-code", r#"{"type":"result","subtype":"success","is_error":true,"result":"API Error: 503 x"}"#, Error),
            ("gemini-cli", r#"{"type":"result","status":"success"}"#, Completed),
            ("gemini-cli", r#"{"type":"result","status":"error","error":{"type":"FatalTurnLimitedError"}}"#, GaveUp),
            ("gemini-cli", r#"{"type":"result","status":"error","error":{"type":"unknown","message":"x"}}"#, Error),
            ("opencode", r#"{"type":"step_finish","part":{"reason":"stop"}}"#, Completed),
            ("opencode", r#"{"type":"step_finish","part":{"reason":"length"}}"#, Truncated),
            ("opencode", r#"{"type":"error","error":{"name":"APIError","data":{"message":"boom"}}}"#, Error),
            ("openclaw", "{\n \"ok\": true, \"payloads\": [{\"text\": \"Done.\"}]\n}\n", Completed),
            ("openclaw", r#"{"ok":false,"error":{"kind":"context_overflow"}}"#, Truncated),
            ("openclaw", r#"{"ok":false,"error":{"kind":"incomplete_turn"}}"#, GaveUp),
            ("openclaw", r#"{"ok":false,"error":{"kind":"other"}}"#, Error),
            ("qwen-code", r#"{"type":"result","is_error":false}"#, Completed),
            (
                "qwen-code",
                r#"{"type":"result","is_error":true,"error":{"message":"400 maximum context length is 9"}}"#,
                Truncated,
            ),
            ("qwen-code", r#"{"type":"result","is_error":true,"error":{"message":"503"}}"#, Error),
        ] {
            assert_eq!(outcome(harness, result), Some(meaning), "{harness}: {result}");
        }
        assert_eq!(outcome("opencode", r#"{"type":"step_finish","part":{"reason":"tool-calls"}}"#), None);
    }

    #[test]
    fn the_react_agent_says_how_it_ended() {
        let says = |status: &str| outcome("react", &format!("{{\"status\":\"{status}\",\"turns\":3,\"text\":\"x\"}}"));
        assert_eq!(says("answered"), Some(Meaning::Completed));
        assert_eq!([says("steps"), says("format")], [Some(Meaning::GaveUp); 2]);
        assert_eq!([says("length"), says("context")], [Some(Meaning::Truncated); 2]);
        assert_eq!(says("error"), Some(Meaning::Error));
    }

    #[test]
    fn of_hermes_its_last_words_count_beside_its_result() {
        let catalog = Catalog::load(None).unwrap();
        let outcome = &catalog.get("hermes").unwrap().spec.outcome;
        let says = |result: &str, stdout: &str| {
            read(outcome, result.as_bytes(), &Printed::new(stdout.as_bytes(), b"", None)).map(|reading| reading.meaning)
        };
        assert_eq!(says(r#"{"completed":true,"failed":false}"#, "The context length is 5.\n"), Some(Meaning::Completed));
        assert_eq!(says(r#"{"completed":false,"failed":false}"#, "I got as far as this.\n"), Some(Meaning::GaveUp));
        assert_eq!(says(r#"{"completed":null,"failed":true}"#, "API call failed\n"), Some(Meaning::Error));
        let cut = "Response truncated due to output length limit\n";
        assert_eq!(says(r#"{"completed":false,"failed":false}"#, cut), Some(Meaning::Truncated));
        let full = "Context length exceeded: cannot compress further\n";
        assert_eq!(says(r#"{"completed":false,"failed":true}"#, full), Some(Meaning::Truncated));
        assert_eq!(says("", full), None);
    }

    #[test]
    fn only_the_end_of_what_was_printed_is_looked_at() {
        let long = [b"begin ".as_slice(), &vec![b'x'; PRINTED_BYTES]].concat();
        let printed = Printed::new(&long, b"", None);
        assert_eq!(printed.stdout.as_str().map(str::len), Some(PRINTED_BYTES));
    }

    #[test]
    fn an_exit_code_counts_where_there_is_no_result() {
        let catalog = Catalog::load(None).unwrap();
        let outcome = &catalog.get("qwen-code").unwrap().spec.outcome;
        let exit = |code| Exit { code: Some(code), ms: 1, ..Exit::default() };
        assert_eq!(read(outcome, b"{\"type\":\"system\"}\n", &Printed::default()), None);
        assert_eq!(read_exit(outcome, exit(53)).map(|reading| reading.meaning), Some(Meaning::GaveUp));
        assert_eq!(read_exit(outcome, exit(55)).map(|reading| reading.meaning), Some(Meaning::GaveUp));
        assert_eq!(read_exit(outcome, exit(1)), None);
    }

    #[test]
    fn what_zeroclaw_prints_counts_with_its_exit_code() {
        let catalog = Catalog::load(None).unwrap();
        let outcome = &catalog.get("zeroclaw").unwrap().spec.outcome;
        let says = |stdout: &str, stderr: &str, code| {
            let exit = Exit { code: Some(code), ms: 1, ..Exit::default() };
            read(outcome, b"", &Printed::new(stdout.as_bytes(), stderr.as_bytes(), Some(exit))).map(|reading| reading.meaning)
        };
        assert_eq!(says("Done.\n", "I look.\n", 0), Some(Meaning::Completed));
        assert_eq!(says("\n\n*Turn stopped: reached maximum tool iterations (3).*\n", "", 0), Some(Meaning::GaveUp));
        let large = "Error: The request is too large for the selected model. Reduce it.\n";
        assert_eq!(says("", large, 1), Some(Meaning::Truncated));
        assert_eq!(says("", large, 0), Some(Meaning::Completed));
        assert_eq!(says("", "Error: no\n", 1), None);
    }

    #[test]
    fn evidence_is_bounded() {
        let long = format!("{{\"type\":\"turn.failed\",\"error\":{{\"message\":\"{}\"}}}}", "ä".repeat(9_000));
        let catalog = Catalog::load(None).unwrap();
        let reading = read(&catalog.get("codex").unwrap().spec.outcome, long.as_bytes(), &Printed::default()).unwrap();
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
