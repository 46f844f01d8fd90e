//! The scripts in real repositories, with this machine's git.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use super::*;

struct Repository(tempfile::TempDir);

impl Repository {
    fn new() -> Self {
        let repository = Self(tempfile::tempdir().unwrap());
        repository.write("a.py", "a\n");
        repository.write("tests/test_a.py", "t\n");
        repository.write(".gitignore", "*.log\n");
        repository.git("init --quiet");
        repository.commit();
        repository
    }

    fn top(&self) -> String {
        self.0.path().join("r").canonicalize().unwrap().display().to_string()
    }

    fn own(&self) -> String {
        self.0.path().join("own").display().to_string()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join("r").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(Path::new(&self.top()).join(path)).ok()
    }

    fn git(&self, words: &str) -> String {
        let words = words.split(' ');
        let output =
            Command::new("git").args(["-c", "user.name=n", "-c", "user.email=e"]).args(words).current_dir(self.top()).output();
        let output = output.expect("these tests need git");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn commit(&self) {
        self.git("add --all");
        self.git("commit --quiet --message x");
    }

    fn base(&self, commit: &str) -> Base {
        let output = run(&base(&self.own(), &format!("{}/tests", self.top()), commit));
        Base::read(&output.stdout).unwrap_or_else(|| panic!("{output:?}"))
    }

    fn take(&self, base: &Base) -> Vec<u8> {
        let output = run(&take(&self.own(), base));
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    /// The same files in another folder, and where they stand.
    fn copy(&self) -> (Self, Base) {
        let copy = Self(tempfile::tempdir().unwrap());
        assert!(Command::new("cp").arg("-a").arg(self.top()).arg(copy.0.path()).status().unwrap().success());
        let base = copy.base("");
        (copy, base)
    }

    fn apply(&self, base: &Base, patch: &[u8]) -> Output {
        let file = self.0.path().join("patch");
        std::fs::write(&file, patch).unwrap();
        run(&apply(base, file.to_str().unwrap()))
    }

    fn restore(&self, base: &Base, restore: &[&str], patch: &str) -> Output {
        let file = self.0.path().join("tests.diff");
        std::fs::write(&file, patch).unwrap();
        let given = TestPatch { restore: restore.iter().map(|path| (*path).to_owned()).collect(), patch: None };
        run(&tests(base, &given, file.to_str().unwrap()))
    }
}

fn run(command: &[String]) -> Output {
    Command::new(&command[0]).args(&command[1..]).current_dir("/").output().unwrap()
}

#[test]
fn a_patch_has_all_that_the_harness_changed_and_comes_back_to_the_byte() {
    let repository = Repository::new();
    repository.write("untracked.txt", "of the image\n");
    repository.write("a.py", "dirty\n");
    let (fresh, at) = repository.copy();
    let base = repository.base("");
    assert_eq!((&base.id, base.top.as_str()), (&at.id, repository.top().as_str()));
    repository.write("a.py", "dirty\nmine\n");
    repository.commit();
    let binary: Vec<u8> = (0..=255).cycle().take(5_000).collect();
    std::fs::write(Path::new(&repository.top()).join("data.bin"), &binary).unwrap();
    repository.write("new dir/ä.txt", "no end of line");
    repository.write("x.log", "ignored");
    std::fs::remove_file(Path::new(&repository.top()).join("tests/test_a.py")).unwrap();
    symlink("a.py", Path::new(&repository.top()).join("link")).unwrap();
    let patch = repository.take(&base);
    let names = ["a.py", "data.bin", "link", "\"a/new dir/\\303\\244.txt\" \"b/new dir/\\303\\244.txt\"", "tests/test_a.py"];
    assert_eq!(files(&patch, 9), (names.map(str::to_owned).to_vec(), 5));
    let applied = fresh.apply(&at, &patch);
    assert!(applied.status.success(), "{applied:?}");
    assert_eq!(fresh.text("a.py").as_deref(), Some("dirty\nmine\n"));
    assert_eq!(fresh.text("new dir/ä.txt").as_deref(), Some("no end of line"));
    assert_eq!(std::fs::read(Path::new(&fresh.top()).join("data.bin")).unwrap(), binary);
    assert_eq!((fresh.text("tests/test_a.py"), fresh.text("x.log")), (None, None));
    assert_eq!(std::fs::read_link(Path::new(&fresh.top()).join("link")).unwrap(), Path::new("a.py"));
    assert_eq!(fresh.text("untracked.txt").as_deref(), Some("of the image\n"));
    assert_eq!(repository.take(&repository.base("")), b"");
}

#[test]
fn a_clean_tree_stands_at_its_commit_and_a_named_one_at_that() {
    let repository = Repository::new();
    let head = repository.git("rev-parse HEAD").trim().to_owned();
    assert_eq!(repository.base("").id, head);
    repository.write("b.py", "b\n");
    repository.commit();
    assert_eq!(repository.base(&head).id, head);
    assert_eq!(files(&repository.take(&repository.base(&head)), 9).0, ["b.py"]);
    let output = run(&base(&repository.own(), &repository.top(), &"0".repeat(40)));
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    let output = run(&base(&repository.own(), "/", ""));
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).trim()), (Some(4), "/ is in no git repository"));
}

/// Configuration, hooks, filters and attributes that a harness left are never carried out.
#[test]
fn nothing_that_a_harness_planted_is_run() {
    let repository = Repository::new();
    let base = repository.base("");
    let trap = repository.0.path().join("sprung");
    let touch = format!("touch {}", trap.display());
    repository.write(".gitattributes", "* filter=evil diff=evil merge=evil\n");
    for (name, value) in [
        ("filter.evil.clean", format!("{touch}; cat")),
        ("filter.evil.process", touch.clone()),
        ("diff.evil.textconv", touch.clone()),
        ("diff.evil.command", touch.clone()),
        ("diff.external", touch.clone()),
        ("core.fsmonitor", touch.clone()),
        ("core.pager", touch.clone()),
        ("core.hooksPath", format!("{}/hooks", repository.top())),
        ("core.excludesFile", format!("{}/all", repository.top())),
    ] {
        let set = Command::new("git").args(["config", name, &value]).current_dir(repository.top()).status().unwrap();
        assert!(set.success());
    }
    repository.write("all", "*\n");
    for hook in ["post-index-change", "pre-commit", "post-checkout", "reference-transaction"] {
        repository.write(&format!("hooks/{hook}"), &format!("#!/bin/sh\n{touch}\n"));
        let path = Path::new(&repository.top()).join("hooks").join(hook);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    repository.write("a.py", "changed\n");
    let patch = repository.take(&base);
    assert!(files(&patch, 99).0.contains(&"a.py".to_owned()), "{}", String::from_utf8_lossy(&patch));
    assert!(!trap.exists());
}

#[test]
fn what_git_can_not_take_is_said_and_the_rest_is_taken() {
    let repository = Repository::new();
    let base = repository.base("");
    repository.write("a.py", "changed\n");
    repository.write(".gitattributes", "* text=auto\n");
    repository.write("lines.txt", "of another system\r\n");
    repository.write("begun/file", "x");
    let init = Command::new("git").args(["init", "--quiet"]).current_dir(Path::new(&repository.top()).join("begun")).status();
    assert!(init.unwrap().success());
    let output = run(&take(&repository.own(), &base));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(files(&output.stdout, 9).0, [".gitattributes", "a.py", "lines.txt"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("begun/") && said.lines().count() == 1, "{said}");
    let lost = Base { objects: format!("{}/nowhere", repository.top()), ..base };
    let output = run(&take(&repository.own(), &lost));
    assert!(!output.status.success() && !output.stderr.is_empty(), "what fails is said: {output:?}");
}

#[test]
fn a_patch_that_does_not_fit_or_leaves_the_tree_is_refused() {
    let (fresh, at) = Repository::new().copy();
    for patch in [
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-other\n+x\n",
        "diff --git a/../x b/../x\nnew file mode 100644\n--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n",
        "diff --git a/.git/hooks/x b/.git/hooks/x\nnew file mode 100755\n--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n",
        "no patch at all\n",
    ] {
        let output = fresh.apply(&at, patch.as_bytes());
        assert!(!output.status.success(), "{patch}: {output:?}");
    }
    assert!(fresh.apply(&at, b"").status.success(), "an empty patch changes nothing");
    assert_eq!(fresh.text("a.py").as_deref(), Some("a\n"));
}

#[test]
fn tests_are_put_back_before_the_test_patch() {
    let repository = Repository::new();
    repository.write("conftest.py", "of the repository\n");
    repository.commit();
    let (fresh, at) = repository.copy();
    let base = repository.base("");
    repository.write("a.py", "mine\n");
    repository.write("tests/test_a.py", "always passes\n");
    repository.write("tests/test_new.py", "mine as well\n");
    repository.write("conftest.py", "makes all pass\n");
    repository.write("tests/conftest.py", "makes all pass\n");
    assert!(fresh.apply(&at, &repository.take(&base)).status.success());
    let patch = "diff --git a/tests/test_a.py b/tests/test_a.py\n--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-t\n+tested\n";
    let restored = fresh.restore(&at, &["tests/test_a.py", "tests/test_new.py", "tests/never_there.py"], patch);
    assert!(restored.status.success(), "{restored:?}");
    let texts = ["a.py", "tests/test_a.py", "tests/test_new.py", "conftest.py", "tests/conftest.py"].map(|path| fresh.text(path));
    let expected = [Some("mine\n"), Some("tested\n"), None, Some("of the repository\n"), None];
    assert_eq!(texts, expected.map(|text| text.map(str::to_owned)));
    assert!(!fresh.restore(&at, &["a.py"], patch).status.success(), "a test patch that does not fit is said");
}

/// A link in place of the folder of tests leads nowhere else.
#[test]
fn a_link_in_place_of_tests_is_replaced() {
    let repository = Repository::new();
    repository.write("other/test_a.py", "other\n");
    repository.commit();
    let (fresh, at) = repository.copy();
    let base = repository.base("");
    std::fs::remove_dir_all(Path::new(&repository.top()).join("tests")).unwrap();
    symlink("other", Path::new(&repository.top()).join("tests")).unwrap();
    assert!(fresh.apply(&at, &repository.take(&base)).status.success());
    let restored = fresh.restore(&at, &["tests/test_a.py", "tests/test_b.py"], "");
    assert!(restored.status.success(), "{restored:?}");
    assert_eq!(
        (fresh.text("tests/test_a.py").as_deref(), fresh.text("other/test_a.py").as_deref()),
        (Some("t\n"), Some("other\n"))
    );
}
