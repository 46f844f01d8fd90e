//! `init exec`: one command that can be ended with all that it started; an engine can't end what it runs in a sandbox.
//! `init idle`: a first process for sandboxes that only such commands are run in.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, exit};
use std::time::{Duration, Instant};

use crate::signals::Signals;
use crate::{family, number, sys, usage};

/// The exit code of a command whose time was up, as `timeout` has it.
const TIMED_OUT: i32 = 124;

struct Options {
    deadline: Duration,
    grace: Duration,
    unset: Vec<OsString>,
    command: Vec<OsString>,
}

impl Options {
    fn parse(args: &[OsString]) -> Self {
        let (mut deadline, mut grace, mut unset) = (None, None, Vec::new());
        let mut rest = args.iter();
        while let Some(flag) = rest.next().filter(|flag| *flag != "--") {
            let value = rest.next().unwrap_or_else(|| usage());
            let ms = || Duration::from_millis(number(value.to_str().unwrap_or_else(|| usage())));
            match flag.to_str() {
                Some("--deadline-ms") => deadline = Some(ms()),
                Some("--grace-ms") => grace = Some(ms()),
                Some("--unset") => unset.push(value.clone()),
                _ => usage(),
            }
        }
        let command: Vec<OsString> = rest.cloned().collect();
        match (deadline, grace) {
            (Some(deadline), Some(grace)) if !command.is_empty() => Self { deadline, grace, unset, command },
            _ => usage(),
        }
    }
}

/// Runs a command in a session of its own and exits as it did, once nothing of it lives. At its deadline it gets TERM, after the
/// grace KILL; the exit code is 124 then.
pub fn exec(args: &[OsString]) -> io::Result<()> {
    let options = Options::parse(args);
    guard();
    let signals = Signals::open()?;
    let pid = match spawn(&options) {
        Ok(pid) => pid,
        Err(error) => {
            eprintln!("init: cannot start {}: {error}", options.command[0].display());
            exit(if error.kind() == ErrorKind::NotFound { 127 } else { 126 });
        }
    };
    let (mut next, mut asked, mut timed_out) = (Instant::now().checked_add(options.deadline), false, false);
    loop {
        let mut fds = [sys::Poll::read(signals.0.as_raw_fd())];
        sys::poll(&mut fds, next.map(|next| next.saturating_duration_since(Instant::now())))?;
        let terminated = fds[0].revents != 0 && signals.drain();
        if let Some(status) = reap(pid) {
            family::clear();
            exit(if timed_out { TIMED_OUT } else { code(status) });
        }
        let due = next.is_some_and(|next| next <= Instant::now());
        if !asked && (due || terminated) {
            // SAFETY: plain system call on numbers.
            unsafe { sys::kill(-pid, sys::SIGTERM) };
            (asked, timed_out) = (true, due);
            next = Instant::now().checked_add(options.grace);
        } else if asked && due {
            family::kill_all();
            next = Instant::now().checked_add(Duration::from_millis(100));
        }
    }
}

/// Does nothing but reap, for so long at most; ends at once if it is asked to.
pub fn idle(time: Duration) -> io::Result<()> {
    guard();
    let signals = Signals::open()?;
    let until = Instant::now() + time;
    while Instant::now() < until {
        let mut fds = [sys::Poll::read(signals.0.as_raw_fd())];
        sys::poll(&mut fds, Some(until.saturating_duration_since(Instant::now())))?;
        if fds[0].revents != 0 && signals.drain() {
            break;
        }
        reap(0);
    }
    Ok(())
}

/// What outlives its parent becomes this one's child; and nobody reads this one's memory or environment.
fn guard() {
    family::adopt();
    // SAFETY: plain system call on numbers.
    unsafe { sys::prctl(sys::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

fn spawn(options: &Options) -> io::Result<i32> {
    let mut command = Command::new(&options.command[0]);
    command.args(&options.command[1..]);
    for name in &options.unset {
        command.env_remove(name);
    }
    // SAFETY: only async-signal-safe calls between fork and exec.
    unsafe {
        command.pre_exec(|| {
            sys::setsid();
            Signals::unblock();
            family::die_with_parent();
            Ok(())
        });
    }
    Ok(command.spawn()?.id().cast_signed())
}

/// As a shell says it: of a signal 128 and its number.
fn code(status: i32) -> i32 {
    let signal = status & 0x7f;
    if signal == 0 { (status >> 8) & 0xff } else { 128 + signal }
}

/// Reaps every child that has ended; the status of `pid` if it was among them.
fn reap(pid: i32) -> Option<i32> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let ended = unsafe { sys::waitpid(-1, &raw mut status, sys::WNOHANG) };
        if ended <= 0 {
            return found;
        }
        if ended == pid {
            found = Some(status);
        }
    }
}
