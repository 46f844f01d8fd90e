//! What a server's own prefill says of tokens: the log-probability of each given those before it.

use std::collections::HashMap;

use bytes::Bytes;
use serde::Deserialize;

use super::capture::is_logprob;
use super::config::PolicyKind;
use super::http::Http;
use super::probe::Found;
use super::refusal;
use crate::call::{Failure, FailureKind};

/// Scores `ids`: one for each, none of the first. Raw: of the model's own distribution.
///
/// # Errors
/// If this kind of server can't, refuses, or gives something else.
pub(super) async fn score(name: &str, http: &Http, found: &Found, ids: &[u32]) -> Result<Vec<Option<f64>>, Failure> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let model = found.model.as_deref().unwrap_or_default();
    let (path, body) = match found.kind {
        PolicyKind::Vllm => {
            let body = serde_json::json!({"model": model, "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0});
            ("/v1/completions", body)
        }
        PolicyKind::Sglang => {
            let sampling = serde_json::json!({"max_new_tokens": 0, "temperature": 1.0});
            let body = serde_json::json!({"input_ids": ids, "sampling_params": sampling, "return_logprob": true, "logprob_start_len": 0});
            ("/generate", body)
        }
        PolicyKind::Llamacpp | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => {
            let message =
                format!("policy {name} can't score tokens: this kind of server ({found}) tells no log-probabilities of prompts");
            return Err(Failure::new(FailureKind::Refused, message));
        }
    };
    let answer = http.answer(path, Bytes::from(body.to_string())).await;
    let failed = |what: String| {
        Failure::new(FailureKind::Unavailable, format!("policy {name} could not score {} tokens: {what}", ids.len()))
    };
    let body = match answer {
        Ok((200, body)) => body,
        Ok((status @ 400..=499, body)) if !matches!(status, 408 | 429) => return Err(refusal::refused(status, &body)),
        Ok((status, body)) => return Err(failed(format!("status {status}: {}", refusal::read(&body).message))),
        Err(error) => return Err(failed(error.to_string())),
    };
    let scores = match found.kind {
        PolicyKind::Vllm => vllm(&body, ids),
        _ => sglang(&body, ids),
    };
    scores.map_err(failed)
}

#[derive(Deserialize)]
struct Completion {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    /// By id; the first has none.
    prompt_logprobs: Option<Vec<Option<HashMap<String, Entry>>>>,
}

#[derive(Deserialize)]
struct Entry {
    logprob: f64,
}

fn vllm(body: &[u8], ids: &[u32]) -> Result<Vec<Option<f64>>, String> {
    let completion: Completion = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let given = completion.choices.into_iter().next().and_then(|choice| choice.prompt_logprobs);
    let given = given.ok_or_else(|| "the answer has no prompt_logprobs".to_owned())?;
    counted(given.len(), ids)?;
    let of = |(at, entry): (usize, Option<HashMap<String, Entry>>)| {
        let logprob = entry.and_then(|entry| entry.get(&ids[at].to_string()).map(|entry| entry.logprob));
        checked(at, logprob, ids)
    };
    given.into_iter().enumerate().map(of).collect()
}

#[derive(Deserialize)]
struct Generated {
    meta_info: Meta,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(default)]
    input_token_logprobs: Vec<(Option<f64>, u32, Option<String>)>,
}

fn sglang(body: &[u8], ids: &[u32]) -> Result<Vec<Option<f64>>, String> {
    let given = serde_json::from_slice::<Generated>(body).map_err(|error| error.to_string())?.meta_info.input_token_logprobs;
    counted(given.len(), ids)?;
    let of = |(at, (logprob, id, _)): (usize, (Option<f64>, u32, Option<String>))| {
        if id != ids[at] {
            return Err(format!("score {at} is of token {id}, not of {}", ids[at]));
        }
        checked(at, logprob, ids)
    };
    given.into_iter().enumerate().map(of).collect()
}

fn counted(given: usize, ids: &[u32]) -> Result<(), String> {
    if given == ids.len() { Ok(()) } else { Err(format!("{given} scores for {} tokens", ids.len())) }
}

fn checked(at: usize, logprob: Option<f64>, ids: &[u32]) -> Result<Option<f64>, String> {
    match logprob {
        _ if at == 0 => Ok(None),
        Some(logprob) if is_logprob(logprob) => Ok(Some(logprob)),
        Some(logprob) => Err(format!("the score of token {at} ({}) is {logprob}", ids[at])),
        None => Err(format!("token {at} ({}) has no score", ids[at])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::config::PolicyConfig;
    use crate::policy::stub::{Stub, http as answer};

    async fn scored(kind: PolicyKind, status: &'static str, body: &'static str) -> (Result<Vec<Option<f64>>, String>, String) {
        let stub = Stub::start(move |_, _, _| answer(status, "application/json", body)).await;
        let config = PolicyConfig { url: stub.url.clone(), ..PolicyConfig::default() };
        let http = Http::new("p", &config, None).unwrap();
        let found = Found { kind, version: None, model: Some("m".to_owned()), window: None };
        let scores = score("p", &http, &found, &[5, 7]).await.map_err(|failure| failure.message);
        let asked = stub.seen.lock().unwrap().first().map(|(path, body)| format!("{path} {body}")).unwrap_or_default();
        (scores, asked)
    }

    #[tokio::test]
    async fn servers_score_tokens_by_their_prefill() {
        let (scores, asked) =
            scored(PolicyKind::Vllm, "200 OK", r#"{"choices":[{"prompt_logprobs":[null,{"7":{"logprob":-0.5,"rank":1}}]}]}"#)
                .await;
        assert_eq!(scores, Ok(vec![None, Some(-0.5)]));
        assert_eq!(asked, r#"/v1/completions {"model":"m","prompt":[5,7],"max_tokens":1,"prompt_logprobs":0}"#);
        let (scores, asked) =
            scored(PolicyKind::Sglang, "200 OK", r#"{"meta_info":{"input_token_logprobs":[[null,5,null],[-0.25,7,null]]}}"#)
                .await;
        assert_eq!(scores, Ok(vec![None, Some(-0.25)]));
        assert!(asked.starts_with("/generate {\"input_ids\":[5,7],"), "{asked}");
    }

    #[tokio::test]
    async fn what_is_no_score_is_said() {
        let vllm = async |body| scored(PolicyKind::Vllm, "200 OK", body).await.0.unwrap_err();
        let message = |what: &str| format!("policy p could not score 2 tokens: {what}");
        assert_eq!(vllm(r#"{"choices":[{}]}"#).await, message("the answer has no prompt_logprobs"));
        assert_eq!(vllm(r#"{"choices":[{"prompt_logprobs":[null]}]}"#).await, message("1 scores for 2 tokens"));
        assert_eq!(
            vllm(r#"{"choices":[{"prompt_logprobs":[null,{"8":{"logprob":-1}}]}]}"#).await,
            message("token 1 (7) has no score")
        );
        let clamped = vllm(r#"{"choices":[{"prompt_logprobs":[null,{"7":{"logprob":-9999.0}}]}]}"#).await;
        assert_eq!(clamped, message("the score of token 1 (7) is -9999"));
        let sglang =
            scored(PolicyKind::Sglang, "200 OK", r#"{"meta_info":{"input_token_logprobs":[[null,5,null],[-1,8,null]]}}"#).await;
        assert_eq!(sglang.0, Err(message("score 1 is of token 8, not of 7")));
        let refused = scored(PolicyKind::Vllm, "400 Bad Request", r#"{"error":{"message":"no","code":400}}"#).await;
        assert_eq!(refused.0, Err("no".to_owned()));
        let (cannot, asked) = scored(PolicyKind::Llamacpp, "200 OK", "{}").await;
        assert_eq!(asked, "");
        assert!(cannot.unwrap_err().contains("policy p can't score tokens: this kind of server (llama.cpp"));
    }
}
