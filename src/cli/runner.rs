//! Puts the runner together: an engine, a server of its own, and the folders beside the store.

use std::process::ExitCode;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::http::{self, SocketEndpoint};

use super::assemble::{self, EngineArgs, PolicyArgs, StoreArgs};
use super::{Stop, engine, harness, run};

/// `gleaner run`.
pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, engine: &EngineArgs, args: run::Args) -> Result<ExitCode, Stop> {
    let mut config = store.config()?;
    engine.apply(&mut config);
    let orders =
        run::orders(&args).map_err(|error| if run::is_usage(&error) { Stop::Usage(error) } else { Stop::Failed(error) })?;
    policy.apply(&mut config)?;
    let cache = harness::cache_folder()?;
    let engine = engine::connect(&config.engine, &cache).await?;
    let http = assemble::http(&config).await?;
    let app = Arc::clone(&http.app);
    let surroundings = run::Surroundings {
        endpoint: Arc::new(SocketEndpoint::new(http)),
        engine,
        engine_config: &config.engine,
        rollout: &config.rollout,
        cache,
        artifacts: app.store.artifacts().root(),
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
    // Payloads are built in containers, whatever runs harnesses.
    let docker = if args.needs_engine() { engine::docker(&config.engine).await.ok() } else { None };
    let cancel = CancellationToken::new();
    let running = harness::run(&args, docker.as_deref(), &config.engine.base_image, &cancel);
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
