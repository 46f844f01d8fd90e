//! An engine with what goes wrong.

use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;

use crate::engine::{
    Engine, EngineError, ExecResult, ExecSpec, Finding, ImageFacts, Places, Process, SandboxEnd, SandboxId, SandboxSpec, Tell,
};

/// The process engine, with what goes wrong.
pub(super) struct Faulty {
    pub inner: Process,
    /// So many sandboxes can't be made.
    pub refuses: AtomicU32,
    /// So many questions it does not answer.
    pub silent: AtomicU32,
    pub sandboxes: AtomicUsize,
    pub most: AtomicUsize,
}

fn happens(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

#[async_trait]
impl Engine for Faulty {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn isolates(&self) -> bool {
        self.inner.isolates()
    }

    async fn ready(&self) -> Result<(), EngineError> {
        if happens(&self.silent) {
            return Err(EngineError::Unreachable { at: "here".to_owned(), why: "restarting".to_owned() });
        }
        self.inner.ready().await
    }

    async fn look(&self) -> Vec<Finding> {
        self.inner.look().await
    }

    async fn isolation(&self) -> Result<Option<String>, EngineError> {
        self.inner.isolation().await
    }

    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError> {
        self.inner.image(name).await
    }

    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError> {
        self.inner.ensure(name).await
    }

    async fn build(&self, name: &str, context: Bytes, tell: Tell<'_>) -> Result<(), EngineError> {
        self.inner.build(name, context, tell).await
    }

    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError> {
        self.inner.snapshot(sandbox).await
    }

    async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        self.inner.remove_image(name).await
    }

    async fn places(&self, name: &str) -> Result<Places, EngineError> {
        self.inner.places(name).await
    }

    fn inside(&self, host: &Path, usual: &str) -> String {
        self.inner.inside(host, usual)
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        if happens(&self.refuses) {
            return Err(EngineError::Failed { doing: "create a sandbox".to_owned(), why: "it is made up".to_owned() });
        }
        let live = self.sandboxes.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(live, Ordering::SeqCst);
        self.inner.create(spec).await
    }

    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        self.inner.start(sandbox).await
    }

    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError> {
        self.inner.exec(sandbox, command).await
    }

    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError> {
        self.inner.copy_in(sandbox, folder, tar).await
    }

    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
        self.inner.copy_out(sandbox, path).await
    }

    async fn copy_out_to(&self, sandbox: &SandboxId, path: &str, file: &Path, limit: u64) -> Result<u64, EngineError> {
        self.inner.copy_out_to(sandbox, path, file, limit).await
    }

    async fn disk_used(&self, sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        self.inner.disk_used(sandbox).await
    }

    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
        self.inner.logs(sandbox).await
    }

    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
        self.inner.ended(sandbox).await
    }

    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        self.sandboxes.fetch_sub(1, Ordering::SeqCst);
        self.inner.remove(sandbox).await
    }

    async fn sweep(&self) -> Result<usize, EngineError> {
        self.inner.sweep().await
    }
}
