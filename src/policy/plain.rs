//! Prompts that are no conversation: text or ids, sent to a server's completions.

use bytes::Bytes;
use serde::Deserialize;

use super::body::field;
use super::config::PolicyKind;
use super::http::Http;
use super::limit;
use crate::call::{Call, Failure, FailureKind, Prompt, Raw, Text, quote};

/// What becomes of a prompt that the client wants to see before the reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Echo {
    /// It does not want to.
    No,
    /// It is told by us; the server is not asked for it.
    Ours(Text),
    /// The server tells it in the reply, with its tokens' log-probabilities.
    Servers(Text),
}

/// Writes the prompt's field.
pub(super) fn write(out: &mut Vec<u8>, prompt: &Prompt) {
    match prompt {
        Prompt::Text(text) => field(out, "prompt", text.literal()),
        Prompt::Ids(ids) => field(out, "prompt", Raw::from_value(ids).as_bytes()),
    }
}

/// How many tokens a prompt has, where that is known without a guess.
pub(super) async fn count(http: &Http, kind: PolicyKind, model: &str, call: &Call, prompt: &Prompt) -> Option<u64> {
    match (prompt, kind) {
        (Prompt::Ids(ids), _) => Some(ids.len() as u64),
        (Prompt::Text(text), PolicyKind::Vllm) => limit::count(http, tokenize(model, call, text)).await,
        (Prompt::Text(text), PolicyKind::Llamacpp) => {
            super::llamacpp::Prompt::tokenize(http, text).await.ok().map(|(ids, _)| ids.len() as u64)
        }
        (Prompt::Text(_), PolicyKind::Sglang | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted) => None,
    }
}

/// What vLLM's `/tokenize` is asked.
fn tokenize(model: &str, call: &Call, text: &Text) -> Vec<u8> {
    let mut out = b"{\"model\":".to_vec();
    quote(&mut out, model);
    field(&mut out, "prompt", text.literal());
    for (name, value) in call.rest.iter().filter(|(name, _)| name.inner() == b"add_special_tokens") {
        field(&mut out, &name.decode(), value.as_bytes());
    }
    out.push(b'}');
    out
}

/// Who tells the client its prompt. Ids are read by the server's own tokenizer.
///
/// # Errors
/// If nobody can: the client asks for what this server does not give.
pub(super) async fn echo(http: &Http, kind: PolicyKind, model: &str, call: &Call) -> Result<Echo, Failure> {
    let Some(prompt) = call.prompt.as_ref().filter(|_| call.wants.prompt) else { return Ok(Echo::No) };
    if call.wants.logprobs && kind != PolicyKind::Vllm {
        return Err(Failure::invalid(
            "echo",
            "echo with logprobs is not served: this server tells no log-probabilities of prompts",
        ));
    }
    let text = match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Ids(ids) => read(http, kind, model, ids).await?,
    };
    Ok(if call.wants.logprobs { Echo::Servers(text) } else { Echo::Ours(text) })
}

#[derive(Deserialize)]
struct Detokenized {
    /// llama.cpp says `content`.
    #[serde(alias = "content")]
    prompt: Text,
}

/// The text of ids.
async fn read(http: &Http, kind: PolicyKind, model: &str, ids: &[u32]) -> Result<Text, Failure> {
    if !matches!(kind, PolicyKind::Vllm | PolicyKind::Llamacpp) {
        return Err(Failure::invalid("echo", "echo of token ids is not served: this server does not tell what they read as"));
    }
    let question = serde_json::json!({ "model": model, "tokens": ids });
    let unread = |what: &str| Failure::new(FailureKind::Unavailable, format!("the prompt's ids could not be read: {what}"));
    match http.ask("/detokenize", Bytes::from(question.to_string())).await {
        Ok((200, answer)) => {
            serde_json::from_slice::<Detokenized>(&answer).map(|read| read.prompt).map_err(|error| unread(&error.to_string()))
        }
        Ok((status @ 400..=499, answer)) => Err(super::refusal::refused(status, &answer)),
        Ok((status, _)) => Err(unread(&format!("/detokenize answers with status {status}"))),
        Err(error) => Err(unread(&error.to_string())),
    }
}
