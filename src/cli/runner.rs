//! Puts the runner together: an engine, a server of its own, and the folders beside the store.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::engine::{Docker, owner};
use crate::http::{self, SocketEndpoint};
use crate::store;

use super::assemble::{self, PolicyArgs, StoreArgs};
use super::{Stop, harness, run, scripted};

/// `gleaner run`.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, args: run::Args) -> Result<ExitCode, Stop> {
    let mut config = store.config()?;
    let mut orders =
        run::orders(&args).map_err(|error| if run::is_usage(&error) { Stop::Usage(error) } else { Stop::Failed(error) })?;
    policy.apply(&mut config)?;
    scripted::assign(&mut config, &mut orders);
    let docker = docker(&config).await?;
    let http = assemble::http(&config).await?;
    let app = Arc::clone(&http.app);
    let surroundings = run::Surroundings {
        endpoint: Arc::new(SocketEndpoint::new(http)),
        docker: &docker,
        engine: &config.engine,
        rollout: &config.rollout,
        cache: harness::cache_folder()?,
        data: &store::folder(&config.store)?,
    };
    let code = run::run(&args, &orders, surroundings).await;
    let lost = http::end(&app).await;
    if lost > 0 {
        return Err(Stop::Failed(anyhow::anyhow!("{lost} records could not be stored before the end")));
    }
    Ok(code?)
}

/// `gleaner harness`.
pub(super) async fn harness(store: &StoreArgs, args: harness::Args) -> Result<ExitCode, Stop> {
    let config = store.config()?;
    let docker = if args.needs_engine() {
        Some(docker(&config).await?)
    } else if args.may_need_engine() {
        docker(&config).await.ok()
    } else {
        None
    };
    let cancel = CancellationToken::new();
    let running = harness::run(&args, docker.as_ref(), &config, &cancel);
    tokio::pin!(running);
    let asked = super::asked_to_end()?;
    let ended = tokio::select! {
        ended = &mut running => ended,
        () = asked => {
            cancel.cancel();
            running.await
        }
    };
    ended.map_err(|error| if run::is_usage(&error) { Stop::Usage(error) } else { Stop::Failed(error) })
}

async fn docker(config: &Config) -> Result<Docker, Stop> {
    let name = owner::current().context("naming this process for its sandboxes")?;
    Ok(Docker::connect(&config.engine, &name, Arc::new(owner::may_live)).await?)
}
