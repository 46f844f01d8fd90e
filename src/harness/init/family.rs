//! The processes of a harness, and their end.
//!
//! In a container that is everything. Without one the init adopts what loses its parent, so that all that a harness starts stays
//! below it, and finds it by walking there; and every process of a sandbox has a mark in its environment, by which it is found
//! when the init itself was killed.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::sys;

/// How long what hangs in the kernel is waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where it is said if it does not end: on a busy machine a look at all processes alone may take seconds.
const LONG: Duration = Duration::from_secs(30);

/// Whether this is the first process of a container.
fn first() -> bool {
    sys::getpid() == 1
}

/// Orphans below this process become its children, as they do where it is the first.
pub fn adopt() {
    // SAFETY: plain system call on numbers.
    unsafe { sys::prctl(sys::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
}

/// For a child between fork and exec: it is killed when its parent is, as it is where that is the first process.
pub fn die_with_parent() {
    // SAFETY: plain system call on numbers.
    unsafe { sys::prctl(sys::PR_SET_PDEATHSIG, sys::SIGKILL.cast_unsigned() as usize, 0, 0, 0) };
}

/// KILL to everything of the harness; as the first process this spares itself.
pub fn kill_all() {
    if first() {
        signal(-1, sys::SIGKILL);
    } else {
        kill(&below(&[sys::getpid()]));
    }
}

/// Kills what is left and reaps it.
pub fn clear() {
    let until = Instant::now() + PATIENCE;
    loop {
        kill_all();
        // SAFETY: a null status pointer is allowed.
        match unsafe { sys::waitpid(-1, std::ptr::null_mut(), sys::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            pid if pid > 0 => {}
            _ => return,
        }
    }
}

/// Kills every process whose environment has `mark`, and what is below it and below `init`; then `init`, which adopts orphans
/// until then.
pub fn kill_marked(mark: &str, init: Option<i32>) -> io::Result<()> {
    let until = Instant::now() + LONG;
    loop {
        let mut roots = marked(mark.as_bytes());
        roots.extend(init);
        let mut found = below(&roots);
        found.extend(roots.into_iter().filter(|root| Some(*root) != init));
        if found.is_empty() {
            break;
        }
        kill(&found);
        if Instant::now() > until {
            return Err(io::Error::other(format!("processes that can't be killed: {found:?}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(init) = init {
        signal(init, sys::SIGKILL);
    }
    Ok(())
}

/// All are stopped before the first is killed: what stands still does not start anything.
fn kill(pids: &[i32]) {
    for what in [sys::SIGSTOP, sys::SIGKILL] {
        for &pid in pids {
            signal(pid, what);
        }
    }
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: plain system call on numbers.
    unsafe { sys::kill(pid, signal) };
}

/// The living processes below these, children of children included.
fn below(roots: &[i32]) -> Vec<i32> {
    let all = processes();
    let mut family: HashSet<i32> = roots.iter().copied().collect();
    let mut found = Vec::new();
    loop {
        let before = found.len();
        for &(pid, parent, dead) in &all {
            if family.contains(&parent) && family.insert(pid) && !dead {
                found.push(pid);
            }
        }
        if found.len() == before {
            return found;
        }
    }
}

/// Each process with its parent, and whether it is dead and only waits to be reaped.
fn processes() -> Vec<(i32, i32, bool)> {
    let stat = |pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name stands in parentheses and may hold anything.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let dead = matches!(fields.next()?, "Z" | "X");
        Some((pid, fields.next()?.parse().ok()?, dead))
    };
    pids().filter_map(stat).collect()
}

/// The other processes that have a variable of this name and value.
fn marked(mark: &[u8]) -> Vec<i32> {
    let has = |pid: &i32| {
        *pid != sys::getpid()
            && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| environ.split(|&byte| byte == 0).any(|one| one == mark))
    };
    pids().filter(has).collect()
}

fn pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
