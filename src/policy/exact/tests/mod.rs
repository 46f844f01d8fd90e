//! Replies against servers that answer with bytes written by hand.

mod kinds;
mod resumed;

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::answer::Reading;
use super::contact::{Contact, Opened, Request};
use super::flow::Flow;
use super::model::Model;
use super::parse::Parsers;
use super::speech::Speech;
use crate::call::{Call, Event, Failure, Fold, Prompt, Rendered, Reply, VersionSource, WeightVersion};
use crate::policy::names::Names;
use crate::policy::stub::{Stub, call, http};
use crate::policy::{Answer, Captured, NoAnswer, PolicyConfig, Prepared, Prompted};

#[path = "../../../../tests/support/policy/exact/vocabulary.rs"]
#[allow(dead_code, clippy::format_push_string, reason = "its other part is the servers', which build texts as tests do")]
mod vocabulary;

const GENERATE: &str = "/inference/v1/generate";
const PROMPT: [u32; 3] = [11, 12, 13];

/// A vLLM that answers its generate endpoint with what `generate` gives for the body and the number of earlier ones.
async fn vllm(generate: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Stub {
    Stub::start(move |path, body, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"served","max_model_len":100}]}"#),
        GENERATE if body == "{}" => http("400 Bad Request", "application/json", "{}"),
        // The question whether it is there came first.
        GENERATE => generate(body, before - 1),
        "/tokenize" => tokenize(body),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await
}

/// What a server of the model's own tokenizer and template says of a text or a conversation.
fn tokenize(body: &str) -> Vec<u8> {
    let asked: Value = serde_json::from_str(body).unwrap();
    let text = asked["prompt"].as_str().or(asked["content"].as_str()).map(str::to_owned);
    let ids = vocabulary::encode(&text.unwrap_or_else(|| vocabulary::render(&asked)));
    http("200 OK", "application/json", &json!({ "tokens": ids }).to_string())
}

/// Tokens that a server told: each an event of its own.
struct Told {
    ids: Vec<u32>,
    prompt: usize,
    /// What it adds to its own count of them.
    miscounts: u64,
    logprob: Value,
    finish: Option<&'static str>,
    version: &'static str,
}

impl Default for Told {
    fn default() -> Self {
        Self { ids: Vec::new(), prompt: PROMPT.len(), miscounts: 0, logprob: json!(-0.5), finish: Some("stop"), version: "a" }
    }
}

impl Told {
    fn of(ids: &[u32]) -> Self {
        Self { ids: ids.to_vec(), ..Self::default() }
    }

    /// The reply breaks off after these.
    fn cut(ids: &[u32]) -> Self {
        Self { finish: None, ..Self::of(ids) }
    }

    /// What a server says that was told all that came before.
    fn after(mut self, sampled: usize) -> Self {
        self.prompt += sampled;
        self
    }

    fn events(&self) -> String {
        let mut text = String::new();
        for (at, id) in self.ids.iter().enumerate() {
            let last = at + 1 == self.ids.len();
            let finish = self.finish.filter(|_| last);
            let versions = finish.map(|_| json!([{"version": self.version, "start": 0, "end": self.ids.len()}]));
            let counted = at as u64 + 1 + if last { self.miscounts } else { 0 };
            let event = json!({"choices": [{"index": 0, "token_ids": [id], "finish_reason": finish,
                "logprobs": {"content": [{"token_id": id, "logprob": self.logprob}]}, "weight_versions": versions}],
                "usage": {"prompt_tokens": self.prompt, "completion_tokens": counted}});
            text.extend(["data: ", event.to_string().as_str(), "\n\n"]);
        }
        // JSON has no such number.
        text.replace("\"1e999\"", "1e999")
    }

    /// The answer, byte for byte: a stream, whole or cut.
    fn answer(&self) -> Vec<u8> {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
        let mut events = self.events();
        if self.finish.is_some() {
            events.push_str("data: [DONE]\n\n");
        }
        let end = if self.finish.is_some() { "0\r\n\r\n" } else { "" };
        format!("{head}{:x}\r\n{events}\r\n{end}", events.len()).into_bytes()
    }
}

fn contact(urls: &[&Stub], change: impl FnOnce(&mut PolicyConfig)) -> Arc<Contact> {
    let mut config = PolicyConfig { url: urls[0].url.clone(), retry_s: 20, ..PolicyConfig::default() };
    config.urls = urls[1..].iter().map(|stub| stub.url.clone()).collect();
    change(&mut config);
    Arc::new(Contact::new("p", &config, None).unwrap())
}

fn plain() -> Call {
    Call { prompt: Some(Prompt::Ids(PROMPT.to_vec())), messages: Vec::new(), max_tokens: Some(10), ..call() }
}

/// A model whose first 256 tokens are bytes.
async fn model() -> Model {
    let folder = tempfile::tempdir().unwrap();
    vocabulary::write(folder.path());
    Model::read(&PolicyConfig { tokenizer: Some(folder.path().to_owned()), ..PolicyConfig::default() }).await.unwrap()
}

/// Sends a call whose prompt is made.
async fn begin(contact: &Arc<Contact>, call: Call) -> Result<Reading, NoAnswer> {
    begin_within(Duration::ZERO, contact, call).await
}

/// The same with this patience.
async fn begin_within(patience: Duration, contact: &Arc<Contact>, call: Call) -> Result<Reading, NoAnswer> {
    let served = contact.replicas.first().served().await.unwrap();
    let model = model().await;
    let parsers = Parsers::choose("p", &contact.config, "", "").unwrap();
    let opened = Arc::new(Opened { model, parsers, served });
    contact.put(opened.clone());
    let call = Arc::new(call);
    let rendered = Rendered { tokenizer_hash: "t".to_owned(), ..Rendered::default() };
    let prompt = Arc::new(Prompted { ids: PROMPT.to_vec(), rendered, ending: String::new() });
    let request = Request {
        call: call.clone(),
        prompt: prompt.clone(),
        sampling: call.sampling.with_others(&call.rest),
        max_tokens: call.max_tokens,
        text: false,
        alternatives: 0,
        patience,
    };
    let prepared = Prepared {
        body: request.written(&opened.served, &[]).body,
        stream: request.streams(&opened.served),
        sampling_used: request.sampling.clone(),
        max_tokens_used: call.max_tokens,
        notes: Vec::new(),
        call: call.clone(),
        prompt: Some(prompt),
        patience,
    };
    let passed = contact.pass().await.unwrap();
    let begin = contact.begin(&opened, &request, &[], Vec::new(), Some(prepared.body.clone())).await?;
    let parser = opened.parsers.begin(&call, Names::of(&call), "");
    let speech = Speech::new(&call, &opened.model, &request.sampling, parser);
    Ok(Reading::new(Flow::new(contact.clone(), opened, request, speech, prepared, begin, passed)))
}

struct Outcome {
    events: Vec<Event>,
    raw: Vec<u8>,
    reply: Reply,
    captured: Captured,
    amended: Option<Prepared>,
}

async fn read(mut reading: Reading) -> Result<Outcome, Failure> {
    let (mut events, mut raw) = (Vec::new(), Vec::new());
    while let Some(bytes) = reading.next(&mut events).await? {
        raw.extend_from_slice(&bytes);
    }
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    let reply = fold.reply();
    let captured = reading.capture(&reply).await;
    Ok(Outcome { events, raw, reply, captured, amended: reading.amended() })
}

async fn ask(contact: &Arc<Contact>, call: Call) -> Result<Outcome, Failure> {
    match begin(contact, call).await {
        Ok(reading) => read(reading).await,
        Err(no_answer) => Err(no_answer.failure),
    }
}

/// The bodies that a server was sent.
fn sent(stub: &Stub) -> Vec<Value> {
    let seen = stub.seen.lock().unwrap();
    let bodies = seen.iter().filter(|(path, body)| path == GENERATE && body != "{}");
    bodies.map(|(_, body)| serde_json::from_str(body).unwrap()).collect()
}

fn version(version: &str, seq: i64) -> WeightVersion {
    WeightVersion { version: Some(version.to_owned()), seq, source: Some(VersionSource::Server) }
}
