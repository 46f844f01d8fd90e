//! Servers' generate endpoints: ids in, ids out.

mod grammar;
mod llamacpp;
mod read;
#[cfg(test)]
mod read_tests;
#[expect(clippy::option_option, reason = "the outer one says whether it is JSON, the inner one whether it is null")]
mod sglang;
mod vllm;
mod write;
#[cfg(test)]
mod write_tests;

pub(super) use read::{Alternative, Ended, Reader, Said};
pub(super) use write::{Asked, Held, Written, held, write};

use bytes::Bytes;
use serde::Deserialize;

use crate::policy::config::PolicyKind;
use crate::policy::http::Http;

/// An endpoint that takes ids and gives ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// vLLM's `/inference/v1/generate`, which also tells the weights' version of each run of tokens.
    VllmGenerate,
    /// vLLM's `/v1/completions`, where the other is not served.
    VllmCompletions,
    /// `SGLang`'s `/generate`. In streams it repeats all tokens in each event, unless it was started to give only what is new.
    Sglang { incremental: bool },
    /// llama.cpp's `/completion`.
    Llamacpp,
}

/// Why a server has no endpoint for us.
#[derive(Clone, Debug)]
pub(super) enum Unfit {
    /// Ask again later.
    Unreachable(String),
    /// It is a server of another kind.
    Kind(String),
}

#[derive(Deserialize)]
struct ServerInfo {
    #[serde(default)]
    incremental_streaming_output: bool,
}

impl Endpoint {
    /// The endpoint to use of a server of this kind.
    pub(super) async fn of(http: &Http, kind: PolicyKind) -> Result<Self, Unfit> {
        match kind {
            PolicyKind::Vllm => Self::of_vllm(http).await,
            PolicyKind::Sglang => {
                let info = http.get("/server_info").await.map_err(|error| Unfit::Unreachable(error.to_string()))?;
                let info = serde_json::from_slice::<ServerInfo>(&info.1);
                Ok(Self::Sglang { incremental: info.is_ok_and(|info| info.incremental_streaming_output) })
            }
            PolicyKind::Llamacpp => Ok(Self::Llamacpp),
            PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => Err(Unfit::Kind(
                "tokens = \"exact\" needs a server that takes token ids: vLLM, SGLang or llama.cpp; use tokens = \"server\" or \
                 \"off\" for any other"
                    .to_owned(),
            )),
        }
    }

    /// A request without ids is refused by an endpoint that is there.
    async fn of_vllm(http: &Http) -> Result<Self, Unfit> {
        match http.ask(Self::VllmGenerate.path(), Bytes::from_static(b"{}")).await {
            Ok((400 | 422, _)) => Ok(Self::VllmGenerate),
            Ok((401 | 403..=405 | 501, _)) => Ok(Self::VllmCompletions),
            Ok((status, _)) => {
                Err(Unfit::Unreachable(format!("{}{} answers with status {status}", http.base(), Self::VllmGenerate.path())))
            }
            Err(error) => Err(Unfit::Unreachable(error.to_string())),
        }
    }

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::VllmGenerate => "/inference/v1/generate",
            Self::VllmCompletions => "/v1/completions",
            Self::Sglang { .. } => "/generate",
            Self::Llamacpp => "/completion",
        }
    }

    /// Why a stream is not asked for although the client wants one; `None` if it is.
    pub(super) fn unstreamed(self) -> Option<&'static str> {
        match self {
            Self::VllmGenerate | Self::VllmCompletions | Self::Sglang { incremental: true } => None,
            Self::Sglang { incremental: false } => Some(
                "asked unstreamed: this server's streams repeat all tokens in each event (start it with \
                 --incremental-streaming-output)",
            ),
            Self::Llamacpp => Some("asked unstreamed: in a stream this server keeps back tokens that it sampled"),
        }
    }
}
