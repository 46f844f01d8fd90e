//! Reads what test runners print: which tests passed. By the rules of SWE-bench's own parsers, so that its lists of names fit.

use std::collections::HashMap;

use super::task::TestLog;

/// How a test ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Passed,
    Failed,
    Skipped,
}

/// What became of the tests that count.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Tests {
    /// Tests in the log.
    pub seen: usize,
    /// Those that had to pass and did not, and those that had to hold and failed; by name.
    pub missed: Vec<String>,
}

/// Looks for tests in a log: `must_pass` must have passed; `must_hold` may also have been skipped. A log that ended with another exit
/// code than 0 and tells of no failure is of another run than the one that failed, and counts for nothing.
pub(super) fn judge(log: &str, form: TestLog, exit_code: i64, must_pass: &[String], must_hold: &[String]) -> Tests {
    let mut found = read(log, form);
    if exit_code != 0 && !found.values().any(|status| *status == Status::Failed) {
        found.clear();
    }
    let missed = |names: &[String], fits: fn(Status) -> bool| -> Vec<String> {
        names.iter().filter(|name| !resolve(name, &found).is_some_and(fits)).cloned().collect()
    };
    let mut all = missed(must_pass, |status| status == Status::Passed);
    all.extend(missed(must_hold, |status| status != Status::Failed));
    Tests { seen: found.len(), missed: all }
}

/// How a test of a list ended. SWE-bench's lists have names that were cut in their parameters at a blank: those stand for all that
/// begin so, if they ended alike.
fn resolve(name: &str, found: &HashMap<String, Status>) -> Option<Status> {
    if let Some(status) = found.get(name) {
        return Some(*status);
    }
    let count = |sign: char| name.matches(sign).count();
    if count('[') <= count(']') {
        return None;
    }
    let mut alike = found.iter().filter(|(other, _)| other.starts_with(name)).map(|(_, status)| *status);
    let first = alike.next()?;
    alike.all(|status| status == first).then_some(first)
}

fn read(log: &str, form: TestLog) -> HashMap<String, Status> {
    // Of a script that marks where its tests begin and end, what is between; of others all.
    let marked = log.split_once(">>>>> Start Test Output").and_then(|(_, rest)| rest.split_once(">>>>> End Test Output"));
    let mut found = Found::default();
    for part in [marked.map(|(tests, _)| tests), Some(log)].into_iter().flatten() {
        match form {
            TestLog::Pytest => pytest(part, &mut found),
            TestLog::Unittest => unittest(part, &mut found),
        }
        if !found.0.is_empty() {
            break;
        }
    }
    found.0
}

#[derive(Default)]
struct Found(HashMap<String, Status>);

impl Found {
    /// A failure stands, whatever else is said of the test.
    fn add(&mut self, name: &str, status: Status) {
        let name = name.trim();
        if !name.is_empty() {
            let known = self.0.entry(name.to_owned()).or_insert(status);
            if *known != Status::Failed {
                *known = status;
            }
        }
    }
}

fn word(word: &str) -> Option<Status> {
    match word {
        "PASSED" | "XFAIL" => Some(Status::Passed),
        "FAILED" | "ERROR" => Some(Status::Failed),
        "SKIPPED" => Some(Status::Skipped),
        _ => None,
    }
}

/// `pytest -rA`: lines that begin with how a test ended (the summary), or end with it (`--verbose` without a summary).
fn pytest(log: &str, found: &mut Found) {
    for line in log.lines() {
        let line = plain(line);
        let line = line.trim_end();
        if let Some((status, rest)) = line.split_once(' ').and_then(|(first, rest)| Some((word(first)?, rest))) {
            let name = if status == Status::Failed { rest.split(" - ").next().unwrap_or(rest) } else { rest };
            // `SKIPPED [1] file:line: why` counts skipped tests and names none.
            if status == Status::Skipped && name.starts_with('[') {
                continue;
            }
            add_pytest(name, status, found);
        } else {
            let rest = line.strip_suffix(']').and_then(|line| Some(line.rsplit_once(" [")?.0)).unwrap_or(line);
            if let Some((name, status)) = rest.trim_end().rsplit_once(' ').and_then(|(name, last)| Some((name, word(last)?)))
                && name.contains("::")
            {
                add_pytest(name, status, found);
            }
        }
    }
}

/// Under the name that it has, and under the one that some lists give it: paths among the parameters without their folders.
fn add_pytest(name: &str, status: Status, found: &mut Found) {
    found.add(name, status);
    if let Some((test, option)) = name.trim().strip_suffix(']').and_then(|name| name.split_once('['))
        && option.starts_with('/')
        && !option.starts_with("//")
        && !option.contains('*')
    {
        let last = option.rsplit('/').next().unwrap_or(option);
        found.add(&format!("{test}[/{last}]"), status);
    }
}

/// A line without colours and other control characters.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(letter) = rest.next() {
        if letter == '\u{1b}' && rest.peek() == Some(&'[') {
            while rest.next().is_some_and(|letter| !letter.is_ascii_alphabetic()) {}
        } else if !letter.is_control() {
            text.push(letter);
        }
    }
    text
}

/// `unittest --verbose` and Django's runner: `NAME ... ok`, where a test may print between the two, and a test with a description has
/// its name on the line before.
fn unittest(log: &str, found: &mut Found) {
    let (mut open, mut titled): (Option<String>, Option<String>) = (None, None);
    for line in log.lines() {
        let line = line.trim();
        if let Some(name) = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: ")) {
            found.add(name, Status::Failed);
            continue;
        }
        if let Some((name, said)) = line.split_once(" ... ") {
            // Some say how they ended behind words of their own.
            let last = line.rsplit(" ... ").next().unwrap_or(said).trim();
            match ended(last) {
                Some(status) => {
                    found.add(line.rsplit_once(" ... ").map_or(name, |(name, _)| name), status);
                    titled.take().into_iter().for_each(|title| found.add(&title, status));
                    open = None;
                }
                None => open = Some(name.to_owned()),
            }
        } else if line.ends_with(" ...") {
            open = line.strip_suffix(" ...").map(str::to_owned);
        } else if let Some(status) = ended(line)
            && let Some(name) = open.take()
        {
            found.add(&name, status);
        }
        titled = is_title(line).then(|| line.to_owned());
    }
}

fn ended(said: &str) -> Option<Status> {
    match said {
        "ok" | "OK" | "expected failure" => Some(Status::Passed),
        "FAIL" | "ERROR" | "unexpected success" => Some(Status::Failed),
        _ if said.starts_with("skipped") => Some(Status::Skipped),
        _ => None,
    }
}

/// `test_x (module.Class)` and nothing more.
fn is_title(line: &str) -> bool {
    line.ends_with(')') && line.split_once(" (").is_some_and(|(name, place)| !name.contains(' ') && !place.contains(' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of a real `pytest -rA` (8.4), with a warning and a captured print.
    const PYTEST: &str = include_str!("../../tests/fixtures/tasks/logs/pytest.log");
    /// Of a real `python3 -m unittest --verbose` (3.11).
    const UNITTEST: &str = include_str!("../../tests/fixtures/tasks/logs/unittest.log");

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn missed(log: &str, form: TestLog, exit_code: i64, must_pass: &[&str], must_hold: &[&str]) -> Vec<String> {
        judge(log, form, exit_code, &names(must_pass), &names(must_hold)).missed
    }

    #[test]
    fn a_log_of_pytest_says_what_passed() {
        let passed = [
            "test_log.py::test_passes",
            "test_log.py::test_prints",
            "test_log.py::test_parameters[a b]",
            "test_log.py::test_expected",
        ];
        assert_eq!(missed(PYTEST, TestLog::Pytest, 1, &passed, &[]), names(&[]));
        let failed = ["test_log.py::test_fails", "test_log.py::test_breaks", "test_log.py::test_none"];
        assert_eq!(missed(PYTEST, TestLog::Pytest, 1, &failed, &failed), names(&[failed, failed].concat()));
        // Cut at the blank, as in SWE-bench's lists; with its folders or without.
        assert_eq!(
            missed(PYTEST, TestLog::Pytest, 1, &["test_log.py::test_parameters[a"], &["test_log.py::test_parameters[/c]"]),
            names(&[])
        );
    }

    #[test]
    fn a_log_of_unittest_says_what_passed() {
        let passed =
            ["test_passes (test_log.Log.test_passes)", "It has a description.", "test_prints (test_log.Log.test_prints)"];
        assert_eq!(missed(UNITTEST, TestLog::Unittest, 1, &passed, &["test_skips (test_log.Log.test_skips)"]), names(&[]));
        assert_eq!(missed(UNITTEST, TestLog::Unittest, 1, &["test_described (test_log.Log.test_described)"], &[]), names(&[]));
        let failed = [
            "test_fails (test_log.Log.test_fails)",
            "test_breaks (test_log.Log.test_breaks)",
            "test_skips (test_log.Log.test_skips)",
        ];
        assert_eq!(missed(UNITTEST, TestLog::Unittest, 1, &failed, &[]), names(&failed));
    }

    #[test]
    fn a_failure_stands_and_a_log_must_fit_its_exit_code() {
        let log = "PASSED t.py::a\nFAILED t.py::a - assert 1\nPASSED t.py::a\n";
        assert_eq!(missed(log, TestLog::Pytest, 1, &["t.py::a"], &[]), names(&["t.py::a"]));
        let forged = "PASSED t.py::a\n";
        assert_eq!(missed(forged, TestLog::Pytest, 0, &["t.py::a"], &[]), names(&[]));
        assert_eq!(missed(forged, TestLog::Pytest, 1, &["t.py::a"], &[]), names(&["t.py::a"]));
        assert_eq!(judge("", TestLog::Pytest, 0, &names(&["a"]), &names(&["b"])), Tests { seen: 0, missed: names(&["a", "b"]) });
    }

    #[test]
    fn what_a_script_marks_is_what_counts() {
        let log = "PASSED t.py::a\n>>>>> Start Test Output\nPASSED t.py::b\n>>>>> End Test Output\n";
        assert_eq!(missed(log, TestLog::Pytest, 0, &["t.py::a", "t.py::b"], &[]), names(&["t.py::a"]));
    }

    #[test]
    fn colours_and_verbose_lines_are_read_as_well() {
        let log = "\u{1b}[32mPASSED\u{1b}[0m t.py::\u{1b}[1ma\u{1b}[0m\nt.py::b PASSED   [ 50%]\nt.py::c SKIPPED (no)\nSKIPPED [1] t.py:3: no\n";
        assert_eq!(missed(log, TestLog::Pytest, 0, &["t.py::a", "t.py::b"], &[]), names(&[]));
    }
}
