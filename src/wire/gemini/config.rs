//! How a reply is to be generated, read.

use serde_json::value::RawValue;

use super::schema;
use super::spelling::spelled;
use crate::call::{Failure, Raw, Sampling, Text};
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields, INTEGER, NUMBER, STRINGS};
use crate::wire::notes::Notes;

const CONFIG: [&str; 35] = [
    "temperature",
    "topP",
    "top_p",
    "topK",
    "top_k",
    "maxOutputTokens",
    "max_output_tokens",
    "stopSequences",
    "stop_sequences",
    "seed",
    "presencePenalty",
    "presence_penalty",
    "frequencyPenalty",
    "frequency_penalty",
    "candidateCount",
    "candidate_count",
    "responseMimeType",
    "response_mime_type",
    "responseSchema",
    "response_schema",
    "responseJsonSchema",
    "response_json_schema",
    "_responseJsonSchema",
    "responseLogprobs",
    "response_logprobs",
    "logprobs",
    "thinkingConfig",
    "thinking_config",
    "responseModalities",
    "response_modalities",
    // What follows is about media, which no reply has.
    "mediaResolution",
    "media_resolution",
    "speechConfig",
    "imageConfig",
    "audioTimestamp",
];
const THINKING: [&str; 6] =
    ["includeThoughts", "include_thoughts", "thinkingBudget", "thinking_budget", "thinkingLevel", "thinking_level"];
/// The most replies that one request may ask for, as the API has it.
const MOST_CANDIDATES: u64 = 8;

type ConfigFields<'de> = Fields<'de, { CONFIG.len() }>;

/// How a reply is to be generated.
#[derive(Default)]
pub(super) struct Config {
    pub(super) sampling: Sampling,
    pub(super) max_tokens: Option<u64>,
    pub(super) candidates: u64,
    pub(super) format: Option<Raw>,
    pub(super) logprobs: bool,
    pub(super) top_logprobs: Option<u32>,
    pub(super) thoughts: bool,
    pub(super) effort: Option<Text>,
}

/// Reads the config called `name`.
pub(super) fn read<const N: usize>(
    at: &At<'_>,
    outer: &Fields<'_, N>,
    name: &'static str,
    notes: &mut Notes,
) -> Result<Config, Failure> {
    let Some(config) = outer.object(at, name, &CONFIG)? else { return Ok(Config { candidates: 1, ..Config::default() }) };
    let at = &At::Field(at, name);
    refuse(at, &config)?;
    for (name, value) in config.rest(at)? {
        if value.as_bytes() != b"null" {
            notes.say(format!("passed over {}.{}", at, name.decode()));
        }
    }
    let (thoughts, effort) = read_thinking(at, &config, notes)?;
    Ok(Config {
        sampling: read_sampling(at, &config)?,
        // Nothing and 0 are the same in this API.
        max_tokens: count(at, &config, ["maxOutputTokens", "max_output_tokens"])?.filter(|most| *most > 0),
        candidates: read_candidates(at, &config)?,
        format: read_format(at, &config, notes)?,
        logprobs: config.read(at, spelled(&config, ["responseLogprobs", "response_logprobs"]), BOOLEAN)?.unwrap_or(false),
        top_logprobs: count(at, &config, ["logprobs", "logprobs"])?.map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        thoughts,
        effort,
    })
}

/// What is not served.
fn refuse(at: &At<'_>, config: &ConfigFields<'_>) -> Result<(), Failure> {
    let name = spelled(config, ["responseModalities", "response_modalities"]);
    let modalities: Vec<String> = config.read(at, name, STRINGS)?.unwrap_or_default();
    let text = |modality: &String| ["TEXT", "MODALITY_UNSPECIFIED"].iter().any(|known| modality.eq_ignore_ascii_case(known));
    if modalities.iter().all(text) { Ok(()) } else { Err(At::Field(at, name).invalid("must be [\"TEXT\"]: replies are text")) }
}

fn read_sampling(at: &At<'_>, config: &ConfigFields<'_>) -> Result<Sampling, Failure> {
    let number = |names| config.read::<f64>(at, spelled(config, names), NUMBER);
    let name = spelled(config, ["stopSequences", "stop_sequences"]);
    let stop: Vec<String> = config.read(at, name, STRINGS)?.unwrap_or_default();
    Ok(Sampling {
        temperature: number(["temperature", "temperature"])?,
        top_p: number(["topP", "top_p"])?,
        top_k: integer(at, config, ["topK", "top_k"])?,
        presence_penalty: number(["presencePenalty", "presence_penalty"])?,
        frequency_penalty: number(["frequencyPenalty", "frequency_penalty"])?,
        seed: integer(at, config, ["seed", "seed"])?,
        stop: if stop.is_empty() { None } else { config.keep(at, name)? },
        others: serde_json::Map::new(),
        ..Sampling::default()
    })
}

fn read_candidates(at: &At<'_>, config: &ConfigFields<'_>) -> Result<u64, Failure> {
    let names = ["candidateCount", "candidate_count"];
    match count(at, config, names)?.unwrap_or(1) {
        // Nothing and 0 are the same in this API.
        0 => Ok(1),
        asked if asked <= MOST_CANDIDATES => Ok(asked),
        _ => Err(At::Field(at, spelled(config, names)).invalid(format_args!("must be {MOST_CANDIDATES} or less"))),
    }
}

/// The format of the answer's text, as chat completions has it; `None` for plain text.
fn read_format(at: &At<'_>, config: &ConfigFields<'_>, notes: &mut Notes) -> Result<Option<Raw>, Failure> {
    let mime = config.string(at, spelled(config, ["responseMimeType", "response_mime_type"]))?.unwrap_or_default();
    let json = spelled(config, ["responseJsonSchema", "response_json_schema"]);
    let json = spelled(config, [json, "_responseJsonSchema"]);
    let own = spelled(config, ["responseSchema", "response_schema"]);
    let schema = match (config.keep(at, json)?, config.keep(at, own)?) {
        (None, Some(own_schema)) => Some(schema::translate(&At::Field(at, own), &own_schema)?),
        (schema, _) => schema,
    };
    match (mime.as_ref(), schema) {
        ("text/x.enum", _) => {
            notes.say("the reply is not held to an enumeration: no policy is asked for text/x.enum");
            Ok(None)
        }
        (_, Some(schema)) => {
            let start = br#"{"type":"json_schema","json_schema":{"name":"response","schema":"#;
            Ok(Some(Raw::from_json([start, schema.as_bytes(), b"}}"].concat())))
        }
        ("application/json", None) => Ok(Some(Raw::from_json(br#"{"type":"json_object"}"#.to_vec()))),
        ("" | "text/plain", None) => Ok(None),
        (other, None) => {
            notes.say(format!("passed over the reply's type {other:?}: replies are text or JSON"));
            Ok(None)
        }
    }
}

/// Whether thoughts are to be parts of the reply, and how much is to be thought.
fn read_thinking(at: &At<'_>, config: &ConfigFields<'_>, notes: &mut Notes) -> Result<(bool, Option<Text>), Failure> {
    let name = spelled(config, ["thinkingConfig", "thinking_config"]);
    let Some(thinking) = config.object(at, name, &THINKING)? else { return Ok((false, None)) };
    let at = &At::Field(at, name);
    let thoughts = thinking.read(at, spelled(&thinking, ["includeThoughts", "include_thoughts"]), BOOLEAN)?;
    let level = thinking.string(at, spelled(&thinking, ["thinkingLevel", "thinking_level"]))?.unwrap_or_default();
    let level = level.to_ascii_lowercase();
    let effort = Some(level.as_str()).filter(|level| !matches!(*level, "" | "thinking_level_unspecified")).map(Text::new);
    // -1 leaves it to the model.
    let budget = integer(at, &thinking, ["thinkingBudget", "thinking_budget"])?.filter(|budget| *budget >= 0);
    if let Some(budget) = budget {
        notes.say(format!("passed over a thinkingBudget of {budget}: policies are told an effort, not a number of tokens"));
    }
    Ok((thoughts.unwrap_or(false), effort))
}

/// A whole number, also as the Python SDK writes some (`40.0`) and as this API may write long ones (`"40"`).
fn integer<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>, names: [&'static str; 2]) -> Result<Option<i64>, Failure> {
    let name = spelled(fields, names);
    let Some(value) = fields.value(name) else { return Ok(None) };
    whole(value).map(Some).ok_or_else(|| fields::wrong(&At::Field(at, name), INTEGER, value))
}

fn count<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>, names: [&'static str; 2]) -> Result<Option<u64>, Failure> {
    let name = spelled(fields, names);
    let Some(value) = fields.value(name) else { return Ok(None) };
    let whole = whole(value).and_then(|whole| u64::try_from(whole).ok());
    whole.map(Some).ok_or_else(|| fields::wrong(&At::Field(at, name), COUNT, value))
}

fn whole(value: &RawValue) -> Option<i64> {
    let json = value.get().trim_matches('"');
    if let Ok(whole) = json.parse() {
        return Some(whole);
    }
    // Digits that say nothing are all that may follow the point; a number beyond the range is refused.
    let (digits, zeros) = json.split_once('.')?;
    if zeros.bytes().all(|digit| digit == b'0') { digits.parse().ok() } else { None }
}
