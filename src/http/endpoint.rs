//! Rollouts' own unix sockets, which serve the model endpoints to their sandboxes and nothing else.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use async_trait::async_trait;
use axum::{Extension, Router};
use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::run::Cap;
use crate::harness::{ModelEndpoint, Served, Terms};
use crate::ids::RolloutId;
use crate::policy::Policy;
use crate::store::{Finish, NewRollout, Reward, Rollout, Write};

use super::linger::Lingering;
use super::model::Socket;
use super::serve::{Http, socket_router};

/// The proxy of this process, as the runner's sandboxes reach it.
pub struct SocketEndpoint {
    http: Http,
    /// The routes of every socket: making them anew for each takes longer than all else that it needs.
    router: Router,
    /// The sockets of rollouts that are not closed; dropping a guard closes its socket.
    listening: Mutex<HashMap<RolloutId, DropGuard>>,
}

impl SocketEndpoint {
    /// Serves rollouts by this server's proxy.
    #[must_use]
    pub fn new(http: Http) -> Self {
        Self { router: socket_router(http.clone()), http, listening: Mutex::default() }
    }

    /// Serves a rollout's calls on a unix socket until the guard is dropped. Anybody who can reach `path` may connect: its
    /// folder is what keeps others out.
    fn listen(&self, rollout: RolloutId, path: &Path) -> std::io::Result<DropGuard> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let closed = CancellationToken::new();
        let (closing, router) = (closed.clone(), self.router.clone().layer(Extension(Socket(rollout))));
        self.http.app.tasks.spawn(async move {
            // Connections that the harness left open don't hold the task: they end when their peer's container does.
            tokio::select! {
                served = async { axum::serve(Lingering(listener), router).await } => {
                    if let Err(error) = served {
                        tracing::warn!(rollout.id = %rollout, %error, "a rollout's socket failed");
                    }
                }
                () = closing.cancelled() => {}
            }
        });
        Ok(closed.drop_guard())
    }

    fn stop_listening(&self, rollout: RolloutId) {
        drop(self.listening.lock().unwrap_or_else(PoisonError::into_inner).remove(&rollout));
    }

    /// The policy that a rollout's calls go to, if their models' names say nothing else.
    fn policy(&self, named: Option<&str>) -> Arc<dyn Policy> {
        self.http.app.policies.choose(named, "")
    }
}

#[async_trait]
impl ModelEndpoint for SocketEndpoint {
    async fn open(&self, rollout: NewRollout, terms: &Terms, socket: &Path) -> anyhow::Result<()> {
        let rollout = self.http.app.rollouts.create(rollout).await?;
        self.http.app.rollouts.agree(rollout.id, terms);
        let guard =
            self.listen(rollout.id, socket).with_context(|| format!("making the rollout's socket {}", socket.display()))?;
        self.listening.lock().unwrap_or_else(PoisonError::into_inner).insert(rollout.id, guard);
        Ok(())
    }

    async fn capped(&self, rollout: RolloutId) -> Cap {
        match self.http.app.rollouts.live(rollout) {
            Some(live) => live.capped().await,
            None => std::future::pending().await,
        }
    }

    async fn paused(&self, rollout: RolloutId, now: bool) -> bool {
        match self.http.app.rollouts.live(rollout) {
            Some(live) => self.policy(live.policy()).paused(now).await,
            None => std::future::pending().await,
        }
    }

    fn turns(&self, rollout: RolloutId) -> u64 {
        self.http.app.rollouts.live(rollout).map_or(0, |live| live.begun())
    }

    async fn window(&self, policy: Option<&str>) -> Option<u64> {
        self.policy(policy).window().await
    }

    async fn seal(&self, rollout: RolloutId) -> Served {
        self.stop_listening(rollout);
        // Connections that the harness left open find the rollout over.
        self.http.app.rollouts.seal(rollout).await
    }

    async fn reward(&self, reward: Reward) -> anyhow::Result<()> {
        Ok(self.http.app.recorder.write(Write::Reward(reward)).await?)
    }

    async fn close(&self, finish: Finish) -> anyhow::Result<Rollout> {
        let rollout = finish.rollout_id;
        let closed = self.http.app.rollouts.finish(finish).await;
        self.stop_listening(rollout);
        Ok(closed?)
    }

    async fn drift(&self, rollout: RolloutId) -> anyhow::Result<u64> {
        let app = Arc::clone(&self.http.app);
        app.recorder.flush().await?;
        let rollout = app.store.rollout(rollout).await?.with_context(|| format!("there is no rollout {rollout}"))?;
        let built = crate::export::build(app.store.as_ref(), &rollout, &|policy| app.policies.trained(policy), app.drift).await?;
        Ok(built.drift)
    }
}
