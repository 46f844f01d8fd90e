//! Replies that break off: taken up where they were, at another server or at the same.

use std::time::Duration;

use serde_json::{Value, json};

use super::{GENERATE, PROMPT, Told, ask, begin, begin_within, contact, plain, read, sent, tokenize, version, vllm, vocabulary};
use crate::call::{Call, CaptureLevel, Event, FailureKind, FinishReason, LogprobKind, Raw, Run, Text, Usage, WeightVersion};
use crate::policy::stub::{Stub, http};
use crate::policy::{Answer, PauseMode, PolicyUpdate};

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
async fn who_has_patience_waits_for_a_server_beyond_the_policy_s_own_time() {
    let busy = || http("503 Service Unavailable", "text/plain", "x");
    let stub = vllm(move |_, before| if before < 2 { busy() } else { Told::of(&[6, 2]).answer() }).await;
    let contact = contact(&[&stub], |config| config.retry_s = 0);
    let begun = begin_within(Duration::from_mins(1), &contact, plain()).await;
    assert!(begun.is_ok(), "{:?}", begun.err());
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
async fn a_pause_breaks_replies_off_and_its_end_lets_them_go_on() {
    let stub = Stub::start(|path, body, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"served","max_model_len":100}]}"#),
        GENERATE if body == "{}" => http("400 Bad Request", "application/json", "{}"),
        GENERATE if before > 1 => Told { version: "b", ..Told::of(&[6, 2]).after(1) }.answer(),
        GENERATE => Told::cut(&[5]).answer(),
        "/tokenize" => tokenize(body),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let contact = contact(&[&stub], |_| {});
    let mut reading = begin(&contact, plain()).await.unwrap();
    let mut events = Vec::new();
    assert!(reading.next(&mut events).await.unwrap().is_some());
    let declare = |version: &str| PolicyUpdate { version: Some(version.to_owned()), ..PolicyUpdate::default() };
    contact.update(&declare("a")).unwrap();
    let pause =
        |paused| PolicyUpdate { paused: Some(paused), mode: paused.then_some(PauseMode::Resume), ..PolicyUpdate::default() };
    contact.update(&pause(true)).unwrap();
    assert!(futures::poll!(reading.next(&mut events)).is_pending());
    contact.update(&declare("b")).unwrap();
    contact.update(&pause(false)).unwrap();
    let outcome = read(reading).await.unwrap();
    let runs = outcome.captured.capture.runs;
    let told: Vec<_> = runs.iter().map(|run| (run.start, run.version.version.as_deref())).collect();
    assert_eq!(told, [(0, Some("a")), (1, Some("b"))], "what was sampled before the pause is of the weights before it");
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
