//! `init`: the first process of a sandbox. Std only, compiled statically by `build.rs`, so that it runs in any image.
//!
//! `init run` carries the model endpoint from the sandbox's loopback to the rollout's unix socket, starts the harness, reaps,
//! keeps the deadline and reports the end. `init own`, `write` and `cat` handle files of the sandbox whatever tools it has;
//! `init inside` does so from a container beside it. `init kill` ends the processes of a sandbox that is no container.
//!
//! It runs in one thread around one `poll`: a harness that uses up the sandbox's process limit cannot starve it.

mod control;
mod family;
mod files;
mod forward;
mod run;
mod signals;
mod sys;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::exit;

const USAGE: &str = "usage: init run --control SOCKET --listen ADDR --socket SOCKET --deadline-ms N --grace-ms N \
[--stdin PATH] [--stdout PATH --stderr PATH] -- COMMAND ARGS... | own UID GID DIR | write PATH MODE UID GID | cat PATH LIMIT | inside COMMAND ARGS... | kill NAME=VALUE [PID]";

fn main() {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let text: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or("")).collect();
    let done = match text.as_slice() {
        ["run", ..] => run::run(&args[1..]),
        ["own", uid, gid, _] => files::own(number(uid), number(gid), Path::new(&args[3])),
        ["write", _, mode, uid, gid] => files::write(Path::new(&args[1]), octal(mode), number(uid), number(gid)),
        ["cat", _, limit] => files::cat(Path::new(&args[1]), number(limit)),
        ["inside", _, ..] => files::inside(&args[1..]),
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

fn octal(text: &str) -> u32 {
    u32::from_str_radix(text, 8).unwrap_or_else(|_| usage())
}

/// Says what was being done when something failed.
fn doing<T>(what: impl std::fmt::Display, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}
