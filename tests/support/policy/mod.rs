//! A model server in vLLM's form (facts of vLLM 0.32) that says what a script tells it, and remembers what it sampled.

mod body;
mod completions;
pub mod exact;
mod score;
mod script;
mod tokens;
mod vocabulary;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;

pub use script::{Bound, Fault, Gate, Reply, ToolCall};
pub use tokens::{Piece, Token};

use super::http1::{Body, Head, read_head};
use super::until;
use body::Writing;
use script::Posted;
use tokens::{Earlier, Sampler, Spoken};
use vocabulary::Vocabulary;

/// The running server. It ends when it is dropped.
pub struct ScriptedPolicy {
    pub addr: SocketAddr,
    state: Arc<State>,
    task: JoinSet<()>,
    /// Keeps its port while it is down.
    down: Option<TcpSocket>,
}

struct State {
    script: Mutex<VecDeque<Reply>>,
    bound: Mutex<Vec<Bound>>,
    /// What is said once the script has ended.
    fallback: Mutex<Reply>,
    /// What each conversation is told instead, turn by turn.
    turns: Mutex<Vec<Reply>>,
    sampler: Mutex<Sampler>,
    vocabulary: Mutex<Vocabulary>,
    seen: Mutex<Vec<Seen>>,
    max_model_len: u64,
}

/// One request for a reply, and what became of it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub head: Head,
    pub body: Value,
    /// The mark of the script that was bound to it.
    pub mark: Option<String>,
    pub prompt_ids: Vec<u32>,
    pub tokens: Vec<Token>,
    /// The limit of tokens was met.
    pub cut_short: bool,
    /// The stop string that was hit.
    pub stop: Option<String>,
    /// All of the answer was written.
    pub finished: bool,
    /// When the client hung up before that.
    pub hung_up: Option<Instant>,
}

impl Seen {
    /// The sampled ids.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }

    /// Their log-probabilities.
    pub fn logprobs(&self) -> Vec<f64> {
        self.tokens.iter().map(|token| token.logprob).collect()
    }

    /// The sampled text.
    pub fn text(&self) -> String {
        let text = |token: &Token| if let Piece::Text(text) = &token.piece { Some(text.clone()) } else { None };
        self.tokens.iter().filter_map(text).collect()
    }

    fn as_json(&self) -> Value {
        json!({"prompt_ids": self.prompt_ids, "ids": self.ids(), "logprobs": self.logprobs(), "text": self.text(),
               "finished": self.finished, "hung_up": self.hung_up.is_some(), "request": self.body})
    }
}

impl ScriptedPolicy {
    /// Serves on a free port with this script; every test has a seed of its own.
    pub async fn start(seed: u64, script: impl IntoIterator<Item = Reply>) -> Self {
        Self::serve(TcpListener::bind("127.0.0.1:0").await.unwrap(), seed, script)
    }

    /// Serves on this listener.
    pub fn serve(listener: TcpListener, seed: u64, script: impl IntoIterator<Item = Reply>) -> Self {
        let state = Arc::new(State {
            script: Mutex::new(script.into_iter().collect()),
            bound: Mutex::default(),
            fallback: Mutex::new(Reply::text("reply number {n} is all there is to say")),
            turns: Mutex::default(),
            sampler: Mutex::new(Sampler(seed)),
            vocabulary: Mutex::default(),
            seen: Mutex::new(Vec::new()),
            max_model_len: 32_768,
        });
        let addr = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::clone(&state), serve));
        Self { addr, state, task, down: None }
    }

    /// Dies: what is being answered breaks off, and connections are refused.
    pub async fn die(&mut self) {
        self.task.shutdown().await;
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(self.addr).unwrap();
        self.down = Some(socket);
    }

    /// Comes back at the same address, and knows what it has sampled.
    pub fn come_back(&mut self) {
        let listener = self.down.take().expect("it is not down").listen(1024).unwrap();
        self.task.spawn(accept(listener, Arc::clone(&self.state), serve));
    }

    /// The base URL, without `/v1`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Adds a reply to the script.
    pub fn then(&self, reply: Reply) {
        self.state.script.lock().unwrap().push_back(reply);
    }

    /// What to say once the script has ended.
    pub fn otherwise(&self, reply: Reply) {
        *self.state.fallback.lock().unwrap() = reply;
    }

    /// Tells every conversation the same, by the number of replies that it already has: for conversations side by side. Their
    /// texts must differ (`{n}`), else no server could tell whose sampled ids come again.
    pub fn each_conversation(&self, turns: impl IntoIterator<Item = Reply>) {
        *self.state.turns.lock().unwrap() = turns.into_iter().collect();
    }

    /// All requests for a reply so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// How many requests for a reply came so far.
    pub fn count(&self) -> usize {
        self.state.seen.lock().unwrap().len()
    }

    /// The last request for a reply.
    pub fn last(&self) -> Seen {
        self.seen().pop().expect("the policy was never asked")
    }

    /// Waits until so many requests have come.
    pub async fn asked(&self, times: usize) {
        until("a request to the policy", async || (self.count() >= times).then_some(())).await;
    }

    /// Waits until the client of this request has hung up, and says when it did.
    pub async fn hung_up(&self, request: usize) -> Instant {
        until("a hang-up at the policy", async || self.state.seen.lock().unwrap()[request].hung_up).await
    }
}

/// Serves all connections at once, each with what they share.
async fn accept<S, F>(listener: TcpListener, state: Arc<S>, serve: fn(TcpStream, Arc<S>) -> F)
where
    S: Send + Sync + 'static,
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let served = serve(stream, Arc::clone(&state));
        connections.spawn(async move {
            // A peer that goes away is what many tests are about.
            let _ = served.await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) -> io::Result<()> {
    let state = &*state;
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(head) = read_head(&mut read).await? {
        let body = Body::of(&head, true).all(&mut read).await?;
        let path = head.word(1).split('?').next().unwrap_or_default();
        match (head.word(0), path) {
            ("GET", "/version") => whole(&mut write, 200, &json!({"version": "0.32.0"})).await?,
            ("GET", "/health" | "/ping") => whole(&mut write, 200, &Value::Null).await?,
            ("GET", "/v1/models") => {
                let model = json!({"id": "scripted", "object": "model", "created": 1_700_000_000, "owned_by": "vllm",
                                   "root": "scripted", "parent": null, "max_model_len": state.max_model_len});
                whole(&mut write, 200, &json!({"object": "list", "data": [model]})).await?;
            }
            ("GET", "/__sampled") => {
                let calls = sampled(state, head.word(1).split_once("?when=").map(|(_, mark)| mark));
                whole(&mut write, 200, &json!({ "calls": calls })).await?;
            }
            ("POST", "/__script") => {
                match serde_json::from_slice(&body).map_err(io::Error::other)? {
                    Posted::Bound(bound) => state.bound.lock().unwrap().push(bound),
                    Posted::Replies(replies) => state.script.lock().unwrap().extend(replies),
                }
                whole(&mut write, 200, &json!({})).await?;
            }
            ("POST", "/tokenize") => {
                let request: Value = serde_json::from_slice(&body).unwrap_or_default();
                let ids = match request.get("prompt") {
                    Some(prompt) => tokens::plain_prompt(prompt).unwrap_or_default(),
                    None => tokens::prompt(&request, &known(state)),
                };
                let answer = json!({"count": ids.len(), "max_model_len": state.max_model_len, "tokens": ids, "token_strs": null});
                whole(&mut write, 200, &answer).await?;
            }
            ("POST", "/detokenize") => {
                let request: Value = serde_json::from_slice(&body).unwrap_or_default();
                let ids = tokens::plain_prompt(&request["tokens"]).unwrap_or_default();
                let text = state.vocabulary.lock().unwrap().text(&ids);
                whole(&mut write, 200, &json!({ "prompt": text })).await?;
            }
            ("POST", "/v1/chat/completions" | "/v1/completions") => {
                let request = serde_json::from_slice(&body).unwrap_or_default();
                let scores = score::answer(&request, &state.seen.lock().unwrap());
                if let Some(scores) = scores {
                    whole(&mut write, 200, &scores).await?;
                    continue;
                }
                let (number, reply) = match begin(state, &head, &body) {
                    Ok(begun) => begun,
                    Err(message) => {
                        let error = json!({"message": message, "type": "BadRequestError", "param": null, "code": 400});
                        whole(&mut write, 400, &json!({ "error": error })).await?;
                        continue;
                    }
                };
                // Whatever the client says while it waits for its reply can only be that it has gone.
                let ended = tokio::select! {
                    ended = answer(&mut write, state, number, &reply) => ended,
                    peer = read.fill_buf() => {
                        if peer.is_ok_and(|bytes| !bytes.is_empty()) {
                            return Err(io::Error::other("a second request came before the first was answered"));
                        }
                        Err(io::ErrorKind::ConnectionReset.into())
                    }
                };
                let mut seen = state.seen.lock().unwrap();
                match ended {
                    Ok(true) => seen[number].finished = true,
                    Ok(false) => return Ok(()),
                    Err(error) => {
                        seen[number].hung_up = Some(Instant::now());
                        return Err(error);
                    }
                }
            }
            _ => whole(&mut write, 404, &json!({"detail": "Not Found"})).await?,
        }
    }
    Ok(())
}

/// All calls, or those that a mark's script was bound to.
fn sampled(state: &State, mark: Option<&str>) -> Vec<Value> {
    let seen = state.seen.lock().unwrap();
    seen.iter().filter(|seen| mark.is_none() || seen.mark.as_deref() == mark).map(Seen::as_json).collect()
}

/// What was sampled, as the next turns of conversations are found by.
fn known(state: &State) -> Vec<Earlier> {
    let known =
        |seen: &Seen| Earlier { prompt_ids: seen.prompt_ids.clone(), ids: seen.ids(), spoken: Spoken::of_tokens(&seen.tokens) };
    state.seen.lock().unwrap().iter().map(known).collect()
}

/// The next reply of the script that is bound to this request, and its mark.
fn bound(state: &State, body: &[u8]) -> Option<(String, Option<Reply>)> {
    let text = String::from_utf8_lossy(body);
    let mut bound = state.bound.lock().unwrap();
    let found = bound.iter_mut().find(|bound| text.contains(&bound.when))?;
    Some((found.when.clone(), found.next()))
}

/// Whether it was plain completions that were asked.
fn is_plain(head: &Head) -> bool {
    head.word(1).starts_with("/v1/completions")
}

/// Takes the next reply of the script and samples it; an error if the request is none that this server could answer.
fn begin(state: &State, head: &Head, body: &[u8]) -> Result<(usize, Reply), String> {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let plain = is_plain(head);
    if plain && ["n", "best_of"].iter().any(|name| request[name].as_u64().is_some_and(|count| count > 1)) {
        return Err("this server is scripted for one choice a request".to_owned());
    }
    let turn = request["messages"].as_array().into_iter().flatten().filter(|message| message["role"] == "assistant").count();
    let turns = state.turns.lock().unwrap().get(turn).cloned();
    let (mark, bound) = bound(state, body).unzip();
    let next = turns.or(bound.flatten()).or_else(|| state.script.lock().unwrap().pop_front());
    let reply = next.unwrap_or_else(|| state.fallback.lock().unwrap().clone());
    let earlier = if turn == 0 { Vec::new() } else { known(state) };
    let prompt_ids = if plain { tokens::plain_prompt(&request["prompt"])? } else { tokens::prompt(&request, &earlier) };
    let mut seen = state.seen.lock().unwrap();
    let number = seen.len();
    let mut tokens = state.sampler.lock().unwrap().sample(&reply, number);
    let asked = request["max_tokens"].as_u64().or(request["max_completion_tokens"].as_u64());
    let limit = asked.or(plain.then_some(16)).map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    let cut_short = tokens.len() > limit;
    tokens.truncate(limit);
    let stop = tokens::stop(&mut tokens, &request["stop"]);
    let mut vocabulary = state.vocabulary.lock().unwrap();
    vocabulary.read(request["prompt"].as_str().or(request["prompt"][0].as_str()).unwrap_or_default());
    vocabulary.sampled(&tokens);
    seen.push(Seen {
        head: head.clone(),
        body: request,
        mark,
        prompt_ids,
        tokens,
        cut_short,
        stop,
        finished: false,
        hung_up: None,
    });
    Ok((number, reply))
}

/// Answers; `false` if the connection must close now.
async fn answer(write: &mut (impl AsyncWrite + Unpin), state: &State, number: usize, reply: &Reply) -> io::Result<bool> {
    let seen = state.seen.lock().unwrap()[number].clone();
    let plain = is_plain(&seen.head);
    let vocabulary = if plain { state.vocabulary.lock().unwrap().clone() } else { Vocabulary::default() };
    let writing = Writing {
        request: &seen.body,
        reply,
        number,
        model: "scripted",
        prompt_ids: &seen.prompt_ids,
        tokens: &seen.tokens,
        cut_short: seen.cut_short,
        stop: seen.stop.as_deref(),
        plain,
        vocabulary: &vocabulary,
    };
    match &reply.fault {
        Some(Fault::Status { status, headers, body }) => {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            bytes(write, *status, "application/json", &headers, body.as_bytes()).await?;
            return Ok(true);
        }
        Some(Fault::Html) => {
            bytes(write, 200, "text/html", &[], b"<html><body><h1>It works!</h1></body></html>").await?;
            return Ok(true);
        }
        Some(Fault::BrokenJson) => {
            bytes(write, 200, "application/json", &[], b"{\"id\": \"chatcmpl-1\", \"choices\": [").await?;
            return Ok(true);
        }
        Some(Fault::CutBeforeHead) => return Ok(false),
        Some(Fault::StallBefore) => std::future::pending().await,
        _ => {}
    }
    if seen.body["stream"] == true { stream(write, &writing).await } else { unstreamed(write, &writing).await }
}

async fn unstreamed(write: &mut (impl AsyncWrite + Unpin), writing: &Writing<'_>) -> io::Result<bool> {
    let body = writing.whole();
    if let Some(gate) = &writing.reply.gate {
        gate.wait().await;
    }
    let cut = match &writing.reply.fault {
        Some(Fault::CutBeforeBody) => Some(0),
        Some(Fault::CutAfter { .. } | Fault::StallAfter { .. }) => Some(body.len() / 2),
        _ => None,
    };
    pause(writing.reply).await;
    let Some(cut) = cut else {
        if matches!(writing.reply.fault, Some(Fault::ByteByByte)) {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
            write.write_all(head.as_bytes()).await?;
            for byte in body.chunks(1) {
                write.write_all(byte).await?;
                write.flush().await?;
            }
        } else {
            bytes(write, 200, "application/json", &[], &body).await?;
        }
        return Ok(true);
    };
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    write.write_all(head.as_bytes()).await?;
    write.write_all(&body[..cut]).await?;
    write.flush().await?;
    if matches!(writing.reply.fault, Some(Fault::StallAfter { .. })) {
        std::future::pending::<()>().await;
    }
    Ok(false)
}

async fn pause(reply: &Reply) {
    if reply.pause_ms > 0 {
        tokio::time::sleep(Duration::from_millis(reply.pause_ms)).await;
    }
}

async fn stream(write: &mut (impl AsyncWrite + Unpin), writing: &Writing<'_>) -> io::Result<bool> {
    let reply = writing.reply;
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    write.write_all(head.as_bytes()).await?;
    write.flush().await?;
    if matches!(reply.fault, Some(Fault::CutBeforeBody)) {
        return Ok(false);
    }
    for (at, frame) in writing.stream().iter().enumerate() {
        match reply.fault {
            Some(Fault::CutAfter { events }) if at == events => return Ok(false),
            Some(Fault::StallAfter { events }) if at == events => std::future::pending::<()>().await,
            _ => {}
        }
        if let Some(gate) = &reply.gate {
            gate.wait().await;
        }
        if at == 2 {
            pause(reply).await;
        }
        if reply.pace_ms > 0 {
            tokio::time::sleep(Duration::from_millis(reply.pace_ms)).await;
        }
        let step = if matches!(reply.fault, Some(Fault::ByteByByte)) { 1 } else { frame.len() };
        for piece in frame.chunks(step) {
            let mut chunk = format!("{:x}\r\n", piece.len()).into_bytes();
            chunk.extend_from_slice(piece);
            chunk.extend_from_slice(b"\r\n");
            write.write_all(&chunk).await?;
            write.flush().await?;
        }
    }
    write.write_all(b"0\r\n\r\n").await?;
    write.flush().await?;
    Ok(true)
}

async fn whole(write: &mut (impl AsyncWrite + Unpin), status: u16, body: &Value) -> io::Result<()> {
    bytes(write, status, "application/json", &[], body.to_string().as_bytes()).await
}

async fn bytes(
    write: &mut (impl AsyncWrite + Unpin),
    status: u16,
    kind: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<()> {
    let mut all = format!("HTTP/1.1 {status} Scripted\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        all.push_str(&format!("{name}: {value}\r\n"));
    }
    all.push_str("\r\n");
    let mut all = all.into_bytes();
    all.extend_from_slice(body);
    write.write_all(&all).await?;
    write.flush().await
}
