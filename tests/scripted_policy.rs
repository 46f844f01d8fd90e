//! The scripted server itself: what the other tests lean on must hold.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::client::{get, post};
use support::policy::{Fault, Reply, ScriptedPolicy};

const PATH: &str = "/v1/chat/completions";

fn request(messages: &Value, stream: bool) -> Value {
    json!({"model": "m", "messages": messages, "stream": stream, "return_token_ids": true, "logprobs": true,
           "stream_options": {"include_usage": true}})
}

/// Ids and log-probabilities as a reader of the stream finds them.
async fn streamed(policy: &ScriptedPolicy, body: &Value) -> (Vec<u32>, Vec<u32>, Vec<f64>, u64) {
    let (events, whole) = post(policy.addr, PATH, &[], body).await.events().await;
    assert!(whole);
    let (mut prompt, mut ids, mut logprobs, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (_, event) in events.iter().filter(|(_, event)| event.data != "[DONE]") {
        let chunk: Value = serde_json::from_str(&event.data).unwrap();
        let list = |value: &Value| value.as_array().into_iter().flatten().cloned().collect::<Vec<_>>();
        prompt.extend(list(&chunk["prompt_token_ids"]).iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()));
        let choice = &chunk["choices"][0];
        ids.extend(list(&choice["token_ids"]).iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()));
        logprobs.extend(list(&choice["logprobs"]["content"]).iter().map(|entry| entry["logprob"].as_f64().unwrap()));
        count = chunk["usage"]["completion_tokens"].as_u64().unwrap_or(count);
    }
    (prompt, ids, logprobs, count)
}

#[tokio::test]
async fn streams_and_bodies_carry_what_was_sampled() {
    let reply =
        Reply { tool_calls: Reply::tools(&[("ls", "{\"a\": 1}")]).tool_calls, ..Reply::text("one two").thinking("so so") };
    for fault in [None, Some(Fault::FatLast), Some(Fault::Crlf), Some(Fault::Comments), Some(Fault::EmptyChoices)] {
        let crlf = matches!(fault, Some(Fault::Crlf));
        let policy = ScriptedPolicy::start(1, [Reply { fault, ..reply.clone() }]).await;
        let body = request(&json!([{"role": "user", "content": "hi"}]), true);
        if crlf {
            // The reader of the tests is for our own streams, which have no CR.
            let bytes = post(policy.addr, PATH, &[], &body).await.bytes().await.unwrap();
            assert!(bytes.windows(4).any(|four| four == b"\r\n\r\n") && !bytes.windows(2).any(|two| two == b"\n\n"));
            continue;
        }
        let (prompt, ids, logprobs, count) = streamed(&policy, &body).await;
        let seen = policy.last();
        assert_eq!((prompt, ids, logprobs), (seen.prompt_ids.clone(), seen.ids(), seen.logprobs()));
        assert_eq!(count, seen.tokens.len() as u64);
    }
    let policy = ScriptedPolicy::start(1, [reply]).await;
    let body = request(&json!([{"role": "user", "content": "hi"}]), false);
    let whole = post(policy.addr, PATH, &[], &body).await.json().await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["token_ids"], json!(policy.last().ids()));
    assert_eq!(choice["message"]["content"], "one two");
    assert_eq!(choice["message"]["reasoning"], "so so");
    assert_eq!(choice["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
    assert_eq!(get(policy.addr, "/__sampled", &[]).await.json().await["calls"][0]["ids"], choice["token_ids"]);
}

#[tokio::test]
async fn the_next_prompt_extends_the_last_reply() {
    let policy = ScriptedPolicy::start(2, [Reply::text("first"), Reply::tools(&[("ls", "{\"a\":1}")]), Reply::text("end")]).await;
    let mut messages = json!([{"role": "user", "content": "hi"}]);
    for turn in 0..3 {
        post(policy.addr, PATH, &[], &request(&messages, false)).await.json().await;
        let next = match turn {
            0 => json!({"role": "assistant", "content": "first"}),
            // Written anew, as harnesses do.
            _ => json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "x", "type": "function", "function": {"name": "ls", "arguments": "{ \"a\" : 1 }"}}]}),
        };
        messages.as_array_mut().unwrap().extend([next, json!({"role": "user", "content": "and then?"})]);
    }
    let seen = policy.seen();
    for pair in seen.windows(2) {
        let whole: Vec<u32> = pair[0].prompt_ids.iter().copied().chain(pair[0].ids()).collect();
        assert!(pair[1].prompt_ids.starts_with(&whole));
    }
    let changed = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "other"}]);
    post(policy.addr, PATH, &[], &request(&changed, false)).await.json().await;
    assert!(!policy.last().prompt_ids.starts_with(&[seen[0].prompt_ids.clone(), seen[0].ids()].concat()));
}

#[tokio::test]
async fn a_hang_up_is_noticed_at_once() {
    let policy = ScriptedPolicy::start(3, [Reply::text("late").with(Fault::StallAfter { events: 1 })]).await;
    let mut answer = post(policy.addr, PATH, &[], &request(&json!([]), true)).await;
    answer.event().await.unwrap().unwrap();
    drop(answer);
    policy.hung_up(0).await;
    assert!(!policy.last().finished);
}

#[tokio::test]
async fn faults_are_what_they_say() {
    let policy = ScriptedPolicy::start(4, []).await;
    policy.then(Reply::text("a b c").with(Fault::BadUtf8));
    let bytes = post(policy.addr, PATH, &[], &request(&json!([]), true)).await.bytes().await.unwrap();
    assert_eq!(bytes.iter().map(|byte| usize::from(*byte == 0xff)).sum::<usize>(), 1);
    policy.then(Reply::text("a b c").with(Fault::LongLine { bytes: 9 << 20 }));
    let bytes = post(policy.addr, PATH, &[], &request(&json!([]), true)).await.bytes().await.unwrap();
    assert!(bytes.len() > 9 << 20);
    policy.then(Reply::text("a b c").with(Fault::CutAfter { events: 2 }));
    assert!(!post(policy.addr, PATH, &[], &request(&json!([]), true)).await.events().await.1);
    policy.then(Reply::text("a b c").with(Fault::CutAfter { events: 2 }));
    assert!(post(policy.addr, PATH, &[], &request(&json!([]), false)).await.bytes().await.is_err());
    policy.then(Reply::text("").with(Fault::CutBeforeHead));
    let sent = support::client::send(policy.addr, "POST", PATH, &[], b"{}").await;
    assert!(sent.is_err());
    policy.then(Reply::text("a b").with(Fault::NoFinish));
    let (events, whole) = post(policy.addr, PATH, &[], &request(&json!([]), true)).await.events().await;
    assert!(whole && events.iter().all(|(_, event)| event.data != "[DONE]" && !event.data.contains("\"stop\"")));
}

#[tokio::test]
async fn completions_are_in_the_old_form_with_ids_in_the_choice() {
    let policy = ScriptedPolicy::start(5, []).await;
    let path = "/v1/completions";
    for stream in [false, true] {
        policy.then(Reply::text("one two, three"));
        let body = json!({"model": "m", "prompt": "once upon", "stream": stream, "return_token_ids": true, "logprobs": 0,
                          "echo": true, "stream_options": {"include_usage": true}});
        let chunks: Vec<Value> = if stream {
            let (events, whole) = post(policy.addr, path, &[], &body).await.events().await;
            assert!(whole && events.last().unwrap().1.data == "[DONE]");
            events[..events.len() - 1].iter().map(|(_, event)| serde_json::from_str(&event.data).unwrap()).collect()
        } else {
            vec![post(policy.addr, path, &[], &body).await.json().await]
        };
        let seen = policy.last();
        let choices: Vec<&Value> = chunks.iter().filter_map(|chunk| chunk["choices"].get(0)).collect();
        let all = |pick: &dyn Fn(&Value) -> Value| -> Vec<Value> {
            choices.iter().flat_map(|choice| pick(choice).as_array().cloned().unwrap_or_default()).collect()
        };
        assert!(chunks.iter().all(|chunk| chunk["object"] == "text_completion"));
        let text: String = choices.iter().map(|choice| choice["text"].as_str().unwrap()).collect();
        assert_eq!(text, "once upon one two, three");
        assert_eq!(all(&|choice| choice["prompt_token_ids"].clone()), json!(seen.prompt_ids).as_array().unwrap().clone());
        assert_eq!(all(&|choice| choice["token_ids"].clone()), json!(seen.ids()).as_array().unwrap().clone());
        let logprobs = all(&|choice| choice["logprobs"]["token_logprobs"].clone());
        assert_eq!(logprobs[0], Value::Null);
        assert_eq!(logprobs[seen.prompt_ids.len()..], json!(seen.logprobs()).as_array().unwrap()[..]);
        assert_eq!(choices.last().unwrap()["finish_reason"], "stop");
        assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], json!(seen.tokens.len()));
    }
    // A prompt of ids is what it is; without a limit of their own, completions have sixteen tokens.
    policy.then(Reply::text("w ".repeat(20)));
    let body = json!({"model": "m", "prompt": [11, 12, 13], "return_token_ids": true});
    let whole = post(policy.addr, path, &[], &body).await.json().await;
    assert_eq!(whole["choices"][0]["prompt_token_ids"], json!([11, 12, 13]));
    assert_eq!((&whole["choices"][0]["finish_reason"], policy.last().tokens.len()), (&json!("length"), 16));
    let two = json!({"model": "m", "prompt": "a", "n": 2});
    assert_eq!(post(policy.addr, path, &[], &two).await.head.status(), 400);
}

#[tokio::test]
async fn a_stop_string_cuts_the_text_and_not_the_tokens() {
    let policy = ScriptedPolicy::start(6, [Reply::text("one two three four"), Reply::text("one two three four")]).await;
    for path in [PATH, "/v1/completions"] {
        let body = json!({"model": "m", "messages": [], "prompt": "x", "stop": ["four", "o th"], "return_token_ids": true,
                          "logprobs": if path == PATH { json!(true) } else { json!(0) }});
        let choice = post(policy.addr, path, &[], &body).await.json().await["choices"][0].clone();
        let text = if path == PATH { &choice["message"]["content"] } else { &choice["text"] };
        assert_eq!((text, &choice["stop_reason"], &choice["finish_reason"]), (&json!("one tw"), &json!("o th"), &json!("stop")));
        assert_eq!((choice["token_ids"].as_array().unwrap().len(), policy.last().tokens.len()), (3, 3));
        let last = if path == PATH { &choice["logprobs"]["content"][2]["token"] } else { &choice["logprobs"]["tokens"][2] };
        assert_eq!(last, "three ");
    }
}

#[tokio::test]
async fn an_image_is_a_run_of_placeholders_in_the_prompt() {
    let policy = ScriptedPolicy::start(7, []).await;
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}});
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]);
    post(policy.addr, PATH, &[], &request(&messages, false)).await.json().await;
    assert_eq!(policy.last().prompt_ids.iter().filter(|id| **id == 6).count(), 8);
    let counted = post(policy.addr, "/tokenize", &[], &json!({ "messages": messages })).await.json().await;
    assert_eq!(counted["tokens"], json!(policy.last().prompt_ids));
    let ids = post(policy.addr, "/tokenize", &[], &json!({"prompt": "once upon"})).await.json().await["tokens"].clone();
    assert_eq!(ids.as_array().unwrap().len(), 3);
    post(policy.addr, "/v1/completions", &[], &json!({"prompt": "once upon"})).await.json().await;
    let text = post(policy.addr, "/detokenize", &[], &json!({ "tokens": ids })).await.json().await;
    assert_eq!(text["prompt"], "once upon ");
}

#[tokio::test]
async fn a_script_may_be_bound_to_what_a_request_says() {
    let policy = ScriptedPolicy::start(8, [Reply::text("for all")]).await;
    let bound = json!({"when": "mark1.", "replies": [{"text": "first"}, {"text": "then", "fault": {"kind": "byte_by_byte"}}]});
    post(policy.addr, "/__script", &[], &bound).await.json().await;
    let mut said = Vec::new();
    for text in ["mark1. a", "mark12. b", "mark1. c", "mark1. d"] {
        let body = json!({"messages": [{"role": "user", "content": text}]});
        said.push(post(policy.addr, PATH, &[], &body).await.json().await["choices"][0]["message"]["content"].clone());
    }
    assert_eq!(json!(said), json!(["first", "for all", "then", "then"]));
    let sampled = get(policy.addr, "/__sampled?when=mark1.", &[]).await.json().await;
    let texts: Vec<&Value> = sampled["calls"].as_array().unwrap().iter().map(|call| &call["text"]).collect();
    assert_eq!(json!(texts), json!(["first", "then", "then"]));
}
