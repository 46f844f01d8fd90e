//! Asks a server what it is.

use std::fmt;

use serde::Deserialize;

use super::config::{PolicyConfig, PolicyKind};
use super::http::Http;

/// What a server is, as far as it says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// Never `Auto`.
    pub kind: PolicyKind,
    /// The server's own version.
    pub version: Option<String>,
    /// The model to ask for: the config's, or the first that the server names.
    pub model: Option<String>,
    /// The most tokens of prompt and reply together: the config's, or what the server says.
    pub window: Option<u64>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PolicyKind::Vllm => "vllm",
            PolicyKind::Sglang => "sglang",
            PolicyKind::Llamacpp => "llama.cpp",
            PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => "openai-compatible",
        };
        f.write_str(kind)?;
        if let Some(version) = &self.version {
            write!(f, " {version}")?;
        }
        match &self.model {
            Some(model) => write!(f, ", model {model}")?,
            None => f.write_str(", no model named")?,
        }
        match self.window {
            Some(window) => write!(f, ", window {window}"),
            None => f.write_str(", window unknown"),
        }
    }
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

/// `SGLang`'s.
#[derive(Deserialize)]
struct ModelInfo {
    #[serde(rename = "model_path")]
    _model_path: String,
    #[serde(rename = "is_generation")]
    _is_generation: bool,
}

#[derive(Deserialize)]
struct Props {
    default_generation_settings: Settings,
}

#[derive(Deserialize)]
struct Settings {
    /// Of one slot.
    n_ctx: Option<u64>,
}

#[derive(Default, Deserialize)]
struct Models {
    #[serde(default)]
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    max_model_len: Option<u64>,
}

/// Asks the server what it is.
///
/// # Errors
/// If it does not answer, or asks for patience: ask again later.
pub(super) async fn probe(http: &Http, config: &PolicyConfig) -> Result<Found, String> {
    let version = match config.kind {
        PolicyKind::Auto | PolicyKind::Vllm => read::<Version>(http, "/version").await?,
        PolicyKind::Sglang | PolicyKind::Llamacpp | PolicyKind::Openai | PolicyKind::Scripted => None,
    };
    let model_info = match config.kind {
        PolicyKind::Sglang => read::<ModelInfo>(http, "/model_info").await?,
        PolicyKind::Auto if version.is_none() => read::<ModelInfo>(http, "/model_info").await?,
        _ => None,
    };
    let is_vllm = config.kind == PolicyKind::Vllm || version.is_some();
    let props = match config.kind {
        PolicyKind::Llamacpp => read::<Props>(http, "/props").await?,
        PolicyKind::Auto if !is_vllm && model_info.is_none() => read::<Props>(http, "/props").await?,
        _ => None,
    };
    let models = read::<Models>(http, "/v1/models").await?;
    let kind = match config.kind {
        PolicyKind::Auto if is_vllm => PolicyKind::Vllm,
        PolicyKind::Auto if model_info.is_some() => PolicyKind::Sglang,
        PolicyKind::Auto if props.is_some() => PolicyKind::Llamacpp,
        PolicyKind::Auto if models.is_none() => {
            return Err(format!(
                "{} answers neither /version, /model_info, /props nor /v1/models as a model server does",
                http.base()
            ));
        }
        PolicyKind::Auto => PolicyKind::Openai,
        kind => kind,
    };
    let data = models.unwrap_or_default().data;
    let listed = match &config.model {
        Some(wanted) => data.iter().find(|model| model.id == *wanted),
        None => data.first(),
    };
    let served = props.and_then(|props| props.default_generation_settings.n_ctx);
    let served = served.or_else(|| listed.and_then(|model| model.max_model_len));
    Ok(Found {
        kind,
        version: version.map(|version| version.version),
        model: config.model.clone().or_else(|| listed.map(|model| model.id.clone())),
        window: config.context_window.or(served),
    })
}

/// Reads one answer; `None` if the server has no such thing.
async fn read<T: Answer>(http: &Http, path: &str) -> Result<Option<T>, String> {
    let (status, body) = http.get(path).await.map_err(|error| format!("{}{path}: {error}", http.base()))?;
    match status {
        200 => Ok(serde_json::from_slice(&body).ok()),
        // A server that is starting, or a proxy before one that is.
        408 | 429 | 502..=504 => Err(format!("{}{path} answers with status {status}", http.base())),
        // There, but not for us: calls will be told so in the server's own words.
        401 | 403 => Ok(T::behind_a_key()),
        _ => Ok(None),
    }
}

/// What an answer that is refused for want of a key says of the server.
trait Answer: for<'a> Deserialize<'a> {
    fn behind_a_key() -> Option<Self> {
        None
    }
}

impl Answer for Version {}
impl Answer for ModelInfo {}
impl Answer for Props {}
impl Answer for Models {
    fn behind_a_key() -> Option<Self> {
        Some(Self::default())
    }
}
