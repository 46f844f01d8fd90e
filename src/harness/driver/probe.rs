//! Runs what is no rollout: a probe, in a sandbox made exactly as a rollout's.

use super::{Driver, Outcome, sockets};
use crate::harness::control::ControlListener;
use crate::harness::output::{self, Output};

impl Driver<'_> {
    /// Runs the harness without a model and without a record, and gives what it printed. The sandbox is removed.
    pub(in crate::harness) async fn probe(mut self) -> Outcome<Output> {
        let done = self.printed().await;
        self.control = None;
        if let Some(sandbox) = self.sandbox.take() {
            self.stage.engine.remove(&sandbox).await?;
        }
        done
    }

    async fn printed(&mut self) -> Outcome<Output> {
        self.listener = Some(ControlListener::bind(&self.sockets.path().join(sockets::CONTROL))?);
        self.create().await?;
        self.start().await?;
        self.wait().await?;
        let Some(sandbox) = &self.sandbox else { anyhow::bail!("there is no sandbox") };
        Ok(output::read(self.stage.engine, sandbox, self.control.as_mut()).await?)
    }
}
