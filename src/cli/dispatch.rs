//! Has a server run batches as well.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::engine::Engine;
use crate::harness::{Dispatcher, Ground, Means, Order};
use crate::http::{Batches, Http, SocketEndpoint};

use super::{engine, harness, runner, scripted};

/// The server with what runs its batches; `harnesses` is a folder beside the built-in ones. Batches that a server ran before are gone
/// on with, if the config says so.
pub(super) async fn dispatching(config: &Config, http: Http, harnesses: Option<PathBuf>) -> Http {
    let app = Arc::clone(&http.app);
    let cache = match harness::cache_folder() {
        Ok(cache) => cache,
        Err(error) => {
            tracing::warn!("no batches can be run: {error:#}");
            return http;
        }
    };
    let ground = ServerGround { config: config.clone(), cache: cache.clone(), engine: OnceCell::new() };
    let dispatcher = Arc::new(Dispatcher::new(Means {
        ground: Box::new(ground),
        endpoint: Arc::new(SocketEndpoint::new(http.clone())),
        store: Arc::clone(&app.store),
        recorder: app.recorder.clone(),
        harnesses,
        cache,
        image: config.engine.base_image.clone(),
        limits: config.engine.limits(),
        config: config.rollout.clone(),
        tasks: app.tasks.clone(),
        draining: app.draining.clone(),
    }));
    if config.rollout.resume {
        dispatcher.resume_stopped().await;
    }
    Http { batches: Batches(Some(dispatcher)), ..http }
}

/// The engine of a server's batches.
struct ServerGround {
    config: Config,
    cache: PathBuf,
    engine: OnceCell<Arc<dyn Engine>>,
}

#[async_trait]
impl Ground for ServerGround {
    async fn engine(&self) -> anyhow::Result<Arc<dyn Engine>> {
        let connect = || engine::connect(&self.config.engine, &self.cache);
        self.engine.get_or_try_init(connect).await.cloned()
    }

    fn assign(&self, orders: &mut [Order]) {
        scripted::assign(&self.config, orders);
    }

    async fn furnish(&self, orders: &[Order]) -> anyhow::Result<()> {
        runner::images(self.engine().await?.as_ref(), &self.config.engine.base_image, &self.cache, orders).await
    }
}
