//! Which weights a server holds, where it can be asked or the config says so.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::http::Http;
use crate::call::{Run, VersionSource, WeightVersion};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

/// Follows one server's weights.
#[derive(Debug)]
pub(super) struct Versions {
    declared: Option<String>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The server answers `/weight_info`.
    polls: bool,
    asked: Option<Instant>,
    version: Option<String>,
    seq: i64,
    /// Versions that were seen lately and their numbers, the newest last: replies that began before a change end after it.
    seen: VecDeque<(String, i64)>,
}

/// How many versions a reply may be behind and still get its own number.
const REMEMBERED: usize = 64;

#[derive(Deserialize)]
struct WeightInfo {
    weight_version: String,
}

/// A server's word on which weights sampled a run of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct VersionSpan {
    pub version: String,
    /// The index of the run's first token.
    pub start: usize,
}

impl Versions {
    pub(super) fn new(declared: Option<String>) -> Self {
        Self { declared, state: Mutex::new(State::default()) }
    }

    /// Finds out whether the server tells its weights' version (vLLM in its development mode).
    pub(super) async fn begin(&self, http: &Http) {
        if self.declared.is_none() {
            self.poll(http).await;
        }
    }

    /// The version now: an answer at most a second old, so that few calls wait for one.
    pub(super) async fn current(&self, http: &Http) -> WeightVersion {
        if self.is_due() {
            self.poll(http).await;
        }
        self.known()
    }

    /// The version of a reply, and its runs where the server told more than one: `spans` is what it said with the reply.
    pub(super) fn told(&self, spans: &[VersionSpan]) -> Option<(WeightVersion, Vec<Run>)> {
        let mut state = self.state();
        let mut see = |span: &VersionSpan| {
            let source = Some(VersionSource::Server);
            Run {
                start: span.start,
                version: WeightVersion { version: Some(span.version.clone()), seq: state.see(&span.version), source },
            }
        };
        let runs: Vec<Run> = spans.iter().map(&mut see).collect();
        let last = runs.last()?.version.clone();
        Some((last, if runs.len() > 1 { runs } else { Vec::new() }))
    }

    /// The version as it is known, without asking.
    pub(super) fn known(&self) -> WeightVersion {
        if let Some(declared) = &self.declared {
            return WeightVersion { version: Some(declared.clone()), seq: 0, source: Some(VersionSource::Declared) };
        }
        let state = self.state();
        let source = state.version.as_ref().map(|_| VersionSource::Polled);
        WeightVersion { version: state.version.clone(), seq: state.seq, source }
    }

    /// Whether this caller is to ask; the others go on with what is known.
    fn is_due(&self) -> bool {
        let mut state = self.state();
        let due = state.polls && state.asked.is_none_or(|asked| asked.elapsed() >= FRESH);
        if due {
            state.asked = Some(Instant::now());
        }
        due
    }

    async fn poll(&self, http: &Http) {
        let answer = self.ask(http).await;
        let mut state = self.state();
        state.asked = Some(Instant::now());
        // A server that does not answer now has not changed its weights for that.
        let Some(version) = answer else { return };
        state.polls = true;
        if state.version.as_ref() != Some(&version) {
            state.change(&version);
        }
    }

    /// Asks one server of several for its version.
    pub(super) async fn ask(&self, http: &Http) -> Option<String> {
        let Ok((200, body)) = http.get("/weight_info").await else { return None };
        serde_json::from_slice::<WeightInfo>(&body).ok().map(|info| info.weight_version)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number of a version that came with a reply, which may have begun before a change that was seen since.
    fn see(&mut self, version: &str) -> i64 {
        match self.seen.iter().rev().find(|(seen, _)| seen == version) {
            Some((_, seq)) => *seq,
            None => self.change(version),
        }
    }

    /// Takes a version that is not the last one, and gives its number.
    fn change(&mut self, version: &str) -> i64 {
        if self.version.is_some() {
            self.seq += 1;
        }
        self.version = Some(version.to_owned());
        self.seen.push_back((version.to_owned(), self.seq));
        if self.seen.len() > REMEMBERED {
            self.seen.pop_front();
        }
        self.seq
    }
}
