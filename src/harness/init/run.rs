//! `init run`: starts the harness, reaps, keeps the deadline, reports the end.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::control::{Control, Heard};
use crate::forward::Forwarder;
use crate::signals::Signals;
use crate::{doing, memory, number, sys, usage};

struct Options {
    control: PathBuf,
    listen: String,
    socket: PathBuf,
    deadline: Duration,
    grace: Duration,
    stdin: Option<PathBuf>,
    stdout: Option<PathBuf>,
    stderr: Option<PathBuf>,
    command: Vec<OsString>,
}

impl Options {
    fn parse(args: &[OsString]) -> Self {
        let (mut control, mut listen, mut socket, mut deadline, mut grace) = (None, None, None, None, None);
        let (mut stdin, mut stdout, mut stderr) = (None, None, None);
        let mut rest = args.iter();
        while let Some(flag) = rest.next() {
            if flag == "--" {
                break;
            }
            let value = rest.next().unwrap_or_else(|| usage());
            let text = value.to_str().unwrap_or_else(|| usage());
            match flag.to_str() {
                Some("--control") => control = Some(value.into()),
                Some("--listen") => listen = Some(text.to_owned()),
                Some("--socket") => socket = Some(value.into()),
                Some("--deadline-ms") => deadline = Some(Duration::from_millis(number(text))),
                Some("--grace-ms") => grace = Some(Duration::from_millis(number(text))),
                Some("--stdin") => stdin = Some(value.into()),
                Some("--stdout") => stdout = Some(value.into()),
                Some("--stderr") => stderr = Some(value.into()),
                _ => usage(),
            }
        }
        let command: Vec<OsString> = rest.cloned().collect();
        match (control, listen, socket, deadline, grace) {
            (Some(control), Some(listen), Some(socket), Some(deadline), Some(grace)) if !command.is_empty() => {
                Self { control, listen, socket, deadline, grace, stdin, stdout, stderr, command }
            }
            _ => usage(),
        }
    }
}

/// Where a run stands.
enum Phase {
    /// Ready; the host has not said `go`.
    Waiting,
    Running {
        pid: i32,
        started: Instant,
        /// When the next thing happens to it: TERM first, then KILL.
        next: Option<Instant>,
        asked: bool,
        timed_out: bool,
    },
    /// The harness has ended and was reported; the host reads what it left.
    Over,
}

/// Runs a harness; returns once the host has hung up.
pub fn run(args: &[OsString]) -> io::Result<()> {
    let options = Options::parse(args);
    // No process of the harness's user may trace this one, read its memory or take its sockets: the report stays its own.
    // SAFETY: plain system call on numbers.
    unsafe { sys::prctl(sys::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    let signals = Signals::open()?;
    let mut forwarder =
        doing(format_args!("listen on {}", options.listen), Forwarder::open(&options.listen, options.socket.clone()))?;
    let stream = doing(format_args!("connect to {}", options.control.display()), UnixStream::connect(&options.control))?;
    let mut control = Control { stream, line: Vec::new() };
    control.say("ready");
    control.stream.set_nonblocking(true)?;
    let mut phase = Phase::Waiting;
    loop {
        let mut fds = vec![sys::Poll::read(signals.0.as_raw_fd()), sys::Poll::read(control.stream.as_raw_fd())];
        forwarder.interests(&mut fds);
        let mut wake = forwarder.wake();
        if let Phase::Running { next: Some(next), .. } = phase {
            wake = Some(wake.map_or(next, |wake| wake.min(next)));
        }
        sys::poll(&mut fds, wake.map(|wake| wake.saturating_duration_since(Instant::now())))?;

        let terminated = fds[0].revents != 0 && signals.drain();
        if let Some(status) = reap(&phase) {
            forwarder.stop();
            phase = finish(&phase, status, &mut control);
        }
        if fds[1].revents != 0 {
            match control.read() {
                Heard::Nothing => {}
                Heard::Go if matches!(phase, Phase::Waiting) => phase = start(&options, &mut control),
                Heard::Mark(word) if matches!(phase, Phase::Over) => mark(&word),
                Heard::Go | Heard::Mark(_) => {}
                Heard::Closed => return end(&phase),
            }
        }
        if terminated && matches!(phase, Phase::Waiting | Phase::Over) {
            return end(&phase);
        }
        press(&mut phase, terminated, options.grace);
        forwarder.turn(&fds[2..]);
    }
}

/// Starts the harness in a session of its own. One that cannot be started has ended as a shell would say: 126 or 127.
fn start(options: &Options, control: &mut Control) -> Phase {
    let output = |path: &Option<PathBuf>| -> io::Result<Stdio> {
        let Some(path) = path else { return Ok(Stdio::inherit()) };
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        doing(path.display(), OpenOptions::new().append(true).create(true).open(path)).map(Stdio::from)
    };
    // The file is the harness's standard input and nothing that it finds.
    let input = |path: &Option<PathBuf>| -> io::Result<Stdio> {
        let Some(path) = path else { return Ok(Stdio::null()) };
        let file = doing(path.display(), File::open(path))?;
        doing(path.display(), fs::remove_file(path))?;
        Ok(Stdio::from(file))
    };
    let spawn = || -> io::Result<i32> {
        let mut command = Command::new(&options.command[0]);
        command.args(&options.command[1..]).stdin(input(&options.stdin)?);
        command.stdout(output(&options.stdout)?).stderr(output(&options.stderr)?);
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                sys::setsid();
                Signals::unblock();
                Ok(())
            });
        }
        Ok(command.spawn()?.id().cast_signed())
    };
    let started = Instant::now();
    match spawn() {
        Ok(pid) => {
            control.say(&format!("started {pid}"));
            Phase::Running { pid, started, next: started.checked_add(options.deadline), asked: false, timed_out: false }
        }
        Err(error) => {
            let message = format!("init: cannot start {}: {error}\n", options.command[0].display());
            if let Some(mut file) = options.stderr.as_ref().and_then(|path| OpenOptions::new().append(true).open(path).ok()) {
                let _ = file.write_all(message.as_bytes());
            }
            let _ = io::stderr().write_all(message.as_bytes());
            let code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
            control.say(&format!("exited code={code} signal=0 timed_out=0 ms=0"));
            Phase::Over
        }
    }
}

/// Ends a harness whose time is up, or that the engine wants to stop: TERM to its group, after the grace KILL to everything.
fn press(phase: &mut Phase, terminated: bool, grace: Duration) {
    let Phase::Running { pid, next, asked, timed_out, .. } = phase else { return };
    let now = Instant::now();
    let due = next.is_some_and(|next| next <= now);
    if !*asked && (due || terminated) {
        // SAFETY: plain system call on numbers.
        unsafe { sys::kill(-*pid, sys::SIGTERM) };
        (*asked, *timed_out) = (true, due);
        *next = now.checked_add(grace);
    } else if *asked && due {
        kill_all(*pid);
        *next = now.checked_add(Duration::from_millis(100));
    }
}

/// The harness has exited: nothing of it may live on, then its end is told.
fn finish(phase: &Phase, status: i32, control: &mut Control) -> Phase {
    if let Phase::Running { pid, started, timed_out, .. } = phase {
        let ms = started.elapsed().as_millis();
        let signal = status & 0x7f;
        let code = if signal == 0 { (status >> 8) & 0xff } else { 128 + signal };
        clear(*pid);
        let memory = if memory::ran_out() { " oom=1" } else { "" };
        control.say(&format!("exited code={code} signal={signal} timed_out={}{memory} ms={ms}", u8::from(*timed_out)));
    }
    Phase::Over
}

/// Ends both outputs with the host's word: the engine copies them late, and the host must know when it has read all.
fn mark(word: &[u8]) {
    let _ = io::stdout().write_all(word).and_then(|()| io::stdout().flush());
    let _ = io::stderr().write_all(word);
}

/// The host is gone or has what it wants.
fn end(phase: &Phase) -> io::Result<()> {
    match phase {
        Phase::Running { pid, .. } => clear(*pid),
        Phase::Over if sys::getpid() == 1 => clear(0),
        Phase::Over | Phase::Waiting => {}
    }
    Ok(())
}

/// Kills what is left and reaps it. What hangs in the kernel is waited for 5 s at most.
fn clear(group: i32) {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        kill_all(group);
        // SAFETY: a null status pointer is allowed.
        match unsafe { sys::waitpid(-1, std::ptr::null_mut(), sys::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            pid if pid > 0 => {}
            _ => return,
        }
    }
}

/// KILL to everything in the sandbox; as the first process this spares itself. Where it is not the first process (a harness
/// without a container) that would be everything of the user's, so there it is the harness's group only.
fn kill_all(group: i32) {
    let whom = if sys::getpid() == 1 { -1 } else { -group };
    if whom != 0 {
        // SAFETY: plain system call on numbers.
        unsafe { sys::kill(whom, sys::SIGKILL) };
    }
}

/// Reaps every child that has ended; the harness's status if it was among them.
fn reap(phase: &Phase) -> Option<i32> {
    let mut found = None;
    loop {
        let mut status = 0;
        // SAFETY: `status` outlives the call.
        let pid = unsafe { sys::waitpid(-1, &raw mut status, sys::WNOHANG) };
        if pid <= 0 {
            return found;
        }
        if matches!(phase, Phase::Running { pid: harness, .. } if *harness == pid) {
            found = Some(status);
        }
    }
}
