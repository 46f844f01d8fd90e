//! Replies against servers that answer with bytes written by hand: taken up elsewhere, counted, and doubted where they should be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::answer::Reading;
use super::contact::{Contact, Opened, Request};
use super::flow::Flow;
use super::limit_behind;
use super::model::Model;
use super::parse::Parsers;
use super::speech::Speech;
use crate::call::{
    Call, CaptureLevel, Event, Extra, Failure, FailureKind, FinishReason, Fold, LogprobKind, Prompt, Raw, Rendered, Reply, Run,
    Text, Usage, VersionSource, WeightVersion,
};
use crate::policy::names::Names;
use crate::policy::stub::{Stub, call, http};
use crate::policy::{Answer, Captured, NoAnswer, PauseMode, PolicyConfig, PolicyKind, PolicyUpdate, Prepared, Prompted};

#[path = "../../../tests/support/policy/exact/vocabulary.rs"]
#[allow(dead_code, reason = "its other part is the servers'")]
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
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await
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
            text.push_str(&format!("data: {event}\n\n"));
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
    };
    let prepared = Prepared {
        body: request.written(&opened.served, &[]).body,
        stream: request.streams(&opened.served),
        sampling_used: request.sampling.clone(),
        max_tokens_used: call.max_tokens,
        notes: Vec::new(),
        call: call.clone(),
        prompt: Some(prompt),
    };
    let passed = contact.pass().await.unwrap();
    let begin = contact.begin(&request, &[], Vec::new(), Some((&opened.served, prepared.body.clone()))).await?;
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
    events.iter().for_each(|event| fold.push(event));
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

#[tokio::test]
async fn a_reply_is_whole_and_its_tokens_are_known_for_sure() {
    let stub = vllm(|_, _| Told::of(&[5, 6, 2]).answer()).await;
    let outcome = ask(&contact(&[&stub], |_| {}), plain()).await.unwrap();
    let usage = Usage { prompt_tokens: 3, completion_tokens: 3, ..Usage::default() };
    assert_eq!((outcome.reply.text, outcome.reply.usage), (Some(Text::new("\u{5}\u{6}\u{2}")), Some(usage)));
    assert_eq!((outcome.events.first(), outcome.reply.finish), (Some(&Event::Prompt(PROMPT.to_vec())), Some(FinishReason::Stop)));
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason), (CaptureLevel::Full, None));
    assert_eq!((capture.prompt_ids, capture.completion_ids, capture.logprobs), (PROMPT.to_vec(), vec![5, 6, 2], vec![-0.5; 3]));
    assert_eq!((capture.logprob_kind, capture.constrained, capture.runs), (LogprobKind::Raw, false, Vec::new()));
    assert_eq!(capture.rendered.map(|rendered| rendered.tokenizer_hash), Some("t".to_owned()));
    assert_eq!(outcome.captured.version, version("a", 0));
    assert!(outcome.amended.is_none());
}

#[tokio::test]
async fn a_reply_that_dies_goes_on_at_another_server() {
    let first = vllm(|_, _| Told::cut(&[5, 6]).answer()).await;
    let second = vllm(|_, _| Told { version: "b", ..Told::of(&[7, 2]).after(2) }.answer()).await;
    let mut asked = plain();
    asked.sampling.seed = Some(7);
    let outcome = ask(&contact(&[&first, &second], |_| {}), asked).await.unwrap();
    let [before, after] = [&sent(&first)[0], &sent(&second)[0]];
    assert_eq!((&before["token_ids"], &before["sampling_params"]["max_tokens"]), (&json!(PROMPT), &json!(10)));
    assert_eq!((&after["token_ids"], &after["sampling_params"]["max_tokens"]), (&json!([11, 12, 13, 5, 6]), &json!(8)));
    assert_eq!((&after["sampling_params"]["seed"], &after["stream"]), (&json!(7), &json!(true)));
    // The client sees one reply.
    assert_eq!(outcome.reply.text, Some(Text::new("\u{5}\u{6}\u{7}\u{2}")));
    let prompts = outcome.events.iter().filter(|event| matches!(event, Event::Prompt(_))).count();
    let finishes = outcome.events.iter().filter(|event| matches!(event, Event::Finish(_))).count();
    assert_eq!((prompts, finishes), (1, 1));
    let usage = Usage { prompt_tokens: 3, completion_tokens: 4, ..Usage::default() };
    assert_eq!(outcome.reply.usage, Some(usage));
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason), (CaptureLevel::Full, None));
    assert_eq!((&capture.completion_ids[..], &capture.logprobs[..]), (&[5, 6, 7, 2][..], &[-0.5; 4][..]));
    let starts: Vec<usize> = capture.runs.iter().map(|run| run.start).collect();
    assert_eq!((starts, outcome.captured.version.version.as_deref()), (vec![0, 2], Some("b")));
    // The record has both answers, in order, and what was asked last.
    let raw = String::from_utf8(outcome.raw).unwrap();
    let whole = Told::cut(&[5, 6]).events() + &Told { version: "b", ..Told::of(&[7, 2]).after(2) }.events() + "data: [DONE]\n\n";
    assert_eq!(raw, whole);
    let amended = outcome.amended.unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&amended.body).unwrap(), *after);
    let [note] = &amended.notes[..] else { panic!("{:?}", amended.notes) };
    assert!(note.starts_with(&format!("the reply broke off after 2 tokens at {} (", first.url)), "{note}");
    assert!(note.ends_with(&format!("and went on at {}", second.url)), "{note}");
}

#[tokio::test]
async fn a_server_that_comes_back_ends_what_it_began() {
    let stub = vllm(|_, before| if before == 0 { Told::cut(&[5]).answer() } else { Told::of(&[6, 2]).after(1).answer() }).await;
    let outcome = ask(&contact(&[&stub], |_| {}), plain()).await.unwrap();
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.completion_ids), (CaptureLevel::Full, vec![5, 6, 2]));
    let runs: Vec<Run> = vec![Run { start: 0, version: WeightVersion::default() }, Run { start: 1, version: version("a", 0) }];
    assert_eq!(capture.runs, runs);
}

#[tokio::test]
async fn a_reply_that_can_not_go_on_fails_as_it_broke_off() {
    let stub = vllm(
        |_, before| if before == 0 { Told::cut(&[5]).answer() } else { http("500 Internal Server Error", "text/plain", "boom") },
    )
    .await;
    let failure = ask(&contact(&[&stub], |config| config.retry_s = 0), plain()).await.err().unwrap();
    assert_eq!(failure.kind, FailureKind::Cut);
    assert!(failure.message.starts_with("the reply broke off: "), "{}", failure.message);
    let end = "and it could not be taken up again: there is no server to ask";
    assert!(failure.message.ends_with(end), "{}", failure.message);
    let endless = vllm(|body, _| {
        let ids = serde_json::from_str::<Value>(body).unwrap()["token_ids"].as_array().unwrap().len();
        Told::cut(&[5]).after(ids - PROMPT.len()).answer()
    })
    .await;
    let other = vllm(|body, _| {
        let ids = serde_json::from_str::<Value>(body).unwrap()["token_ids"].as_array().unwrap().len();
        Told::cut(&[5]).after(ids - PROMPT.len()).answer()
    })
    .await;
    let failure = ask(&contact(&[&endless, &other], |_| {}), Call { max_tokens: None, ..plain() }).await.err().unwrap();
    assert!(failure.message.ends_with("; it was taken up too often"), "{}", failure.message);
    assert_eq!(sent(&endless).len() + sent(&other).len(), 9);
}

#[tokio::test]
async fn what_broke_off_after_its_last_token_has_ended() {
    let stub = vllm(|_, _| Told::cut(&[5, 6]).answer()).await;
    let outcome = ask(&contact(&[&stub], |_| {}), Call { max_tokens: Some(2), ..plain() }).await.unwrap();
    assert_eq!((outcome.reply.finish, outcome.captured.capture.level), (Some(FinishReason::Length), CaptureLevel::Full));
    assert_eq!(sent(&stub).len(), 1);
    let [note] = &outcome.amended.unwrap().notes[..] else { panic!("one note") };
    assert!(note.starts_with("the reply broke off after its last token: "), "{note}");
}

#[tokio::test]
async fn a_stop_string_is_found_where_no_server_saw_it_whole() {
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let first = vllm(move |_, _| Told::cut(&ids("so E")).answer()).await;
    let second = vllm(move |_, _| Told::of(&ids("ND of it")).after(4).answer()).await;
    let mut asked = plain();
    asked.sampling.stop = Some(Raw::from_value(&["END"]));
    let outcome = ask(&contact(&[&first, &second], |_| {}), asked).await.unwrap();
    assert_eq!((outcome.reply.text, outcome.reply.finish), (Some(Text::new("so ")), Some(FinishReason::Stop)));
    assert_eq!(outcome.reply.stop_string, Some(Text::new("END")));
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason, capture.completion_ids), (CaptureLevel::Full, None, ids("so END")));
}

#[tokio::test]
async fn a_reply_whose_end_token_came_has_ended_whatever_came_after() {
    let stub = vllm(|_, _| Told::cut(&[97, vocabulary::END]).answer()).await;
    let outcome = ask(&contact(&[&stub], |_| {}), plain()).await.unwrap();
    assert_eq!((outcome.reply.text, outcome.reply.finish), (Some(Text::new("a")), Some(FinishReason::Stop)));
    assert_eq!((outcome.captured.capture.level, sent(&stub).len()), (CaptureLevel::Full, 1));
}

#[tokio::test]
async fn a_grammar_is_not_taken_up_in_its_middle() {
    let stubs = [vllm(|_, _| Told::cut(&[5]).answer()).await, vllm(|_, _| Told::of(&[2]).after(1).answer()).await];
    let mut asked = plain();
    asked.response_format = Some(Raw::from_value(&json!({"type": "json_object"})));
    let failure = ask(&contact(&[&stubs[0], &stubs[1]], |_| {}), asked.clone()).await.err().unwrap();
    assert!(failure.message.ends_with("; a grammar can't be taken up in its middle"), "{}", failure.message);
    let whole = vllm(|_, _| Told::of(&[5, 2]).answer()).await;
    let capture = ask(&contact(&[&whole], |_| {}), asked).await.unwrap().captured.capture;
    assert_eq!((capture.level, capture.constrained, capture.logprob_kind), (CaptureLevel::Full, true, LogprobKind::Processed));
}

#[tokio::test]
async fn what_does_not_add_up_is_said_in_numbers() {
    let faults = [
        (Told { prompt: 4, ..Told::of(&[5, 2]) }, "3 prompt ids were sent, but the server counted 4 tokens", true),
        (Told { miscounts: 1, ..Told::of(&[5, 2]) }, "2 completion ids, but the server counted 3 tokens", false),
        (Told { logprob: json!(0.25), ..Told::of(&[5, 2]) }, "log-probability 0.25 of token 0 is none", false),
        (Told { logprob: json!("1e999"), ..Told::of(&[5, 2]) }, "log-probability inf of token 0 is none", false),
        (Told { logprob: json!(-9999.0), ..Told::of(&[5, 2]) }, "log-probability -inf of token 0 is none", false),
        (Told { logprob: Value::Null, ..Told::of(&[5, 2]) }, "0 log-probabilities for 2 completion ids", false),
    ];
    for (told, reason, doubtful) in faults {
        let level = if reason.contains("log-prob") { CaptureLevel::Ids } else { CaptureLevel::Text };
        let answer = told.answer();
        let stub = vllm(move |_, _| answer.clone()).await;
        let contact = contact(&[&stub], |_| {});
        let capture = ask(&contact, plain()).await.unwrap().captured.capture;
        assert_eq!((capture.level, capture.reason.as_deref(), capture.logprobs.len()), (level, Some(reason), 0));
        assert_eq!(contact.known().is_none(), doubtful, "whether the model is checked anew after: {reason}");
    }
    // The count of what another server ended is checked too.
    let first = vllm(|_, _| Told::cut(&[5]).answer()).await;
    let second = vllm(|_, _| Told::of(&[6, 2]).answer()).await;
    let capture = ask(&contact(&[&first, &second], |_| {}), plain()).await.unwrap().captured.capture;
    assert_eq!(capture.reason.as_deref(), Some("4 prompt ids were sent, but the server counted 3 tokens"));
}

#[tokio::test]
async fn a_pause_breaks_replies_off_and_its_end_lets_them_go_on() {
    let stub = Stub::start(|path, body, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"served","max_model_len":100}]}"#),
        GENERATE if body == "{}" => http("400 Bad Request", "application/json", "{}"),
        GENERATE if before > 1 => Told { version: "b", ..Told::of(&[6, 2]).after(1) }.answer(),
        GENERATE => Told::cut(&[5]).answer(),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let contact = contact(&[&stub], |_| {});
    let mut reading = begin(&contact, plain()).await.unwrap();
    let mut events = Vec::new();
    assert!(reading.next(&mut events).await.unwrap().is_some());
    let pause =
        |paused| PolicyUpdate { paused: Some(paused), mode: paused.then_some(PauseMode::Resume), ..PolicyUpdate::default() };
    contact.update(&pause(true)).unwrap();
    assert!(futures::poll!(reading.next(&mut events)).is_pending());
    contact.update(&pause(false)).unwrap();
    let outcome = read(reading).await.unwrap();
    let runs = outcome.captured.capture.runs;
    assert_eq!(runs.iter().map(|run| run.start).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(runs[1].version.version.as_deref(), Some("b"));
    assert_eq!(contact.gate.read(), (None, 0));
}

#[tokio::test]
async fn whoever_turns_away_and_comes_back_misses_nothing() {
    let first = vllm(|_, _| Told::cut(&[5, 6]).answer()).await;
    let second = vllm(|_, _| Told::of(&[7, 2]).after(2).answer()).await;
    let mut reading = begin(&contact(&[&first, &second], |_| {}), plain()).await.unwrap();
    let mut events = Vec::new();
    let mut turned = 0;
    loop {
        // Looks once, as somebody with something else to do would, and comes back.
        match futures::poll!(reading.next(&mut events)) {
            std::task::Poll::Ready(Ok(None)) => break,
            std::task::Poll::Ready(step) => assert!(step.is_ok(), "{step:?}"),
            std::task::Poll::Pending => {
                turned += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    let ids: Vec<u32> = events
        .iter()
        .filter_map(|event| if let Event::Tokens(tokens) = event { Some(tokens.ids.clone()) } else { None })
        .flatten()
        .collect();
    assert_eq!(ids, [5, 6, 7, 2]);
    assert!(turned > 0, "the reply came at once, which proves nothing");
}

#[tokio::test]
async fn llamacpp_is_asked_whole_and_what_it_loses_is_counted() {
    let lost = Arc::new(AtomicBool::new(false));
    let loses = lost.clone();
    let stub = Stub::start(move |path, _, before| match path {
        "/props" => http("200 OK", "application/json", r#"{"default_generation_settings":{"n_ctx":100}}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"m"}]}"#),
        // A body that is cut is asked for again.
        "/completion" if before == 0 => {
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{\"content\"".to_vec()
        }
        "/completion" => {
            let entry = |id: u32| json!({"id": id, "token": "x", "bytes": [120], "logprob": -0.5, "top_logprobs": []});
            let entries: Vec<Value> = if loses.load(Ordering::Relaxed) { vec![entry(2)] } else { vec![entry(5), entry(2)] };
            let body = json!({"content": "x", "tokens": [5, 2], "stop_type": "eos", "stopping_word": "", "tokens_evaluated": 3,
                              "tokens_predicted": 2, "completion_probabilities": entries});
            http("200 OK", "application/json", &body.to_string())
        }
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let contact = contact(&[&stub], |config| config.kind = PolicyKind::Llamacpp);
    let outcome = ask(&contact, plain()).await.unwrap();
    assert_eq!((outcome.captured.capture.level, outcome.reply.text), (CaptureLevel::Full, Some(Text::new("\u{5}\u{2}"))));
    assert_eq!(stub.count("/completion"), 2);
    lost.store(true, Ordering::Relaxed);
    let capture = ask(&contact, plain()).await.unwrap().captured.capture;
    let reason = Some("1 log-probabilities for 2 completion ids".to_owned());
    assert_eq!((capture.level, capture.reason, capture.completion_ids), (CaptureLevel::Ids, reason, vec![5, 2]));
}

#[tokio::test]
async fn sglang_says_its_weights_and_is_asked_whole_where_its_streams_repeat() {
    for incremental in [true, false] {
        let stub = Stub::start(move |path, body, _| match path {
            "/server_info" => {
                http("200 OK", "application/json", &json!({"incremental_streaming_output": incremental}).to_string())
            }
            "/model_info" => {
                http("200 OK", "application/json", r#"{"model_path":"m","is_generation":true,"weight_version":"a"}"#)
            }
            "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"m","max_model_len":100}]}"#),
            "/generate" => {
                let meta = json!({"finish_reason": {"type": "length", "length": 2}, "prompt_tokens": 3, "completion_tokens": 2,
                    "output_token_logprobs": [[-0.5, 5, null], [-0.25, 6, null]],
                    "weight_versions": [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 2}]});
                let whole = json!({"text": "<5><6>", "output_ids": [5, 6], "meta_info": meta}).to_string();
                let stream = serde_json::from_str::<Value>(body).unwrap()["stream"] == true;
                if stream {
                    http("200 OK", "text/event-stream", &format!("data: {whole}\n\ndata: [DONE]\n\n"))
                } else {
                    http("200 OK", "application/json", &whole)
                }
            }
            _ => http("404 Not Found", "application/json", "{}"),
        })
        .await;
        let mut asked = plain();
        asked.sampling.temperature = Some(1.0);
        let outcome = ask(&contact(&[&stub], |_| {}), asked).await.unwrap();
        let capture = outcome.captured.capture;
        assert_eq!((capture.level, capture.reason.as_deref()), (CaptureLevel::Full, None));
        assert_eq!((capture.completion_ids, capture.logprobs), (vec![5, 6], vec![-0.5, -0.25]));
        let runs = vec![Run { start: 0, version: version("a", 0) }, Run { start: 1, version: version("b", 1) }];
        assert_eq!((capture.runs, outcome.captured.version), (runs, version("b", 1)));
        assert_eq!((capture.logprob_kind, outcome.reply.finish), (LogprobKind::Raw, Some(FinishReason::Length)));
        let streamed = stub.seen.lock().unwrap().iter().any(|(_, body)| body.contains("\"stream\":true"));
        assert_eq!(streamed, incremental);
    }
}

#[tokio::test]
async fn a_client_that_wants_log_probabilities_gets_them() {
    let stub = vllm(|_, _| Told::of(&[5, 2]).answer()).await;
    let mut asked = plain();
    asked.wants.logprobs = true;
    let outcome = ask(&contact(&[&stub], |_| {}), asked).await.unwrap();
    let logprobs: Vec<Value> = outcome
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Extra(Extra::Choice { name, value }) if name.inner() == b"logprobs" => value.read().ok(),
            _ => None,
        })
        .collect();
    let entry = |id: u32| {
        let token = char::from_u32(id).unwrap().to_string();
        json!({"content": [{"token": token, "logprob": -0.5, "bytes": token.as_bytes(), "top_logprobs": []}]})
    };
    assert_eq!(logprobs, [entry(5), entry(2)]);
}

#[tokio::test]
async fn a_server_that_takes_no_ids_is_refused() {
    let config = PolicyConfig { kind: PolicyKind::Openai, tokens: crate::policy::TokenMode::Exact, ..PolicyConfig::default() };
    let refusal = crate::policy::connect("p", &config, None).err().unwrap().to_string();
    assert!(refusal.contains("takes no token ids"), "{refusal}");
    let stub = Stub::start(|path, _, _| match path {
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"m"}]}"#),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let config = PolicyConfig { url: stub.url.clone(), kind: PolicyKind::Auto, ..config };
    let policy = crate::policy::connect("p", &config, None).unwrap();
    let failure = policy.ready().await.unwrap_err();
    let expected = "policy p can't serve with tokens = \"exact\": tokens = \"exact\" needs a server that takes token ids";
    assert!(failure.message.starts_with(expected), "{}", failure.message);
}

#[test]
fn a_limit_is_what_the_prompt_leaves_of_the_window() {
    let limited = |max_tokens, prompt, window| {
        let mut notes = Vec::new();
        let limit = limit_behind(&Call { max_tokens, ..call() }, prompt, window, &mut notes);
        (limit.map_err(|failure| failure.kind), notes.len())
    };
    assert_eq!(limited(Some(10), 90, Some(100)), (Ok(Some(10)), 0));
    assert_eq!(limited(Some(11), 90, Some(100)), (Ok(Some(10)), 1));
    assert_eq!(limited(None, 90, Some(100)), (Ok(None), 0));
    assert_eq!(limited(Some(11), 90, None), (Ok(Some(11)), 0));
    assert_eq!(limited(None, 100, Some(100)), (Err(FailureKind::ContextOverflow), 0));
}
