//! Puts the parts together, from flags, environment and config file.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::engine::EngineKind;
use crate::http::{AdminKey, Batches, ClientKeys, Http};
use crate::ids::ProcessId;
use crate::policy::{self, Policy, PolicyConfig};
use crate::proxy::{App, Policies, Rollouts};
use crate::record::Recorder;
use crate::store::{self, Store};

use super::Stop;
use super::list::named;

/// Where rollouts are kept.
#[derive(clap::Args)]
pub(super) struct StoreArgs {
    /// A config file; none is read unless it is named.
    #[arg(long, value_name = "FILE", env = "GLEANER_CONFIG", global = true)]
    config: Option<PathBuf>,
    /// The database: a file, made if it is missing [default: gleaner/gleaner.db in the user's data folder]
    #[arg(long, value_name = "URL", env = "GLEANER_DATABASE", global = true)]
    database: Option<String>,
}

/// Which model server is asked.
#[derive(clap::Args)]
pub(super) struct PolicyArgs {
    /// The model server (vLLM, llama.cpp, or any that speaks chat completions), with or without /v1: the url of the policy named
    /// `default`. `scripted:` needs none: each harness is told to use its shell once and to end
    #[arg(long, value_name = "URL", env = "GLEANER_POLICY")]
    policy: Option<String>,
}

/// What runs harnesses.
#[derive(clap::Args)]
pub(super) struct EngineArgs {
    /// What runs harnesses: docker, or process (plain processes of this user, WITHOUT ISOLATION) [default: docker]
    #[arg(long, value_name = "ENGINE", env = "GLEANER_ENGINE", value_parser = named::<EngineKind>)]
    engine: Option<EngineKind>,
}

impl EngineArgs {
    /// Puts the flag into the config.
    pub fn apply(&self, config: &mut Config) {
        config.engine.kind = self.engine.unwrap_or(config.engine.kind);
    }
}

impl StoreArgs {
    /// The config, with the flags in it.
    pub fn config(&self) -> Result<Config, Stop> {
        let mut config = match &self.config {
            Some(path) => Config::read(path).map_err(|error| Stop::Usage(error.into()))?,
            None => Config::default(),
        };
        if let Some(database) = &self.database {
            config.store.url = Some(database.clone());
        }
        // A URL that names no file is wrong usage, not a store that fails.
        store::folder(&config.store).map_err(|error| Stop::Usage(error.into()))?;
        Ok(config)
    }

    /// The store, for reading.
    pub async fn open(&self) -> Result<Arc<dyn Store>, Stop> {
        let config = self.config()?;
        Ok(store::open(&config.store.location(), &config.store, ProcessId::generate()).await?)
    }
}

impl PolicyArgs {
    /// Puts the flags into the config.
    pub fn apply(&self, config: &mut Config) -> Result<(), Stop> {
        self.name(config);
        if config.policies.is_empty() {
            let help =
                "no policy is named; give the model server's address with --policy URL, or a config file with [policies.default]";
            return Err(Stop::Usage(anyhow::anyhow!(help)));
        }
        Ok(())
    }

    /// Puts the flags into the config, which may name no policy at all.
    pub fn name(&self, config: &mut Config) {
        if let Some(url) = &self.policy {
            config.set_policy_url(url.clone());
        }
    }
}

/// Opens the store, connects the policies and makes the proxy and what serves it.
pub(super) async fn http(config: &Config) -> Result<Http, Stop> {
    let policies = policies(config)?;
    http_with(config, policies).await
}

/// The same with these policies in place of the config's.
pub(super) async fn http_with(config: &Config, policies: Policies) -> Result<Http, Stop> {
    let admin_key = std::env::var("GLEANER_ADMIN_KEY").ok().and_then(AdminKey::new);
    let client_keys = match &config.auth.client_keys_file {
        Some(path) => {
            let keys = ClientKeys::read(path).with_context(|| format!("reading the client keys in {}", path.display()));
            keys.map_err(Stop::Usage)?
        }
        None => ClientKeys::default(),
    };
    let metrics = crate::telemetry::metrics()?;
    let process_id = ProcessId::generate();
    let store = store::open(&config.store.location(), &config.store, process_id).await?;
    for (name, last) in store.weight_versions().await? {
        if let Some(policy) = policies.get(&name) {
            policy.recall(&last);
        }
    }
    let recorder = Recorder::start(store.writer()?, config.record.queue);
    let rollouts = Rollouts::new(Arc::clone(&store), recorder.clone());
    rollouts.load().await?;
    let app = App {
        policies,
        store,
        recorder,
        rollouts,
        process_id,
        tasks: TaskTracker::new(),
        draining: CancellationToken::new(),
        stopping: CancellationToken::new(),
        settings: config.server.proxy(),
        drift: config.record.drift,
    };
    Ok(Http {
        app: Arc::new(app),
        batches: Batches::default(),
        admin_key,
        client_keys,
        open: config.server.open.unwrap_or(config.server.listen.ip().is_loopback()),
        body_limit: config.server.body_limit_mib << 20,
        compress: config.server.compress,
        cors_origins: config.server.cors_origins.clone().into(),
        metrics,
        harnesses_reach_it: config.engine.kind == EngineKind::Process,
    })
}

fn policies(config: &Config) -> Result<Policies, Stop> {
    let mut policies = Vec::new();
    for (name, settings) in &config.policies {
        let settings = &PolicyConfig { top_logprobs: config.record.top_logprobs, ..settings.clone() };
        let policy = connect(name, settings).map_err(Stop::Usage)?;
        policies.push((policy, settings.train));
    }
    Policies::new(policies, config.routes.clone()).context("no policy is named").map_err(Stop::Usage)
}

/// The name of the policy that answers where this one is asked for, or none.
pub(super) fn answering<'a>(config: &'a Config, name: Option<&'a str>) -> Option<&'a str> {
    let default = || config.policies.keys().find(|name| *name == Policies::DEFAULT).or_else(|| config.policies.keys().next());
    name.or_else(|| default().map(String::as_str))
}

/// Makes one policy, its key from the environment.
pub(super) fn connect(name: &str, settings: &policy::PolicyConfig) -> anyhow::Result<Arc<dyn Policy>> {
    let key = match &settings.api_key_env {
        Some(variable) => {
            let key = std::env::var(variable);
            Some(SecretString::from(key.with_context(|| {
                format!("policy {name}: api_key_env names the variable {variable}, which is not set or not UTF-8")
            })?))
        }
        None => None,
    };
    Ok(policy::connect(name, settings, key.as_ref())?)
}
