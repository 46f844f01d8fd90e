//! A policy server in vLLM's form with replies that stand ready: one thread, each event flushed by itself.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

const PROMPT_IDS: usize = 600;

/// Starts it on a thread of its own and says where it listens.
pub fn start() -> SocketAddr {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap()).unwrap();
            let replies = Arc::new(Replies::new());
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let replies = Arc::clone(&replies);
                let service = hyper::service::service_fn(move |request| answer(request, Arc::clone(&replies)));
                let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(async {
                    // A loader that goes away in the middle of a reply is nothing to report.
                    let _ = connection.await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
    });
    told.recv().unwrap()
}

struct Replies {
    body: Bytes,
    streams: HashMap<usize, Arc<Vec<Bytes>>>,
    /// The same as completions.
    text_body: Bytes,
    text_stream: Arc<Vec<Bytes>>,
}

impl Replies {
    fn new() -> Self {
        let tokens = super::scenario::ALL.iter().filter(|one| one.stream).map(|one| one.tokens);
        Self {
            body: body(80).into(),
            streams: tokens.map(|tokens| (tokens, Arc::new(stream(tokens)))).collect(),
            text_body: as_text(&body(80)).into(),
            text_stream: Arc::new(stream(200).iter().map(|frame| as_text(frame).into()).collect()),
        }
    }
}

fn prompt_ids() -> Value {
    (0..PROMPT_IDS).map(|at| 1_000 + at * 37 % 90_000).collect()
}

fn entry(at: usize) -> Value {
    json!({"token": format!(" word{at}"), "logprob": -0.001_234_5 * (at as f64 + 1.0), "bytes": format!(" word{at}").as_bytes(), "top_logprobs": []})
}

fn usage(tokens: usize) -> Value {
    json!({"prompt_tokens": PROMPT_IDS, "total_tokens": PROMPT_IDS + tokens, "completion_tokens": tokens})
}

fn body(tokens: usize) -> Vec<u8> {
    let text: String = (0..tokens).map(|at| format!(" word{at}")).collect();
    let body = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "mock",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text, "refusal": null, "tool_calls": [], "reasoning": null},
            "logprobs": {"content": (0..tokens).map(entry).collect::<Vec<_>>()}, "finish_reason": "stop", "stop_reason": null,
            "token_ids": (0..tokens).map(|at| 50_000 + at).collect::<Vec<_>>()}],
        "usage": usage(tokens), "prompt_logprobs": null, "prompt_token_ids": prompt_ids()});
    serde_json::to_vec(&body).unwrap()
}

fn stream(tokens: usize) -> Vec<Bytes> {
    let chunk = |choices: Value| json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "mock", "choices": choices});
    let mut first =
        chunk(json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]));
    first["prompt_token_ids"] = prompt_ids();
    let mut chunks = vec![first];
    for at in 0..tokens {
        chunks.push(chunk(json!([{"index": 0, "delta": {"content": format!(" word{at}")}, "logprobs": {"content": [entry(at)]},
                                  "finish_reason": null, "token_ids": [50_000 + at]}])));
    }
    chunks.push(chunk(json!([{"index": 0, "delta": {"content": ""}, "logprobs": {"content": [entry(tokens)]},
                              "finish_reason": "stop", "stop_reason": null, "token_ids": [2]}])));
    let mut last = chunk(json!([]));
    last["usage"] = usage(tokens + 1);
    chunks.push(last);
    let mut frames: Vec<Bytes> = chunks.iter().map(|chunk| Bytes::from(format!("data: {chunk}\n\n"))).collect();
    frames.push(Bytes::from_static(b"data: [DONE]\n\n"));
    frames
}

/// A reply, or an event of one, in the form of completions; prompt ids stand in the choice there.
fn as_text(reply: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(reply).unwrap();
    let json = text.trim().trim_start_matches("data: ");
    let Ok(mut value) = serde_json::from_str::<Value>(json) else { return reply.to_vec() };
    value["object"] = json!("text_completion");
    let ids = value.as_object_mut().unwrap().remove("prompt_token_ids");
    if let Some(choice) = value["choices"].get_mut(0) {
        let said = choice.as_object_mut().unwrap().remove("message").or_else(|| choice.as_object_mut().unwrap().remove("delta"));
        choice["text"] = said.unwrap_or_default()["content"].clone();
        let entries = choice["logprobs"]["content"].as_array().cloned().unwrap_or_default();
        let of = |field: &str| -> Value { entries.iter().map(|entry| entry[field].clone()).collect() };
        choice["logprobs"] =
            json!({"tokens": of("token"), "token_logprobs": of("logprob"), "top_logprobs": null, "text_offset": []});
        choice["prompt_token_ids"] = ids.unwrap_or_default();
    }
    if text.starts_with("data: ") { format!("data: {value}\n\n").into_bytes() } else { value.to_string().into_bytes() }
}

async fn answer(request: Request<Incoming>, replies: Arc<Replies>) -> Result<Response<Reply>, Infallible> {
    let path = request.uri().path().to_owned();
    let bytes = request.into_body().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let whole = |bytes: Bytes| Reply::Whole(Full::new(bytes));
    let json = |reply| Response::builder().header("content-type", "application/json").body(reply).unwrap();
    let stream = |frames: Arc<Vec<Bytes>>, pace: u64| {
        let next = (pace > 0).then(|| Box::pin(tokio::time::sleep(Duration::from_millis(pace))));
        let reply = Reply::Stream { frames, at: 0, pace: Duration::from_millis(pace), next, paused: false };
        Response::builder().header("content-type", "text/event-stream; charset=utf-8").body(reply).unwrap()
    };
    Ok(match path.as_str() {
        "/v1/completions" if number(&bytes, "\"stream\":true").is_some() => stream(Arc::clone(&replies.text_stream), 0),
        "/v1/completions" => json(whole(replies.text_body.clone())),
        "/v1/chat/completions" if number(&bytes, "\"stream\":true").is_some() => {
            let pace = number(&bytes, "\"seed\":").unwrap_or_default();
            let tokens = usize::try_from(number(&bytes, "\"bench_tokens\":").unwrap_or(200)).unwrap();
            stream(Arc::clone(&replies.streams[&tokens]), pace)
        }
        "/v1/chat/completions" => json(whole(replies.body.clone())),
        "/version" => json(whole(Bytes::from_static(b"{\"version\":\"0.32.0\"}"))),
        "/v1/models" => json(whole(Bytes::from_static(
            b"{\"object\":\"list\",\"data\":[{\"id\":\"mock\",\"object\":\"model\",\"created\":1,\"owned_by\":\"vllm\",\"max_model_len\":131072}]}",
        ))),
        _ => Response::builder().status(404).body(whole(Bytes::new())).unwrap(),
    })
}

/// The number that stands behind `name` in a body, or 0 if none does; `None` without the name. The fields of the benchmark stand
/// at a body's end or its beginning, so that this costs little.
fn number(body: &[u8], name: &str) -> Option<u64> {
    let find = |bytes: &[u8]| memchr::memmem::find(bytes, name.as_bytes());
    let tail = body.len().saturating_sub(1_000);
    let at = find(&body[tail..]).map(|at| at + tail).or_else(|| find(body))? + name.len();
    let digits = body[at..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// A reply's body.
enum Reply {
    Whole(Full<Bytes>),
    Stream {
        frames: Arc<Vec<Bytes>>,
        at: usize,
        pace: Duration,
        next: Option<Pin<Box<Sleep>>>,
        /// Between two events hyper is told to wait for a moment: that is when it flushes.
        paused: bool,
    },
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, ctx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            Self::Whole(body) => Pin::new(body).poll_frame(ctx),
            Self::Stream { frames, at, pace, next, paused } => {
                if *at == frames.len() {
                    return Poll::Ready(None);
                }
                if let Some(sleep) = next {
                    std::task::ready!(sleep.as_mut().poll(ctx));
                    let due = sleep.deadline() + *pace;
                    sleep.as_mut().reset(due.max(Instant::now()));
                } else if !*paused {
                    *paused = true;
                    ctx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                *paused = false;
                *at += 1;
                Poll::Ready(Some(Ok(Frame::data(frames[*at - 1].clone()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            Self::Stream { .. } => hyper::body::SizeHint::default(),
        }
    }
}
