//! A sandbox's processes: its init, the commands beside it, and their end.

use std::io::{self, ErrorKind};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::unix::pipe::Receiver;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::folder::{self, Folder};
use super::log::Log;
use crate::engine::output::Output;
use crate::engine::{ExecResult, ExecSpec, SandboxSpec};

/// Where programs are looked for if our own environment does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The variable that all that one command has started has.
const RUN: &str = "GLEANER_EXEC";
/// What is read of a pipe at once, in bytes.
const PIECE: usize = 16 << 10;
/// How long an init may take to end what it has started.
const SOON: Duration = Duration::from_secs(1);
/// How long what a command has left running may hold its output open.
const LINGER: Duration = Duration::from_secs(1);

/// A sandbox's init, started.
pub(super) struct Init {
    pub pid: u32,
    pub stdout: Arc<Log>,
    pub stderr: Arc<Log>,
    ended: watch::Receiver<Option<i64>>,
}

impl Init {
    /// Starts it, with the model's socket as its standard input. It ends when its line to us does.
    pub fn start(
        tasks: &TaskTracker,
        helper: &Path,
        folder: &Arc<Folder>,
        spec: &SandboxSpec,
        listener: TcpListener,
    ) -> io::Result<Arc<Self>> {
        let mut command = within(folder, spec, &spec.command)?;
        command.current_dir(&spec.workdir).stdin(Stdio::from(OwnedFd::from(listener)));
        let mut child = command.spawn()?;
        let gone = || io::Error::new(ErrorKind::NotFound, "it ended at once");
        let pid = child.id().ok_or_else(gone)?;
        let logs = folder.path.join(folder::LOGS);
        let (stdout, stderr) = (Log::new(logs.join("stdout")), Log::new(logs.join("stderr")));
        let pipes = (child.stdout.take().ok_or_else(gone)?, child.stderr.take().ok_or_else(gone)?);
        let pipes = [pipes.0.into_owned_fd()?, pipes.1.into_owned_fd()?];
        for (log, pipe) in [&stdout, &stderr].into_iter().zip(pipes) {
            tasks.spawn(Arc::clone(log).keep(Receiver::from_owned_fd(pipe)?));
        }
        let (tell, ended) = watch::channel(None);
        let (helper, folder) = (helper.to_owned(), Arc::clone(folder));
        tasks.spawn(async move {
            let status = child.wait().await;
            // Something killed it, perhaps its own harness: then nobody has cleared away.
            if status.as_ref().is_ok_and(|status| status.signal().is_some())
                && let Err(error) = kill(&helper, &folder.mark(), None).await
            {
                tracing::warn!(folder = %folder.path.display(), %error, "could not end what a sandbox left");
            }
            tell.send_replace(Some(status.map_or(-1, code)));
        });
        Ok(Arc::new(Self { pid, stdout, stderr, ended }))
    }

    /// Waits until it has ended by itself, which it does once its line to us is closed; then nothing that it has started is left. False
    /// if it was killed, or does not end so soon.
    pub async fn ended_well(&self) -> bool {
        let mut ended = self.ended.clone();
        matches!(timeout(SOON, ended.wait_for(Option::is_some)).await, Ok(Ok(code)) if *code == Some(0))
    }

    /// How it ended, if it did: its exit code, or as a shell would say it.
    pub fn exit_code(&self) -> Option<i64> {
        *self.ended.borrow()
    }
}

fn code(status: ExitStatus) -> i64 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map_or(-1, i64::from)
}

/// A command of a sandbox, in a group of its own, with nothing of our environment but where programs are.
fn within(folder: &Folder, spec: &SandboxSpec, words: &[String]) -> io::Result<Command> {
    let (program, rest) = words.split_first().ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, "there is no program"))?;
    let mut command = Command::new(program);
    command.args(rest).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap_or_else(|| PATH.into()));
    command.env("TMPDIR", folder.path.join(folder::TEMP));
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    let (name, value) = folder.mark_pair();
    command.env(name, value);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    Ok(command)
}

/// Runs a command; past its time all that it has started is killed.
pub(super) async fn exec(helper: &Path, folder: &Folder, sandbox: &SandboxSpec, spec: &ExecSpec) -> io::Result<ExecResult> {
    let deadline = Instant::now() + spec.timeout;
    let run = Uuid::new_v4().simple().to_string();
    let mut command = within(folder, sandbox, &spec.command)?;
    command.envs(spec.env.iter().map(|(name, value)| (name, value))).env(RUN, &run);
    command.current_dir(spec.workdir.as_ref().unwrap_or(&sandbox.workdir));
    let mut output = Output::new(spec.output_limit);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Ok(not_started(&spec.command[0], &error)),
    };
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(stdin), Some(stdout), Some(stderr)) = pipes else { return Err(io::Error::other("it has no pipes")) };
    let ended = {
        let mut talk = std::pin::pin!(converse(stdin, stdout, stderr, &spec.stdin, &mut output));
        timeout_at(deadline, async {
            tokio::select! {
                () = &mut talk => child.wait().await,
                status = child.wait() => {
                    // What it has printed is in the pipes by now; what it has left running may hold them open.
                    let _ = timeout(LINGER, &mut talk).await;
                    status
                }
            }
        })
        .await
    };
    let (exit_code, timed_out) = if let Ok(status) = ended {
        (code(status?), false)
    } else {
        kill(helper, &format!("{RUN}={run}"), None).await?;
        child.wait().await?;
        (-1, true)
    };
    let (stdout, stderr) = output.finish();
    Ok(ExecResult { exit_code, stdout, stderr, timed_out })
}

/// As a shell says it.
fn not_started(program: &str, error: &io::Error) -> ExecResult {
    let exit_code = if error.kind() == ErrorKind::NotFound { 127 } else { 126 };
    let stderr = Bytes::from(format!("cannot start {program}: {error}\n"));
    ExecResult { exit_code, stdout: Bytes::new(), stderr, timed_out: false }
}

/// Gives a command its input and takes its output, both at once, until both outputs are closed.
async fn converse(
    mut stdin: impl AsyncWrite + Unpin,
    mut stdout: impl AsyncRead + Unpin,
    mut stderr: impl AsyncRead + Unpin,
    input: &[u8],
    output: &mut Output,
) {
    let mut feed = std::pin::pin!(async move {
        // A command that does not want it has closed its end.
        let _ = stdin.write_all(input).await;
    });
    let (mut feeding, mut printing, mut complaining) = (true, true, true);
    let (mut printed, mut complained) = (vec![0; PIECE], vec![0; PIECE]);
    while printing || complaining {
        tokio::select! {
            () = &mut feed, if feeding => feeding = false,
            count = stdout.read(&mut printed), if printing => {
                let count = count.unwrap_or(0);
                output.push(false, &printed[..count]);
                printing = count > 0;
            }
            count = stderr.read(&mut complained), if complaining => {
                let count = count.unwrap_or(0);
                output.push(true, &complained[..count]);
                complaining = count > 0;
            }
        }
    }
}

/// Ends every process with this mark, and all below `init`, and it.
pub(super) async fn kill(helper: &Path, mark: &str, init: Option<u32>) -> io::Result<()> {
    let mut command = Command::new(helper);
    command.args(["kill", mark]).args(init.map(|pid| pid.to_string())).env_clear().stdin(Stdio::null()).kill_on_drop(true);
    let ended = command.output().await?;
    if ended.status.success() { Ok(()) } else { Err(io::Error::other(String::from_utf8_lossy(&ended.stderr).trim().to_owned())) }
}
