//! Connects the engine that the config names.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;

use crate::engine::{Docker, Engine, EngineConfig, EngineKind, Process, owner};
use crate::harness::helper;

/// The engine of the config; our own program for sandboxes is kept in `cache`.
///
/// # Errors
/// If it does not answer.
pub(super) async fn connect(config: &EngineConfig, cache: &Path) -> anyhow::Result<Arc<dyn Engine>> {
    match config.kind {
        EngineKind::Docker => docker(config).await,
        EngineKind::Process => {
            let helper = helper::install(cache).context("installing the program that starts harnesses")?;
            Ok(Arc::new(Process::new(config, helper, &name()?, Arc::new(owner::may_live))?))
        }
    }
}

/// Docker, whatever the config says of what runs harnesses.
///
/// # Errors
/// If it does not answer.
pub(super) async fn docker(config: &EngineConfig) -> anyhow::Result<Arc<dyn Engine>> {
    Ok(Arc::new(Docker::connect(config, &name()?, Arc::new(owner::may_live)).await?))
}

fn name() -> anyhow::Result<String> {
    owner::current().context("naming this process for its sandboxes")
}
