//! HTTP itself: what clients, their SDKs and what stands between expect of a server, whatever is asked of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::io::{Read, Write};
use std::net::SocketAddr;

use serde_json::{Value, json};
use support::client::Answer;
use support::gleaner::{Gleaner, Made, Start};
use support::http1::{Body, Head, read_head};
use support::policy::{Gate, Reply, ScriptedPolicy};
use support::{chat, within};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";

async fn start(seed: u64, config: &str) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(seed, []).await;
    let gleaner = Start::new(policy.url()).config(config).run().await;
    let made = gleaner.plain_rollout().await;
    (policy, gleaner, made)
}

/// Posts a chat request with a rollout's key and these headers.
async fn chat_with(gleaner: &Gleaner, made: &Made, path: &str, headers: &[(&str, &str)], stream: bool) -> Answer {
    let bearer = format!("Bearer {}", made.key);
    let headers: Vec<(&str, &str)> = headers.iter().copied().chain([("authorization", bearer.as_str())]).collect();
    gleaner.send("POST", path, &headers, chat::request("hi", stream).to_string().as_bytes()).await
}

fn message(error: &Value) -> &str {
    error["error"]["message"].as_str().unwrap_or_else(|| panic!("not a wire's form: {error}"))
}

/// Checks an error's form by whose client it is for, where a wire of theirs is served.
async fn assert_form(gleaner: &Gleaner, family: &str, error: &Value) {
    let served = async |path: &str| !matches!(gleaner.send("POST", path, &[], b"{}").await.status(), 404 | 405);
    message(error);
    match family {
        "anthropic" if served("/v1/messages").await => {
            assert_eq!((&error["type"], error["error"]["type"].is_string()), (&json!("error"), true), "{error}");
        }
        "gemini" if served("/v1beta/models/m:generateContent").await => {
            assert!(error["error"]["status"].is_string() && error["error"]["code"].is_u64(), "{error}");
        }
        _ => assert!(error["error"]["type"].is_string() && error["error"].get("code").is_some(), "{error}"),
    }
}

#[tokio::test]
async fn head_is_answered_as_get_without_a_body() {
    let (_policy, gleaner, made) = start(201, "").await;
    let base = format!("/rollouts/{}", made.key);
    let models = format!("{base}/v1/models");
    for path in ["/", "/healthz", "/v1/models", "/v1/models/m", "/v1beta/models", base.as_str(), models.as_str()] {
        assert_eq!(gleaner.send("HEAD", path, &[], b"").await.status(), 200, "{path}");
    }
    for path in ["/api/hello", &format!("{base}/api/hello")] {
        assert_eq!(gleaner.send("HEAD", path, &[], b"").await.status(), 404, "{path}");
    }
    let wrong = gleaner.send("HEAD", CHAT, &[], b"").await;
    assert_eq!((wrong.status(), wrong.head.header("allow")), (405, Some("POST, OPTIONS")));
}

#[tokio::test]
async fn pages_of_other_sites_get_no_leave_by_default() {
    let (_policy, gleaner, made) = start(202, "").await;
    let page = [("origin", "https://page.example"), ("access-control-request-method", "POST")];
    let preflight = gleaner.send("OPTIONS", CHAT, &page, b"").await;
    assert_eq!((preflight.status(), preflight.head.header("allow")), (204, Some("POST, OPTIONS")));
    let models = gleaner.send("OPTIONS", "/v1/models", &page, b"").await;
    assert_eq!((models.status(), models.head.header("allow")), (204, Some("GET,HEAD")));
    let call = chat_with(&gleaner, &made, CHAT, &page[..1], false).await;
    for answer in [&preflight, &models, &call] {
        let leave = answer.head.headers.iter().find(|(name, _)| name.starts_with("access-control-"));
        assert_eq!(leave, None);
    }
}

#[tokio::test]
async fn pages_of_named_sites_may_call_models_and_nothing_else() {
    let (_policy, gleaner, made) = start(203, "[server]\ncors_origins = [\"https://page.example\"]\n").await;
    let asks = ("access-control-request-method", "POST");
    let names = ("access-control-request-headers", "authorization, content-type");
    let page = ("origin", "https://page.example");
    let preflight = gleaner.send("OPTIONS", CHAT, &[page, asks, names], b"").await;
    let header = |answer: &Answer, name: &str| answer.head.header(name).unwrap_or("none").to_owned();
    assert_eq!(preflight.status(), 204);
    assert_eq!(header(&preflight, "access-control-allow-origin"), page.1);
    assert_eq!(header(&preflight, "access-control-allow-headers"), names.1);
    assert!(header(&preflight, "access-control-allow-methods").contains("POST"));
    let call = chat_with(&gleaner, &made, CHAT, &[page], true).await;
    assert_eq!((call.status(), header(&call, "access-control-allow-origin").as_str()), (200, page.1));
    assert!(header(&call, "vary").contains("origin"));
    let refused =
        gleaner.send("POST", CHAT, &[page, ("authorization", "Bearer glr_unknown00000000000000000000000000")], b"{}").await;
    assert_eq!(header(&refused, "access-control-allow-origin"), page.1, "a page must be able to read why");
    let other = gleaner.send("OPTIONS", CHAT, &[("origin", "https://other.example"), asks], b"").await;
    assert_eq!(header(&other, "access-control-allow-origin"), "none");
    let api = gleaner.send("GET", "/api/v1/rollouts", &[page], b"").await;
    assert_eq!((api.status(), header(&api, "access-control-allow-origin").as_str()), (403, "none"));
}

/// Sends a head that waits for leave to send its body, and gives the connection with the first head that comes back.
async fn expecting(addr: SocketAddr, key: &str, length: u64) -> (BufReader<TcpStream>, Head) {
    let mut stream = BufReader::new(TcpStream::connect(addr).await.unwrap());
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: {addr}\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let head = within("an answer to Expect", read_head(&mut stream)).await.unwrap().unwrap();
    (stream, head)
}

#[tokio::test]
async fn a_body_is_not_asked_for_where_it_would_be_refused() {
    let (policy, gleaner, made) = start(204, "").await;
    let (mut stream, head) = expecting(gleaner.addr, "glr_00000000000000000000000000000000", 20).await;
    assert_eq!(head.status(), 401, "before the body: {head:?}");
    let error: Value = serde_json::from_slice(&Body::of(&head, false).all(&mut stream).await.unwrap()).unwrap();
    assert!(message(&error).contains("no rollout has this key"));
    let (_, head) = expecting(gleaner.addr, &made.key, 65 << 20).await;
    assert_eq!(head.status(), 413, "before the body: {head:?}");
    assert_eq!(gleaner.only_call(&made.id).await.failure_kind(), Some("too_large"));
    assert_eq!(policy.count(), 0);
}

#[tokio::test]
async fn a_body_that_waits_for_leave_gets_it() {
    let (_policy, gleaner, made) = start(205, "").await;
    let body = chat::request("hi", false).to_string();
    let (mut stream, head) = expecting(gleaner.addr, &made.key, body.len() as u64).await;
    assert_eq!(head.status(), 100);
    stream.write_all(body.as_bytes()).await.unwrap();
    let head = within("the answer", read_head(&mut stream)).await.unwrap().unwrap();
    assert_eq!(head.status(), 200);
}

#[tokio::test]
async fn a_body_of_two_codings_is_undone_from_the_last() {
    let (policy, gleaner, made) = start(206, "").await;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(chat::request("packed twice", false).to_string().as_bytes()).unwrap();
    let twice = zstd::encode_all(gzip.finish().unwrap().as_slice(), 1).unwrap();
    let headers = [("x-api-key", made.key.as_str()), ("content-encoding", "gzip, zstd")];
    assert_eq!(gleaner.send("POST", CHAT, &headers, &twice).await.status(), 200);
    assert_eq!(policy.last().body["messages"][0]["content"], "packed twice");
}

/// Frameworks have limits of their own, far below ours, which would refuse a body before anything could be recorded.
#[tokio::test]
async fn a_body_of_many_megabytes_is_served_and_recorded() {
    let (policy, gleaner, made) = start(220, "").await;
    for path in [CHAT, RESPONSES] {
        let text = "many words ".repeat(1 << 20);
        let body = if path == CHAT { chat::request(&text, false) } else { support::responses::request(&text, false) };
        let answer = gleaner.call(path, &made.key, &body).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(policy.last().body["messages"][0]["content"], text);
        assert!(gleaner.raw(&answer.call_id(), "request").await == body.to_string().as_bytes(), "{path}");
    }
}

fn unpacked(coding: &str, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => drop(flate2::read::GzDecoder::new(bytes).read_to_end(&mut out).unwrap()),
        "br" => drop(brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out).unwrap()),
        "zstd" => out = zstd::decode_all(bytes).unwrap(),
        other => panic!("{other} was not asked for"),
    }
    out
}

#[tokio::test]
async fn whole_answers_are_packed_as_the_client_likes() {
    let (policy, gleaner, made) = start(207, "").await;
    let long = "many words make a long reply ".repeat(400);
    policy.otherwise(Reply::text(&long));
    let mut plain = chat_with(&gleaner, &made, CHAT, &[], false).await;
    assert_eq!((plain.head.header("content-encoding"), plain.head.header("vary")), (None, None));
    assert_eq!(plain.json().await["choices"][0]["message"]["content"], long.as_str());
    for (accept, coding) in [("gzip", "gzip"), ("br;q=1, gzip;q=0.2", "br"), ("gzip, deflate, br, zstd", "zstd")] {
        let mut answer = chat_with(&gleaner, &made, CHAT, &[("accept-encoding", accept)], false).await;
        assert_eq!(answer.head.header("content-encoding"), Some(coding));
        assert_eq!(answer.head.header("vary"), Some("accept-encoding"));
        let bytes = answer.bytes().await.unwrap();
        assert_eq!(answer.head.header("content-length"), Some(bytes.len().to_string().as_str()));
        let reply: Value = serde_json::from_slice(&unpacked(coding, &bytes)).unwrap();
        assert_eq!(reply["choices"][0]["message"]["content"], long.as_str());
        let id = answer.call_id();
        let record = support::until("the note of its delivery", async || {
            Some(gleaner.record(&id).await).filter(|record| record.delivered() == Some(true))
        })
        .await;
        assert_eq!(record.text(), Some(long.as_str()));
        let mut listed = gleaner.send("GET", &format!("/api/v1/calls/{id}"), &[("accept-encoding", accept)], b"").await;
        assert_eq!(listed.head.header("content-encoding"), Some(coding));
        let call: Value = serde_json::from_slice(&unpacked(coding, &listed.bytes().await.unwrap())).unwrap();
        assert_eq!(call["id"], id);
    }
}

#[tokio::test]
async fn short_answers_and_streams_are_not_packed() {
    let (policy, gleaner, made) = start(208, "").await;
    policy.then(Reply::text("short"));
    let accept = [("accept-encoding", "zstd, gzip, br")];
    let mut answer = chat_with(&gleaner, &made, CHAT, &accept, false).await;
    assert_eq!(answer.head.header("content-encoding"), None);
    assert_eq!(answer.json().await["choices"][0]["message"]["content"], "short");
    let gate = Gate::closed();
    policy.then(Reply::text("each event leaves at once").behind(&gate));
    let bearer = format!("Bearer {}", made.key);
    let headers = [accept[0], ("authorization", bearer.as_str())];
    gate.pass(2);
    let mut stream = gleaner.send("POST", CHAT, &headers, chat::request("hi", true).to_string().as_bytes()).await;
    assert_eq!(stream.head.header("content-encoding"), None);
    let (_, first) = within("the first event", chat::Reply::next_text(&mut stream)).await.unwrap();
    gate.open();
    assert_eq!(first, "each ");
    assert!(stream.events().await.1, "the rest comes whole");
}

#[tokio::test]
async fn nothing_is_packed_where_the_config_says_so() {
    let (policy, gleaner, made) = start(209, "[server]\ncompress = false\n").await;
    policy.otherwise(Reply::text("many words make a long reply ".repeat(400)));
    let answer = chat_with(&gleaner, &made, CHAT, &[("accept-encoding", "gzip")], false).await;
    assert_eq!((answer.status(), answer.head.header("content-encoding"), answer.head.header("vary")), (200, None, None));
}

#[tokio::test]
async fn heads_too_large_are_told_so_and_not_reset() {
    let (_policy, gleaner, made) = start(210, "").await;
    let many: Vec<(String, String)> = (0..300).map(|at| (format!("x-header-{at}"), "value".to_owned())).collect();
    let large = vec![("x-large".to_owned(), "x".repeat(8 << 20))];
    for headers in [many, large] {
        let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let answer = chat_with(&gleaner, &made, CHAT, &headers, false).await;
        assert_eq!(answer.status(), 431, "{} headers", headers.len());
    }
    assert_eq!(chat_with(&gleaner, &made, CHAT, &[], false).await.status(), 200);
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_still_sends() {
    let (_policy, gleaner, _) = start(211, "").await;
    let body = vec![b'x'; 30 << 20];
    let headers = [("x-api-key", "glr_00000000000000000000000000000000")];
    let mut answer = gleaner.send("POST", CHAT, &headers, &body).await;
    assert_eq!(answer.status(), 401);
    message(&answer.json().await);
}

#[tokio::test]
async fn every_answer_is_named() {
    let (_policy, gleaner, made) = start(212, "").await;
    let named = |answer: &Answer, name: &str| answer.head.header(name).unwrap_or("none").to_owned();
    for (path, stream) in [(CHAT, false), (CHAT, true), (RESPONSES, false)] {
        let body = if path == CHAT { chat::request("hi", stream) } else { support::responses::request("hi", stream) };
        let answer = gleaner.call(path, &made.key, &body).await;
        assert_eq!(named(&answer, "x-request-id"), format!("req_{}", answer.call_id().replace('-', "")));
    }
    let bad = gleaner.send("POST", CHAT, &[("x-api-key", &made.key)], b"{").await;
    assert_eq!(named(&bad, "x-request-id"), format!("req_{}", bad.call_id().replace('-', "")));
    assert_eq!(named(&bad, "request-id"), named(&bad, "x-request-id"), "who sends x-api-key reads Anthropic's name");
    for (method, path) in [("GET", "/v1/models"), ("GET", CHAT), ("POST", "/v1/embeddings"), ("GET", "/api/v1/rollouts")] {
        let answer = gleaner.send(method, path, &[], b"").await;
        assert!(named(&answer, "x-request-id").starts_with("req_"), "{path}");
    }
    let own = [("x-request-id", "my-own-7"), ("anthropic-version", "2023-06-01")];
    let answer = chat_with(&gleaner, &made, CHAT, &own, false).await;
    assert_eq!(named(&answer, "x-request-id"), "my-own-7");
    assert_eq!(named(&answer, "request-id"), format!("req_{}", answer.call_id().replace('-', "")));
}

#[tokio::test]
async fn a_finished_rollout_is_not_worth_another_try() {
    let (_policy, gleaner, made) = start(213, "").await;
    gleaner.api_post(&format!("/rollouts/{}/finish", made.id), json!({})).await;
    let answer = chat_with(&gleaner, &made, CHAT, &[], false).await;
    assert_eq!((answer.status(), answer.head.header("x-should-retry")), (409, Some("false")));
}

#[tokio::test]
async fn slashes_of_base_urls_change_nothing() {
    let (policy, gleaner, made) = start(214, "").await;
    let below = format!("/rollouts/{}//v1/chat/completions/?a=b", made.key);
    let paths = ["/v1/chat/completions/", "//v1/chat/completions", "/v1//chat/completions//", below.as_str()];
    for path in paths {
        assert_eq!(chat_with(&gleaner, &made, path, &[], false).await.status(), 200, "{path}");
    }
    assert_eq!(policy.count(), paths.len());
    let targets: Vec<Value> = gleaner.calls(&made.id).await.iter().map(|call| call.0["target"].clone()).collect();
    let plain = "/chat/completions";
    assert_eq!(targets, [plain, plain, plain, "/chat/completions?a=b"]);
    assert_eq!(gleaner.send("GET", "//v1/models/", &[], b"").await.status(), 200);
}

#[tokio::test]
async fn a_wrong_method_is_an_error_of_the_wires_form() {
    let (_policy, gleaner, _) = start(215, "").await;
    for method in ["GET", "PUT", "DELETE", "PATCH"] {
        for path in [CHAT, RESPONSES, "/chat/completions"] {
            let mut answer = gleaner.send(method, path, &[], b"").await;
            assert_eq!((answer.status(), answer.head.header("allow")), (405, Some("POST, OPTIONS")), "{method} {path}");
            assert!(message(&answer.json().await).contains("takes POST"));
        }
    }
    for (path, header, family) in [
        ("/v1/models", None, "openai"),
        ("/v1/models", Some(("anthropic-version", "2023-06-01")), "anthropic"),
        ("/v1beta/models", None, "gemini"),
    ] {
        let mut answer = gleaner.send("DELETE", path, header.as_slice(), b"").await;
        assert_eq!((answer.status(), answer.head.header("allow")), (405, Some("GET,HEAD")), "{path}");
        assert_form(&gleaner, family, &answer.json().await).await;
    }
}

#[tokio::test]
async fn what_is_not_served_names_what_is() {
    let (policy, gleaner, made) = start(216, "").await;
    let below = format!("/rollouts/{}/v1/embeddings", made.key);
    for (method, path, header, family) in [
        ("POST", "/v1/embeddings", None, "openai"),
        ("POST", "/v1/audio/speech", None, "openai"),
        ("POST", "/v1/images/generations", None, "openai"),
        ("GET", "/v1/files", None, "openai"),
        ("POST", "/v1/moderations", None, "openai"),
        ("POST", "/embeddings", None, "openai"),
        ("POST", below.as_str(), None, "openai"),
        ("POST", "/v1/messages/batches", None, "anthropic"),
        ("POST", "/v1/files", Some(("anthropic-version", "2023-06-01")), "anthropic"),
        ("POST", "/v1beta/cachedContents", None, "gemini"),
    ] {
        let mut answer = gleaner.send(method, path, header.as_slice(), b"{}").await;
        let error = answer.json().await;
        assert_eq!(answer.status(), 404, "{path}: {error}");
        assert!(message(&error).contains("POST /v1/chat/completions"), "{path}: {error}");
        assert_form(&gleaner, family, &error).await;
    }
    assert_eq!(policy.count(), 0);
}

#[tokio::test]
async fn models_are_listed_in_the_form_of_who_asks() {
    let (_policy, gleaner, made) = start(217, "").await;
    let get = async |path: &str, header: (&str, &str)| {
        let mut answer = gleaner.send("GET", path, &[header], b"").await;
        let body = answer.json().await;
        assert_eq!(answer.status(), 200, "{path}: {body}");
        body
    };
    let bearer = format!("Bearer {}", made.key);
    let openai = get("/v1/models?limit=1&after=x", ("authorization", &bearer)).await;
    assert_eq!((&openai["object"], &openai["data"][0]["id"]), (&json!("list"), &json!("scripted")));
    let model = json!({"type": "model", "id": "scripted", "display_name": "scripted", "created_at": "2023-11-14T22:13:20Z"});
    let expected = json!({"data": [model], "has_more": false, "first_id": "scripted", "last_id": "scripted"});
    assert_eq!(get("/v1/models?limit=20&before_id=x", ("x-api-key", &made.key)).await, expected);
    let one = get("/v1/models/any/name", ("anthropic-version", "2023-06-01")).await;
    assert_eq!((&one["type"], &one["id"]), (&json!("model"), &json!("any/name")));
    let below = format!("/rollouts/{}/v1beta/models?pageSize=5", made.key);
    for (path, header) in [("/v1beta/models", ("x-goog-api-key", made.key.as_str())), (below.as_str(), ("accept", "*/*"))] {
        let gemini = get(path, header).await;
        assert_eq!(
            (&gemini["models"][0]["name"], &gemini["models"][0]["inputTokenLimit"]),
            (&json!("models/scripted"), &json!(32_768))
        );
    }
    let one = get("/v1beta/models/any", ("accept", "*/*")).await;
    assert_eq!((&one["name"], &one["supportedGenerationMethods"][0]), (&json!("models/any"), &json!("generateContent")));
    assert_eq!(get("/v1/models/gpt-x", ("authorization", &bearer)).await["object"], "model");
    assert_eq!(gleaner.send("GET", "/v1beta/models/m:generateContent", &[], b"").await.status(), 405);
}

#[tokio::test]
async fn a_path_that_is_no_text_is_an_error_of_the_wires_form() {
    let (policy, gleaner, _) = start(218, "").await;
    for (path, family) in [
        ("/rollouts/%ff/v1/chat/completions", "openai"),
        ("/rollouts/%c3%28/v1/messages", "anthropic"),
        ("/v1beta/models/%ff:generateContent", "gemini"),
        ("/v1/models/%ff", "openai"),
    ] {
        let mut answer = gleaner.send("POST", path, &[], b"{}").await;
        let error = answer.json().await;
        assert_eq!(answer.status(), 400, "{path}: {error}");
        assert_form(&gleaner, family, &error).await;
    }
    let mut answer = gleaner.send("GET", "/api/v1/rollouts/%ff", &[], b"").await;
    assert_eq!((answer.status(), &answer.json().await["status"]), (400, &json!(400)));
    assert_eq!(policy.count(), 0);
}

/// A policy that says more than anybody takes, as fast as it is taken.
struct Flood {
    addr: SocketAddr,
    sent: std::sync::Arc<std::sync::atomic::AtomicU64>,
    ended: tokio::sync::oneshot::Receiver<()>,
    _task: tokio::task::JoinSet<()>,
}

const MORE_THAN_BUFFERS: u64 = 64 << 20;

async fn flood() -> Flood {
    use std::sync::atomic::{AtomicU64, Ordering};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let sent = std::sync::Arc::new(AtomicU64::new(0));
    let (end, ended) = tokio::sync::oneshot::channel();
    let counted = sent.clone();
    let mut task = tokio::task::JoinSet::new();
    task.spawn(async move {
        let event = json!({"choices": [{"index": 0, "delta": {"content": "x".repeat(64 << 10)}}]});
        let event = format!("data: {event}\n\n");
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            let Some(head) = read_head(&mut stream).await.unwrap() else { continue };
            Body::of(&head, true).all(&mut stream).await.unwrap();
            if head.word(0) != "POST" {
                let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
                continue;
            }
            let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            stream.write_all(head).await.unwrap();
            while stream.write_all(chunk.as_bytes()).await.is_ok() && counted.load(Ordering::Relaxed) < 16 * MORE_THAN_BUFFERS {
                counted.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            let _ = end.send(());
            return;
        }
    });
    Flood { addr, sent, ended, _task: task }
}

/// MB of memory that the process had at its peak.
fn peak_memory(gleaner: &Gleaner) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gleaner.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().split(' ').next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn a_client_that_reads_nothing_holds_the_policy_back() {
    use std::sync::atomic::Ordering;
    let flood = flood().await;
    let config = "[policies.default]\nkind = \"openai\"\nmodel = \"m\"\ntokens = \"off\"\n";
    let gleaner = Start::new(format!("http://{}", flood.addr)).config(config).run().await;
    let made = gleaner.plain_rollout().await;
    let answer = chat_with(&gleaner, &made, CHAT, &[], true).await;
    assert_eq!(answer.status(), 200);
    let mut last = (0, 0);
    let stands = within("the policy to be held back", async {
        // Held back is what has not moved for half a second; what is not held back goes on to the bound within that time.
        while last.1 < 20 {
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
            let sent = flood.sent.load(Ordering::Relaxed);
            assert!(sent < MORE_THAN_BUFFERS, "{sent} bytes were taken for a client that reads none");
            last = if sent == last.0 { (sent, last.1 + 1) } else { (sent, 0) };
        }
        last.0
    })
    .await;
    assert!(stands > 0);
    assert!(peak_memory(&gleaner) < 150, "{} MB", peak_memory(&gleaner));
    drop(answer);
    within("the end of the request upstream", flood.ended).await.unwrap();
    let record = gleaner.only_call(&made.id).await;
    assert_eq!((record.status(), record.failure_kind()), ("cancelled", Some("cancelled")));
}

#[tokio::test]
async fn what_is_no_http_gets_an_answer_and_no_reset() {
    let (_policy, gleaner, _) = start(219, "").await;
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" as &[u8],
        b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
        b"hello\r\n\r\n",
    ] {
        let mut stream = TcpStream::connect(gleaner.addr).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.write_all(&vec![b'x'; 100_000]).await.unwrap();
        // A reset would be an error here.
        let mut said = Vec::new();
        within("the end of a connection", stream.read_to_end(&mut said)).await.unwrap();
        assert!(said.starts_with(b"HTTP/1.1 400 "), "{:?}", String::from_utf8_lossy(&said));
    }
}
