//! A rollout's own unix socket, which serves the model endpoints to its sandbox and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use axum::Extension;
use tokio::net::UnixListener;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::ids::RolloutId;

use super::model::Socket;
use super::serve::{Http, socket_router};

/// Serves rollouts' unix sockets.
#[derive(Clone)]
pub struct SocketEndpoint {
    http: Http,
}

impl SocketEndpoint {
    #[must_use]
    pub fn new(http: Http) -> Self {
        Self { http }
    }

    /// Serves a rollout's calls on a unix socket at `path` until the guard is dropped. Anybody who can reach the path may
    /// connect: its folder is what keeps others out.
    ///
    /// # Errors
    /// If the socket can't be made.
    pub fn listen(&self, rollout: RolloutId, path: &Path) -> std::io::Result<DropGuard> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        let closed = CancellationToken::new();
        let (closing, router) = (closed.clone(), socket_router(self.http.clone()).layer(Extension(Socket(rollout))));
        self.http.app.tasks.spawn(async move {
            let serving = axum::serve(listener, router).with_graceful_shutdown(closing.clone().cancelled_owned());
            tokio::select! {
                served = async { serving.await } => {
                    if let Err(error) = served {
                        tracing::warn!(%error, "a rollout's socket failed");
                    }
                }
                // Connections that the harness left open end with the socket.
                () = closing.cancelled() => {}
            }
        });
        Ok(closed.drop_guard())
    }
}
