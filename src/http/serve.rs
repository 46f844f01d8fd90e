//! Listening, and ending in order.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::serve::ListenerExt;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::proxy::App;

use super::api::Batches;
use super::auth::{AdminKey, ClientKeys};
use super::family::{Family, meant, not_served, not_taken, refuse};
use super::linger::Lingering;
use super::problem::Problem;
use super::{api, auth, edge, health, model, models};

/// What the handlers of requests share.
#[derive(Clone)]
pub struct Http {
    /// The proxy.
    pub app: Arc<App>,
    /// Who runs batches, if somebody does.
    pub batches: Batches,
    /// The key that opens the API; without one it is open to this machine's own programs.
    pub admin_key: Option<AdminKey>,
    /// Keys of clients that may name their rollout in a header.
    pub client_keys: ClientKeys,
    /// Whether calls that name no rollout are taken.
    pub open: bool,
    /// The largest request body, in bytes.
    pub body_limit: u64,
    /// Whether whole answers may be compressed.
    pub compress: bool,
    /// Origins of web pages that may call the model endpoints.
    pub cors_origins: Arc<[String]>,
    /// The process's metrics.
    pub metrics: PrometheusHandle,
    /// Whether harnesses run without isolation on this machine, where they reach what listens on it.
    pub harnesses_reach_it: bool,
}

impl Http {
    /// Whether the API may be served at this address: without an admin key on this machine only, and only if no harness is there.
    ///
    /// # Errors
    /// If it would be open to others.
    pub fn may_listen(&self, address: SocketAddr) -> Result<(), ServeError> {
        match (&self.admin_key, address.ip().is_loopback()) {
            (None, false) => Err(ServeError::OpenToOthers(address)),
            (None, true) if self.harnesses_reach_it => Err(ServeError::OpenToHarnesses(address)),
            (Some(_), _) | (None, true) => Ok(()),
        }
    }
}

impl axum::extract::FromRef<Http> for Arc<App> {
    fn from_ref(http: &Http) -> Self {
        Arc::clone(&http.app)
    }
}

impl axum::extract::FromRef<Http> for Batches {
    fn from_ref(http: &Http) -> Self {
        http.batches.clone()
    }
}

/// Why the server did not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("the API would be open to others on {0}; set GLEANER_ADMIN_KEY, or listen on a loopback address")]
    OpenToOthers(SocketAddr),
    #[error(
        "the API would be open on {0} to harnesses, which the process engine does not keep from it; set GLEANER_ADMIN_KEY, or use \
         Docker ([engine] kind = \"docker\")"
    )]
    OpenToHarnesses(SocketAddr),
    #[error("listening failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Serves on `listener` until `stop` resolves, then takes no new calls, lets those that run end within `grace`, cuts off the
/// rest, and flushes the recorder. Gives the number of records that were lost.
///
/// # Errors
/// If the API would be open to others; see [`Http::may_listen`].
pub async fn serve(
    http: Http,
    listener: TcpListener,
    stop: impl Future<Output = ()>,
    grace: Duration,
) -> Result<usize, ServeError> {
    http.may_listen(listener.local_addr()?)?;
    let (app, metrics) = (Arc::clone(&http.app), http.metrics.clone());
    let listener = listener.tap_io(|tcp| {
        // Small writes must not wait for the acknowledgement of earlier ones.
        let _ = tcp.set_nodelay(true);
    });
    let draining = app.draining.clone().cancelled_owned();
    let serving = axum::serve(Lingering(listener), router(http)).with_graceful_shutdown(draining);
    let expiring = async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            app.rollouts.expire().await;
            metrics.run_upkeep();
        }
    };
    let ending = async {
        stop.await;
        app.draining.cancel();
        tokio::time::sleep(grace).await;
        app.stopping.cancel();
        // Calls that were cut off still get to say so.
        tokio::time::sleep(Duration::from_secs(2)).await;
    };
    tokio::select! {
        served = async { serving.await } => served?,
        () = expiring => {}
        () = ending => {}
    }
    Ok(end(&app).await)
}

/// Ends what outlives requests, and flushes the recorder. Gives the number of records that were lost.
pub async fn end(app: &App) -> usize {
    app.draining.cancel();
    app.stopping.cancel();
    app.tasks.close();
    app.tasks.wait().await;
    app.recorder.drain().await
}

/// All routes of the TCP listener.
fn router(http: Http) -> Router {
    let api = api::routes().with_state(http.clone()).layer(middleware::from_fn_with_state(http.clone(), auth::api));
    let router = Router::new().merge(model::routes()).merge(models::routes()).merge(health::routes()).nest("/api/v1", api);
    edged(router.fallback(nothing_here).method_not_allowed_fallback(not_so), http)
}

/// The routes of a rollout's unix socket: the model endpoints only.
pub(super) fn socket_router(http: Http) -> Router {
    let router = Router::new().merge(model::routes()).merge(models::routes());
    let router = router.route("/", axum::routing::get(|| async { "gleaner\n" }));
    edged(router.fallback(nothing_here).method_not_allowed_fallback(not_so), http)
}

/// These routes behind the edge, which must see a path before they do.
fn edged(routes: Router<Http>, http: Http) -> Router {
    let edge = middleware::from_fn_with_state(http.clone(), edge::pass);
    Router::new().fallback_service(routes.with_state(http)).layer(edge)
}

async fn nothing_here(request: Request) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if meant(method, uri, headers) {
        return refuse(Family::of(uri, headers).wire(), &not_served(method, uri));
    }
    Problem::NotFound(format!("there is nothing at {method} {}", uri.path())).into_response()
}

async fn not_so(request: Request) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if method == Method::OPTIONS {
        // The router says beside it what the path takes.
        return StatusCode::NO_CONTENT.into_response();
    }
    if meant(method, uri, headers) {
        return refuse(Family::of(uri, headers).wire(), &not_taken(method, uri, "GET"));
    }
    Problem::MethodNotAllowed(format!("{} does not take {method}", uri.path())).into_response()
}
