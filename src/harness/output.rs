//! What a harness printed, read to its end.

use std::time::Duration;

use bytes::Bytes;
use uuid::Uuid;

use super::control::Control;
use crate::engine::{Engine, EngineError, SandboxId};

/// How long an engine may take to copy what was printed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Both outputs of a harness that has ended.
#[derive(Debug, PartialEq)]
pub(super) struct Output {
    pub stdout: Bytes,
    pub stderr: Bytes,
    /// All of it is there. It is not if the sandbox died or the engine is stuck.
    pub whole: bool,
}

/// Reads what was printed. Engines copy output some time after it was written: with a line to the init, the end of both outputs
/// is marked with a word that nobody could have printed before, and waited for.
///
/// # Errors
/// If the engine can't read it.
pub(super) async fn read(engine: &dyn Engine, sandbox: &SandboxId, control: Option<&mut Control>) -> Result<Output, EngineError> {
    let word = Uuid::new_v4().simple().to_string();
    let marked = match control {
        Some(control) => control.mark(&word).await.is_ok(),
        None => false,
    };
    let began = tokio::time::Instant::now();
    let mut pause = Duration::from_millis(5);
    loop {
        let (stdout, stderr) = engine.logs(sandbox).await?;
        let output = cut(&stdout, &stderr, word.as_bytes());
        if output.whole || !marked || began.elapsed() > PATIENCE {
            return Ok(output);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

fn cut(stdout: &Bytes, stderr: &Bytes, word: &[u8]) -> Output {
    let find = |output: &Bytes| memchr::memmem::rfind(output, word);
    let (in_stdout, in_stderr) = (find(stdout), find(stderr));
    Output {
        stdout: stdout.slice(..in_stdout.unwrap_or(stdout.len())),
        stderr: stderr.slice(..in_stderr.unwrap_or(stderr.len())),
        whole: in_stdout.is_some() && in_stderr.is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_whole_once_both_are_marked() {
        let cut = |stdout: &'static str, stderr: &'static str| {
            let output = cut(&Bytes::from(stdout), &Bytes::from(stderr), b"7f");
            (String::from_utf8(output.stdout.to_vec()).unwrap(), String::from_utf8(output.stderr.to_vec()).unwrap(), output.whole)
        };
        let said = |stdout: &str, stderr: &str, whole| (stdout.to_owned(), stderr.to_owned(), whole);
        assert_eq!(cut("a\n7f\n", "b7f\n"), said("a\n", "b", true));
        assert_eq!(cut("7f\n", "7f\n"), said("", "", true));
        assert_eq!(cut("a\n", "7f\n"), said("a\n", "", false));
        assert_eq!(cut("a\n7f\n", ""), said("a\n", "", false));
    }
}
