//! What llama.cpp needs that others don't: its prompt's ids are a question of their own, and its log-probabilities hold ids.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::http::Http;
use crate::call::{Raw, Text, Wants};

/// The ids of a call's prompt, and the server's answer that gave them.
#[derive(Clone, Debug)]
pub(super) struct PromptIds {
    pub ids: Result<Vec<u32>, String>,
    pub raw: Bytes,
}

impl PromptIds {
    fn of(asked: Result<(Vec<u32>, Bytes), (String, Bytes)>) -> Self {
        match asked {
            Ok((ids, raw)) => Self { ids: Ok(ids), raw },
            Err((reason, raw)) => Self { ids: Err(format!("the prompt's ids are not known: {reason}")), raw },
        }
    }
}

/// The question for a prompt's ids, which runs beside the call that it is about.
pub(super) enum Prompt {
    /// Nobody asks.
    None,
    Asking(BoxFuture<'static, PromptIds>),
    Known(PromptIds),
}

#[derive(Deserialize)]
struct Templated {
    prompt: String,
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
}

#[derive(Serialize)]
struct Tokenize<'a> {
    content: &'a str,
    add_special: bool,
    parse_special: bool,
}

impl Prompt {
    /// Asks for the ids of the prompt that `template`, a request for `/apply-template`, makes.
    pub(super) fn ask(http: Arc<Http>, template: Bytes) -> Self {
        Self::Asking(Box::pin(async move { PromptIds::of(prompt_ids(&http, template).await) }))
    }

    /// Asks for the ids of a text that is the prompt.
    pub(super) fn ask_of(http: Arc<Http>, text: Text) -> Self {
        Self::Asking(Box::pin(async move { PromptIds::of(Self::tokenize(&http, &text).await) }))
    }

    /// A prompt that was sent as ids.
    pub(super) fn known(ids: Vec<u32>) -> Self {
        Self::Known(PromptIds { ids: Ok(ids), raw: Bytes::new() })
    }

    /// The ids of a text as the server's completions read it, with the tokens that its model begins with.
    pub(super) async fn tokenize(http: &Http, text: &Text) -> Result<(Vec<u32>, Bytes), (String, Bytes)> {
        tokenize(http, &text.decode(), true).await
    }

    /// Does `work`, and moves the question on meanwhile.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Self::Asking(question) = self {
            let known = tokio::select! {
                biased;
                done = &mut work => return done,
                known = question => known,
            };
            *self = Self::Known(known);
        }
        work.await
    }

    /// Waits for the answer; `None` if nobody asks.
    pub(super) async fn answer(&mut self) -> Option<&PromptIds> {
        if let Self::Asking(question) = self {
            let known = question.await;
            *self = Self::Known(known);
        }
        match self {
            Self::Known(known) => Some(known),
            Self::None | Self::Asking(_) => None,
        }
    }
}

/// Ids and the raw answer; or why there are none, and what came instead.
async fn prompt_ids(http: &Http, template: Bytes) -> Result<(Vec<u32>, Bytes), (String, Bytes)> {
    let templated = ask(http, "/apply-template", template).await?;
    let prompt = serde_json::from_slice::<Templated>(&templated).map_err(|error| (error.to_string(), templated.clone()))?;
    tokenize(http, &prompt.prompt, false).await
}

/// Ids and the raw answer; `add_special` where no template has written what a prompt begins with.
async fn tokenize(http: &Http, text: &str, add_special: bool) -> Result<(Vec<u32>, Bytes), (String, Bytes)> {
    let question = Tokenize { content: text, add_special, parse_special: true };
    let question = Bytes::copy_from_slice(Raw::from_value(&question).as_bytes());
    let answer = ask(http, "/tokenize", question).await?;
    match serde_json::from_slice::<Tokenized>(&answer) {
        Ok(tokenized) => Ok((tokenized.tokens, answer)),
        Err(error) => Err((error.to_string(), answer)),
    }
}

async fn ask(http: &Http, path: &str, body: Bytes) -> Result<Bytes, (String, Bytes)> {
    match http.ask(path, body).await {
        Ok((200, answer)) => Ok(answer),
        Ok((status, answer)) => {
            let said = super::refusal::read(&answer).message;
            Err((format!("{path} answered with status {status}: {said}"), answer))
        }
        Err(error) => Err((format!("{path}: {error}"), Bytes::new())),
    }
}

/// Log-probabilities as a client of chat completions knows them: without ids, and with as many alternatives as it asked for.
pub(super) fn client_logprobs(json: &str, wants: Wants) -> Raw {
    #[derive(Deserialize, Serialize)]
    struct Logprobs<'a> {
        #[serde(borrow)]
        content: Vec<Entry<'a>>,
    }
    #[derive(Deserialize, Serialize)]
    struct Entry<'a> {
        #[serde(borrow)]
        token: &'a RawValue,
        #[serde(borrow)]
        logprob: &'a RawValue,
        #[serde(borrow)]
        bytes: Option<&'a RawValue>,
        #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
        top_logprobs: Option<Vec<Entry<'a>>>,
    }
    let Ok(mut logprobs) = serde_json::from_str::<Logprobs>(json) else {
        return Raw::from_value(&());
    };
    let most = wants.top_logprobs.unwrap_or(0) as usize;
    for entry in &mut logprobs.content {
        entry.top_logprobs.get_or_insert_default().truncate(most);
    }
    Raw::from_value(&logprobs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stay_here() {
        let raw = r#"{"content":[{"id":28,"token":",","bytes":[44],"logprob":-1.76,"top_logprobs":[{"id":665,"token":" t","bytes":[32,116],"logprob":-0.9}]}]}"#;
        let shown = |top_logprobs| client_logprobs(raw, Wants { logprobs: true, top_logprobs, ..Wants::default() });
        assert_eq!(shown(None).as_str(), r#"{"content":[{"token":",","logprob":-1.76,"bytes":[44],"top_logprobs":[]}]}"#);
        assert_eq!(
            shown(Some(1)).as_str(),
            r#"{"content":[{"token":",","logprob":-1.76,"bytes":[44],"top_logprobs":[{"token":" t","logprob":-0.9,"bytes":[32,116]}]}]}"#
        );
    }
}
