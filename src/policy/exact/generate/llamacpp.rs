//! llama.cpp's answers.

use serde::Deserialize;

use super::read::{Alternative, Ended, Heard, Said, logprob};
use crate::policy::scan::Reader;

#[derive(Deserialize)]
struct Top {
    id: Option<u32>,
    token: Option<String>,
    logprob: Option<f64>,
}

/// Reads a whole body; `None` if it is none.
pub(super) fn read(text: &str, alternatives: bool) -> Option<Heard> {
    let mut said = Said::default();
    let (mut failed, mut is_reply) = (false, false);
    let mut reader = Reader::new(text);
    reader.object(|name, reader| {
        match name {
            "content" => {
                is_reply = true;
                said.text = reader.value_or_null()?.and_then(|text| serde_json::from_str(text).ok());
            }
            "tokens" => said.ids = reader.ids()?.unwrap_or_default(),
            "tokens_evaluated" => said.prompt_tokens = reader.number()?,
            "tokens_predicted" => said.completion_tokens = reader.number()?,
            "timings" => cached(reader, &mut said)?,
            "stop_type" => {
                said.ended = match reader.value()?.trim_matches('"') {
                    "limit" => Some(Ended::Length),
                    "eos" | "word" => Some(Ended::Stop),
                    _ => None,
                };
            }
            "stopping_word" => {
                let word = reader.value_or_null()?.and_then(|word| serde_json::from_str::<String>(word).ok());
                said.stop = word.filter(|word| !word.is_empty());
            }
            "completion_probabilities" if reader.peek()? == b'[' => {
                reader.list(|reader| entry(reader, &mut said, alternatives))?;
            }
            "error" => failed |= reader.value_or_null()?.is_some(),
            _ => reader.skip()?,
        }
        Some(())
    })?;
    if failed {
        return Some(Heard::Failed);
    }
    (is_reply && reader.is_at_end()).then_some(Heard::Said(said))
}

fn entry(reader: &mut Reader<'_>, said: &mut Said, alternatives: bool) -> Option<()> {
    let mut top = Vec::new();
    reader.object(|name, reader| {
        match name {
            "id" => said.logprob_ids.extend(reader.number::<u32>()?),
            "logprob" => said.logprobs.extend(reader.number()?.map(logprob)),
            "top_logprobs" if alternatives => top = serde_json::from_str::<Vec<Top>>(reader.value()?).ok()?,
            _ => reader.skip()?,
        }
        Some(())
    })?;
    if alternatives {
        let alternative = |top: Top| Some(Alternative { id: top.id, text: top.token, logprob: top.logprob? });
        said.alternatives.push(top.into_iter().filter_map(alternative).collect());
    }
    Some(())
}

fn cached(reader: &mut Reader<'_>, said: &mut Said) -> Option<()> {
    reader.object(|name, reader| {
        match name {
            "cache_n" => said.cached_tokens = reader.number()?,
            _ => reader.skip()?,
        }
        Some(())
    })
}
