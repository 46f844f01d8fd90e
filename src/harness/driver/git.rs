//! Git in a sandbox: what a harness changed as a patch, and such a patch on a fresh copy of the same repository. All of it is done
//! by scripts inside: on the host git never sees a tree that a harness wrote.

use crate::harness::task::TestPatch;

const COMMON: &str = include_str!("git/common.sh");
const BASE: &str = include_str!("git/base.sh");
const TAKE: &str = include_str!("git/take.sh");
const APPLY: &str = include_str!("git/apply.sh");
const TESTS: &str = include_str!("git/tests.sh");

/// A repository as it stood at some time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Base {
    /// The folder of its tree.
    pub top: String,
    /// The folder of its objects.
    pub objects: String,
    /// The commit or tree that stood there.
    pub id: String,
}

impl Base {
    /// Reads what [`base`] prints.
    pub(super) fn read(stdout: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(stdout).ok()?.lines().map(str::to_owned);
        Some(Self { top: lines.next()?, objects: lines.next()?, id: lines.next().filter(|id| id.len() >= 40)? })
    }
}

/// Finds the repository of a working folder, and what stands there: `commit`, or what is there now if that is empty. `own` is a folder
/// that the scripts may make anew.
pub(super) fn base(own: &str, workdir: &str, commit: &str) -> Vec<String> {
    script(BASE, &[own, workdir, commit])
}

/// Prints what differs from a base.
pub(super) fn take(own: &str, base: &Base) -> Vec<String> {
    script(TAKE, &[own, &base.top, &base.objects, &base.id])
}

/// Applies a harness's patch, a file of the sandbox.
pub(super) fn apply(base: &Base, patch: &str) -> Vec<String> {
    script(APPLY, &["-", &base.top, patch])
}

/// Puts the tests in order, after a harness's patch; `patch` is the file of the test patch, empty for none.
pub(super) fn tests(base: &Base, tests: &TestPatch, patch: &str) -> Vec<String> {
    let mut command = script(TESTS, &["-", &base.top, &base.id, patch]);
    command.extend(tests.restore.iter().cloned());
    command
}

fn script(script: &str, args: &[&str]) -> Vec<String> {
    let words = ["sh", "-c", &format!("{COMMON}\n{script}"), "sh"].map(str::to_owned);
    words.into_iter().chain(args.iter().map(|arg| (*arg).to_owned())).collect()
}

/// The files that a patch names, in its order, at most `limit`; and how many there are.
pub(super) fn files(patch: &[u8], limit: usize) -> (Vec<String>, usize) {
    let lines = patch.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"diff --git "));
    let names = lines.map(|sides| {
        let sides = String::from_utf8_lossy(sides);
        // Both sides are the same file, `a/X b/X`.
        sides.get(sides.len() / 2 + 1..).and_then(|side| side.strip_prefix("b/")).unwrap_or(&sides).to_owned()
    });
    let all: Vec<String> = names.collect();
    let count = all.len();
    (all.into_iter().take(limit).collect(), count)
}

#[cfg(test)]
#[path = "git/tests.rs"]
mod in_a_repository;
