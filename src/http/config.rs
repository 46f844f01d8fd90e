//! The `[server]` section.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::proxy::ProxySettings;

/// How the server listens and serves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// The address to listen on; port 0 picks one.
    pub listen: SocketAddr,
    /// Whether calls that name no rollout are taken; the default is yes on a loopback listener, no elsewhere.
    pub open: Option<bool>,
    /// The largest request body, in MiB, its content coding undone.
    pub body_limit_mib: u64,
    /// Seconds of silence after which a stream gets a sign of life.
    pub ping_s: u64,
    /// Seconds that running calls get to end when the server is asked to.
    pub grace_s: u64,
    /// Whether whole answers of some size are compressed for clients that ask for it; streams never are.
    pub compress: bool,
    /// Origins of web pages that may call the model endpoints from a browser; `*` is any.
    pub cors_origins: Vec<String>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8088)),
            open: None,
            body_limit_mib: 64,
            ping_s: 10,
            grace_s: 30,
            compress: true,
            cors_origins: Vec::new(),
        }
    }
}

impl ServerConfig {
    /// The largest body that can be asked for, in MiB: its length must be one that memory can have.
    const BODY_LIMIT_MIB_MAX: u64 = 1 << 20;

    /// Says whether the server can be run so.
    ///
    /// # Errors
    /// The option that is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        if self.ping_s == 0 {
            return Err("[server] ping_s must be 1 or more".to_owned());
        }
        if !(1..=Self::BODY_LIMIT_MIB_MAX).contains(&self.body_limit_mib) {
            return Err(format!("[server] body_limit_mib must be 1 to {}", Self::BODY_LIMIT_MIB_MAX));
        }
        let is_origin = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'));
        if let Some(wrong) = self.cors_origins.iter().find(|origin| *origin != "*" && !is_origin(origin)) {
            return Err(format!("[server] cors_origins must be \"*\" or origins such as \"https://example.org\", not {wrong:?}"));
        }
        Ok(())
    }

    /// What of it the proxy needs to know.
    #[must_use]
    pub fn proxy(&self) -> ProxySettings {
        ProxySettings { ping_s: self.ping_s }
    }
}
