//! `gleaner serve`.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;

use crate::harness::Catalog;
use crate::http;
use crate::policy::Policy;

use super::assemble::{self, EngineArgs, PolicyArgs, StoreArgs};
use super::{Stop, asked_to_end, dispatch, none_lost, readiness, scripted};

#[derive(clap::Args)]
pub(super) struct Args {
    /// The address to listen on; port 0 picks a free one [default: 127.0.0.1:8088]
    #[arg(long, value_name = "ADDRESS", env = "GLEANER_LISTEN")]
    listen: Option<SocketAddr>,
    /// A folder of harnesses that adds to the built-in ones or replaces them by name, for batches
    #[arg(long, value_name = "DIR", env = "GLEANER_HARNESSES")]
    harnesses: Option<PathBuf>,
}

pub(super) async fn run(store: &StoreArgs, policy: &PolicyArgs, engine: &EngineArgs, args: Args) -> Result<ExitCode, Stop> {
    let mut config = store.config()?;
    policy.apply(&mut config)?;
    engine.apply(&mut config);
    if let Some(folder) = &args.harnesses {
        // Looked at now, so that what is wrong is not told only to whoever orders the first batch.
        Catalog::load(Some(folder)).map_err(|error| Stop::Usage(error.into()))?;
    }
    scripted::add(&mut config, args.harnesses.as_deref()).map_err(Stop::Usage)?;
    if let Some(listen) = args.listen {
        config.server.listen = listen;
    }
    let stop = asked_to_end()?;
    let http = assemble::http(&config).await?;
    let listener = TcpListener::bind(config.server.listen).await;
    let listener = listener.with_context(|| format!("listening on {}", config.server.listen))?;
    let address = listener.local_addr()?;
    http.may_listen(address).map_err(|error| Stop::Usage(error.into()))?;
    let app = Arc::clone(&http.app);
    tracing::info!(store = app.store.describe(), "recording");
    for policy in app.policies.iter() {
        // A server that takes its time to answer must not hold up the end.
        let retry_s = readiness::retry_s(&config, policy.as_ref());
        let asking = app.draining.clone().run_until_cancelled_owned(say_what_it_is(Arc::clone(policy), retry_s));
        app.tasks.spawn(asking);
    }
    let http = dispatch::dispatching(&config, http, args.harnesses).await;
    let serving = http::serve(http, listener, stop, Duration::from_secs(config.server.grace_s));
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{address}").and_then(|()| out.flush())?;
    let lost = serving.await.map_err(|error| Stop::Usage(error.into()))?;
    none_lost(lost)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks a policy what it is, which the policy itself logs.
async fn say_what_it_is(policy: Arc<dyn Policy>, retry_s: u64) {
    if let Some(complaint) = readiness::complaint(policy.as_ref(), retry_s).await {
        tracing::warn!(policy = policy.name(), "{complaint}");
    }
}
