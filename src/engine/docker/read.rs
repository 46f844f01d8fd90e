//! What leaves a sandbox: its logs and its files.

use std::path::Path;

use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, LogsOptionsBuilder};
use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::patience::{LONG, SHORT};
use super::{exec, failed, stuck};
use crate::engine::{EngineError, SandboxId};

/// What [`copy_out`] holds in memory at most, in bytes.
const COPY_LIMIT: u64 = 256 << 20;
/// Of each log the last bytes are given.
const LOG_LIMIT: usize = 16 << 20;

pub(super) async fn logs(api: &bollard::Docker, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
    let doing = || format!("read the logs of sandbox {}", sandbox.0);
    let options = LogsOptionsBuilder::new().stdout(true).stderr(true).build();
    let mut logs = [End::new(LOG_LIMIT), End::new(LOG_LIMIT)];
    let reading = async {
        let mut lines = api.logs(&sandbox.0, Some(options));
        while let Some(line) = lines.next().await {
            exec::sort(line.map_err(failed(doing()))?, |is_error, bytes| logs[usize::from(is_error)].push(bytes));
        }
        Ok(())
    };
    timeout(SHORT, reading).await.unwrap_or_else(|_| Err(stuck(doing(), SHORT)))?;
    let [stdout, stderr] = logs;
    Ok((stdout.finish(), stderr.finish()))
}

pub(super) async fn copy_out(api: &bollard::Docker, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
    let mut tar = Vec::new();
    copy(api, sandbox, path, &mut tar, COPY_LIMIT).await?;
    Ok(tar.into())
}

pub(super) async fn copy_out_to(
    api: &bollard::Docker,
    sandbox: &SandboxId,
    path: &str,
    file: &Path,
    limit: u64,
) -> Result<u64, EngineError> {
    let unwritten = |error: std::io::Error| EngineError::Failed {
        doing: format!("copy {path} out of sandbox {} to {}", sandbox.0, file.display()),
        why: error.to_string(),
    };
    let mut to = tokio::fs::File::create(file).await.map_err(unwritten)?;
    let copied = copy(api, sandbox, path, &mut to, limit).await;
    to.flush().await.map_err(unwritten)?;
    copied
}

async fn copy(
    api: &bollard::Docker,
    sandbox: &SandboxId,
    path: &str,
    to: &mut (impl tokio::io::AsyncWrite + Unpin),
    limit: u64,
) -> Result<u64, EngineError> {
    let doing = || format!("copy {path} out of sandbox {}", sandbox.0);
    let options = DownloadFromContainerOptionsBuilder::new().path(path).build();
    let copying = async {
        let mut chunks = api.download_from_container(&sandbox.0, Some(options));
        let mut copied = 0;
        while let Some(chunk) = chunks.try_next().await.map_err(failed(doing()))? {
            let room = usize::try_from(limit - copied).unwrap_or(usize::MAX);
            let taken = &chunk[..chunk.len().min(room)];
            to.write_all(taken).await.map_err(|error| EngineError::Failed { doing: doing(), why: error.to_string() })?;
            copied += taken.len() as u64;
            if taken.len() < chunk.len() {
                return Err(EngineError::Failed { doing: doing(), why: format!("it has more than {limit} bytes") });
            }
        }
        Ok(copied)
    };
    timeout(LONG, copying).await.unwrap_or_else(|_| Err(stuck(doing(), LONG)))
}

/// The end of something long.
struct End {
    limit: usize,
    kept: BytesMut,
}

impl End {
    fn new(limit: usize) -> Self {
        Self { limit, kept: BytesMut::new() }
    }

    /// Twice the limit is held for a while, so that what is dropped moves nothing.
    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() > 2 * self.limit {
            self.kept = BytesMut::from(&self.kept[self.kept.len() - self.limit..]);
        }
    }

    fn finish(self) -> Bytes {
        let past = self.kept.len().saturating_sub(self.limit);
        self.kept.freeze().slice(past..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_something_long_the_end_is_kept() {
        let mut end = End::new(4);
        for piece in ["ab", "cdefghijkl", "m", "no"] {
            end.push(piece.as_bytes());
            assert!(end.kept.len() <= 8, "{end:?}", end = end.kept);
        }
        assert_eq!(end.finish(), "lmno");
        let mut short = End::new(4);
        short.push(b"abc");
        assert_eq!(short.finish(), "abc");
    }
}
