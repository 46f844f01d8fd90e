//! Completions' chunk and whole body as servers send them, borrowed from their bytes. One form reads all: a whole body's `message` is a
//! `delta` that holds everything, and so is the `text` of a reply to a prompt that is no conversation.

use serde::Deserialize;
use serde::de::Deserializer;
use serde_json::value::RawValue;

use super::scan::Reader;

/// A chunk, or a whole body.
#[derive(Default)]
pub(super) struct Chunk<'a> {
    pub error: Option<&'a str>,
    /// The first; Gleaner asks for one choice only.
    pub choice: Option<Choice<'a>>,
    pub usage: Option<CountedUsage>,
    pub prompt_token_ids: Option<Vec<u32>>,
    pub verbose: Option<Verbose>,
    /// `SGLang`'s ids of prompt and reply, at the end of a stream.
    pub sglext: Option<Sglext>,
    /// `SGLang`'s word on its weights.
    pub metadata: Option<Metadata>,
    /// Tells an error in vLLM's older form (`"object": "error"`), whose message stands beside it.
    pub is_error: bool,
}

/// Fields that have no place of their own: the name as it is spelt between its quotes, and the value.
pub(super) type Unknown<'a> = Vec<(&'a str, &'a str)>;

/// One choice. Values are texts of JSON; null is none.
#[derive(Default)]
pub(super) struct Choice<'a> {
    pub delta: Delta<'a>,
    /// As it is spelt, with its quotes.
    pub finish_reason: Option<&'a str>,
    pub token_ids: Option<Vec<u32>>,
    /// Where there is no conversation, the prompt's ids stand here.
    pub prompt_token_ids: Option<Vec<u32>>,
    pub logprobs: Option<&'a str>,
    /// What `logprobs` holds for each token.
    pub entries: Vec<LogprobEntry>,
    pub unknown: Unknown<'a>,
}

/// What a choice says.
#[derive(Default)]
pub(super) struct Delta<'a> {
    pub content: Option<&'a str>,
    pub reasoning: Option<&'a str>,
    pub reasoning_content: Option<&'a str>,
    pub refusal: Option<&'a str>,
    pub tool_calls: Option<Vec<ToolDelta<'a>>>,
    pub unknown: Unknown<'a>,
}

impl<'a> Chunk<'a> {
    /// Reads a chunk or a whole body; `logprobs` says whether the text of a choice's log-probabilities is wanted beside their
    /// values. `None` if it is no JSON object of that kind.
    pub(super) fn read(text: &'a str, logprobs: bool) -> Option<Self> {
        let mut chunk = Self::default();
        let mut reader = Reader::new(text);
        reader.object(|name, reader| {
            match name {
                "error" => chunk.error = reader.value_or_null()?,
                "choices" => chunk.choice = choices(reader, logprobs)?,
                "usage" => chunk.usage = typed(reader)?,
                "prompt_token_ids" => chunk.prompt_token_ids = reader.ids()?,
                "sglext" => chunk.sglext = typed(reader)?,
                "metadata" => chunk.metadata = typed(reader)?,
                "__verbose" => chunk.verbose = typed(reader)?,
                "object" => chunk.is_error = reader.value()? == "\"error\"",
                _ => reader.skip()?,
            }
            Some(())
        })?;
        reader.is_at_end().then_some(chunk)
    }
}

fn choices<'a>(reader: &mut Reader<'a>, logprobs: bool) -> Option<Option<Choice<'a>>> {
    if reader.peek()? == b'n' {
        return reader.value().map(|_| None);
    }
    let mut first = None;
    reader.list(|reader| {
        if first.is_none() {
            first = Some(Choice::read(reader, logprobs)?);
        } else {
            reader.skip()?;
        }
        Some(())
    })?;
    Some(first)
}

/// A value that is small or rare; serde reads it.
fn typed<'a, T: Deserialize<'a>>(reader: &mut Reader<'a>) -> Option<Option<T>> {
    match reader.value_or_null()? {
        Some(value) => serde_json::from_str(value).ok().map(Some),
        None => Some(None),
    }
}

/// Keeps a field that nobody knows, unless it says nothing.
fn keep<'a>(unknown: &mut Unknown<'a>, name: &'a str, reader: &mut Reader<'a>) -> Option<()> {
    if let Some(value) = reader.value_or_null()? {
        unknown.push((name, value));
    }
    Some(())
}

impl<'a> Choice<'a> {
    fn read(reader: &mut Reader<'a>, logprobs: bool) -> Option<Self> {
        let mut choice = Self::default();
        reader.object(|name, reader| {
            match name {
                "delta" | "message" => choice.delta = Delta::read(reader)?,
                "finish_reason" => choice.finish_reason = reader.value_or_null()?,
                "token_ids" | "response_token_ids" => choice.token_ids = reader.ids()?,
                "prompt_token_ids" => choice.prompt_token_ids = reader.ids()?,
                // What a reply to a prompt says that is no conversation.
                "text" => choice.delta.content = reader.value_or_null()?,
                "logprobs" if logprobs => {
                    choice.logprobs = reader.value_or_null()?;
                    if let Some(text) = choice.logprobs {
                        choice.entries = entries(&mut Reader::new(text))?;
                    }
                }
                "logprobs" => choice.entries = entries(reader)?,
                "index" => reader.skip()?,
                _ => keep(&mut choice.unknown, name, reader)?,
            }
            Some(())
        })?;
        Some(choice)
    }
}

impl<'a> Delta<'a> {
    fn read(reader: &mut Reader<'a>) -> Option<Self> {
        let mut delta = Self::default();
        if reader.peek()? == b'n' {
            return reader.value().map(|_| delta);
        }
        reader.object(|name, reader| {
            match name {
                "content" => delta.content = reader.value_or_null()?,
                "reasoning" => delta.reasoning = reader.value_or_null()?,
                "reasoning_content" => delta.reasoning_content = reader.value_or_null()?,
                "refusal" => delta.refusal = reader.value_or_null()?,
                "tool_calls" => delta.tool_calls = typed(reader)?,
                "role" => reader.skip()?,
                _ => keep(&mut delta.unknown, name, reader)?,
            }
            Some(())
        })?;
        Some(delta)
    }
}

/// Reads the entries of a choice's `logprobs`, in their order; one that is no object is empty. In a form that is new to us there
/// are none: they count as lost, and the capture check says so.
fn entries(reader: &mut Reader) -> Option<Vec<LogprobEntry>> {
    let mut entries = Vec::new();
    if reader.peek()? != b'{' {
        return reader.skip().map(|()| entries);
    }
    reader.object(|name, reader| {
        // The old form, of replies to prompts, has lists of numbers beside each other.
        if name == "token_logprobs" && reader.peek()? == b'[' {
            return reader.list(|reader| {
                entries.push(LogprobEntry { logprob: reader.number()?, id: None });
                Some(())
            });
        }
        if name != "content" || reader.peek()? != b'[' {
            return reader.skip();
        }
        reader.list(|reader| {
            let mut entry = LogprobEntry::default();
            if reader.peek()? == b'{' {
                reader.object(|name, reader| {
                    match name {
                        "logprob" => entry.logprob = reader.number()?,
                        "id" | "token_id" => entry.id = reader.number()?,
                        _ => reader.skip()?,
                    }
                    Some(())
                })?;
            } else {
                reader.skip()?;
            }
            entries.push(entry);
            Some(())
        })
    })?;
    Some(entries)
}

/// A piece of a tool call, or a whole one.
#[derive(Deserialize)]
pub(super) struct ToolDelta<'a> {
    pub index: Option<i64>,
    #[serde(borrow)]
    pub id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub function: Option<FunctionDelta<'a>>,
}

/// The function's part of it.
#[derive(Deserialize, Default)]
pub(super) struct FunctionDelta<'a> {
    #[serde(borrow)]
    pub name: Option<&'a RawValue>,
    #[serde(borrow)]
    pub arguments: Option<&'a RawValue>,
}

/// One token's log-probability.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LogprobEntry {
    pub logprob: Option<f64>,
    /// The sampled token's id, in replies of llama.cpp and of vLLM's generate endpoint.
    pub id: Option<u32>,
}

/// Token counts.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CountedUsage {
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    pub prompt_tokens_details: Option<PromptDetails>,
    pub completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct PromptDetails {
    pub cached_tokens: Option<u64>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct CompletionDetails {
    pub reasoning_tokens: Option<u64>,
}

/// llama.cpp's account of a reply, asked for by `verbose`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Verbose {
    pub tokens: Vec<u32>,
    /// The stop string that was hit; empty if none was.
    pub stopping_word: String,
    pub generation_settings: GenerationSettings,
}

#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct GenerationSettings {
    pub grammar: Grammar,
    pub grammar_lazy: bool,
}

/// Whether there is a grammar; its text, which can be long, is passed over.
#[derive(Default)]
pub(super) struct Grammar(pub bool);

impl<'de> Deserialize<'de> for Grammar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&RawValue>::deserialize(deserializer)?;
        Ok(Self(!matches!(raw.get(), "\"\"" | "null")))
    }
}

/// What `SGLang` adds to a reply.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Sglext {
    pub input_ids: Option<Vec<u32>>,
    /// For each choice.
    pub output_ids: Option<Vec<Vec<u32>>>,
}

/// A server's word on which weights sampled a run of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct VersionSpan {
    pub version: String,
    pub start: usize,
}

/// Which weights sampled a reply.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Metadata {
    pub weight_version: Option<String>,
    pub weight_versions: Vec<VersionSpan>,
}

impl Metadata {
    /// The runs of one version each.
    pub(super) fn spans(self) -> Vec<VersionSpan> {
        if !self.weight_versions.is_empty() {
            return self.weight_versions;
        }
        self.weight_version.map(|version| VersionSpan { version, start: 0 }).into_iter().collect()
    }
}
