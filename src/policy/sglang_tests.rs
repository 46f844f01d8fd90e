//! A policy whose server is `SGLang`: bytes in the form of its 0.5.23's own source, which does not run without a GPU.

use serde_json::json;

use super::server_tests::{ask, config, policy};
use super::stub::{Stub, call, http};
use crate::call::{CaptureLevel, LogprobKind, Run, Sampling, Tool, ToolKind, VersionSource, WeightVersion};

const CHAT: &str = "/v1/chat/completions";
const STREAM: &str = concat!(
    r#"data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
    "\n\n",
    r#"data: {"id":"a","choices":[{"index":0,"delta":{"content":"o"},"logprobs":{"content":[{"token":"o","bytes":[111],"logprob":-0.5,"top_logprobs":[]},{"token":"","bytes":[],"logprob":-1.25,"top_logprobs":[]}]},"finish_reason":null,"matched_stop":null}]}"#,
    "\n\n",
    r#"data: {"id":"a","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","matched_stop":151645}]}"#,
    "\n\n",
    r#"data: {"id":"a","created":1,"model":"m","choices":[],"sglext":{"input_ids":[1,2,3],"output_ids":[[7,8]]}}"#,
    "\n\n",
    r#"data: {"id":"a","choices":[],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}"#,
    "\n\ndata: [DONE]\n\n",
);
const WHOLE: &str = r#"{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"o","reasoning_content":null,"tool_calls":null},"logprobs":{"content":[{"token":"o","bytes":[111],"logprob":-0.5,"top_logprobs":[]},{"token":"","bytes":[],"logprob":-1.25,"top_logprobs":[]}]},"finish_reason":"stop","matched_stop":151645,"prompt_token_ids":[1,2,3],"response_token_ids":[7,8]}],"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2},"metadata":{"weight_version":"step-2","weight_versions":[{"version":"step-1","start":0,"end":1},{"version":"step-2","start":1,"end":2}]}}"#;

async fn sglang() -> Stub {
    Stub::start(|path, body, _| match path {
        "/model_info" => {
            http("200 OK", "application/json", r#"{"model_path":"/m","is_generation":true,"weight_version":"step-1"}"#)
        }
        "/v1/models" => http("200 OK", "application/json", r#"{"object":"list","data":[{"id":"m","max_model_len":100}]}"#),
        // As its check of the request has it.
        CHAT if body.contains("\"stream\":true") && body.contains("return_token_ids") => {
            let refused = r#"{"object":"error","message":"return_token_ids is not supported with streaming on /v1/chat/completions.","type":"BadRequestError","param":null,"code":400}"#;
            http("400 Bad Request", "application/json", refused)
        }
        CHAT if body.contains("\"stream\":true") => http("200 OK", "text/event-stream", STREAM),
        CHAT => http("200 OK", "application/json", WHOLE),
        _ => http("404 Not Found", "application/json", r#"{"detail":"Not Found"}"#),
    })
    .await
}

fn pinned() -> Sampling {
    Sampling { temperature: Some(1.0), top_p: Some(1.0), top_k: Some(-1), ..Sampling::default() }
}

#[tokio::test]
async fn its_streams_give_all_ids_at_their_end() {
    let stub = sglang().await;
    let mut config = config(&stub);
    config.sampling = pinned();
    let policy = policy(&config);
    let outcome = ask(&*policy, &call()).await.unwrap();
    assert_eq!(policy.describe(), format!("sglang, model m, window 100 at {}", stub.url));
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.reason, capture.logprob_kind), (CaptureLevel::Full, None, LogprobKind::Raw));
    assert_eq!((capture.prompt_ids, capture.completion_ids), (vec![1, 2, 3], vec![7, 8]));
    assert_eq!(capture.logprobs, [-0.5, -1.25]);
    let version = WeightVersion { version: Some("step-1".to_owned()), seq: 0, source: Some(VersionSource::Polled) };
    assert_eq!((outcome.captured.version, capture.runs), (version, Vec::new()));
    let sent = stub.seen.lock().unwrap().last().unwrap().1.clone();
    assert!(
        sent.ends_with(
            r#""return_input_ids_in_sglext":true,"return_output_ids_in_sglext":true,"logprobs":true,"top_logprobs":0}"#
        ),
        "{sent}"
    );
}

#[tokio::test]
async fn a_reply_across_an_update_of_its_weights_has_two_runs() {
    let stub = sglang().await;
    let mut asked = call();
    asked.stream = false;
    let outcome = ask(&*policy(&config(&stub)), &asked).await.unwrap();
    let capture = outcome.captured.capture;
    assert_eq!((capture.level, capture.prompt_ids, capture.completion_ids), (CaptureLevel::Full, vec![1, 2, 3], vec![7, 8]));
    let version = |name: &str, seq| WeightVersion { version: Some(name.to_owned()), seq, source: Some(VersionSource::Server) };
    let runs = vec![Run { start: 0, version: version("step-1", 0) }, Run { start: 1, version: version("step-2", 1) }];
    assert_eq!((outcome.captured.version, capture.runs), (version("step-2", 1), runs));
}

#[tokio::test]
async fn what_its_log_probabilities_are_of_depends_on_the_sampling() {
    let kind = async |sampling: Sampling| {
        let stub = sglang().await;
        let mut config = config(&stub);
        config.sampling = sampling;
        ask(&*policy(&config), &call()).await.unwrap().captured.capture.logprob_kind
    };
    assert_eq!(kind(pinned()).await, LogprobKind::Raw);
    assert_eq!(kind(Sampling { temperature: Some(0.7), ..pinned() }).await, LogprobKind::Processed);
    assert_eq!(kind(Sampling { temperature: Some(0.7), top_p: Some(0.9), ..pinned() }).await, LogprobKind::Unknown);
    assert_eq!(kind(Sampling { presence_penalty: Some(0.5), ..pinned() }).await, LogprobKind::Processed);
    // What nobody set is the model's own default, which may be anything.
    assert_eq!(kind(Sampling::default()).await, LogprobKind::Unknown);
}

/// What vLLM does beside some tool parsers: chunks that the parser swallows take their ids with them.
#[tokio::test]
async fn streams_that_keep_ids_back_are_asked_for_no_more() {
    let short = concat!(
        r#"data: {"prompt_token_ids":[1],"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-0.5}]},"token_ids":[7],"finish_reason":"stop"}]}"#,
        "\n\n",
        r#"data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        "\n\ndata: [DONE]\n\n",
    );
    let whole = json!({"prompt_token_ids": [1], "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop",
        "token_ids": [7, 8], "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]}}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
    .to_string();
    let stub = Stub::start(move |path, body, _| match path {
        "/version" => http("200 OK", "application/json", r#"{"version":"0.32.0"}"#),
        CHAT if body.contains("\"stream\":true") => http("200 OK", "text/event-stream", short),
        CHAT => http("200 OK", "application/json", &whole),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let policy = policy(&config(&stub));
    let mut tools = call();
    tools.tools = vec![Tool {
        kind: ToolKind::Function,
        namespace: None,
        name: "sh".into(),
        description: None,
        parameters: None,
        rest: Vec::new(),
    }];
    let first = ask(&*policy, &tools).await.unwrap();
    assert_eq!(first.captured.capture.level, CaptureLevel::Text);
    let notes = first.amended.unwrap().notes;
    assert!(notes.iter().any(|note| note.contains("keeps ids back")), "{notes:?}");
    let second = ask(&*policy, &tools).await.unwrap();
    assert_eq!((second.captured.capture.level, second.prepared.stream), (CaptureLevel::Full, false));
    assert!(ask(&*policy, &call()).await.unwrap().prepared.stream, "calls without tools still stream");
}
