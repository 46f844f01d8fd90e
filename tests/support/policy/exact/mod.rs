//! Model servers that take token ids and give token ids: vLLM 0.32, `SGLang` 0.5.23 and llama.cpp b11549, as the facts have them, with
//! a model that says what a script tells it. Several may be replicas of one model: what one has begun another can go on with.

mod answer;
#[cfg(feature = "exact")]
pub mod real;
mod tongue;
pub mod vocabulary;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::super::http1::{Body, read_head};
use super::script::{Fault, Reply};
use super::{accept, bytes, whole};
use answer::{Answer, Ended};
pub use tongue::Tongue;

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Vllm,
    /// A vLLM whose generate endpoint is not served.
    VllmCompletions,
    /// Started with `--incremental-streaming-output`.
    Sglang,
    Llamacpp,
}

/// A sampled token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    pub id: u32,
    pub logprob: f64,
}

/// One request for tokens.
#[derive(Clone, Debug)]
pub struct Asked {
    pub body: Value,
    pub prompt: Vec<u32>,
    /// What was sampled for it here.
    pub sampled: Vec<Sampled>,
}

impl Asked {
    pub fn ids(&self) -> Vec<u32> {
        self.sampled.iter().map(|token| token.id).collect()
    }

    pub fn logprobs(&self) -> Vec<f64> {
        self.sampled.iter().map(|token| token.logprob).collect()
    }
}

/// A model: what it will say, and what it has said.
pub struct Weights {
    pub tongue: Tongue,
    script: Mutex<VecDeque<Reply>>,
    seed: Mutex<u64>,
    said: Mutex<Vec<(Vec<u32>, Vec<Sampled>)>>,
    version: Mutex<String>,
    /// The server's tokenizer is another one: all ids of texts are one more.
    shifted: Mutex<bool>,
}

impl Weights {
    pub fn new(seed: u64, script: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        Self::speaking(Tongue::ByHand, seed, script)
    }

    /// A model with another tokenizer and template than [`vocabulary`]'s.
    pub fn speaking(tongue: Tongue, seed: u64, script: impl IntoIterator<Item = Reply>) -> Arc<Self> {
        Arc::new(Self {
            tongue,
            script: Mutex::new(script.into_iter().collect()),
            seed: Mutex::new(seed),
            said: Mutex::default(),
            version: Mutex::new("v1".to_owned()),
            shifted: Mutex::new(false),
        })
    }

    /// Changes the weights' version.
    pub fn update(&self, version: &str) {
        version.clone_into(&mut self.version.lock().unwrap());
    }

    /// Changes the server's tokenizer.
    pub fn shift(&self) {
        *self.shifted.lock().unwrap() = true;
    }

    fn draw(&self) -> u64 {
        let mut seed = self.seed.lock().unwrap();
        *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 31)
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        let shift = u32::from(*self.shifted.lock().unwrap());
        self.tongue.encode(text).into_iter().map(|id| id + shift).collect()
    }

    /// What comes after a prompt: the rest of a reply that broke off after it, or the script's next.
    fn sample(&self, prompt: &[u32]) -> (Reply, Vec<Sampled>) {
        let mut said = self.said.lock().unwrap();
        let begun = said.iter().rev().find_map(|(earlier, sampled)| {
            let tail = prompt.strip_prefix(&earlier[..])?;
            let same =
                !tail.is_empty() && tail.len() < sampled.len() && tail.iter().zip(sampled).all(|(id, token)| *id == token.id);
            same.then(|| sampled[tail.len()..].to_vec())
        });
        if let Some(rest) = begun {
            return (Reply::default(), rest);
        }
        let reply = self.script.lock().unwrap().pop_front().unwrap_or_else(|| Reply::text("There is no more to say."));
        let ids = self.tongue.pieces(&text(&reply), |_| self.draw().is_multiple_of(2));
        let end = (reply.finish.as_deref() != Some("length")).then_some(self.tongue.end());
        let token = |id| Sampled { id, logprob: -f64::from(u32::try_from(self.draw() % 9_000_000).unwrap() + 1) / 1e6 };
        let sampled: Vec<Sampled> = ids.into_iter().chain(end).map(token).collect();
        said.push((prompt.to_vec(), sampled.clone()));
        (reply, sampled)
    }
}

/// A reply as the model writes it.
fn text(reply: &Reply) -> String {
    let mut text = reply.reasoning.as_ref().map_or_else(String::new, |reasoning| format!("<think>\n{reasoning}\n</think>\n\n"));
    text.push_str(reply.text.as_deref().unwrap_or_default());
    for call in &reply.tool_calls {
        let (name, arguments) = (&call.name, &call.arguments);
        text.push_str(&format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"));
    }
    text
}

/// The running server. It ends when it is dropped.
pub struct TokenServer {
    pub addr: SocketAddr,
    state: Arc<State>,
    _task: JoinSet<()>,
}

struct State {
    kind: Kind,
    weights: Arc<Weights>,
    asked: Mutex<Vec<Asked>>,
    /// Its other half, which speaks chat completions.
    chat: Option<SocketAddr>,
}

impl TokenServer {
    /// Serves a model on a free port.
    pub async fn start(kind: Kind, weights: &Arc<Weights>) -> Self {
        Self::beside(kind, weights, None).await
    }

    /// The same, with chat completions by the scripted policy at this address.
    pub async fn beside(kind: Kind, weights: &Arc<Weights>, chat: Option<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let state = Arc::new(State { kind, weights: Arc::clone(weights), asked: Mutex::default(), chat });
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::clone(&state), serve));
        Self { addr, state, _task: task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All requests for tokens so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.state.asked.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) -> io::Result<()> {
    let state = &*state;
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    while let Some(head) = read_head(&mut read).await? {
        let body = Body::of(&head, true).all(&mut read).await?;
        let path = head.word(1).split('?').next().unwrap_or_default().to_owned();
        if let Some(chat) = state.chat.filter(|_| path == "/v1/chat/completions") {
            forward(chat, &body, &mut write).await?;
            continue;
        }
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        if let Some((status, answer)) = question(state, head.word(0), &path, &body) {
            whole(&mut write, status, &answer).await?;
            continue;
        }
        let answered = tokio::select! {
            answered = generate(&mut write, state, body) => answered?,
            _ = read.fill_buf() => return Ok(()),
        };
        if !answered {
            return Ok(());
        }
    }
    Ok(())
}

/// Lets another server answer a question for a chat's reply.
async fn forward(to: SocketAddr, body: &[u8], write: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    let mut there = TcpStream::connect(to).await?;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: chat\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    there.write_all(&[head.as_bytes(), body].concat()).await?;
    let mut there = BufReader::new(there);
    let head = read_head(&mut there).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer = Body::of(&head, false).all(&mut there).await?;
    bytes(write, head.status(), head.header("content-type").unwrap_or_default(), &[], &answer).await
}

/// Answers what is no request for tokens.
fn question(state: &State, verb: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let (kind, weights) = (state.kind, &state.weights);
    let window = weights.tongue.window();
    let refused = |why: String| Some((400, json!({"error": {"message": why, "code": 400}})));
    let is_vllm = matches!(kind, Kind::Vllm | Kind::VllmCompletions);
    let version = || json!({"weight_version": *weights.version.lock().unwrap(), "model_path": "m", "is_generation": true});
    let answer = match (verb, path) {
        ("GET", "/version") if is_vllm => json!({"version": "0.32.0"}),
        ("GET", "/weight_info") if is_vllm => version(),
        ("GET", "/model_info") if kind == Kind::Sglang => version(),
        ("GET", "/server_info") if kind == Kind::Sglang => json!({"incremental_streaming_output": true}),
        ("GET", "/props") if kind == Kind::Llamacpp => {
            json!({"default_generation_settings": {"n_ctx": window}, "chat_template": vocabulary::TEMPLATE, "bos_token": "", "eos_token": "<|im_end|>"})
        }
        ("GET", "/v1/models") => {
            json!({"object": "list", "data": [{"id": "scripted", "object": "model", "max_model_len": window}]})
        }
        ("POST", "/apply-template") if kind == Kind::Llamacpp => match weights.tongue.render(body) {
            Ok(text) => json!({"prompt": text}),
            Err(why) => return refused(why),
        },
        ("POST", "/tokenize") => {
            let text = body["prompt"].as_str().or(body["content"].as_str()).map(str::to_owned);
            let text = match text.map_or_else(|| weights.tongue.render(body), Ok) {
                Ok(text) => text,
                Err(why) => return refused(why),
            };
            let ids = weights.encode(&text);
            json!({"count": ids.len(), "max_model_len": window, "tokens": ids})
        }
        ("POST", "/detokenize") => {
            let ids: Vec<u32> = serde_json::from_value(body["tokens"].clone()).unwrap_or_default();
            let text = weights.tongue.decode_all(&ids);
            let name = match kind {
                Kind::Vllm | Kind::VllmCompletions => "prompt",
                Kind::Sglang => "text",
                Kind::Llamacpp => "content",
            };
            json!({ name: text })
        }
        ("POST", "/inference/v1/generate") if kind == Kind::Vllm && body.get("token_ids").is_none() => {
            return refused("token_ids: field required".to_owned());
        }
        ("POST", "/inference/v1/generate") if kind == Kind::VllmCompletions => {
            return Some((403, json!({"detail": "Forbidden"})));
        }
        ("POST", "/inference/v1/generate") if kind == Kind::Vllm => return None,
        ("POST", "/v1/completions") if kind == Kind::VllmCompletions => return None,
        ("POST", "/generate") if kind == Kind::Sglang => return None,
        ("POST", "/completion") if kind == Kind::Llamacpp => return None,
        _ => return Some((404, json!({"detail": "Not Found"}))),
    };
    Some((200, answer))
}

/// Gives tokens; `false` if the connection must close now.
async fn generate(write: &mut (impl AsyncWrite + Unpin), state: &State, body: Value) -> io::Result<bool> {
    let params = if body["sampling_params"].is_object() { &body["sampling_params"] } else { &body };
    let ids = ["token_ids", "prompt", "input_ids"].into_iter().find_map(|name| body.get(name)).cloned().unwrap_or_default();
    let prompt: Vec<u32> = serde_json::from_value(ids).unwrap_or_default();
    let window = state.weights.tongue.window();
    if prompt.len() >= window {
        let message = format!(
            "This model's maximum context length is {window} tokens. However, your request has {} input tokens.",
            prompt.len()
        );
        whole(write, 400, &json!({"error": {"message": message, "code": 400}})).await?;
        return Ok(true);
    }
    let first = state.weights.version.lock().unwrap().clone();
    let (reply, mut sampled) = state.weights.sample(&prompt);
    let limit = ["max_tokens", "max_new_tokens", "n_predict"].into_iter().find_map(|name| params[name].as_u64());
    let ended = end(&state.weights.tongue, &mut sampled, limit, &params["stop"], reply.finish.as_deref() == Some("length"));
    let number = {
        let mut asked = state.asked.lock().unwrap();
        asked.push(Asked { body: body.clone(), prompt: prompt.clone(), sampled: sampled.clone() });
        asked.len() - 1
    };
    if let Some(Fault::Status { status, body, .. }) = &reply.fault {
        bytes(write, *status, "application/json", &[], body.as_bytes()).await?;
        return Ok(true);
    }
    let mut answer = Answer {
        kind: state.kind,
        tongue: &state.weights.tongue,
        request: &body,
        prompt: prompt.len(),
        sampled: &sampled,
        ended,
        fault: reply.fault.as_ref(),
        weights: vec![(0, first.clone())],
    };
    if body["stream"] != true {
        if let Some(gate) = &reply.gate {
            gate.wait().await;
        }
        let text = raw(&answer.whole());
        let cut = matches!(reply.fault, Some(Fault::CutAfter { .. }));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", text.len());
        write.write_all(head.as_bytes()).await?;
        write.write_all(&text.as_bytes()[..if cut { text.len() / 2 } else { text.len() }]).await?;
        write.flush().await?;
        return Ok(!cut);
    }
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    write.write_all(head.as_bytes()).await?;
    for at in 0..answer.events().len() {
        if matches!(reply.fault, Some(Fault::CutAfter { events }) if at == events) {
            // What was not told was not sampled, as far as anybody will know.
            state.asked.lock().unwrap()[number].sampled.truncate(at);
            return Ok(false);
        }
        if let Some(gate) = &reply.gate {
            gate.wait().await;
        }
        // New weights sample from here on.
        let now = state.weights.version.lock().unwrap().clone();
        if answer.weights.last().is_some_and(|(_, version)| *version != now) {
            answer.weights.push((at, now));
        }
        event(write, &raw(&answer.events()[at])).await?;
    }
    event(write, "[DONE]").await?;
    write.write_all(b"0\r\n\r\n").await?;
    write.flush().await?;
    Ok(true)
}

async fn event(write: &mut (impl AsyncWrite + Unpin), data: &str) -> io::Result<()> {
    let event = format!("data: {data}\n\n");
    write.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
    write.flush().await
}

/// JSON, and the number that it does not have.
fn raw(value: &Value) -> String {
    value.to_string().replace("\"1e999\"", "1e999")
}

/// Ends what was sampled where a limit or a stop string does. The tokens of a stop string stay, as with all these servers.
fn end(tongue: &Tongue, sampled: &mut Vec<Sampled>, limit: Option<u64>, stops: &Value, endless: bool) -> Ended {
    let stops: Vec<String> = match stops {
        Value::String(stop) => vec![stop.clone()],
        Value::Array(stops) => stops.iter().filter_map(|stop| stop.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap());
    let ids: Vec<u32> = sampled.iter().map(|token| token.id).collect();
    for at in 1..=sampled.len() {
        let stopped = |stop: &&String| tongue.decode(&ids[..at]).contains(*stop);
        if let Some(stop) = stops.iter().find(stopped) {
            sampled.truncate(at);
            return Ended::Word(stop.clone());
        }
        if at == limit && at < sampled.len() {
            sampled.truncate(at);
            return Ended::Length;
        }
    }
    if endless { Ended::Length } else { Ended::Stop }
}
