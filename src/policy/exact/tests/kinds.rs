//! Each kind of server, and what is made of counts, log-probabilities and ids that do not add up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::super::limit_behind;
use super::{PROMPT, Told, ask, contact, plain, tokenize, version, vllm, vocabulary};
use crate::call::{Call, CaptureLevel, Event, Extra, FailureKind, FinishReason, LogprobKind, Run, Text, Usage};
use crate::policy::stub::{Stub, call, http};
use crate::policy::{PolicyConfig, PolicyKind};

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
async fn llamacpp_is_asked_whole_and_what_it_loses_is_counted() {
    let lost = Arc::new(AtomicBool::new(false));
    let loses = lost.clone();
    let stub = Stub::start(move |path, body, before| match path {
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
        "/apply-template" => {
            let prompt = vocabulary::render(&serde_json::from_str(body).unwrap());
            http("200 OK", "application/json", &json!({ "prompt": prompt }).to_string())
        }
        "/tokenize" => tokenize(body),
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
