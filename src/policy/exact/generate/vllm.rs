//! vLLM's answers: those of its generate endpoint and of its completions have one form.

use serde::Deserialize;

use super::read::{Alternative, Ended, Heard, Said, logprob};
use crate::policy::chunk::VersionSpan;
use crate::policy::chunk::{Choice, Chunk, Unknown};

/// Reads an event or a whole body; `None` if it is neither.
pub(super) fn read(text: &str, alternatives: bool) -> Option<Heard> {
    let chunk = Chunk::read(text, alternatives)?;
    if chunk.error.is_some() || chunk.is_error {
        return Some(Heard::Failed);
    }
    let mut said = Said::default();
    if let Some(usage) = chunk.usage {
        said.prompt_tokens = usage.prompt_tokens;
        said.completion_tokens = usage.completion_tokens;
        said.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
    }
    let Some(choice) = chunk.choice else { return Some(Heard::Said(said)) };
    let reason = choice.finish_reason.map(|reason| reason.trim_matches('"').to_owned());
    choice_into(choice, alternatives, &mut said)?;
    match reason.as_deref() {
        None => {}
        Some("length") => said.ended = Some(Ended::Length),
        Some(reason @ ("abort" | "error")) => {
            return Some(Heard::Aborted(said, format!("finish_reason {reason}")));
        }
        Some(_) => said.ended = Some(Ended::Stop),
    }
    Some(Heard::Said(said))
}

fn choice_into(choice: Choice, alternatives: bool, said: &mut Said) -> Option<()> {
    said.ids = choice.token_ids.unwrap_or_default();
    said.logprobs = choice.entries.iter().filter_map(|entry| entry.logprob).map(logprob).collect();
    said.logprob_ids = choice.entries.iter().filter_map(|entry| entry.id).collect();
    if let (true, Some(raw)) = (alternatives, choice.logprobs) {
        said.alternatives = serde_json::from_str::<Logprobs>(raw).ok()?.alternatives();
    }
    if let Some(raw) = choice.delta.content {
        said.text = serde_json::from_str(raw).ok()?;
    }
    said.stop = unknown(&choice.unknown, "stop_reason");
    said.versions = unknown::<Vec<VersionSpan>>(&choice.unknown, "weight_versions").unwrap_or_default();
    Some(())
}

fn unknown<'a, T: Deserialize<'a>>(fields: &Unknown<'a>, name: &str) -> Option<T> {
    let (_, value) = fields.iter().find(|(field, _)| *field == name)?;
    serde_json::from_str(value).ok()
}

/// Log-probabilities with their alternatives: the generate endpoint's, by ids, or completions', by texts.
#[derive(Deserialize)]
#[serde(untagged)]
enum Logprobs {
    Content {
        content: Vec<Content>,
    },
    Lists {
        top_logprobs: Vec<Option<serde_json::Map<String, serde_json::Value>>>,
    },
    /// Anything else has no alternatives.
    Other(serde::de::IgnoredAny),
}

#[derive(Deserialize)]
struct Content {
    #[serde(default)]
    top_logprobs: Vec<Top>,
}

#[derive(Deserialize)]
struct Top {
    token_id: Option<u32>,
    token: Option<String>,
    logprob: f64,
}

impl Logprobs {
    fn alternatives(self) -> Vec<Vec<Alternative>> {
        match self {
            Self::Content { content } => {
                let top = |top: Top| Alternative { id: top.token_id, text: top.token, logprob: top.logprob };
                content.into_iter().map(|entry| entry.top_logprobs.into_iter().map(top).collect()).collect()
            }
            Self::Lists { top_logprobs } => {
                let top = |(text, logprob): (String, serde_json::Value)| {
                    Some(Alternative { id: None, text: Some(text), logprob: logprob.as_f64()? })
                };
                top_logprobs.into_iter().map(|entry| entry.into_iter().flatten().filter_map(top).collect()).collect()
            }
            Self::Other(_) => Vec::new(),
        }
    }
}
