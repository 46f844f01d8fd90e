//! The llama.cpp policy against a real llama.cpp server.
//!
//! Needs one: set `GLEANER_TEST_LLAMACPP_URL` to its address (any small chat model; `make demo` starts one). Without it these
//! tests do nothing, unless `GLEANER_TEST_REAL=1`, with which they fail.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "the lints' allowance for tests does not reach their helpers")]

use std::sync::Arc;
use std::time::Duration;

use gleaner::call::{
    Call, Capture, CaptureLevel, Content, FailureKind, Fold, LogprobKind, Message, Prompt, Reply, Role, Sampling, Text, Tool,
    ToolKind, Wants,
};
use gleaner::ids::CallId;
use gleaner::policy::{Captured, Exchange, Policy, PolicyConfig, TokenMode, Transcript, connect};

/// The policy under test; `None` where no server is named and none is asked for.
fn policy() -> Option<Arc<dyn Policy>> {
    let Ok(url) = std::env::var("GLEANER_TEST_LLAMACPP_URL") else {
        assert!(
            std::env::var("GLEANER_TEST_REAL").is_err(),
            "GLEANER_TEST_REAL is set, so GLEANER_TEST_LLAMACPP_URL must name a llama.cpp server"
        );
        eprintln!("not run: GLEANER_TEST_LLAMACPP_URL names no llama.cpp server");
        return None;
    };
    Some(connect("llama", &PolicyConfig { url, ..PolicyConfig::default() }, None).unwrap())
}

fn call(prompt: &str, stream: bool) -> Call {
    Call {
        model: "any".to_owned(),
        stream,
        messages: vec![Message::text(Role::User, Text::new(prompt))],
        sampling: Sampling { temperature: Some(1.0), seed: Some(11), ..Sampling::default() },
        max_tokens: Some(16),
        ..Call::new("chat")
    }
}

struct Outcome {
    reply: Reply,
    captured: Captured,
    raw: Vec<u8>,
    max_tokens_used: Option<u64>,
}

async fn ask(policy: &dyn Policy, call: &Call) -> Outcome {
    let prepared =
        policy.prepare(&Arc::new(call.clone()), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let mut answer = policy.send(&prepared).await.map_err(|error| error.failure).unwrap();
    let (mut events, mut raw) = (Vec::new(), Vec::new());
    while let Some(bytes) = answer.next(&mut events).await.unwrap() {
        raw.extend_from_slice(&bytes);
    }
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    let reply = fold.reply();
    let captured = answer.capture(&reply).await;
    let max_tokens_used = answer.amended().map_or(prepared.max_tokens_used, |amended| amended.max_tokens_used);
    Outcome { reply, captured, raw, max_tokens_used }
}

fn assert_full(outcome: &Outcome) {
    let Capture { level, reason, prompt_ids, completion_ids, logprobs, logprob_kind, constrained, .. } =
        &outcome.captured.capture;
    assert_eq!((level, reason), (&CaptureLevel::Full, &None));
    let usage = outcome.reply.usage.unwrap();
    let counted = (usage.prompt_tokens, usage.completion_tokens, usage.completion_tokens);
    assert_eq!((prompt_ids.len() as u64, completion_ids.len() as u64, logprobs.len() as u64), counted);
    assert_eq!((*logprob_kind, *constrained), (LogprobKind::Raw, false));
    assert!(!outcome.captured.prompt_raw.is_empty());
}

#[tokio::test]
async fn plain_calls_are_known_whole() {
    let Some(policy) = policy() else { return };
    for stream in [true, false] {
        let outcome = ask(&*policy, &call("Write one short sentence about ships.", stream)).await;
        assert_full(&outcome);
        // The ids are those of the raw bytes, read here by other code.
        let text = String::from_utf8(outcome.raw).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let entries = document["choices"][0]["logprobs"]["content"].as_array().unwrap();
        let pairs: Vec<(u64, f64)> =
            entries.iter().map(|entry| (entry["id"].as_u64().unwrap(), entry["logprob"].as_f64().unwrap())).collect();
        let capture = outcome.captured.capture;
        let ids = capture.completion_ids.iter().map(|id| u64::from(*id));
        assert_eq!(pairs, ids.zip(capture.logprobs).collect::<Vec<_>>());
    }
    assert!(policy.describe().starts_with("llama.cpp, model "), "{}", policy.describe());
    policy.ready().await.unwrap();
}

#[tokio::test]
async fn prompts_of_text_and_of_ids_are_known_whole() {
    let Some(policy) = policy() else { return };
    let text = Prompt::Text(Text::new("The ship left the harbour in the morning, and"));
    let mut ids = Vec::new();
    for (prompt, stream) in [(Some(text.clone()), true), (Some(text), false), (None, true), (None, false)] {
        let prompt = prompt.unwrap_or_else(|| Prompt::Ids(ids.clone()));
        let mut call = Call { prompt: Some(prompt), messages: Vec::new(), ..call("", stream) };
        call.wants = Wants { logprobs: true, top_logprobs: Some(2), prompt: false, ..call.wants };
        let outcome = ask(&*policy, &call).await;
        let capture = &outcome.captured.capture;
        assert_eq!((capture.level, &capture.reason), (CaptureLevel::Full, &None));
        assert_eq!(capture.prompt_ids.len() as u64, policy.count(&call).await.unwrap());
        assert!(ids.is_empty() || capture.prompt_ids == ids, "{:?}", capture.prompt_ids);
        ids.clone_from(&capture.prompt_ids);
        assert!(outcome.reply.text.is_some_and(|text| !text.is_empty()));
        let usage = outcome.reply.usage.unwrap();
        assert_eq!(capture.logprobs.len() as u64, usage.completion_tokens);
    }
    // The server's own tokenizer says what ids read as.
    let mut echo = Call { prompt: Some(Prompt::Ids(ids)), messages: Vec::new(), ..call("", true) };
    echo.wants.prompt = true;
    let shown = ask(&*policy, &echo).await.reply.prompt_text.unwrap();
    assert!(shown.decode().ends_with("The ship left the harbour in the morning, and"), "{shown:?}");
    echo.wants.logprobs = true;
    let prepared = policy.prepare(&Arc::new(echo), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let failure = policy.send(&prepared).await.err().unwrap().failure;
    assert_eq!((failure.kind, failure.param.as_deref()), (FailureKind::Invalid, Some("echo")));
}

#[tokio::test]
async fn tools_are_asked_unstreamed_and_other_turns_keep_their_prompt_exact() {
    let Some(policy) = policy() else { return };
    let mut call = call("What is in this folder?", true);
    call.tools.push(Tool {
        kind: ToolKind::Function,
        namespace: Some(Text::new("shell")),
        name: Text::new("run"),
        description: Some(Text::new("Runs a command")),
        parameters: Some(serde_json::from_str(r#"{"type":"object","properties":{"command":{"type":"string"}}}"#).unwrap()),
        rest: Vec::new(),
    });
    call.messages.insert(0, Message::text(Role::Developer, Text::new("Be brief.")));
    call.messages.push(Message { content: Content::Null, reasoning: Some(Text::new("hm")), ..Message::new(Role::Assistant) });
    call.messages.push(Message::text(Role::User, Text::new("Go on \u{1f980}.")));
    let outcome = ask(&*policy, &call).await;
    let capture = outcome.captured.capture;
    assert_ne!(capture.level, CaptureLevel::Text, "{:?}", capture.reason);
    assert!(serde_json::from_slice::<serde_json::Value>(&outcome.raw).is_ok(), "asked for a stream");
}

/// Characters of several tokens cost llama.cpp their log-probabilities; that must be seen, every time.
#[tokio::test]
async fn lost_tokens_are_noticed() {
    let Some(policy) = policy() else { return };
    let mut lost = 0;
    for seed in 0..2 {
        let mut call =
            call("Repeat: \u{1f469}\u{200d}\u{1f680} \u{1f9d1}\u{1f3fd}\u{200d}\u{1f52c} \u{1f389}\u{1f980}", seed % 2 == 0);
        call.sampling = Sampling { temperature: Some(1.8), seed: Some(seed), ..Sampling::default() };
        let outcome = ask(&*policy, &call).await;
        let capture = &outcome.captured.capture;
        let entries = outcome.reply.tokens.logprobs.len() as u64;
        let counted = outcome.reply.usage.unwrap().completion_tokens;
        if entries == counted {
            assert_full(&outcome);
            continue;
        }
        lost += 1;
        let found = (capture.level, capture.completion_ids.len() as u64);
        assert_eq!(found, (CaptureLevel::Ids, counted), "{:?}", capture.reason);
        assert!(capture.reason.is_some() && capture.logprobs.is_empty());
    }
    assert!(lost > 0, "no token was lost: this test shows nothing");
}

#[tokio::test]
async fn windows_are_kept() {
    let Some(policy) = policy() else { return };
    let mut call = call("Say hello.", true);
    call.max_tokens = Some(1_000_000);
    call.sampling.stop = Some(serde_json::from_str("\"e\"").unwrap());
    let outcome = ask(&*policy, &call).await;
    let window: u64 = policy.describe().split("window ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert_eq!(outcome.max_tokens_used, Some(window - outcome.reply.usage.unwrap().prompt_tokens));
    call.messages[0] = Message::text(Role::User, Text::new(&"hello world ".repeat(20_000)));
    let prepared = policy.prepare(&Arc::new(call), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let failure = policy.send(&prepared).await.err().unwrap().failure;
    assert_eq!((failure.kind, failure.status), (FailureKind::ContextOverflow, 400));
}

/// Token in, token out with the server's own template and tokenizer: each prompt begins with all that was sent and sampled before,
/// whatever characters were sampled in halves.
#[tokio::test]
async fn token_in_token_out_goes_on_from_what_was_sampled() {
    if policy().is_none() {
        return;
    }
    let url = std::env::var("GLEANER_TEST_LLAMACPP_URL").unwrap();
    let config = PolicyConfig { url, tokens: TokenMode::Exact, ..PolicyConfig::default() };
    let policy = connect("llama", &config, None).unwrap();
    let transcript = Transcript::default();
    let mut messages = Vec::new();
    let mut whole: Vec<u32> = Vec::new();
    for (turn, said) in
        ["Reply with many emoji: 👩‍🚀 é 🇩🇪", "And now in Japanese?", "Which of them was better, and why?"].into_iter().enumerate()
    {
        messages.push(Message::text(Role::User, Text::new(said)));
        let sampling =
            Sampling { temperature: Some(1.3), seed: Some(1000 + i64::try_from(turn).unwrap()), ..Sampling::default() };
        let call = Arc::new(Call { messages: messages.clone(), sampling, max_tokens: Some(40), ..call("", turn == 1) });
        let prepared = policy.prepare(&call, &Sampling::default(), &transcript, Duration::ZERO).await.unwrap();
        let mut answer = policy.send(&prepared).await.map_err(|error| error.failure).unwrap();
        let mut events = Vec::new();
        while answer.next(&mut events).await.unwrap().is_some() {}
        let mut fold = Fold::default();
        for event in &events {
            fold.push(event);
        }
        let reply = fold.reply();
        let capture = answer.capture(&reply).await.capture;
        assert!(capture.prompt_ids.starts_with(&whole), "turn {turn}: the prompt does not begin with what was sampled");
        let usage = reply.usage.unwrap();
        let counted = (usage.prompt_tokens, usage.completion_tokens);
        assert_eq!((capture.prompt_ids.len() as u64, capture.completion_ids.len() as u64), counted, "turn {turn}");
        // A character that came in several tokens has lost log-probabilities, and that is seen.
        let lost = reply.tokens.ids.len() - reply.tokens.logprobs.len();
        let level = if lost == 0 { CaptureLevel::Full } else { CaptureLevel::Ids };
        assert_eq!(capture.level, level, "turn {turn}: {:?}", capture.reason);
        eprintln!(
            "turn {turn}: {} + {} tokens, {lost} log-probabilities lost",
            capture.prompt_ids.len(),
            capture.completion_ids.len()
        );
        whole = capture.prompt_ids.iter().chain(&capture.completion_ids).copied().collect();
        let message = reply.message();
        transcript.note(Exchange { call_id: CallId::generate(), call: &call, reply: &message, capture: &capture });
        messages.push(message);
    }
    let failure = policy.score(&whole).await.unwrap_err();
    assert!(failure.message.contains("tells no log-probabilities of prompts"), "{}", failure.message);
}
