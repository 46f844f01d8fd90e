//! Who may call: rollout keys and client keys on the model endpoints, the admin key on the API.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::serve::Http;

/// The `[auth]` section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AuthConfig {
    /// A file of client keys, one a line: who sends one may name its rollout in `x-gleaner-rollout`.
    pub client_keys_file: Option<PathBuf>,
}

/// The key that opens the API (`GLEANER_ADMIN_KEY`).
#[derive(Clone, Debug)]
pub struct AdminKey(SecretString);

impl AdminKey {
    /// Takes the key; an empty one is none.
    #[must_use]
    pub fn new(key: String) -> Option<Self> {
        (!key.is_empty()).then(|| Self(key.into()))
    }

    fn is(&self, given: &str) -> bool {
        same(self.0.expose_secret(), given)
    }
}

/// The client keys of `[auth] client_keys_file`.
#[derive(Clone, Default)]
pub struct ClientKeys(Arc<HashSet<String>>);

impl ClientKeys {
    /// Reads a file of keys, one a line; empty lines and lines that start with `#` are passed over.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        let text = std::fs::read_to_string(path)?;
        let keys = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(Self(Arc::new(keys.map(ToOwned::to_owned).collect())))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.0.contains(key)
    }
}

/// Lets API calls through that have the admin key or, where there is none, that come from this machine's own programs: a
/// browser's page of another site is refused by its `Origin`, a name that was rebound to loopback by its `Host`.
pub(super) async fn api(State(http): State<Http>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let allowed = match &http.admin_key {
        Some(admin) => match bearer(headers) {
            Some(given) if admin.is(given) => Ok(()),
            _ => {
                Err(Problem::Unauthorized("the API needs the admin key (GLEANER_ADMIN_KEY) as Authorization: Bearer".to_owned()))
            }
        },
        None => local(headers),
    };
    match allowed {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn local(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_loopback(host) {
        return Err(Problem::Forbidden(format!(
            "without an admin key the API answers on this machine's own names only, not {host:?}; set GLEANER_ADMIN_KEY"
        )));
    }
    match headers.get(header::ORIGIN) {
        Some(origin) => {
            let origin = origin.to_str().unwrap_or_default();
            match origin.split_once("://") {
                Some((_, host)) if is_loopback(host) => Ok(()),
                _ => Err(Problem::Forbidden(format!(
                    "without an admin key the API refuses calls from pages of other sites ({origin})"
                ))),
            }
        }
        None => Ok(()),
    }
}

fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, _)) => name,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The key of an `Authorization: Bearer` header.
pub(super) fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Compares without telling by its time how much is right.
fn same(secret: &str, given: &str) -> bool {
    let differing = secret.bytes().zip(given.bytes()).fold(0, |differing, (a, b)| differing | (a ^ b));
    secret.len() == given.len() && differing == 0
}

#[cfg(test)]
mod tests {
    use super::is_loopback;

    #[test]
    fn only_this_machines_own_names_are_loopback() {
        for (host, loopback) in [
            ("127.0.0.1:8088", true),
            ("localhost", true),
            ("[::1]:80", true),
            ("example.invalid:80", false),
            ("127.0.0.1.example.invalid", false),
            ("10.0.0.1", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(host), loopback, "{host}");
        }
    }
}
