//! A policy that needs no server: it replies by a script, with token ids and log-probabilities that are the same each time.
//!
//! It is what harnesses are checked with (`gleaner harness check`), and what people try their task sets with before there is a
//! model (`--policy scripted:`). Its replies are bytes of vLLM's, read by the same decoder.

mod reply;
mod script;
mod tokens;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use super::body::{self, Outer};
use super::capture;
use super::config::{ConfigError, PolicyConfig, PolicyKind, TokenMode};
use super::decode::Decoder;
use super::gate::{Gate, Passed};
use super::images;
use super::kind::Dialect;
use super::limit;
use super::names::Names;
use super::plain::Echo;
use super::version::Versions;
use super::{Answer, Captured, NoAnswer, PauseMode, Policy, PolicyState, PolicyUpdate, Prepared, Transcript};
use crate::call::{Call, Event, Failure, FailureKind, FinishReason, Sampling, WeightVersion};
use reply::Reply;
use tokens::Likelihood;

pub use script::{COMMAND, Ending, Script};

/// How a URL begins that names this policy in place of a server; a seed may follow.
pub const SCHEME: &str = "scripted:";

/// Tokens of prompt and reply together where the config does not say.
const WINDOW: u64 = 131_072;

/// The scripted policy.
pub struct Scripted {
    name: String,
    config: PolicyConfig,
    script: Script,
    seed: u64,
    dialect: Dialect,
    versions: Arc<Versions>,
    gate: Arc<Gate>,
    /// What it said, if that is to be remembered.
    log: Option<Mutex<Vec<Sampled>>>,
}

/// What was said to one request.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    pub prompt_ids: Vec<u32>,
    pub ids: Vec<u32>,
    /// One for each of `ids`.
    pub logprobs: Vec<f64>,
    /// The tools that the request offered.
    pub offered: Vec<String>,
    /// The texts of the request's messages.
    pub texts: Vec<String>,
    /// The tool that was called.
    pub called: Option<String>,
    /// Which tool or which argument is the shell's was a guess.
    pub guessed: bool,
}

impl Scripted {
    /// A policy of this name that replies by the config's script, or by one for any harness.
    ///
    /// # Errors
    /// If the settings are for a server only, or the seed is no number.
    pub fn new(name: &str, config: &PolicyConfig) -> Result<Self, ConfigError> {
        if config.tokens == TokenMode::Exact {
            return Err(ConfigError::TakesNoIds { name: name.to_owned(), kind: "scripted" });
        }
        let seed = config.url.strip_prefix(SCHEME).unwrap_or_default();
        let wrong = |_| ConfigError::Seed { name: name.to_owned(), seed: seed.to_owned() };
        let seed = if seed.is_empty() { 0 } else { seed.parse().map_err(wrong)? };
        Ok(Self {
            name: name.to_owned(),
            script: config.script.clone().unwrap_or_default(),
            seed,
            dialect: Dialect::new(PolicyKind::Vllm, config.tokens, false),
            versions: Arc::new(Versions::new(config.version.clone())),
            gate: Arc::default(),
            log: None,
            config: config.clone(),
        })
    }

    /// The same, remembering all that it says.
    #[must_use]
    pub fn remembering(self) -> Self {
        Self { log: Some(Mutex::default()), ..self }
    }

    /// What it has said so far, if it remembers.
    #[must_use]
    pub fn sampled(&self) -> Vec<Sampled> {
        self.log.as_ref().map(|log| log.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap_or_default()
    }

    fn window(&self) -> u64 {
        self.config.context_window.unwrap_or(WINDOW)
    }

    fn model(&self) -> &str {
        self.config.model.as_deref().unwrap_or("scripted")
    }

    fn body(&self, call: &Call, sampling: &Sampling) -> Bytes {
        let added = self.dialect.added(call, self.config.top_logprobs);
        let (stream, repetition) = (self.dialect.stream(call), self.dialect.repetition());
        let outer = Outer { model: self.model(), stream, sampling, repetition, max_tokens: call.max_tokens, added: &added };
        body::write(call, &Names::of(call), self.dialect.reasoning(), &outer).into()
    }

    /// The bytes of the reply to a request, and the most tokens that it could have.
    fn reply(&self, request: &Value, stream: bool, asked: Option<u64>) -> Result<(VecDeque<Bytes>, u64), Failure> {
        let prompt = tokens::prompt(request);
        let window = self.window();
        let left = window.saturating_sub(prompt.len() as u64);
        if left == 0 {
            let message = format!("the prompt has {} tokens, and the scripted policy's window is {window}", prompt.len());
            return Err(Failure::new(FailureKind::ContextOverflow, message));
        }
        let most = asked.map_or(left, |asked| asked.min(left));
        let turn = self.script.turn(request);
        let mut sampled = tokens::sample(&turn, &prompt, self.seed);
        let whole = sampled.len() as u64 <= most;
        sampled.truncate(usize::try_from(most).unwrap_or(usize::MAX));
        let finish = match (whole, &turn.call) {
            (false, _) => FinishReason::Length,
            (true, Some(_)) => FinishReason::ToolCalls,
            (true, None) => FinishReason::Stop,
        };
        let asks = |name: &str| request[name] == true;
        let reply = Reply {
            id: format!("scripted-{:016x}", sampled.last().map_or(0, |token| token.logprob.to_bits())),
            model: self.model(),
            prompt: &prompt,
            tokens: &sampled,
            finish: finish.name(),
            with_ids: asks("return_token_ids"),
            with_logprobs: asks("logprobs"),
        };
        let bytes = if stream { reply.stream().into() } else { VecDeque::from([reply.whole()]) };
        if let Some(log) = &self.log {
            let texts = request["messages"].as_array().into_iter().flatten().map(|message| tokens::content(&message["content"]));
            log.lock().unwrap_or_else(PoisonError::into_inner).push(Sampled {
                ids: sampled.iter().map(|token| token.id).collect(),
                logprobs: sampled.iter().map(|token| token.logprob).collect(),
                offered: script::functions(request).filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect(),
                texts: texts.collect(),
                called: turn.call.map(|(name, _)| name),
                guessed: turn.guessed,
                prompt_ids: prompt,
            });
        }
        Ok((bytes, most))
    }
}

/// Reads a request of ours as a server would.
fn read(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::new(FailureKind::Invalid, format!("the request is no JSON: {error}")))
}

#[async_trait]
impl Policy for Scripted {
    fn name(&self) -> &str {
        &self.name
    }

    fn describe(&self) -> String {
        format!("the scripted policy, in this process; its window is {}", self.window())
    }

    async fn ready(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn models(&self) -> Result<Bytes, Failure> {
        let model = json!({"id": self.model(), "object": "model", "owned_by": "gleaner", "max_model_len": self.window()});
        Ok(json!({"object": "list", "data": [model]}).to_string().into())
    }

    async fn count(&self, call: &Call) -> Result<u64, Failure> {
        Ok(tokens::prompt(&read(&self.body(call, &Sampling::default()))?).len() as u64)
    }

    fn state(&self) -> PolicyState {
        let (paused, in_flight) = self.gate.read();
        PolicyState { url: format!("{SCHEME}{}", self.seed), version: self.versions.known(), paused, in_flight }
    }

    async fn paused(&self, now: bool) -> bool {
        self.gate.paused(now).await
    }

    async fn window(&self) -> Option<u64> {
        Some(Self::window(self))
    }

    fn update(&self, update: PolicyUpdate) -> Result<(), Failure> {
        if update.url.is_some() {
            return Err(Failure::invalid("url", format!("policy {} is scripted and has no address", self.name)));
        }
        if update.mode == Some(PauseMode::Resume) {
            return Err(Failure::invalid("mode", format!("policy {} is scripted: no reply of it is resumed", self.name)));
        }
        self.gate.follow(&self.versions, &update);
        Ok(())
    }

    fn recall(&self, last: &WeightVersion) {
        self.versions.recall(last);
    }

    async fn prepare(
        &self,
        call: &Arc<Call>,
        pinned: &Sampling,
        _transcript: &Transcript,
        patience: Duration,
    ) -> Result<Prepared, Failure> {
        if call.prompt.is_some() {
            return Err(Failure::new(FailureKind::Refused, "the scripted policy answers conversations only"));
        }
        images::check(call, self.config.image_urls, &self.name)?;
        let sampling_used = call.sampling.with_others(&call.rest).pinned_by(&self.config.sampling).pinned_by(pinned);
        Ok(Prepared {
            body: self.body(call, &sampling_used),
            stream: self.dialect.stream(call),
            sampling_used,
            max_tokens_used: call.max_tokens,
            notes: Vec::new(),
            call: Arc::clone(call),
            prompt: None,
            patience,
        })
    }

    async fn score(&self, ids: &[u32]) -> Result<Vec<Option<f64>>, Failure> {
        let mut likelihood = Likelihood::new(self.seed);
        Ok(ids.iter().enumerate().map(|(at, id)| Some(likelihood.next(*id)).filter(|_| at > 0)).collect())
    }

    async fn send(&self, prepared: &Prepared) -> Result<Box<dyn Answer>, NoAnswer> {
        let nothing = |failure| NoAnswer { failure, response: Bytes::new() };
        let passed = self.gate.pass(&self.name, self.config.pause()).await.map_err(nothing)?;
        let request = read(&prepared.body).map_err(nothing)?;
        let asked = prepared.max_tokens_used;
        let (bytes, most) = self.reply(&request, prepared.stream, asked).map_err(nothing)?;
        let source = self.dialect.source(&prepared.call);
        let names = Names::of(&prepared.call);
        let mut decoder = Decoder::new(&prepared.call, names, source, Echo::No, self.config.max_event_bytes);
        decoder.trims = self.config.top_logprobs > prepared.call.wants.top_logprobs.unwrap_or(0);
        let amended = asked.filter(|asked| *asked > most).map(|_| {
            let mut amended = prepared.clone();
            amended.max_tokens_used = Some(most);
            amended.notes.push(limit::note(asked, Some(most), "the prompt leaves no more"));
            amended
        });
        let (dialect, versions) = (self.dialect, Arc::clone(&self.versions));
        Ok(Box::new(Speaking { bytes, decoder, dialect, versions, prepared: prepared.clone(), amended, _passed: passed }))
    }
}

/// A reply on its way.
struct Speaking {
    bytes: VecDeque<Bytes>,
    decoder: Decoder,
    dialect: Dialect,
    versions: Arc<Versions>,
    prepared: Prepared,
    amended: Option<Prepared>,
    /// The call counts as in flight until its reply is read.
    _passed: Passed,
}

#[async_trait]
impl Answer for Speaking {
    async fn next(&mut self, events: &mut Vec<Event>) -> Result<Option<Bytes>, Failure> {
        let bytes = self.bytes.pop_front();
        match (&bytes, self.prepared.stream) {
            (Some(bytes), true) => self.decoder.push(bytes, events)?,
            (Some(bytes), false) => self.decoder.whole(bytes, events)?,
            (None, true) => self.decoder.finish(events)?,
            (None, false) => {}
        }
        Ok(bytes)
    }

    async fn capture(&mut self, reply: &crate::call::Reply) -> Captured {
        let prompt = reply.prompt_ids.clone().ok_or_else(|| "no prompt ids were asked for".to_owned());
        let capture = capture::of(self.dialect, None, &self.prepared, false, prompt, reply);
        Captured { capture, version: self.versions.known(), prompt_raw: Bytes::new() }
    }

    fn amended(&self) -> Option<Prepared> {
        self.amended.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CaptureLevel, Fold, Message, Role, Text, Tool, ToolKind};

    fn config(url: &str) -> PolicyConfig {
        PolicyConfig { kind: PolicyKind::Scripted, url: url.to_owned(), ..PolicyConfig::default() }
    }

    fn policy() -> Scripted {
        Scripted::new("p", &config("scripted:7")).unwrap().remembering()
    }

    fn call(stream: bool, messages: Vec<Message>) -> Call {
        let tool = Tool {
            kind: ToolKind::Function,
            namespace: None,
            name: Text::new("bash"),
            description: None,
            parameters: None,
            rest: Vec::new(),
        };
        Call { stream, messages, tools: vec![tool], ..Call::new("chat") }
    }

    fn question() -> Message {
        Message::text(Role::User, Text::new("hi"))
    }

    /// The reply, what is known of it, and what was really sent.
    async fn ask(policy: &Scripted, call: Call) -> (crate::call::Reply, Captured, Option<Prepared>) {
        let call = Arc::new(call);
        let prepared = policy.prepare(&call, &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
        let mut answer = policy.send(&prepared).await.map_err(|no| no.failure).unwrap();
        assert_eq!(policy.state().in_flight, 1);
        let (mut events, mut fold) = (Vec::new(), Fold::default());
        while answer.next(&mut events).await.unwrap().is_some() {}
        for event in &events {
            fold.push(event);
        }
        let reply = fold.reply();
        let captured = answer.capture(&reply).await;
        (reply, captured, answer.amended())
    }

    #[tokio::test]
    async fn a_conversation_is_whole_streamed_or_not() {
        let mut heard = Vec::new();
        for stream in [true, false] {
            let policy = policy();
            let (first, captured, _) = ask(&policy, call(stream, vec![question()])).await;
            assert_eq!((captured.capture.level, &captured.capture.reason), (CaptureLevel::Full, &None));
            assert_eq!(first.finish, Some(FinishReason::ToolCalls));
            let back = Message::turn(first.text.clone(), first.reasoning.clone(), first.tool_calls.clone());
            let result = Message::text(Role::Tool, Text::new("done"));
            let (last, next, _) = ask(&policy, call(stream, vec![question(), back, result])).await;
            assert_eq!((last.finish, next.capture.level), (Some(FinishReason::Stop), CaptureLevel::Full));
            let whole = [captured.capture.prompt_ids.clone(), captured.capture.completion_ids.clone()].concat();
            assert!(next.capture.prompt_ids.starts_with(&whole), "the second prompt goes on from the first exchange");
            let said = policy.sampled();
            let facts = |sampled: &Sampled| (sampled.prompt_ids.clone(), sampled.ids.clone(), sampled.logprobs.clone());
            let recorded = |capture: &crate::call::Capture| {
                (capture.prompt_ids.clone(), capture.completion_ids.clone(), capture.logprobs.clone())
            };
            assert_eq!(said.iter().map(facts).collect::<Vec<_>>(), [recorded(&captured.capture), recorded(&next.capture)]);
            assert_eq!((said[0].called.as_deref(), said[0].guessed, said[1].called.as_deref()), (Some("bash"), true, None));
            let scores = policy.score(&whole).await.unwrap();
            let own: Vec<f64> = scores[captured.capture.prompt_ids.len()..].iter().map(|score| score.unwrap()).collect();
            assert_eq!(own, captured.capture.logprobs, "it scores its tokens as it sampled them");
            heard.push((first.text, first.reasoning, first.tool_calls[0].arguments.clone(), last.text));
        }
        assert_eq!(heard[0], heard[1]);
    }

    #[tokio::test]
    async fn limits_cut_a_reply_and_say_so() {
        let policy = policy();
        let (cut, captured, amended) = ask(&policy, Call { max_tokens: Some(3), ..call(true, vec![question()]) }).await;
        assert_eq!((cut.finish, captured.capture.completion_ids.len()), (Some(FinishReason::Length), 3));
        assert!(captured.capture.level == CaptureLevel::Full && amended.is_none());
        let prompt = captured.capture.prompt_ids.len() as u64;
        let narrow = |window| Scripted::new("p", &PolicyConfig { context_window: Some(window), ..config("scripted:") }).unwrap();
        let asked = || Call { max_tokens: Some(9), ..call(false, vec![question()]) };
        let (_, _, amended) = ask(&narrow(prompt + 2), asked()).await;
        let amended = amended.unwrap();
        assert_eq!((amended.max_tokens_used, amended.notes.len()), (Some(2), 1));
        let full = narrow(prompt);
        let prepared =
            full.prepare(&Arc::new(asked()), &Sampling::default(), &Transcript::default(), Duration::ZERO).await.unwrap();
        let failure = full.send(&prepared).await.map(drop).unwrap_err().failure;
        assert_eq!(failure.kind, FailureKind::ContextOverflow);
        assert_eq!((full.count(&asked()).await.unwrap(), full.state().in_flight), (prompt, 0));
    }

    #[test]
    fn what_it_can_not_do_is_refused() {
        let wrong = |config: &PolicyConfig| Scripted::new("p", config).map(drop).unwrap_err().to_string();
        assert_eq!(wrong(&config("scripted:x")), "policy p: the seed \"x\" after scripted: is no whole number");
        let exact = PolicyConfig { tokens: TokenMode::Exact, ..config("scripted:") };
        assert!(wrong(&exact).contains("kind = \"scripted\" takes no token ids"), "{}", wrong(&exact));
        let url = PolicyUpdate { url: Some("http://x".to_owned()), ..PolicyUpdate::default() };
        assert_eq!(policy().update(url).unwrap_err().param.as_deref(), Some("url"));
    }
}
