//! Policies against servers that answer with bytes written by hand.

use std::sync::Arc;
use std::time::Duration;

use super::stub::{Stub, call, http};
use super::{Answer, Captured, NoAnswer, Policy, PolicyConfig, PolicyKind, Prepared, Transcript, connect};
use crate::call::{Call, CaptureLevel, Event, Failure, FailureKind, FinishReason, Fold, Reply, Sampling, VersionSource};

const MODELS: &str = r#"{"object":"list","data":[{"id":"served","max_model_len":100}]}"#;
const WHOLE: &str = r#"{"prompt_token_ids":[1,2],"choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"logprobs":{"content":[{"token":"ok","logprob":-0.5}]},"finish_reason":"stop","token_ids":[7]}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;
const STREAM: &str = concat!(
    r#"data: {"prompt_token_ids":[1,2],"choices":[{"index":0,"delta":{"content":"ok"},"logprobs":{"content":[{"token":"ok","logprob":-0.5}]},"token_ids":[7]}]}"#,
    "\n\n",
    r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    "\n\n",
    r#"data: {"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#,
    "\n\ndata: [DONE]\n\n",
);
const CHAT: &str = "/v1/chat/completions";

pub(super) fn config(stub: &Stub) -> PolicyConfig {
    PolicyConfig { url: stub.url.clone(), retry_s: 20, ..PolicyConfig::default() }
}

pub(super) fn policy(config: &PolicyConfig) -> Arc<dyn Policy> {
    connect("p", config, None).unwrap()
}

/// A vLLM that answers chat completions with what `chat` gives for the body and the number of earlier ones.
async fn vllm(chat: impl Fn(&str, usize) -> Vec<u8> + Send + Sync + 'static) -> Stub {
    Stub::start(move |path, body, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", MODELS),
        CHAT => chat(body, before),
        _ => http("404 Not Found", "application/json", r#"{"detail":"Not Found"}"#),
    })
    .await
}

fn stream() -> Vec<u8> {
    http("200 OK", "text/event-stream; charset=utf-8", STREAM)
}

pub(super) async fn drain(answer: &mut dyn Answer) -> (Vec<Event>, Result<(), Failure>) {
    let mut events = Vec::new();
    loop {
        match answer.next(&mut events).await {
            Ok(Some(_)) => {}
            Ok(None) => return (events, Ok(())),
            Err(failure) => return (events, Err(failure)),
        }
    }
}

pub(super) struct Outcome {
    pub prepared: Prepared,
    pub reply: Reply,
    pub captured: Captured,
    pub amended: Option<Prepared>,
}

pub(super) async fn ask(policy: &dyn Policy, call: &crate::call::Call) -> Result<Outcome, NoAnswer> {
    let prepared =
        policy.prepare(&Arc::new(call.clone()), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let mut answer = policy.send(&prepared).await?;
    let (events, end) = drain(&mut *answer).await;
    assert_eq!(end, Ok(()));
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    let reply = fold.reply();
    let captured = answer.capture(&reply).await;
    Ok(Outcome { prepared, reply, captured, amended: answer.amended() })
}

async fn refused(policy: &dyn Policy, call: &crate::call::Call) -> NoAnswer {
    ask(policy, call).await.err().unwrap()
}

#[tokio::test]
async fn a_vllm_is_found_out_and_its_tokens_are_whole() {
    let stub = vllm(|_, _| stream()).await;
    let mut config = config(&stub);
    config.url.push_str("/v1/");
    config.sampling.temperature = Some(1.0);
    let policy = policy(&config);
    assert_eq!(policy.describe(), format!("not reached yet, at {}", stub.url));
    let mut call = call();
    call.max_tokens = Some(500);
    call.sampling.temperature = Some(0.3);
    let outcome = ask(&*policy, &call).await.unwrap();
    assert_eq!(policy.describe(), format!("vllm 0.32.0, model served, window 100 at {}", stub.url));
    assert_eq!(outcome.prepared.sampling_used, Sampling { temperature: Some(1.0), ..Sampling::default() });
    assert_eq!(outcome.prepared.max_tokens_used, Some(99));
    assert_eq!(outcome.prepared.notes, ["max_tokens 500 became 99: the window is 100"]);
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason), (CaptureLevel::Full, None));
    assert_eq!((capture.prompt_ids, capture.completion_ids, capture.logprobs), (vec![1, 2], vec![7], vec![-0.5]));
    assert_eq!(outcome.reply.finish, Some(FinishReason::Stop));
    let sent = stub.seen.lock().unwrap().last().unwrap().1.clone();
    let expected = concat!(
        r#"{"model":"served","messages":[{"role":"user","content":"hi"}],"temperature":1.0,"max_tokens":99,"#,
        r#""stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"logprobs":true,"top_logprobs":0}"#
    );
    assert_eq!(sent, expected);
}

#[tokio::test]
async fn trouble_before_the_first_byte_is_retried() {
    let troubles: [fn() -> Vec<u8>; 4] = [
        || http("500 Internal Server Error", "text/plain", "boom"),
        || http("200 OK", "text/html", "<html>soon</html>"),
        || b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(),
        Vec::new,
    ];
    for trouble in troubles {
        let stub = vllm(move |_, before| if before == 0 { trouble() } else { stream() }).await;
        let outcome = ask(&*policy(&config(&stub)), &call()).await.unwrap();
        assert_eq!(outcome.captured.capture.level, CaptureLevel::Full);
        assert_eq!(stub.count(CHAT), 2);
    }
}

#[tokio::test]
async fn a_whole_body_that_is_cut_is_asked_for_again() {
    let cut = |_: &str, before| {
        let whole = http("200 OK", "application/json", WHOLE);
        if before == 0 { whole[..whole.len() - 5].to_vec() } else { whole }
    };
    let stub = vllm(cut).await;
    let mut call = call();
    call.stream = false;
    let outcome = ask(&*policy(&config(&stub)), &call).await.unwrap();
    assert_eq!((outcome.captured.capture.level, stub.count(CHAT)), (CaptureLevel::Full, 2));
}

#[tokio::test]
async fn a_stream_that_breaks_off_is_not_retried() {
    let stub = vllm(|_, _| {
        let whole = stream();
        whole[..whole.len() - 120].to_vec()
    })
    .await;
    let policy = policy(&config(&stub));
    let prepared = policy.prepare(&Arc::new(call()), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let mut answer = policy.send(&prepared).await.unwrap();
    let (events, end) = drain(&mut *answer).await;
    assert_eq!(end.unwrap_err().kind, FailureKind::Cut);
    assert_eq!(events[0], Event::Prompt(vec![1, 2]));
    assert_eq!(stub.count(CHAT), 1);
}

#[tokio::test]
async fn refusals_pass_at_once_with_status_and_words() {
    let stub = vllm(|_, _| http("422 Unprocessable", "application/json", r#"{"error":{"message":"no","param":"tools"}}"#)).await;
    let refused = refused(&*policy(&config(&stub)), &call()).await;
    let expected = Failure { status: 422, param: Some("tools".to_owned()), ..Failure::new(FailureKind::Refused, "no") };
    assert_eq!((refused.failure, stub.count(CHAT)), (expected, 1));
    assert!(refused.response.starts_with(b"{\"error\""));
}

#[tokio::test]
async fn patience_that_is_asked_for_beyond_the_time_is_passed_on() {
    let busy = "HTTP/1.1 429 Too Many\r\nretry-after: 77\r\ncontent-length: 4\r\n\r\nbusy";
    let stub = vllm(move |_, _| busy.into()).await;
    let failure = refused(&*policy(&config(&stub)), &call()).await.failure;
    assert_eq!((failure.kind, failure.status, failure.retry_after), (FailureKind::RateLimited, 429, Some(77)));
    let stub = vllm(|_, _| http("503 Busy", "text/plain", "x")).await;
    let config = PolicyConfig { retry_s: 0, ..config(&stub) };
    let failure = refused(&*policy(&config), &call()).await.failure;
    assert_eq!((failure.kind, failure.status, failure.retry_after), (FailureKind::Unavailable, 503, Some(1)));
}

#[tokio::test]
async fn who_has_patience_gets_over_more_than_the_policy_s_own_time() {
    let stub = vllm(|_, before| if before < 2 { http("503 Busy", "text/plain", "x") } else { stream() }).await;
    let policy = policy(&PolicyConfig { retry_s: 0, ..config(&stub) });
    let call = Arc::new(call());
    let prepared = policy.prepare(&call, &Sampling::default(), &Transcript::default(), Duration::from_mins(1)).await.unwrap();
    assert!(policy.send(&prepared).await.is_ok());
}

#[tokio::test]
async fn who_has_patience_waits_for_a_server_that_is_not_known_yet() {
    let stub = Stub::start(|path, _, before| match path {
        "/version" if before >= 2 => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", MODELS),
        _ => http("503 Busy", "text/plain", "x"),
    })
    .await;
    let policy = policy(&PolicyConfig { retry_s: 0, ..config(&stub) });
    let prepare = async |patience| {
        let prepared = policy.prepare(&Arc::new(call()), &Sampling::default(), &Transcript::default(), patience).await;
        prepared.map_err(|failure| failure.kind)
    };
    assert_eq!(prepare(Duration::ZERO).await.err(), Some(FailureKind::Unavailable));
    assert_eq!(prepare(Duration::from_mins(1)).await.map(|prepared| prepared.patience), Ok(Duration::from_mins(1)));
}

#[tokio::test]
async fn a_limit_that_the_prompt_leaves_no_room_for_is_lowered_once() {
    let overflow =
        |message: &str| http("400 Bad Request", "application/json", &format!(r#"{{"error":{{"message":"{message}"}}}}"#));
    let numbers = "'max_tokens' or 'max_completion_tokens' is too large: 90. This model's maximum context length is 100 tokens and your request has 20 input tokens (90 > 100 - 20).";
    let stub = vllm(move |body, _| if body.contains("\"max_tokens\":80,") { stream() } else { overflow(numbers) }).await;
    let mut call = call();
    call.max_tokens = Some(90);
    let outcome = ask(&*policy(&config(&stub)), &call).await.unwrap();
    let amended = outcome.amended.unwrap();
    assert_eq!((outcome.prepared.max_tokens_used, amended.max_tokens_used), (Some(90), Some(80)));
    assert_eq!(amended.notes.len(), 1);
    let vague = "This model's maximum context length is 100 tokens. However, you requested 90 output tokens and your prompt contains at least 11 input tokens, for a total of at least 101 tokens.";
    let stub = vllm(move |body, _| if body.contains("max_tokens") { overflow(vague) } else { stream() }).await;
    let outcome = ask(&*policy(&config(&stub)), &call).await.unwrap();
    assert_eq!((outcome.amended.unwrap().max_tokens_used, stub.count("/tokenize")), (None, 1));
    let full = "This model's maximum context length is 100 tokens. However, your request has 120 input tokens.";
    let stub = vllm(move |_, _| overflow(full)).await;
    let failure = refused(&*policy(&config(&stub)), &call).await.failure;
    assert_eq!((failure.kind, failure.status, stub.count(CHAT)), (FailureKind::ContextOverflow, 400, 1));
}

#[tokio::test]
async fn weights_are_polled_where_the_server_tells_them() {
    let stub = Stub::start(|path, _, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/weight_info" => http("200 OK", "application/json", &format!(r#"{{"weight_version":"step-{before}"}}"#)),
        "/v1/models" => http("200 OK", "application/json", MODELS),
        _ => stream(),
    })
    .await;
    let policy = policy(&config(&stub));
    let version = ask(&*policy, &call()).await.unwrap().captured.version;
    assert_eq!((version.version.as_deref(), version.seq, version.source), (Some("step-0"), 0, Some(VersionSource::Polled)));
    ask(&*policy, &call()).await.unwrap();
    assert!(stub.count("/weight_info") <= 2, "asked at most once a second");
}

#[tokio::test]
async fn llamacpp_is_asked_whole_and_for_its_prompt_beside_the_call() {
    let whole = r#"{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"ok"},"logprobs":{"content":[{"id":9,"token":"ok","logprob":-0.5}]}}],"usage":{"completion_tokens":2,"prompt_tokens":3},"__verbose":{"tokens":[9,2],"generation_settings":{"grammar":"","grammar_lazy":false}}}"#;
    let stub = Stub::start(move |path, body, _| match path {
        "/props" => http("200 OK", "application/json", r#"{"default_generation_settings":{"n_ctx":2048}}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"/m.gguf"}]}"#),
        "/apply-template" if body.contains("stream") => http("400 Bad Request", "application/json", "{}"),
        "/apply-template" => http("200 OK", "application/json", r#"{"prompt":"<s>hi"}"#),
        "/tokenize" => http("200 OK", "application/json", r#"{"tokens":[1,2,3]}"#),
        CHAT => http("200 OK", "application/json", whole),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let policy = policy(&config(&stub));
    let outcome = ask(&*policy, &call()).await.unwrap();
    let body = String::from_utf8(outcome.prepared.body.to_vec()).unwrap();
    assert!(
        body.ends_with(r#","logprobs":true,"top_logprobs":1,"verbose":true,"return_tokens":true}"#) && !body.contains("stream")
    );
    assert!(outcome.amended.is_none());
    let captured = outcome.captured;
    assert_eq!(&captured.prompt_raw[..], br#"{"tokens":[1,2,3]}"#);
    let capture = captured.capture;
    assert_eq!((capture.level, capture.prompt_ids, capture.completion_ids), (CaptureLevel::Ids, vec![1, 2, 3], vec![9, 2]));
    assert_eq!(capture.reason.as_deref(), Some("1 log-probabilities for 2 completion ids"));
    assert_eq!(policy.describe(), format!("llama.cpp, model /m.gguf, window 2048 at {}", stub.url));
}

#[tokio::test]
async fn a_server_that_comes_up_late_is_waited_for() {
    let stub = Stub::start(|path, _, before| match path {
        _ if before == 0 && path == "/version" => http("503 Starting", "text/plain", ""),
        "/v1/models" => http("200 OK", "application/json", r#"{"data":[{"id":"gpt"}]}"#),
        CHAT => stream(),
        _ => http("404 Not Found", "text/plain", ""),
    })
    .await;
    let outcome = ask(&*policy(&config(&stub)), &call()).await.unwrap();
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason.as_deref()), (CaptureLevel::Text, Some("this kind of server gives no token ids")));
    assert_eq!(outcome.reply.tokens, crate::call::Tokens::default());
}

/// A plain prompt that does not fit beside its limit is asked for again with what is left, by vLLM's own count.
#[tokio::test]
async fn a_prompt_that_is_no_conversation_is_limited_by_its_own_count() {
    const TEXT: &str = r#"{"choices":[{"index":0,"text":"ok","logprobs":{"tokens":["ok"],"token_logprobs":[-0.5],"top_logprobs":[{"ok":-0.5}],"text_offset":[0]},"finish_reason":"length","token_ids":[7],"prompt_token_ids":[1,2]}],"usage":{"prompt_tokens":2,"completion_tokens":1}}"#;
    let refusal = r#"{"error":{"message":"This model's maximum context length is 100 tokens. However, your request has at least 101 tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#;
    let stub = Stub::start(move |path, body, before| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", MODELS),
        "/tokenize" => http("200 OK", "application/json", r#"{"count":60}"#),
        "/v1/completions" if before == 0 && body.contains("max_tokens") => http("400 Bad Request", "application/json", refusal),
        "/v1/completions" => http("200 OK", "application/json", TEXT),
        _ => http("404 Not Found", "application/json", r#"{"detail":"Not Found"}"#),
    })
    .await;
    let policy = policy(&config(&stub));
    let prompt = Some(crate::call::Prompt::Text(crate::call::Text::new("a \"b\"")));
    let call = Call { prompt, stream: false, messages: Vec::new(), max_tokens: Some(50), ..call() };
    assert_eq!(policy.count(&call).await.unwrap(), 60);
    let prepared = policy.prepare(&Arc::new(call), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
    let mut answer = policy.send(&prepared).await.map_err(|error| error.failure).unwrap();
    let (events, ended) = drain(answer.as_mut()).await;
    assert_eq!(ended, Ok(()));
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    let captured = answer.capture(&fold.reply()).await;
    assert_eq!((captured.capture.level, captured.capture.prompt_ids), (CaptureLevel::Full, vec![1, 2]));
    assert_eq!(answer.amended().unwrap().max_tokens_used, Some(40));
    let seen = stub.seen.lock().unwrap();
    let sent = |path: &str| seen.iter().filter(|(seen, _)| seen == path).map(|(_, body)| body.clone()).collect::<Vec<_>>();
    assert_eq!(sent("/tokenize"), vec![r#"{"model":"served","prompt":"a \"b\""}"#; 2]);
    let expected =
        |limit| format!(r#"{{"model":"served","prompt":"a \"b\"","max_tokens":{limit},"return_token_ids":true,"logprobs":0}}"#);
    assert_eq!(sent("/v1/completions"), [expected(50), expected(40)]);
}

fn sent() -> Prepared {
    let (body, call) = (bytes::Bytes::from_static(b"{}"), Arc::new(call()));
    Prepared {
        body,
        stream: true,
        sampling_used: Sampling::default(),
        max_tokens_used: None,
        notes: Vec::new(),
        call,
        prompt: None,
        patience: Duration::ZERO,
    }
}

#[tokio::test]
async fn a_silent_server_is_timed_out() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let http = super::http::Http::new("p", &PolicyConfig { url, ..PolicyConfig::default() }, None).unwrap();
    let attempt = super::attempt::attempt(&http, super::attempt::Post::of(&sent()), Duration::from_millis(50)).await;
    let Err(super::attempt::Trouble::Final(no_answer)) = attempt else { panic!("a silent server gave an answer") };
    assert_eq!(no_answer.failure.kind, FailureKind::TimedOut);
}

#[tokio::test]
async fn dropping_a_reply_hangs_up_on_the_server() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let config = PolicyConfig {
        url: format!("http://{}", listener.local_addr().unwrap()),
        kind: PolicyKind::Vllm,
        ..PolicyConfig::default()
    };
    let http = super::http::Http::new("p", &config, None).unwrap();
    let server = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        assert!(stream.read(&mut buffer).await.unwrap() > 0);
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n3\r\n: \n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.read(&mut buffer).await
    };
    let client = async {
        let attempt = super::attempt::attempt(&http, super::attempt::Post::of(&sent()), Duration::from_mins(1)).await;
        drop(attempt.ok().unwrap());
    };
    let (read, ()) = tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(server, client) }).await.unwrap();
    assert!(read.is_err() || read.unwrap() == 0);
}

#[test]
fn settings_that_are_no_policy_are_refused() {
    let error = |config: PolicyConfig| connect("p", &config, None).err().unwrap().to_string();
    let url = PolicyConfig { url: "localhost:80".to_owned(), ..PolicyConfig::default() };
    assert_eq!(error(url), "policy p: url \"localhost:80\" is not an http or https address");
}

#[tokio::test]
async fn more_alternatives_are_recorded_than_a_client_sees() {
    let entry = r#"{"token":"ok","bytes":[111,107],"logprob":-0.5,"top_logprobs":[{"token":"ok","bytes":[111,107],"logprob":-0.5},{"token":"no","bytes":[110,111],"logprob":-1.5}]}"#;
    let body = format!(
        r#"{{"prompt_token_ids":[1,2],"choices":[{{"index":0,"message":{{"role":"assistant","content":"ok"}},"logprobs":{{"content":[{entry}]}},"finish_reason":"stop","token_ids":[7]}}],"usage":{{"prompt_tokens":2,"completion_tokens":1}}}}"#
    );
    let stub = vllm(move |_, _| http("200 OK", "application/json", &body)).await;
    let mut asked = call();
    (asked.stream, asked.wants.logprobs, asked.wants.top_logprobs) = (false, true, Some(1));
    let outcome = ask(&*policy(&PolicyConfig { top_logprobs: 2, ..config(&stub) }), &asked).await.unwrap();
    assert!(stub.seen.lock().unwrap().last().unwrap().1.ends_with(r#""logprobs":true,"top_logprobs":2}"#));
    let shown: Vec<&str> =
        outcome.reply.extras.iter().filter_map(|extra| extra.logprobs()).map(crate::call::Raw::as_str).collect();
    let expected = r#"{"content":[{"token":"ok","logprob":-0.5,"bytes":[111,107],"top_logprobs":[{"token":"ok","logprob":-0.5,"bytes":[111,107]}]}]}"#;
    assert_eq!(shown, [expected]);
    assert_eq!(outcome.captured.capture.level, CaptureLevel::Full);
}
