//! The API of a running server, as our own commands ask it.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context as _;
use reqwest::{Client, Method, StatusCode, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;

/// Connecting takes no longer.
const CONNECT: Duration = Duration::from_secs(10);
/// No answer takes longer, but for that to cancelling a batch.
const ANSWER: Duration = Duration::from_mins(1);

/// A running server.
pub(super) struct Server {
    client: Client,
    base: String,
    /// It runs on this machine.
    here: bool,
    key: Option<SecretString>,
}

/// The server did not do it: what was asked is wrong, or it is not for us to ask.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Refused {
    what: String,
    /// The user's to mend: exit code 2.
    pub usage: bool,
}

impl Refused {
    /// For the user to mend.
    pub(super) fn usage(what: impl Into<String>) -> Self {
        Self { what: what.into(), usage: true }
    }
}

impl Server {
    /// The server at this URL, with the key of `GLEANER_ADMIN_KEY`.
    pub(super) fn new(url: &str) -> anyhow::Result<Self> {
        let wrong = |why: &str| Refused::usage(format!("--server {url}: {why}; give a URL such as http://127.0.0.1:8088"));
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(wrong("it is no http address").into());
        }
        let host = parsed.host_str().ok_or_else(|| wrong("it names no host"))?;
        let here = host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        let mut base = parsed.as_str().trim_end_matches('/');
        for end in ["/v1", "/api"] {
            base = base.strip_suffix(end).unwrap_or(base);
        }
        let key = std::env::var("GLEANER_ADMIN_KEY").ok().filter(|key| !key.is_empty()).map(SecretString::from);
        let client = Client::builder()
            .user_agent(concat!("gleaner/", env!("CARGO_PKG_VERSION")))
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT)
            .build()
            .context("making a client for the server")?;
        Ok(Self { client, base: base.to_owned(), here, key })
    }

    /// Its address.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// Whether it runs on this machine, so that it sees the same files.
    pub(super) fn is_here(&self) -> bool {
        self.here
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(self.request(Method::GET, path).timeout(ANSWER)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        self.ask(self.request(Method::POST, path).timeout(ANSWER).json(body)).await
    }

    /// Posts what must not be done twice; asks once more if the answer was lost.
    pub(super) async fn order(&self, path: &str, body: &Value, key: &str) -> anyhow::Result<Value> {
        let request = || self.request(Method::POST, path).timeout(ANSWER).header("idempotency-key", key).json(body);
        match self.ask(request()).await {
            Err(error) if !error.is::<Refused>() && !is_connect(&error) => self.ask(request()).await,
            answered => answered,
        }
    }

    /// Waits as long as it takes.
    pub(super) async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.ask(self.request(Method::DELETE, path)).await
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.client.request(method, format!("{}/api/v1{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key.expose_secret()),
            None => request,
        }
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> anyhow::Result<Value> {
        let asking = || format!("asking the server at {}", self.base);
        let response = request.send().await.map_err(reqwest::Error::without_url).with_context(asking)?;
        let status = response.status();
        let body = response.bytes().await.map_err(reqwest::Error::without_url).with_context(asking)?;
        let value: Value = serde_json::from_slice(&body).unwrap_or_default();
        if status.is_success() {
            return Ok(value);
        }
        let detail = value["detail"].as_str().unwrap_or("it gave no reason; is it a gleaner server?");
        let what = format!("the server at {} says: {detail} ({})", self.base, status.as_u16());
        if status.is_server_error() {
            anyhow::bail!(what);
        }
        let usage = matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY);
        Err(Refused { what, usage }.into())
    }
}

fn is_connect(error: &anyhow::Error) -> bool {
    error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_connect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (url, base, here) in [
            ("http://127.0.0.1:8088", "http://127.0.0.1:8088", true),
            ("http://localhost:8088/", "http://localhost:8088", true),
            ("http://[::1]:80/api/v1/", "http://[::1]", true),
            ("https://gleaner.example.invalid/v1", "https://gleaner.example.invalid", false),
            ("http://10.0.0.1:1", "http://10.0.0.1:1", false),
        ] {
            let server = Server::new(url).unwrap();
            assert_eq!((server.base(), server.is_here()), (base, here), "{url}");
        }
        for url in ["", "127.0.0.1:8088", "unix:/x", "file:///x"] {
            assert!(Server::new(url).err().unwrap().is::<Refused>(), "{url}");
        }
    }
}
