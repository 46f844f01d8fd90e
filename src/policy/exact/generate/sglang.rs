//! `SGLang`'s answers (0.5.23, read from its source).

use serde::Deserialize;
use serde_json::value::RawValue;

use super::read::{Alternative, Ended, Heard, Said, logprob};
use crate::policy::chunk::VersionSpan;
use crate::policy::scan::Reader;

/// Reads an event or a whole body; `None` if it is neither. A stream is asked for only where its events hold what is new
/// (`--incremental-streaming-output`): otherwise each repeats all tokens.
pub(super) fn read(text: &str, alternatives: bool) -> Option<Heard> {
    let mut said = Said::default();
    let (mut failed, mut is_reply, mut finish) = (false, false, None);
    let mut reader = Reader::new(text);
    reader.object(|name, reader| {
        match name {
            "text" => said.text = reader.value_or_null()?.and_then(|text| serde_json::from_str(text).ok()),
            "output_ids" => said.ids = reader.ids()?.unwrap_or_default(),
            "meta_info" => {
                is_reply = true;
                meta(reader, &mut said, &mut finish, alternatives)?;
            }
            "error" => failed |= reader.value_or_null()?.is_some(),
            _ => reader.skip()?,
        }
        Some(())
    })?;
    if failed {
        return Some(Heard::Failed);
    }
    if !is_reply || !reader.is_at_end() {
        return None;
    }
    let Some(finish) = finish else { return Some(Heard::Said(said)) };
    match &*finish.kind {
        "length" => said.ended = Some(Ended::Length),
        "abort" => {
            return Some(Heard::Aborted(said, finish.message.unwrap_or_else(|| "finish_reason abort".to_owned())));
        }
        _ => said.ended = Some(Ended::Stop),
    }
    // What was matched is a stop string, or the id of a stop token.
    said.stop = finish.matched.and_then(|matched| serde_json::from_str(matched.get()).ok());
    Some(Heard::Said(said))
}

#[derive(Deserialize)]
struct Finish<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(borrow)]
    matched: Option<&'a RawValue>,
    message: Option<String>,
}

fn meta<'a>(reader: &mut Reader<'a>, said: &mut Said, finish: &mut Option<Finish<'a>>, alternatives: bool) -> Option<()> {
    let mut version = None;
    reader.object(|name, reader| {
        match name {
            "prompt_tokens" => said.prompt_tokens = reader.number()?,
            "completion_tokens" => said.completion_tokens = reader.number()?,
            "cached_tokens" => said.cached_tokens = reader.number()?,
            "finish_reason" => *finish = typed(reader)?,
            "weight_version" => version = typed::<String>(reader)?,
            "weight_versions" => said.versions = typed::<Vec<VersionSpan>>(reader)?.unwrap_or_default(),
            "output_token_logprobs" if reader.peek()? == b'[' => reader.list(|reader| pair(reader, said))?,
            "output_top_logprobs" if alternatives => {
                said.alternatives = typed::<Vec<Option<Vec<Triple>>>>(reader)?.unwrap_or_default().into_iter().map(top).collect();
            }
            _ => reader.skip()?,
        }
        Some(())
    })?;
    if said.versions.is_empty() {
        said.versions.extend(version.map(|version| VersionSpan { version, start: 0 }));
    }
    Some(())
}

/// Reads `[log-probability, id, text or null]`.
fn pair(reader: &mut Reader<'_>, said: &mut Said) -> Option<()> {
    let mut at = 0;
    reader.list(|reader| {
        match at {
            0 => said.logprobs.extend(reader.number()?.map(logprob)),
            1 => said.logprob_ids.extend(reader.number::<u32>()?),
            _ => reader.skip()?,
        }
        at += 1;
        Some(())
    })
}

type Triple = (Option<f64>, Option<u32>, Option<String>);

fn top(entry: Option<Vec<Triple>>) -> Vec<Alternative> {
    let alternative = |(logprob, id, text): Triple| Some(Alternative { id, text, logprob: logprob? });
    entry.into_iter().flatten().filter_map(alternative).collect()
}

fn typed<'a, T: Deserialize<'a>>(reader: &mut Reader<'a>) -> Option<Option<T>> {
    match reader.value_or_null()? {
        Some(value) => serde_json::from_str(value).ok().map(Some),
        None => Some(None),
    }
}
