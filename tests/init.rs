//! The sandbox's init as a program by itself: the commands that need no container.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use gleaner::harness::helper;
use tempfile::TempDir;

struct Init {
    folder: TempDir,
    program: std::path::PathBuf,
}

impl Init {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let program = helper::install(&folder.path().join("cache")).unwrap();
        Self { folder, program }
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(&self.program).args(words).env("HIDDEN", "secret").env("SHOWN", "yes").output().unwrap()
    }

    fn exec(&self, deadline_ms: u64, script: &str) -> (Option<i32>, String, Duration) {
        let began = Instant::now();
        let deadline = deadline_ms.to_string();
        let words = ["exec", "--deadline-ms", &deadline, "--grace-ms", "100", "--unset", "HIDDEN", "--", "sh", "-c", script];
        let output = self.run(&words);
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), began.elapsed())
    }

    /// What an archive has, by name: the content of a file, the target of a link.
    fn packed(&self, limit: &str, each: &str, paths: &[&str]) -> (BTreeMap<String, String>, String) {
        let output = self.run(&[&["pack", limit, each], paths].concat());
        assert!(output.status.success(), "{output:?}");
        let mut found = BTreeMap::new();
        for entry in tar::Archive::new(&output.stdout[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            if let Some(target) = entry.link_name().unwrap() {
                text = format!("-> {}", target.display());
            }
            found.insert(format!("/{}", entry.path().unwrap().display()), text);
        }
        (found, String::from_utf8(output.stderr).unwrap())
    }
}

#[test]
fn a_command_ends_with_all_that_it_started() {
    let init = Init::new();
    assert_eq!(init.exec(60_000, "echo $SHOWN$HIDDEN; exit 3").0, Some(3));
    assert_eq!(init.exec(60_000, "echo $SHOWN$HIDDEN").1, "yes\n");
    assert_eq!(init.exec(60_000, "kill -9 $$").0, Some(137));
    assert_eq!(init.exec(60_000, "exec /no/such/program").0, Some(127));
    // What a command leaves holds its output open: waiting for its end would wait for theirs.
    let marker = init.folder.path().join("alive").display().to_string();
    let (code, _, took) = init.exec(60_000, &format!("setsid sh -c 'sleep 300; touch {marker}' & sleep 300 & exit 0"));
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_mins(1), "{took:?}");
    // One that minds no signal, in a session of its own.
    let stubborn = "trap '' TERM; setsid sh -c 'trap \"\" TERM; while :; do sleep 300; done' & while :; do sleep 300; done";
    let (code, _, took) = init.exec(300, stubborn);
    assert_eq!(code, Some(124));
    assert!(took < Duration::from_mins(1), "{took:?}");
}

/// Harnesses leave processes behind, and those change what is packed.
#[test]
fn a_link_that_can_not_be_read_is_left_out() {
    let init = Init::new();
    // Of a process that has ended and was not waited for, this link stands there and leads nowhere.
    let mut ended = Command::new("true").spawn().unwrap();
    let link = format!("/proc/{}/exe", ended.id());
    while std::fs::read_link(&link).is_ok() {
        std::thread::yield_now();
    }
    let kept = init.folder.path().join("kept");
    std::fs::write(&kept, "kept").unwrap();
    let kept = kept.display().to_string();
    let (found, said) = init.packed("10000", "1000", &[&link, &kept]);
    assert_eq!(found, BTreeMap::from([(kept, "kept".to_owned())]));
    assert!(said.starts_with(&format!("{link}: ")), "{said}");
    ended.wait().unwrap();
}

#[test]
fn files_are_packed_and_links_are_not_followed() {
    let init = Init::new();
    let root = init.folder.path().join("root");
    let long = "n".repeat(150);
    std::fs::create_dir_all(root.join(&long)).unwrap();
    std::fs::write(root.join(&long).join("deep"), "in a long name").unwrap();
    std::fs::write(root.join("a"), "one").unwrap();
    std::fs::write(root.join("large"), "x".repeat(2_000)).unwrap();
    symlink("/etc/passwd", root.join("link")).unwrap();
    symlink(format!("/{long}"), root.join("long link")).unwrap();
    let path = |name: &str| root.join(name).display().to_string();
    assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
    let (found, said) = init.packed("10000", "1000", &[&path(""), &path("missing")]);
    let expected = [
        (path("a"), "one".to_owned()),
        (path("link"), "-> /etc/passwd".to_owned()),
        (path("long link"), format!("-> /{long}")),
        (path(&long), String::new()),
        (path(&format!("{long}/deep")), "in a long name".to_owned()),
    ];
    let mut shown = found.clone();
    shown.retain(|name, _| name.trim_end_matches('/') != root.display().to_string());
    assert_eq!(shown, BTreeMap::from(expected));
    let said: Vec<String> = said.lines().map(|line| line.replace(&root.display().to_string(), "")).collect();
    assert_eq!(said.len(), 3, "{said:?}");
    assert_eq!(said[..2], ["/fifo: it is no file", "/large: its 2000 bytes are too many"]);
    assert!(said[2].starts_with("/missing: "), "{said:?}");
    let (found, _) = init.packed("3", "1000", &[&path("a"), &path(&long)]);
    assert_eq!(
        found.keys().filter(|name| name.ends_with("/a") || name.ends_with("deep")).count(),
        1,
        "together they are bounded"
    );
}

#[test]
fn what_is_cleared_is_gone_and_nothing_behind_a_link_is() {
    let init = Init::new();
    let root = init.folder.path();
    std::fs::create_dir_all(root.join("tests/inner")).unwrap();
    std::fs::write(root.join("tests/inner/planted"), "").unwrap();
    std::fs::create_dir(root.join("kept")).unwrap();
    std::fs::write(root.join("kept/file"), "").unwrap();
    symlink("../kept", root.join("tests/link")).unwrap();
    symlink("kept", root.join("logs")).unwrap();
    let path = |name: &str| root.join(name).display().to_string();
    let output = init.run(&["clear", &path("tests"), &path("logs"), &path("missing"), &path("missing/file")]);
    assert!(output.status.success(), "{output:?}");
    assert!(!root.join("tests").exists() && !root.join("logs").exists() && root.join("kept/file").exists());
}

/// A harness must not be able to keep a verifier from its places: its rollout would count for nothing.
#[test]
fn nothing_is_left_in_the_way_of_what_is_cleared() {
    let init = Init::new();
    let root = init.folder.path();
    let path = |name: &str| root.join(name).display().to_string();
    std::fs::write(root.join("file"), "").unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    std::fs::create_dir_all(root.join("closed/inner/rewards")).unwrap();
    for folder in ["closed/inner", "closed"] {
        std::fs::set_permissions(root.join(folder), std::fs::Permissions::from_mode(0o0)).unwrap();
    }
    let output = init.run(&["clear", &path("file/verifier/x"), &path("dangling/x"), &path("closed/inner/rewards")]);
    assert!(output.status.success(), "{output:?}");
    assert!(!root.join("file").exists() && root.join("dangling").symlink_metadata().is_err());
    assert_eq!(std::fs::read_dir(root.join("closed/inner")).unwrap().count(), 0);
    // Root may go into closed folders; others may not.
    for folder in ["closed/inner", "closed"] {
        assert_eq!(std::fs::metadata(root.join(folder)).unwrap().permissions().mode() & 0o700, 0o700, "{folder}");
    }
}

#[test]
fn an_idle_one_ends_in_time() {
    let init = Init::new();
    let began = Instant::now();
    assert!(init.run(&["idle", "50"]).status.success());
    assert!(began.elapsed() >= Duration::from_millis(50));
}
