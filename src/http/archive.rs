//! Replies asked for again, on the wires that have such requests.

use axum::Extension;
use axum::Router;
use axum::extract::{Path, Request, State};
use axum::routing::{MethodRouter, any};

use crate::proxy::recall;
use crate::wire::{Archive, Wire};

use super::family::refuse;
use super::model::{PathKey, Socket, reader, target, whole};
use super::serve::Http;

/// Adds a wire's requests of this kind below `base`.
pub(super) fn add(router: Router<Http>, wire: &'static dyn Wire, base: &str) -> Router<Http> {
    let paths = wire.archive().map(Archive::paths).unwrap_or_default();
    let segments = base.matches('/').count();
    paths.iter().fold(router, |router, path| router.route(&format!("{base}{path}"), route(wire, segments)))
}

fn route(wire: &'static dyn Wire, base: usize) -> MethodRouter<Http> {
    any(
        move |State(http): State<Http>, Path(path): Path<PathKey>, socket: Option<Extension<Socket>>, request: Request| async move {
            let (parts, _) = request.into_parts();
            let answered: Result<Vec<u8>, _> = async {
                let rollout = reader(&http, &parts, path.key.as_deref(), socket).await?;
                let target = target(&parts.uri, base);
                recall(&http.app, wire, rollout.as_deref(), parts.method.as_str(), &target).await
            }
            .await;
            match answered {
                Ok(body) => whole(body),
                Err(failure) => refuse(wire, &failure),
            }
        },
    )
}
