//! Rows of SWE-bench and of sets in its form (SWE-bench Verified and Lite, SWE-Gym, SWE-rebench ...): a repository in an image, an issue,
//! and tests that must pass once it is resolved. The harness's patch is verified in a fresh sandbox of the row's image.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::{Place, Scoring, Solution, Task, TaskFile, TaskImage, TestLog, TestPatch, User, Verifier};

/// Where such images have their repository.
const REPOSITORY: &str = "/testbed";
/// What a verifier may take where the row does not say: as long as SWE-bench's own.
const VERIFY_TIMEOUT_S: u64 = 1_800;
/// The names that sets have for the image.
const IMAGE: [&str; 4] = ["image", "image_name", "docker_image", "image_url"];
/// Prepares what these images prepare in the shell of a person: a conda environment, or one of Python's own.
const ACTIVATE: &str = "if [ -f /opt/miniconda3/bin/activate ]; then . /opt/miniconda3/bin/activate testbed; \
                        elif [ -f .venv/bin/activate ]; then . .venv/bin/activate; fi";
/// Applies the row's own patch.
const SOLVE: &str = "git -c core.hooksPath=/dev/null -c safe.directory='*' apply --whitespace=nowarn /solution/patch.diff";

/// Whether an object is such a row and not a task of ours.
pub(super) fn is_row(row: &Map<String, Value>) -> bool {
    !row.contains_key("prompt")
        && ["instance_id", "problem_statement", "expected_output_json"].iter().any(|name| row.contains_key(*name))
}

/// The files that names of tests begin with: `tests/test_x.py::test_y`.
pub(super) fn files_of(tests: &[String]) -> BTreeSet<String> {
    let files = tests.iter().filter_map(|name| name.split_once("::")).map(|(file, _)| file.to_owned());
    files.filter(|file| !file.is_empty() && !file.starts_with('/') && !file.contains("..")).collect()
}

pub(super) fn task(row: Map<String, Value>) -> Result<Task, String> {
    let mut row = Row(row);
    if row.0.contains_key("expected_output_json") {
        return Err(
            "rows of R2E-Gym say what their own script prints; write a task of ours with that script as `verify`".to_owned()
        );
    }
    let id = row.text("instance_id")?.ok_or("instance_id is missing")?;
    let issue = row.text("problem_statement")?.ok_or("problem_statement is missing")?;
    let image = row.image(&id)?;
    if image.contains("swesmith") && !row.0.contains_key("test_patch") {
        return Err("in rows of SWE-smith `patch` makes the fault, and the image is without it; build images with the fault in it, and give \
                    the reverse of that patch and an empty test_patch"
            .to_owned());
    }
    let repository = row.text("workdir")?.unwrap_or_else(|| REPOSITORY.to_owned());
    let solution = row.text("patch")?.filter(|patch| !patch.trim().is_empty());
    let test_patch = row.text("test_patch")?.filter(|patch| !patch.trim().is_empty());
    let must_pass = row.names(&["FAIL_TO_PASS", "fail_to_pass"])?;
    let must_hold = row.names(&["PASS_TO_PASS", "pass_to_pass"])?;
    if must_pass.is_empty() {
        return Err("FAIL_TO_PASS has no test, so nothing tells whether the issue is resolved".to_owned());
    }
    let mut restore = files_of(&must_pass);
    restore.extend(files_of(&must_hold));
    let patched = test_patch.as_deref().map(files_in).unwrap_or_default();
    restore.extend(patched.iter().cloned());
    let form = row.log()?;
    let runs = row.runs(form, &must_pass, &patched)?;
    let network = row.0.shift_remove("network").is_some_and(|value| value == true);
    let verifier = Verifier {
        command: ["bash", "-c", &runs.script].map(str::to_owned).to_vec(),
        place: Place::Patched,
        // A script of the row's own applies the test patch itself.
        tests: TestPatch { restore: restore.into_iter().collect(), patch: test_patch.filter(|_| !runs.applies_tests) },
        user: Some(User::ROOT),
        network,
        timeout_s: Some(row.seconds("timeout_s")?.unwrap_or(VERIFY_TIMEOUT_S)),
        scoring: Scoring::Tests { must_pass, must_hold, form },
        ..Verifier::default()
    };
    let named = row.0.get("repo").and_then(Value::as_str).map(|repo| format!(" ({repo})")).unwrap_or_default();
    Ok(Task {
        id,
        prompt: format!(
            "Resolve the issue below in the repository in {repository}{named}: change its code so that the issue is solved. \
             Tests for it exist but are not shown to you; do not change tests that are there.\n\n{issue}"
        ),
        image: TaskImage::Named(image),
        workdir: Some(repository),
        user: Some(User::ROOT),
        verifier: Some(verifier),
        solution: solution.map(|patch| Solution {
            command: super::shell(SOLVE),
            files: [("/solution/patch.diff".to_owned(), TaskFile { content: patch.into_bytes(), mode: 0o644 })].into(),
            ..Solution::default()
        }),
        patch: Some(String::new()),
        metadata: row.0,
        ..Task::default()
    })
}

/// How a row's tests are run.
struct Runs {
    script: String,
    applies_tests: bool,
}

/// A row; what is read is taken out, what is left is metadata.
struct Row(Map<String, Value>);

impl Row {
    fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.0.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("{name}: it must be a text")),
        }
    }

    fn seconds(&mut self, name: &str) -> Result<Option<u64>, String> {
        match self.0.shift_remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| format!("{name}: it must be a whole number of seconds")),
        }
    }

    /// A list of texts, or the JSON text of one.
    fn names(&mut self, spellings: &[&str]) -> Result<Vec<String>, String> {
        let Some((name, value)) = spellings.iter().find_map(|name| Some((*name, self.0.shift_remove(*name)?))) else {
            return Ok(Vec::new());
        };
        let read = match value {
            Value::Null => Ok(Vec::new()),
            Value::String(text) if text.trim().is_empty() => Ok(Vec::new()),
            Value::String(text) => serde_json::from_str(&text),
            list => serde_json::from_value(list),
        };
        read.map_err(|error| format!("{name}: it must be a list of names, or its JSON text: {error}"))
    }

    /// The row's image, or the one that SWE-bench publishes for it.
    fn image(&mut self, id: &str) -> Result<String, String> {
        for name in IMAGE {
            if let Some(image) = self.text(name)?.filter(|image| !image.is_empty()) {
                return Ok(image);
            }
        }
        Ok(format!("swebench/sweb.eval.x86_64.{}:latest", id.to_lowercase().replace("__", "_1776_")))
    }

    /// How the tests' log is read: as the row says, else as its repository's tests print it.
    fn log(&mut self) -> Result<TestLog, String> {
        let installed = self.0.get("install_config").and_then(|install| install.get("log_parser")?.as_str().map(str::to_owned));
        let name = self.text("log_parser")?.or(installed);
        let repository = self.0.get("repo").and_then(Value::as_str).unwrap_or_default();
        match name.as_deref().map(|name| name.trim_start_matches("parse_log_")) {
            Some("django" | "unittest") => Ok(TestLog::Unittest),
            Some("seaborn" | "sympy" | "matplotlib") => no_log(name.as_deref().unwrap_or_default()),
            Some(
                "pytest" | "pytest_v2" | "pytest_options" | "astropy" | "scikit" | "sphinx" | "requests" | "pylint" | "pydicom"
                | "astroid" | "flask" | "marshmallow" | "pvlib" | "pyvista" | "sqlfluff" | "xarray",
            ) => Ok(TestLog::Pytest),
            Some(other) => no_log(other),
            None if repository == "django/django" => Ok(TestLog::Unittest),
            None if repository == "sympy/sympy" => no_log("sympy"),
            None => Ok(TestLog::Pytest),
        }
    }

    fn runs(&mut self, form: TestLog, must_pass: &[String], patched: &BTreeSet<String>) -> Result<Runs, String> {
        if let Some(script) = self.text("eval_script")? {
            return Ok(Runs { script: format!("set -uxo pipefail\n{script}"), applies_tests: true });
        }
        let installed = self.0.get("install_config").and_then(|install| install.get("test_cmd")).cloned();
        let files: BTreeSet<String> = if patched.is_empty() { files_of(must_pass) } else { patched.clone() };
        let files: Vec<String> =
            files.into_iter().filter(|file| Path::new(file).extension().is_some_and(|ending| ending == "py")).collect();
        let command = match self.0.shift_remove("test_cmd").or(installed) {
            // A list is whole commands, one after another.
            Some(Value::Array(commands)) => {
                let commands: Option<Vec<&str>> = commands.iter().map(Value::as_str).collect();
                commands.ok_or("test_cmd: it must be a command, or a list of them")?.join("\n")
            }
            Some(Value::String(command)) if command.contains("pytest") && form == TestLog::Pytest => with_files(&command, &files),
            Some(Value::String(command)) => command,
            None | Some(Value::Null) => match form {
                TestLog::Pytest => with_files("python -m pytest -rA --tb=short --color=no -p no:cacheprovider", &files),
                TestLog::Unittest => django(&files),
            },
            Some(_) => return Err("test_cmd: it must be a command, or a list of them".to_owned()),
        };
        Ok(Runs { script: format!("{ACTIVATE}\n{command}"), applies_tests: false })
    }
}

fn with_files(command: &str, files: &[String]) -> String {
    files.iter().fold(command.to_owned(), |command, file| format!("{command} {}", quoted(file)))
}

/// Django's own runner wants modules: `tests/admin_views/tests.py` is `admin_views.tests`.
fn django(files: &[String]) -> String {
    let labels = files.iter().map(|file| file.trim_start_matches("tests/").trim_end_matches(".py").replace('/', "."));
    labels.fold("./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1".to_owned(), |command, label| {
        format!("{command} {}", quoted(&label))
    })
}

/// A word of a shell's.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The files that a patch changes, by their new names; removed ones by their old.
fn files_in(patch: &str) -> BTreeSet<String> {
    let sides = patch.lines().filter_map(|line| line.strip_prefix("+++ b/").or_else(|| line.strip_prefix("--- a/")));
    sides.map(|path| path.split('\t').next().unwrap_or(path).to_owned()).collect()
}

fn no_log(name: &str) -> Result<TestLog, String> {
    Err(format!("log_parser: logs of {name} are not read here; those of pytest -rA and of unittest (django) are"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_PATCH: &str = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-x\n+y\n\
                              diff --git a/tests/data.txt b/tests/data.txt\n--- /dev/null\n+++ b/tests/data.txt\n@@ -0,0 +1 @@\n+z\n";

    fn row(more: Value) -> Map<String, Value> {
        let mut row = serde_json::json!({
            "instance_id": "Own__repo-1", "repo": "own/repo", "base_commit": "abc", "problem_statement": "It fails.", "patch": "gold",
            "test_patch": TEST_PATCH, "FAIL_TO_PASS": "[\"tests/test_a.py::t\"]", "PASS_TO_PASS": ["tests/test_b.py::u[1]"], "version": "1",
        });
        let Value::Object(more) = more else { panic!() };
        row.as_object_mut().unwrap().extend(more);
        serde_json::from_value(row).unwrap()
    }

    fn script(more: Value) -> Result<String, String> {
        task(row(more)).map(|task| task.verifier.unwrap().command[2].replace(ACTIVATE, "A"))
    }

    #[test]
    fn a_row_is_a_task_with_its_patch_verified() {
        let task = task(row(serde_json::json!({}))).unwrap();
        assert_eq!(task.image, TaskImage::Named("swebench/sweb.eval.x86_64.own_1776_repo-1:latest".to_owned()));
        assert!(task.prompt.contains("/testbed (own/repo)") && task.prompt.ends_with("\n\nIt fails."), "{}", task.prompt);
        assert_eq!(Value::Object(task.metadata), serde_json::json!({"repo": "own/repo", "base_commit": "abc", "version": "1"}));
        let verifier = task.verifier.unwrap();
        let restore = ["tests/data.txt", "tests/test_a.py", "tests/test_b.py"].map(str::to_owned).to_vec();
        assert_eq!(verifier.tests, TestPatch { restore, patch: Some(TEST_PATCH.to_owned()) });
        let (must_pass, must_hold) = (vec!["tests/test_a.py::t".to_owned()], vec!["tests/test_b.py::u[1]".to_owned()]);
        assert_eq!(verifier.scoring, Scoring::Tests { must_pass, must_hold, form: TestLog::Pytest });
        assert_eq!((verifier.place, verifier.network, verifier.timeout_s), (Place::Patched, false, Some(1_800)));
        assert_eq!(task.solution.unwrap().files["/solution/patch.diff"].content, b"gold");
        assert_eq!(task.patch.as_deref(), Some(""));
    }

    #[test]
    fn the_tests_are_run_as_the_row_says_and_else_by_pytest() {
        let default = "A\npython -m pytest -rA --tb=short --color=no -p no:cacheprovider 'tests/test_a.py'";
        assert_eq!(script(serde_json::json!({})).unwrap(), default);
        let rebench = serde_json::json!({"install_config": {"test_cmd": "pytest -rA", "log_parser": "parse_log_pytest"}});
        assert_eq!(script(rebench).unwrap(), "A\npytest -rA 'tests/test_a.py'");
        assert_eq!(script(serde_json::json!({"test_cmd": ["make", "pytest -rA x"]})).unwrap(), "A\nmake\npytest -rA x");
        let django = script(serde_json::json!({"repo": "django/django"})).unwrap();
        assert_eq!(django, "A\n./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 'test_a'");
        let own = task(row(serde_json::json!({"eval_script": "run"}))).unwrap().verifier.unwrap();
        assert_eq!((own.command[2].as_str(), own.tests.patch), ("set -uxo pipefail\nrun", None));
    }

    #[test]
    fn what_a_row_can_t_say_is_refused() {
        let fault = |more: Value| task(row(more)).unwrap_err();
        assert!(fault(serde_json::json!({"FAIL_TO_PASS": []})).starts_with("FAIL_TO_PASS has no test"));
        assert!(fault(serde_json::json!({"FAIL_TO_PASS": "x"})).starts_with("FAIL_TO_PASS: it must be a list of names"));
        assert!(fault(serde_json::json!({"instance_id": null})).starts_with("instance_id is missing"));
        assert!(fault(serde_json::json!({"patch": 1})).starts_with("patch: it must be a text"));
        assert!(
            fault(serde_json::json!({"log_parser": "parse_log_jest"})).starts_with("log_parser: logs of jest are not read here")
        );
        assert!(fault(serde_json::json!({"expected_output_json": "{}"})).starts_with("rows of R2E-Gym"));
        let smith: Map<String, Value> = {
            let mut row = row(serde_json::json!({"image_name": "swebench/swesmith.x86_64.a"}));
            row.shift_remove("test_patch");
            row
        };
        assert!(task(smith).unwrap_err().starts_with("in rows of SWE-smith"));
    }
}
