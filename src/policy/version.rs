//! Which weights a server holds: what it says with a reply, what the config or the API declares, or what it says when asked.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

use super::chunk::VersionSpan;
use super::config::PolicyKind;
use super::http::Http;
use crate::call::{Run, VersionSource, WeightVersion};

/// How old an answer may be.
const FRESH: Duration = Duration::from_secs(1);

/// Follows the weights of one policy. Its number (`seq`) grows with each change that is seen.
#[derive(Debug)]
pub(super) struct Versions {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Where the server says its version when asked; `None` if it does not.
    path: Option<&'static str>,
    asked: Option<Instant>,
    known: WeightVersion,
    /// The versions that were seen lately and their numbers, the newest last: replies that began before a change end after it.
    seen: VecDeque<(String, i64)>,
}

/// How many versions a reply may be behind and still get its own number.
const REMEMBERED: usize = 64;

/// vLLM's `/weight_info` (in its development mode), or `SGLang`'s `/model_info`.
#[derive(Deserialize)]
struct WeightInfo {
    weight_version: String,
}

impl Versions {
    pub(super) fn new(declared: Option<String>) -> Self {
        let versions = Self { state: Mutex::default() };
        if let Some(version) = declared {
            versions.see(version, VersionSource::Declared);
        }
        versions
    }

    /// Takes up the count where an earlier process left it.
    pub(super) fn recall(&self, last: &WeightVersion) {
        let mut state = self.state();
        let changed = state.known.version.is_some() && state.known.version != last.version;
        state.known.seq = last.seq + i64::from(changed);
        if state.known.version.is_none() {
            state.known.version.clone_from(&last.version);
            state.known.source = last.source;
        }
        let (version, seq) = (state.known.version.clone(), state.known.seq);
        state.seen = version.map(|version| (version, seq)).into_iter().collect();
    }

    /// Finds out whether the server tells its weights' version when asked.
    pub(super) async fn begin(&self, http: &Http, kind: PolicyKind) {
        let path = match kind {
            PolicyKind::Vllm => "/weight_info",
            PolicyKind::Sglang => "/model_info",
            PolicyKind::Llamacpp | PolicyKind::Openai | PolicyKind::Auto | PolicyKind::Scripted => return,
        };
        if self.state().known.source != Some(VersionSource::Declared) {
            self.poll(http, path).await;
        }
    }

    /// The version now: an answer at most a second old, so that few calls wait for one.
    pub(super) async fn current(&self, http: &Http) -> WeightVersion {
        if let Some(path) = self.due() {
            self.poll(http, path).await;
        }
        self.known()
    }

    /// The version as it is known, without asking.
    pub(super) fn known(&self) -> WeightVersion {
        self.state().known.clone()
    }

    /// Takes a version that somebody told, and gives it with its number.
    pub(super) fn see(&self, version: String, source: VersionSource) -> WeightVersion {
        let mut state = self.state();
        if state.known.version.as_ref() != Some(&version) {
            let earlier = state.seen.iter().rev().find(|(seen, _)| *seen == version).map(|(_, seq)| *seq);
            if let (Some(seq), VersionSource::Server) = (earlier, source) {
                return WeightVersion { version: Some(version), seq, source: Some(source) };
            }
            state.known.seq += i64::from(state.known.version.is_some());
            let seq = state.known.seq;
            state.seen.push_back((version.clone(), seq));
            if state.seen.len() > REMEMBERED {
                state.seen.pop_front();
            }
            state.known.version = Some(version);
        }
        state.known.source = Some(source);
        if source == VersionSource::Declared {
            // What is declared stands until something else is.
            state.path = None;
        }
        state.known.clone()
    }

    /// The version of a reply, and its runs where the server told more than one: `spans` is what it said with the reply.
    pub(super) fn told(&self, spans: &[VersionSpan]) -> Option<(WeightVersion, Vec<Run>)> {
        let seen = |span: &VersionSpan| Run { start: span.start, version: self.see(span.version.clone(), VersionSource::Server) };
        let runs: Vec<Run> = spans.iter().map(seen).collect();
        let last = runs.last()?.version.clone();
        Some((last, if runs.len() > 1 { runs } else { Vec::new() }))
    }

    /// Where this caller is to ask; the others go on with what is known.
    fn due(&self) -> Option<&'static str> {
        let mut state = self.state();
        let path = state.path.filter(|_| state.asked.is_none_or(|asked| asked.elapsed() >= FRESH))?;
        state.asked = Some(Instant::now());
        Some(path)
    }

    /// The version that one of several servers holds now; while their weights change, each may hold others.
    #[cfg(feature = "exact")]
    pub(super) async fn of(&self, http: &Http) -> WeightVersion {
        let path = self.state().path;
        let asked = match path {
            Some(path) => ask(http, path).await,
            None => None,
        };
        match asked {
            Some(version) => WeightVersion { source: Some(VersionSource::Polled), ..self.see(version, VersionSource::Server) },
            None => self.known(),
        }
    }

    async fn poll(&self, http: &Http, path: &'static str) {
        let told = ask(http, path).await;
        self.state().asked = Some(Instant::now());
        // A server that does not answer now has not changed its weights for that.
        if let Some(version) = told {
            self.see(version, VersionSource::Polled);
            self.state().path = Some(path);
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn ask(http: &Http, path: &str) -> Option<String> {
    match http.get(path).await {
        Ok((200, body)) => serde_json::from_slice::<WeightInfo>(&body).ok().map(|info| info.weight_version),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(versions: &Versions) -> (Option<String>, i64, Option<VersionSource>) {
        let known = versions.known();
        (known.version, known.seq, known.source)
    }

    #[test]
    fn the_number_grows_with_each_change_and_goes_on_after_a_restart() {
        let versions = Versions::new(None);
        versions.recall(&WeightVersion { version: Some("a".to_owned()), seq: 4, source: Some(VersionSource::Polled) });
        let say = |version: &str| Some(version.to_owned());
        assert_eq!(known(&versions), (say("a"), 4, Some(VersionSource::Polled)));
        versions.see("a".to_owned(), VersionSource::Server);
        versions.see("b".to_owned(), VersionSource::Declared);
        assert_eq!(known(&versions), (say("b"), 5, Some(VersionSource::Declared)));
        let declared = Versions::new(say("c"));
        declared.recall(&versions.known());
        assert_eq!(known(&declared), (say("c"), 6, Some(VersionSource::Declared)));
    }

    #[test]
    fn a_reply_across_an_update_has_a_run_for_each_version() {
        let versions = Versions::new(None);
        let span = |version: &str, start| VersionSpan { version: version.to_owned(), start };
        let version =
            |version: &str, seq| WeightVersion { version: Some(version.to_owned()), seq, source: Some(VersionSource::Server) };
        assert_eq!(versions.told(&[]), None);
        assert_eq!(versions.told(&[span("a", 0)]), Some((version("a", 0), Vec::new())));
        let runs = vec![Run { start: 0, version: version("a", 0) }, Run { start: 7, version: version("b", 1) }];
        assert_eq!(versions.told(&[span("a", 0), span("b", 7)]), Some((version("b", 1), runs)));
        // One that began and ended before the change, and was read after it.
        assert_eq!(versions.told(&[span("a", 0)]), Some((version("a", 0), Vec::new())));
        assert_eq!(known(&versions), (Some("b".to_owned()), 1, Some(VersionSource::Server)));
    }
}
