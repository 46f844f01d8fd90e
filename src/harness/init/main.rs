//! `init`: the first process of a sandbox. Std only, compiled statically by `build.rs`, so that it runs in any image.
//!
//! `init run` carries the model endpoint from the sandbox's loopback to the rollout's unix socket, starts the harness, reaps,
//! keeps the deadline and reports the end. `init own` and `cat` handle files of the sandbox whatever tools it has; `pack` and `clear` bring
//! them out and remove them. `init exec` runs a command that ends with all that it started, and `init idle` waits. `init kill` ends
//! the processes of a sandbox that is no container. `init probe` is a harness that tries to get out.
//!
//! It runs in one thread around one `poll`: a harness that uses up the sandbox's process limit cannot starve it.

mod control;
mod exec;
mod family;
mod files;
mod forward;
mod memory;
mod pack;
mod probe;
mod run;
mod signals;
mod sys;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::Duration;

const USAGE: &str = "usage: init run --control SOCKET --listen ADDR --socket SOCKET --deadline-ms N --grace-ms N \
[--stdin PATH] [--stdout PATH --stderr PATH] -- COMMAND ARGS... | own UID GID DIR | cat PATH LIMIT | clear PATH... | \
pack LIMIT EACH PATH... | exec --deadline-ms N --grace-ms N [--unset NAME]... -- COMMAND ARGS... | idle MS | probe TARGET... | \
kill NAME=VALUE [PID]";

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let text: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or("")).collect();
    let done = match text.as_slice() {
        ["run", ..] => run::run(&args[1..]),
        ["own", uid, gid, _] => files::own(number(uid), number(gid), Path::new(&args[3])),
        ["cat", _, limit] => files::cat(Path::new(&args[1]), number(limit)),
        ["clear", _, ..] => files::clear(&args[1..]),
        ["pack", limit, each, _, ..] => {
            let paths: Vec<PathBuf> = args[3..].iter().map(PathBuf::from).collect();
            pack::pack(number(limit), number(each), &paths)
        }
        ["exec", _, ..] => exec::exec(&args[1..]),
        ["idle", ms] => exec::idle(Duration::from_millis(number(ms))),
        ["probe", targets @ ..] => probe::probe(targets),
        // Nothing else than a variable: an empty mark would be everybody's.
        ["kill", mark] if mark.contains('=') => family::kill_marked(mark, None),
        ["kill", mark, pid] if mark.contains('=') => family::kill_marked(mark, Some(number(pid))),
        _ => usage(),
    };
    if let Err(error) = done {
        eprintln!("init: {error}");
        exit(1);
    }
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    exit(2)
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse().unwrap_or_else(|_| usage())
}

/// Says what was being done when something failed.
fn doing<T>(what: impl std::fmt::Display, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}
