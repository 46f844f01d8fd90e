//! The one HTTP client of a policy: addresses, keys, time limits, whole bodies with a bound.

use std::error::Error;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::config::{ConfigError, PolicyConfig};
use crate::call::Call;

/// Where calls go, below the server's address: conversations, and prompts that are none.
const CONVERSATIONS: &str = "/v1/chat/completions";
const PROMPTS: &str = "/v1/completions";

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The largest whole body that is taken, in bytes.
const LARGEST_BODY: usize = 256 << 20;

/// How long a question beside the calls may take.
pub(super) const QUESTION: Duration = Duration::from_secs(10);

/// Speaks to one server.
#[derive(Debug)]
pub(super) struct Http {
    client: Client,
    address: RwLock<Arc<Address>>,
    pub idle: Duration,
}

/// Where a server is.
#[derive(Debug)]
struct Address {
    /// Without `/v1` and without a slash at its end.
    base: String,
    /// Where calls are posted, parsed once.
    conversations: Url,
    prompts: Url,
}

impl Address {
    fn read(url: &str) -> Option<Self> {
        let url = url.trim().trim_end_matches('/');
        let base = url.strip_suffix("/v1").unwrap_or(url).trim_end_matches('/').to_owned();
        let url = |path: &str| Url::parse(&format!("{base}{path}")).ok();
        let conversations = url(CONVERSATIONS).filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
        Some(Self { prompts: url(PROMPTS)?, conversations, base })
    }
}

/// Where a call is posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Route<'a> {
    Conversations,
    /// Completions of prompts that are no conversation.
    Prompts,
    /// A path of this server's own.
    At(&'a str),
}

impl Route<'static> {
    /// Where chat completions' servers take a call.
    pub(super) fn of(call: &Call) -> Self {
        if call.prompt.is_some() { Self::Prompts } else { Self::Conversations }
    }
}

/// Why there is no answer, or not all of one.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("{0}")]
    Broken(String),
    #[error("the policy sent nothing for {} s", .0.as_secs())]
    Silent(Duration),
    #[error("the policy's answer is larger than {LARGEST_BODY} bytes")]
    TooLarge,
}

impl From<reqwest::Error> for HttpError {
    fn from(error: reqwest::Error) -> Self {
        // The causes say what happened; the address may hold secrets.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        Self::Broken(text)
    }
}

impl Http {
    pub(super) fn new(name: &str, config: &PolicyConfig, api_key: Option<&SecretString>) -> Result<Self, ConfigError> {
        let named = name.to_owned();
        let Some(address) = Address::read(&config.url) else {
            return Err(ConfigError::Url { name: named, url: config.url.clone() });
        };
        let mut headers = HeaderMap::new();
        if let Some(key) = api_key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()));
            let mut value = value.map_err(|_| ConfigError::ApiKey { name: named.clone() })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder()
            .default_headers(headers)
            .user_agent(concat!("gleaner/", env!("CARGO_PKG_VERSION")))
            .tcp_nodelay(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .connect_timeout(Duration::from_secs(config.connect_timeout_s))
            .build()
            .map_err(|source| ConfigError::Client { name: named, source })?;
        Ok(Self { client, address: RwLock::new(Arc::new(address)), idle: config.idle_timeout() })
    }

    /// Speaks to the server at `url` from now on; what was begun goes on where it is. `false` if that is no address.
    pub(super) fn move_to(&self, url: &str) -> bool {
        let Some(address) = Address::read(url) else { return false };
        *self.address.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(address);
        true
    }

    /// The server's address without `/v1` and without a slash at its end.
    pub(super) fn base(&self) -> String {
        self.address().base.clone()
    }

    fn address(&self) -> Arc<Address> {
        self.address.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks a short question; any status is an answer.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Bytes), HttpError> {
        let request = self.client.get(format!("{}{path}", self.address().base));
        let ask = async { self.whole(request.send().await?).await };
        timeout(QUESTION, ask).await.unwrap_or(Err(HttpError::Silent(QUESTION)))
    }

    /// Asks a question with a JSON body; any status is an answer.
    pub(super) async fn ask(&self, path: &str, body: Bytes) -> Result<(u16, Bytes), HttpError> {
        let url = format!("{}{path}", self.address().base);
        let request = self.client.post(url).header(CONTENT_TYPE, JSON).body(body);
        let ask = async { self.whole(request.send().await?).await };
        timeout(QUESTION * 3, ask).await.unwrap_or(Err(HttpError::Silent(QUESTION * 3)))
    }

    /// Asks a question that may take as long as a reply; any status is an answer.
    pub(super) async fn answer(&self, path: &str, body: Bytes) -> Result<(u16, Bytes), HttpError> {
        self.whole(self.call(Route::At(path), body).await?).await
    }

    /// Posts a call, and gives the response's head.
    pub(super) async fn call(&self, route: Route<'_>, body: Bytes) -> Result<Response, HttpError> {
        let address = self.address();
        let request = match route {
            Route::Conversations => self.client.post(address.conversations.clone()),
            Route::Prompts => self.client.post(address.prompts.clone()),
            Route::At(path) => self.client.post(format!("{}{path}", address.base)),
        };
        Ok(request.header(CONTENT_TYPE, JSON).body(body).send().await?)
    }

    async fn whole(&self, response: Response) -> Result<(u16, Bytes), HttpError> {
        let status = response.status().as_u16();
        Ok((status, read_whole(response, self.idle).await.map_err(|(error, _)| error)?))
    }
}

/// Reads a body to its end; with an error, what had come.
pub(super) async fn read_whole(mut response: Response, idle: Duration) -> Result<Bytes, (HttpError, Bytes)> {
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let mut body = BytesMut::with_capacity(announced.unwrap_or(0).min(LARGEST_BODY));
    loop {
        match next_chunk(&mut response, idle).await {
            Ok(None) => return Ok(body.freeze()),
            Ok(Some(chunk)) if body.len() + chunk.len() <= LARGEST_BODY => body.extend_from_slice(&chunk),
            Ok(Some(_)) => return Err((HttpError::TooLarge, body.freeze())),
            Err(error) => return Err((error, body.freeze())),
        }
    }
}

/// Waits for the next bytes of a body.
pub(super) async fn next_chunk(response: &mut Response, idle: Duration) -> Result<Option<Bytes>, HttpError> {
    match timeout(idle, response.chunk()).await {
        Ok(chunk) => Ok(chunk?),
        Err(_) => Err(HttpError::Silent(idle)),
    }
}
