//! Bad input from both sides: the right answer at the client, and the right record.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::io::Write;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Made, Start};
use support::policy::{Fault, Reply, ScriptedPolicy};
use support::{chat, messages, responses, within};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages?beta=true";
/// So that trouble is given up soon, and a stall noticed.
const IMPATIENT: &str = "[policies.default]\nretry_s = 1\nfirst_byte_timeout_s = 1\nidle_timeout_s = 1\n";

async fn start(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let gleaner = Start::new(policy.url()).config(IMPATIENT).run().await;
    let made = gleaner.plain_rollout().await;
    (policy, gleaner, made)
}

/// Posts bytes as they are; gives the status and the error, which must be in the wire's form.
async fn refused(gleaner: &Gleaner, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, Value) {
    let mut answer = gleaner.send("POST", path, headers, body).await;
    let error = answer.json().await;
    assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string(), "not the wire's form: {error}");
    (answer.status(), error["error"].clone())
}

#[tokio::test]
async fn a_request_that_is_none_is_refused_and_recorded() {
    let deep = format!("{{\"model\":\"m\",\"messages\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let bodies: [(&str, &[u8]); 14] = [
        (CHAT, b"{\"model\": \"m\", \"messages\": [{"),
        (CHAT, b""),
        (CHAT, b"[]"),
        (CHAT, b"null"),
        (CHAT, b"{\"model\": \"m\"}"),
        (CHAT, b"{\"model\": \"m\", \"messages\": \"hi\"}"),
        (CHAT, b"{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"stream\": \"yes\"}"),
        (CHAT, b"{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}"),
        (CHAT, deep.as_bytes()),
        (RESPONSES, b"{\"model\": \"m\", \"input\": 7}"),
        (RESPONSES, b"{\"model\": \"m\", \"input\": [{\"type\": \"message\", \"role\": 5}]}"),
        (RESPONSES, b"\xef\xbb\xbf{broken"),
        (MESSAGES, b"{\"model\": \"m\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}"),
        (MESSAGES, b"{\"model\": \"m\", \"max_tokens\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"a\0b\"}]}"),
    ];
    for (path, body) in bodies {
        let (policy, gleaner, made) = start(71, []).await;
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let (status, _) = refused(&gleaner, path, &[("x-api-key", &made.key)], body).await;
        assert_eq!(status, 400, "{shown}");
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.failure_kind()), ("failed", Some("invalid")), "{shown}");
        assert_eq!(gleaner.raw(record.id(), "request").await, body, "{shown}");
        assert_eq!(policy.count(), 0, "{shown}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_413_and_recorded() {
    for path in [CHAT, RESPONSES, MESSAGES] {
        let (policy, gleaner, made) = start(72, []).await;
        let body = vec![b' '; 65 << 20];
        let (status, _) = refused(&gleaner, path, &[("x-api-key", &made.key)], &body).await;
        assert_eq!(status, 413);
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.failure_kind()), ("failed", Some("too_large")));
        assert_eq!(policy.count(), 0);
        assert!(peak_memory(&gleaner) < 300, "{} MB", peak_memory(&gleaner));
    }
}

/// The most memory that the process has had, in MB.
fn peak_memory(gleaner: &Gleaner) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gleaner.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Compresses with each coding that is taken.
fn codings(body: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(body).unwrap();
    let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    zlib.write_all(body).unwrap();
    let mut br = Vec::new();
    brotli::CompressorWriter::new(&mut br, 1 << 16, 0, 22).write_all(body).unwrap();
    let zstd = zstd::encode_all(body, 1).unwrap();
    vec![("gzip", gzip.finish().unwrap()), ("deflate", zlib.finish().unwrap()), ("br", br), ("zstd", zstd)]
}

#[tokio::test]
async fn compressed_bodies_are_read_and_recorded_plain() {
    let body = chat::request("hello from a compressed body", false).to_string();
    for (coding, packed) in codings(body.as_bytes()) {
        let (policy, gleaner, made) = start(73, [Reply::text("read")]).await;
        let headers = [("x-api-key", made.key.as_str()), ("content-encoding", coding)];
        let mut answer = gleaner.send("POST", CHAT, &headers, &packed).await;
        assert_eq!((answer.status(), chat::Reply::read(&mut answer).await.text.as_str()), (200, "read"), "{coding}");
        assert_eq!(policy.last().body["messages"][0]["content"], "hello from a compressed body");
        let record = gleaner.only_call(&made.id).await;
        assert_eq!(gleaner.raw(record.id(), "request").await, body.as_bytes(), "{coding}");
    }
}

#[tokio::test]
async fn bombs_and_broken_codings_are_refused() {
    let mut bombs = codings(&vec![b' '; 66 << 20]);
    let large = std::io::Read::take(std::io::repeat(b' '), 512 << 20);
    bombs.push(("zstd", zstd::encode_all(large, 1).unwrap()));
    let (policy, gleaner, _) = start(74, []).await;
    for (coding, bomb) in bombs {
        let made = gleaner.plain_rollout().await;
        let headers = [("x-api-key", made.key.as_str()), ("content-encoding", coding)];
        let (status, _) = refused(&gleaner, CHAT, &headers, &bomb).await;
        assert_eq!(status, 413, "{coding}");
        assert_eq!(gleaner.only_call(&made.id).await.failure_kind(), Some("too_large"), "{coding}");
    }
    assert!(peak_memory(&gleaner) < 300, "{} MB", peak_memory(&gleaner));
    for coding in ["gzip", "deflate", "br", "zstd", "no-such-coding"] {
        let made = gleaner.plain_rollout().await;
        let headers = [("x-api-key", made.key.as_str()), ("content-encoding", coding)];
        let (status, _) = refused(&gleaner, CHAT, &headers, b"\x01this is not compressed at all").await;
        assert!(matches!(status, 400 | 415), "{coding}: {status}");
        assert_eq!(gleaner.only_call(&made.id).await.status(), "failed", "{coding}");
    }
    assert_eq!(policy.count(), 0);
}

/// What a client sees of a call, whatever the wire.
#[derive(Debug, PartialEq)]
enum Outcome {
    Answer(String),
    /// An HTTP error with its Retry-After.
    Status(u16, Option<String>),
    /// The wire's own error inside a stream.
    InStream,
    /// The stream just stopped.
    Cut,
}

fn request(path: &str, stream: bool) -> Value {
    match path {
        CHAT => chat::request("hi", stream),
        MESSAGES => messages::request("hi", stream),
        _ => responses::request("hi", stream),
    }
}

async fn outcome(gleaner: &Gleaner, made: &Made, path: &str, stream: bool) -> Outcome {
    let mut answer = gleaner.call(path, &made.key, &request(path, stream)).await;
    if answer.status() != 200 {
        let retry_after = answer.head.header("retry-after").map(str::to_owned);
        let error = answer.json().await;
        assert!(error["error"]["message"].is_string(), "not the wire's form: {error}");
        return Outcome::Status(answer.status(), retry_after);
    }
    let (text, complete, error) = if path == CHAT {
        let reply = chat::Reply::read(&mut answer).await;
        (reply.text, reply.complete, reply.error)
    } else if path == MESSAGES {
        let reply = messages::Reply::read(&mut answer).await;
        (reply.text(), reply.complete, reply.error)
    } else {
        let reply = responses::Reply::read(&mut answer).await;
        (reply.text.clone(), reply.complete(), reply.error)
    };
    match (complete, error) {
        (true, None) => Outcome::Answer(text),
        (false, Some(_)) => Outcome::InStream,
        (false, None) => Outcome::Cut,
        (true, Some(error)) => panic!("an answer and an error: {error}"),
    }
}

const TEXT: &str = "one two three four five";

fn every_way() -> [(&'static str, bool); 6] {
    [(CHAT, true), (CHAT, false), (RESPONSES, true), (RESPONSES, false), (MESSAGES, true), (MESSAGES, false)]
}

/// Oddities of a stream that change nothing.
#[tokio::test]
async fn odd_streams_are_read_as_they_are_meant() {
    for fault in [Fault::Bom, Fault::Crlf, Fault::Comments, Fault::NoDone, Fault::FatLast, Fault::EmptyChoices, Fault::ByteByByte]
    {
        let (policy, gleaner, _) = start(75, []).await;
        policy.otherwise(Reply::text(TEXT).with(fault.clone()));
        for path in [CHAT, RESPONSES, MESSAGES] {
            let made = gleaner.plain_rollout().await;
            let got = outcome(&gleaner, &made, path, true).await;
            assert_eq!(got, Outcome::Answer(TEXT.to_owned()), "{path} {fault:?}");
            let (record, seen) = (gleaner.only_call(&made.id).await, policy.last());
            assert_eq!((record.status(), record.level(), record.text()), ("done", "full", Some(TEXT)), "{fault:?}");
            assert_eq!((record.completion_ids(), record.logprobs()), (seen.ids(), seen.logprobs()), "{fault:?}");
        }
    }
}

/// Trouble that does not pass.
#[tokio::test]
async fn lasting_trouble_is_the_wires_own_error() {
    let status = |status: u16, retry_after: &str| Fault::Status {
        status,
        headers: [("retry-after".to_owned(), retry_after.to_owned())].into(),
        body: json!({"error": {"message": "no", "type": "x", "code": status}}).to_string(),
    };
    for (fault, want, kind) in [
        (Fault::Html, 503, "unavailable"),
        (Fault::BrokenJson, 503, "unavailable"),
        (Fault::CutBeforeHead, 503, "unavailable"),
        (status(500, "1"), 503, "unavailable"),
        (status(429, "7"), 429, "rate_limited"),
    ] {
        let (policy, gleaner, _) = start(76, []).await;
        policy.otherwise(Reply::text(TEXT).with(fault.clone()));
        for (path, stream) in every_way() {
            let made = gleaner.plain_rollout().await;
            let got = outcome(&gleaner, &made, path, stream).await;
            let kind = match got {
                Outcome::Status(got, Some(retry_after)) => {
                    assert_eq!(got, want, "{path} {stream} {fault:?}");
                    assert!(retry_after.parse::<u64>().is_ok() && (want != 429 || retry_after == "7"), "{retry_after}");
                    kind
                }
                // A first byte came, and then it was no stream.
                Outcome::InStream if stream && matches!(fault, Fault::BrokenJson) => "cut",
                got => panic!("{path} {stream} {fault:?}: {got:?}"),
            };
            let record = gleaner.only_call(&made.id).await;
            assert_eq!((record.status(), record.failure_kind()), ("failed", Some(kind)), "{path} {stream} {fault:?}");
            let (samples, left_out) = gleaner.samples(&made.id).await;
            assert_eq!((samples, left_out[0]["reason"].as_str()), (vec![], Some("upstream_error")), "{fault:?}");
        }
    }
}

/// Trouble before the first byte that passes is not seen by the client.
#[tokio::test]
async fn passing_trouble_is_met_by_asking_again() {
    let status = |status: u16| Fault::Status { status, headers: [].into(), body: "{}".to_owned() };
    for fault in [Fault::CutBeforeHead, Fault::CutBeforeBody, status(500), status(503), status(429), status(408)] {
        for (path, stream) in every_way() {
            let policy = ScriptedPolicy::start(77, [Reply::text("lost").with(fault.clone()), Reply::text(TEXT)]).await;
            let gleaner = Gleaner::start(policy.url()).await;
            let made = gleaner.plain_rollout().await;
            let got = outcome(&gleaner, &made, path, stream).await;
            assert_eq!(got, Outcome::Answer(TEXT.to_owned()), "{path} {stream} {fault:?}");
            let (record, seen) = (gleaner.only_call(&made.id).await, policy.last());
            assert_eq!((record.status(), record.completion_ids()), ("done", seen.ids()), "{path} {stream} {fault:?}");
            assert_eq!(policy.count(), 2, "one call, asked twice");
        }
    }
}

#[tokio::test]
async fn a_refusal_passes_with_its_status_and_text() {
    let body = json!({"error": {"message": "temperature must be finite", "type": "BadRequestError", "param": null, "code": 422}});
    let fault = Fault::Status { status: 422, headers: [].into(), body: body.to_string() };
    let (policy, gleaner, _) = start(78, []).await;
    policy.otherwise(Reply::text("").with(fault));
    for (at, (path, stream)) in every_way().into_iter().enumerate() {
        let made = gleaner.plain_rollout().await;
        let mut answer = gleaner.call(path, &made.key, &request(path, stream)).await;
        let error = answer.json().await;
        assert_eq!(answer.status(), 422, "{error}");
        assert!(error["error"]["message"].as_str().unwrap().contains("temperature must be finite"), "{error}");
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.failure_kind()), ("failed", Some("refused")));
        assert_eq!(gleaner.raw(record.id(), "response").await, body.to_string().as_bytes());
        assert_eq!(policy.count(), at + 1, "a refusal is not asked again");
    }
}

/// After the first byte nothing is asked again: the wire's own error ends the stream.
#[tokio::test]
async fn a_broken_stream_is_never_given_a_normal_end() {
    for fault in
        [Fault::CutAfter { events: 3 }, Fault::ErrorEvent { events: 3 }, Fault::NoFinish, Fault::StallAfter { events: 3 }]
    {
        let (policy, gleaner, _) = start(79, []).await;
        policy.otherwise(Reply::text(TEXT).with(fault.clone()));
        for (at, path) in [CHAT, RESPONSES, MESSAGES].into_iter().enumerate() {
            let made = gleaner.plain_rollout().await;
            assert_eq!(outcome(&gleaner, &made, path, true).await, Outcome::InStream, "{path} {fault:?}");
            let record = gleaner.only_call(&made.id).await;
            assert_eq!(record.status(), "failed", "{path} {fault:?}");
            assert!(record.text().is_some_and(|text| text.starts_with("one two ")), "what came is kept: {record:?}");
            assert_eq!(policy.count(), at + 1, "{path} {fault:?}");
            let (samples, left_out) = gleaner.samples(&made.id).await;
            assert_eq!((samples.len(), left_out[0]["reason"].as_str()), (0, Some("upstream_error")), "{path} {fault:?}");
        }
    }
}

#[tokio::test]
async fn a_whole_body_that_is_cut_is_asked_for_again() {
    for path in [CHAT, RESPONSES, MESSAGES] {
        let (policy, gleaner, made) = start(80, [Reply::text("x").with(Fault::CutAfter { events: 0 }), Reply::text(TEXT)]).await;
        assert_eq!(outcome(&gleaner, &made, path, false).await, Outcome::Answer(TEXT.to_owned()));
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.completion_ids(), policy.count()), ("done", policy.last().ids(), 2));
    }
}

#[tokio::test]
async fn a_silent_policy_is_given_up() {
    for (path, stream) in every_way() {
        let (policy, gleaner, made) = start(81, []).await;
        policy.otherwise(Reply::text(TEXT).with(Fault::StallBefore));
        let got = outcome(&gleaner, &made, path, stream).await;
        assert!(matches!(got, Outcome::Status(503, Some(_)) | Outcome::InStream), "{path} {stream}: {got:?}");
        let record = gleaner.only_call(&made.id).await;
        assert_eq!((record.status(), record.failure_kind()), ("failed", Some("timed_out")));
    }
}

/// Where a bound of ours decides, client and record must say the same, soon.
#[tokio::test]
async fn a_very_long_line_and_bad_utf8_harm_nobody() {
    for fault in [Fault::LongLine { bytes: 9 << 20 }, Fault::BadUtf8] {
        for path in [CHAT, RESPONSES, MESSAGES] {
            let policy = ScriptedPolicy::start(82, [Reply::text(TEXT).with(fault.clone())]).await;
            let gleaner = Gleaner::start(policy.url()).await;
            let made = gleaner.plain_rollout().await;
            let got = within("a long line", outcome(&gleaner, &made, path, true)).await;
            let record = gleaner.only_call(&made.id).await;
            match got {
                Outcome::Answer(text) => {
                    assert_eq!((record.status(), record.text()), ("done", Some(text.as_str())));
                    assert!(
                        text.ends_with("three four five"),
                        "{fault:?}: what follows is lost: {}",
                        &text[..text.len().min(200)]
                    );
                    assert_eq!(record.completion_ids(), policy.last().ids());
                }
                Outcome::InStream | Outcome::Status(503, _) => assert_eq!(record.status(), "failed"),
                other => panic!("{path} {fault:?}: {other:?}"),
            }
            policy.then(Reply::text(TEXT));
            let other = gleaner.plain_rollout().await;
            assert_eq!(outcome(&gleaner, &other, path, true).await, Outcome::Answer(TEXT.to_owned()), "calls go on");
        }
    }
}

#[tokio::test]
async fn our_own_api_says_what_is_wrong() {
    let (_policy, gleaner, made) = start(83, []).await;
    let (status, problem) = gleaner.api_post("/rollouts", json!({"no_such_field": 1})).await;
    assert_eq!(status, 400);
    assert!(problem.to_string().contains("no_such_field") && problem["title"].is_string(), "{problem}");
    let (status, problem) = gleaner.api_post(&format!("/rollouts/{}/reward", made.id), json!({"reward": "much"})).await;
    assert_eq!((status, problem["status"].as_u64()), (400, Some(400)), "{problem}");
    let unknown = "/api/v1/rollouts/018f0000-0000-7000-8000-000000000000";
    for path in [unknown.to_owned(), format!("{unknown}/calls"), format!("{unknown}/samples"), "/api/v1/nothing".to_owned()] {
        let mut answer = gleaner.send("GET", &path, &[], b"").await;
        let kind = answer.head.header("content-type").unwrap_or_default().to_owned();
        assert_eq!((answer.status(), kind.as_str()), (404, "application/problem+json"), "{path}");
        assert!(answer.json().await["title"].is_string());
    }
}

#[tokio::test]
async fn a_method_that_a_path_does_not_take_is_answered_with_a_document() {
    let (_policy, gleaner, _) = start(87, []).await;
    for (method, path) in [("POST", "/metrics"), ("POST", "/"), ("DELETE", "/healthz"), ("PUT", "/api/v1/rollouts")] {
        let mut answer = gleaner.send(method, path, &[], b"").await;
        let body = answer.json().await;
        assert_eq!((answer.status(), &body["type"]), (405, &json!("urn:gleaner:problem:method-not-allowed")), "{path}: {body}");
        assert!(answer.head.header("allow").is_some(), "{path}");
    }
}
