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

use crate::control::{Content, Control, Heard};
use crate::forward::Forwarder;
use crate::signals::Signals;
use crate::{doing, family, files, memory, number, sys, usage};

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
    Running(Harness),
    /// The harness has ended and was reported; the host reads what it left.
    Over,
}

/// A harness that runs.
struct Harness {
    pid: i32,
    started: Instant,
    /// When the next thing happens to it: TERM first, then KILL. Nothing by itself while its time stands still.
    next: Option<Instant>,
    /// Its time while it stands still.
    left: Option<Duration>,
    /// TERM was sent.
    asked: bool,
    timed_out: bool,
}

impl Harness {
    /// Lets its time stand still, or go on. The grace after TERM is no time of its own.
    fn hold(&mut self, hold: bool) {
        let now = Instant::now();
        match (hold, self.left, self.next) {
            (true, None, Some(next)) if !self.asked => (self.left, self.next) = (Some(next.saturating_duration_since(now)), None),
            (false, Some(left), _) if !self.asked => (self.left, self.next) = (None, now.checked_add(left)),
            _ => {}
        }
    }

    /// Ends it if its time is up or somebody wants it to stop: TERM to its group, after the grace KILL to everything.
    fn press(&mut self, stop: bool, grace: Duration) {
        let now = Instant::now();
        let due = self.next.is_some_and(|next| next <= now);
        if !self.asked && (due || stop) {
            // SAFETY: plain system call on numbers.
            unsafe { sys::kill(-self.pid, sys::SIGTERM) };
            (self.asked, self.timed_out) = (true, due);
            self.next = now.checked_add(grace);
        } else if self.asked && due {
            family::kill_all();
            self.next = now.checked_add(Duration::from_millis(100));
        }
    }
}

/// Runs a harness; returns once the host has hung up.
pub fn run(args: &[OsString]) -> io::Result<()> {
    let options = Options::parse(args);
    // No process of the harness's user may trace this one, read its memory or take its sockets: the report stays its own.
    // SAFETY: plain system call on numbers.
    unsafe { sys::prctl(sys::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    family::adopt();
    let signals = Signals::open()?;
    let mut forwarder =
        doing(format_args!("listen on {}", options.listen), Forwarder::open(&options.listen, options.socket.clone()))?;
    let stream = doing(format_args!("connect to {}", options.control.display()), UnixStream::connect(&options.control))?;
    let mut control = Control { stream, line: Vec::new() };
    control.say("ready");
    control.stream.set_nonblocking(true)?;
    let mut phase = Phase::Waiting;
    let mut held = false;
    loop {
        let mut fds = vec![sys::Poll::read(signals.0.as_raw_fd()), sys::Poll::read(control.stream.as_raw_fd())];
        forwarder.interests(&mut fds);
        let mut wake = forwarder.wake();
        if let Phase::Running(Harness { next: Some(next), .. }) = phase {
            wake = Some(wake.map_or(next, |wake| wake.min(next)));
        }
        sys::poll(&mut fds, wake.map(|wake| wake.saturating_duration_since(Instant::now())))?;

        let terminated = fds[0].revents != 0 && signals.drain();
        let mut stop = terminated;
        if let Some(status) = reap(&phase) {
            forwarder.stop();
            phase = finish(&phase, status, &mut control);
        }
        for heard in if fds[1].revents == 0 { Vec::new() } else { control.read() } {
            match heard {
                Heard::Go if matches!(phase, Phase::Waiting) => phase = start(&options, held, &mut control),
                Heard::Write(content) if matches!(phase, Phase::Waiting) => write(&content, &mut control),
                Heard::Stop => stop = true,
                Heard::Hold(hold) => held = hold,
                Heard::Mark(word) if matches!(phase, Phase::Over) => mark(&word),
                Heard::Go | Heard::Write(_) | Heard::Mark(_) => {}
                Heard::Closed => return end(&phase),
            }
        }
        match &mut phase {
            Phase::Running(harness) => {
                if terminated {
                    control.say("terminated");
                }
                harness.hold(held);
                harness.press(stop, options.grace);
            }
            Phase::Waiting | Phase::Over if terminated => return end(&phase),
            Phase::Waiting | Phase::Over => {}
        }
        forwarder.turn(&fds[2..]);
    }
}

/// Writes a file that the harness will find, as its own user.
fn write(content: &Content, control: &mut Control) {
    match files::write(&content.path, content.mode, &content.bytes) {
        Ok(()) => control.say("wrote"),
        Err(error) => control.say(&format!("failed {}", error.to_string().replace('\n', " "))),
    }
}

/// Starts the harness in a session of its own. One that cannot be started has ended as a shell would say: 126 or 127.
fn start(options: &Options, held: bool, control: &mut Control) -> Phase {
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
                family::die_with_parent();
                Ok(())
            });
        }
        Ok(command.spawn()?.id().cast_signed())
    };
    let started = Instant::now();
    match spawn() {
        Ok(pid) => {
            control.say(&format!("started {pid}"));
            let next = started.checked_add(options.deadline);
            let mut harness = Harness { pid, started, next, left: None, asked: false, timed_out: false };
            harness.hold(held);
            Phase::Running(harness)
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

/// The harness has exited: nothing of it may live on, then its end is told.
fn finish(phase: &Phase, status: i32, control: &mut Control) -> Phase {
    if let Phase::Running(harness) = phase {
        let ms = harness.started.elapsed().as_millis();
        let signal = status & 0x7f;
        let code = if signal == 0 { (status >> 8) & 0xff } else { 128 + signal };
        family::clear();
        let memory = if memory::ran_out() { " oom=1" } else { "" };
        let timed_out = u8::from(harness.timed_out);
        control.say(&format!("exited code={code} signal={signal} timed_out={timed_out}{memory} ms={ms}"));
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
    if !matches!(phase, Phase::Waiting) {
        family::clear();
    }
    Ok(())
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
        if matches!(phase, Phase::Running(harness) if harness.pid == pid) {
            found = Some(status);
        }
    }
}
