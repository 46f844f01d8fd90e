//! Completions through the binary: prompts of every form, and the ids that were sampled.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::client::Answer;
use support::gleaner::{Gleaner, Made, assert_sampled};
use support::policy::{Fault, Reply, ScriptedPolicy, Seen};
use support::until;

const PATH: &str = "/v1/completions";

async fn start(replies: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(91, replies).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    (policy, gleaner, made)
}

/// What a client reads of each choice: text, reason, lists of log-probabilities, ids.
#[derive(Clone, Debug, Default, PartialEq)]
struct Choice {
    text: String,
    finish: Option<String>,
    tokens: Vec<String>,
    logprobs: Vec<Option<f64>>,
    ids: Vec<u32>,
    prompt_ids: Vec<u32>,
}

/// Adds up a reply as the official client's reader would: chunk by chunk, choice by choice.
async fn read(answer: &mut Answer, count: usize) -> (Vec<Choice>, Value) {
    assert_eq!(answer.status(), 200);
    let mut choices = vec![Choice::default(); count];
    let mut usage = Value::Null;
    let mut take = |body: &Value| {
        assert_eq!(body["object"], "text_completion");
        assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
        usage = body["usage"].clone();
        for choice in body["choices"].as_array().unwrap() {
            let into = &mut choices[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()];
            assert_eq!(into.finish, None, "something follows the end");
            into.text += choice["text"].as_str().unwrap();
            into.finish = choice["finish_reason"].as_str().map(str::to_owned);
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            into.tokens.extend(list(&choice["logprobs"]["tokens"]).iter().map(|token| token.as_str().unwrap().to_owned()));
            into.logprobs.extend(list(&choice["logprobs"]["token_logprobs"]).iter().map(Value::as_f64));
            let ids = |value: &Value| -> Vec<u32> { serde_json::from_value(Value::Array(list(value))).unwrap() };
            into.ids.extend(ids(&choice["token_ids"]));
            into.prompt_ids.extend(ids(&choice["prompt_token_ids"]));
        }
    };
    if answer.head.header("content-type") == Some("text/event-stream") {
        let (events, whole) = answer.events().await;
        assert!(whole && events.last().unwrap().1.data == "[DONE]", "{events:?}");
        for (_, event) in &events[..events.len() - 1] {
            take(&serde_json::from_str(&event.data).unwrap());
        }
    } else {
        take(&answer.json().await);
    }
    (choices, usage)
}

async fn assert_exact(gleaner: &Gleaner, made: &Made, seen: &[Seen]) {
    let calls = gleaner.calls(&made.id).await;
    for call in &calls {
        assert_eq!((call.status(), call.level()), ("done", "full"), "{call:?}");
    }
    let (samples, left_out) = until("the samples", async || {
        let (samples, left_out) = gleaner.samples(&made.id).await;
        (samples.len() == seen.len()).then_some((samples, left_out))
    })
    .await;
    assert_eq!(left_out, Vec::<Value>::new());
    for (sample, seen) in samples.iter().zip(seen) {
        assert_sampled(sample, std::slice::from_ref(seen));
    }
}

#[tokio::test]
async fn a_prompt_of_text_is_asked_of_the_servers_completions() {
    for stream in [true, false] {
        let (policy, gleaner, made) = start([Reply::text("a wörld of 👩‍🚀 \"words\"")]).await;
        let body = json!({"model": "any", "prompt": "once upon a time", "stream": stream, "max_tokens": 40, "temperature": 0.5,
            "skip_special_tokens": true, "user": "me", "stream_options": {"include_usage": true}});
        let mut answer = gleaner.call(PATH, &made.key, &body).await;
        let id = answer.call_id();
        let (choices, usage) = read(&mut answer, 1).await;
        let seen = policy.last();
        assert_eq!(seen.head.word(1), "/v1/completions");
        let sent =
            ["prompt", "max_tokens", "temperature", "skip_special_tokens", "user"].map(|name| (&seen.body[name], &body[name]));
        assert!(sent.iter().all(|(sent, asked)| sent == asked), "{sent:?}");
        let expected =
            Choice { text: "a wörld of 👩‍🚀 \"words\"".to_owned(), finish: Some("stop".to_owned()), ..Choice::default() };
        assert_eq!(choices, [expected]);
        assert_eq!(
            (&usage["completion_tokens"], &usage["prompt_tokens"]),
            (&json!(seen.tokens.len()), &json!(seen.prompt_ids.len()))
        );
        let record = gleaner.record(&id).await;
        assert_eq!((&record.0["prompt"], &record.0["messages"]), (&body["prompt"], &json!([])));
        assert_eq!(record.message(), &json!({"role": "assistant", "content": "a wörld of 👩‍🚀 \"words\""}));
        assert_exact(&gleaner, &made, &[seen]).await;
    }
}

#[tokio::test]
async fn every_prompt_times_n_is_a_reply_of_its_own() {
    for stream in [true, false] {
        for prompts in [json!(["red fox", "blue whale"]), json!([[5000, 6000, 7000], [8000]])] {
            let (policy, gleaner, made) = start([]).await;
            policy.otherwise(Reply::text("reply number {n}"));
            let body = json!({"model": "any", "prompt": prompts, "n": 2, "seed": 9, "stream": stream, "stream_options": {"include_usage": true}});
            let (choices, usage) = read(&mut gleaner.call(PATH, &made.key, &body).await, 4).await;
            // The reply at this place is that of its prompt and its seed.
            let seen: Vec<Seen> = (0..4)
                .map(|place| {
                    let is_it = |seen: &Seen| seen.body["prompt"] == prompts[place / 2] && seen.body["seed"] == 9 + place % 2;
                    policy.seen().into_iter().find(is_it).expect("a prompt was not asked for")
                })
                .collect();
            let said = |seen: &Seen| seen.tokens.iter().map(|token| token.piece.spoken()).collect::<String>();
            let texts: Vec<String> = choices.iter().map(|choice| choice.text.clone()).collect();
            assert_eq!(texts, seen.iter().map(said).collect::<Vec<_>>());
            let prompt_tokens = seen[0].prompt_ids.len() + seen[2].prompt_ids.len();
            let sampled: usize = seen.iter().map(|seen| seen.tokens.len()).sum();
            assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt_tokens), &json!(sampled)));
            assert_exact(&gleaner, &made, &seen).await;
        }
    }
}

#[tokio::test]
async fn ids_and_log_probabilities_are_for_those_who_asked() {
    for stream in [true, false] {
        let (policy, gleaner, made) = start([Reply::text("a b c")]).await;
        let body = json!({"model": "any", "prompt": [11, 12], "return_token_ids": true, "logprobs": 1, "stream": stream});
        let (choices, _) = read(&mut gleaner.call(PATH, &made.key, &body).await, 1).await;
        let seen = policy.last();
        let expected = Choice {
            text: "a b c".to_owned(),
            finish: Some("stop".to_owned()),
            tokens: seen.tokens.iter().map(|token| token.text.clone()).collect(),
            logprobs: seen.logprobs().into_iter().map(Some).collect(),
            ids: seen.ids(),
            prompt_ids: vec![11, 12],
        };
        assert_eq!(choices, [expected]);
        assert_exact(&gleaner, &made, &[seen]).await;
    }
}

#[tokio::test]
async fn an_echoed_prompt_is_shown_and_not_recorded_as_sampled() {
    for (stream, prompt, logprobs) in [
        (true, json!("tell me \"more\" "), false),
        (false, json!("tell me \"more\" "), false),
        (true, json!([1, 2, 3]), false),
        (true, json!("tell me more "), true),
        (false, json!("tell me more "), true),
    ] {
        let (policy, gleaner, made) = start([Reply::text("of it")]).await;
        let mut body = json!({"model": "any", "prompt": prompt, "echo": true, "stream": stream});
        if logprobs {
            body["logprobs"] = json!(1);
        }
        let mut answer = gleaner.call(PATH, &made.key, &body).await;
        let id = answer.call_id();
        let (choices, _) = read(&mut answer, 1).await;
        let seen = policy.last();
        let shown = prompt.as_str().unwrap_or_default();
        assert_eq!(choices[0].text, format!("{shown}of it"));
        assert_eq!(gleaner.record(&id).await.text(), Some("of it"));
        if logprobs {
            let of_prompt = choices[0].tokens.len() - seen.tokens.len();
            assert_eq!((of_prompt, choices[0].logprobs[0]), (seen.prompt_ids.len(), None));
            let of_reply: Vec<f64> = choices[0].logprobs[of_prompt..].iter().map(|logprob| logprob.unwrap()).collect();
            assert_eq!(of_reply, seen.logprobs());
        }
        assert_exact(&gleaner, &made, &[seen]).await;
    }
}

#[tokio::test]
async fn a_longer_prompt_goes_on_from_the_reply() {
    let (policy, gleaner, made) = start([Reply::text("x"), Reply::text("y")]).await;
    let first = json!({"model": "any", "prompt": [21, 22]});
    read(&mut gleaner.call(PATH, &made.key, &first).await, 1).await;
    let prompt: Vec<u32> = [21, 22].into_iter().chain(policy.last().ids()).chain([23]).collect();
    read(&mut gleaner.call(PATH, &made.key, &json!({"model": "any", "prompt": prompt})).await, 1).await;
    let (samples, left_out) = gleaner.samples(&made.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
}

#[tokio::test]
async fn failures_have_the_wires_own_form() {
    let (_policy, gleaner, made) = start([Reply::text("a b c").with(Fault::ErrorEvent { events: 2 })]).await;
    let mut refused = gleaner.call(PATH, &made.key, &json!({"model": "any", "prompt": "x", "suffix": "y"})).await;
    assert_eq!((refused.status(), refused.json().await["error"]["param"].clone()), (400, json!("suffix")));
    let mut answer = gleaner.call(PATH, &made.key, &json!({"model": "any", "prompt": "x", "stream": true})).await;
    let (events, whole) = answer.events().await;
    let last: Value = serde_json::from_str(&events.last().unwrap().1.data).unwrap();
    assert!(whole && last["error"]["type"] == "server_error", "{last}");
    let (samples, left_out) = gleaner.samples(&made.id).await;
    assert_eq!((samples.len(), left_out.len()), (0, 2));
}
