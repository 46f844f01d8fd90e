//! Runs a command in a started sandbox.

use std::time::Duration;

use bollard::container::LogOutput;
use bollard::errors::Error;
use bollard::exec::{CreateExecOptions, StartExecOptions, StartExecResults};
use futures::{Stream, StreamExt};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout_at};

use super::failed;
use crate::engine::output::Output;
use crate::engine::{EngineError, ExecResult, ExecSpec, SandboxId};

/// Past its time a command is not waited for, but it lives on: Docker has no way to kill one. So whoever gets
/// `timed_out` removes the sandbox, which kills everything in it.
pub(super) async fn exec(api: &bollard::Docker, sandbox: &SandboxId, spec: &ExecSpec) -> Result<ExecResult, EngineError> {
    let deadline = Instant::now() + spec.timeout;
    let doing = || format!("run {} in sandbox {}", spec.command.first().map_or("nothing", String::as_str), sandbox.0);
    let mut output = Output::new(spec.output_limit);
    let run = async {
        let id = api.create_exec(&sandbox.0, options(spec)).await.map_err(failed(doing()))?.id;
        let start = StartExecOptions { detach: false, tty: false, output_capacity: Some(1 << 16) };
        let StartExecResults::Attached { output: mut lines, mut input } =
            api.start_exec(&id, Some(start)).await.map_err(failed(doing()))?
        else {
            return Err(EngineError::Failed { doing: doing(), why: "the engine did not attach".to_owned() });
        };
        converse(&mut lines, &mut input, &spec.stdin, &mut output).await.map_err(failed(doing()))?;
        exit_code(api, &id).await.map_err(failed(doing()))
    };
    let ended = timeout_at(deadline, run).await;
    let (exit_code, timed_out) = match ended {
        Ok(code) => (code?, false),
        Err(_) => (-1, true),
    };
    let (stdout, stderr) = output.finish();
    Ok(ExecResult { exit_code, stdout, stderr, timed_out })
}

/// Gives a command its input and takes its output, both at once: one that prints before it has read everything would wait
/// for ever otherwise. One that reads nothing closes its end, which is no failure.
async fn converse<I: AsyncWrite + Unpin>(
    lines: &mut (impl Stream<Item = Result<LogOutput, Error>> + Unpin),
    input: &mut I,
    stdin: &[u8],
    output: &mut Output,
) -> Result<(), Error> {
    let feed = async {
        if input.write_all(stdin).await.is_ok() {
            let _ = input.shutdown().await;
        }
    };
    let collect = async {
        while let Some(line) = lines.next().await {
            sort(line?, |is_error, bytes| output.push(is_error, bytes));
        }
        Ok(())
    };
    tokio::pin!(feed, collect);
    tokio::select! {
        collected = &mut collect => collected,
        () = &mut feed => collect.await,
    }
}

fn options(spec: &ExecSpec) -> CreateExecOptions<String> {
    CreateExecOptions {
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        tty: Some(false),
        detach_keys: None,
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        cmd: Some(spec.command.clone()),
        privileged: Some(false),
        user: spec.user.clone(),
        working_dir: spec.workdir.clone(),
    }
}

/// The exit code may come a moment after the output's end.
async fn exit_code(api: &bollard::Docker, id: &str) -> Result<i64, Error> {
    loop {
        let facts = api.inspect_exec(id).await?;
        if let (Some(code), Some(false)) = (facts.exit_code, facts.running) {
            return Ok(code);
        }
        sleep(Duration::from_millis(10)).await;
    }
}

/// Gives a piece of output to `take`, with whether it is standard error.
pub(super) fn sort(piece: LogOutput, mut take: impl FnMut(bool, &[u8])) {
    match piece {
        LogOutput::StdErr { message } => take(true, &message),
        LogOutput::StdOut { message } | LogOutput::Console { message } => take(false, &message),
        LogOutput::StdIn { .. } => {}
    }
}
