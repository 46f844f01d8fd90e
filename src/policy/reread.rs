//! A call's tokens derived anew from its raw bytes, without a look at what was captured while it ran.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::capture::{self, Claim};
use super::decode::{Decoder, IdSource};
use super::names::Names;
use super::plain::Echo;
use crate::call::{Call, Capture, CaptureLevel, Fold, Prompt, RawParts};
use crate::wire::sse;

/// The largest event of a stream that is read.
const LARGEST_EVENT: usize = 256 << 20;

/// Reads the tokens of a call that has ended well from what came back for it, and its prompt from where the server tells it, or from
/// what went up where that was ids. `recorded` says only what no bytes tell: what the server's log-probabilities are of, and whether
/// the prompt was ours.
///
/// # Errors
/// Why the bytes can't be read.
pub fn reread(call: &Arc<Call>, raw: &RawParts, recorded: &Capture) -> Result<Capture, String> {
    let derived = match generated(raw) {
        Some(tokens) => tokens?.capture(recorded),
        None => completed(call, raw, recorded)?,
    };
    Ok(Capture { runs: recorded.runs.clone(), rendered: recorded.rendered.clone(), ..derived })
}

/// Replies in the form of completions, by the decoder that reads them when they come.
fn completed(call: &Arc<Call>, raw: &RawParts, recorded: &Capture) -> Result<Capture, String> {
    let echo = match &call.prompt {
        Some(Prompt::Text(text)) if call.wants.prompt && call.wants.logprobs => Echo::Servers(text.clone()),
        _ => Echo::No,
    };
    let mut decoder = Decoder::new(call, Names::of(call), source(&raw.response), echo, LARGEST_EVENT);
    let mut events = Vec::new();
    let read = if is_whole(&raw.response) {
        decoder.whole(&raw.response, &mut events)
    } else {
        decoder.push(&raw.response, &mut events).and_then(|()| decoder.finish(&mut events))
    };
    read.map_err(|failure| failure.message)?;
    let mut fold = Fold::default();
    for event in &events {
        fold.push(event);
    }
    let reply = fold.reply();
    let prompt = match tokenized(&raw.prompt)?.or_else(|| reply.prompt_ids.clone()).or_else(|| sent(&raw.upstream)) {
        Some(ids) => Ok(ids),
        None => Err("the raw bytes have no prompt ids".to_owned()),
    };
    let grammar = capture::asks_grammar(call) || decoder.grammar_held(&reply);
    // Where the prompt was ours, so was the word on what was held over the reply.
    let constrained = if recorded.rendered.is_some() { recorded.constrained } else { grammar || capture::asks_narrowed(call) };
    Ok(capture::check(Claim { prompt, logprob_kind: recorded.logprob_kind, constrained }, &reply))
}

/// Where the ids stand, by the names that only the one kind of server has. Inside a text these names have other quotes.
fn source(response: &[u8]) -> IdSource {
    let has = |name: &str| memchr::memmem::find(response, name.as_bytes()).is_some();
    match (has("\"sglext\""), has("\"token_ids\"")) {
        (true, _) => IdSource::Sglang,
        (false, true) => IdSource::TokenIds,
        (false, false) => IdSource::Entries,
    }
}

fn is_whole(response: &[u8]) -> bool {
    response.trim_ascii_start().starts_with(b"{")
}

/// The ids in a tokenizer's own answer; `None` if it was not asked.
fn tokenized(answer: &[u8]) -> Result<Option<Vec<u32>>, String> {
    #[derive(Deserialize)]
    struct Tokenized {
        tokens: Vec<u32>,
    }
    if answer.is_empty() {
        return Ok(None);
    }
    let read: Tokenized = serde_json::from_slice(answer).map_err(|error| format!("the prompt's answer: {error}"))?;
    Ok(Some(read.tokens))
}

/// The ids that went up as the prompt, by the servers' names for it.
fn sent(upstream: &[u8]) -> Option<Vec<u32>> {
    #[derive(Deserialize)]
    struct Sent {
        #[serde(alias = "token_ids", alias = "input_ids")]
        prompt: Vec<u32>,
    }
    serde_json::from_slice::<Sent>(upstream).ok().map(|sent| sent.prompt)
}

/// What a generate endpoint (`SGLang`'s `/generate`, llama.cpp's `/completion`, vLLM's `/inference/v1/generate`) said.
#[derive(Debug, Default)]
struct Generated {
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    logprobs: Vec<f64>,
}

/// Reads such a reply; `None` if it is one of completions.
fn generated(raw: &RawParts) -> Option<Result<Generated, String>> {
    let parts = match parts(&raw.response) {
        Ok(parts) => parts,
        Err(error) => return Some(Err(error)),
    };
    let first = parts.first()?;
    let mut read = Generated { prompt_ids: sent(&raw.upstream)?, ..Generated::default() };
    let form = FORMS.iter().find(|(is, _)| is(first))?.1;
    Some(
        parts
            .iter()
            .try_for_each(|part| form(part, &mut read).ok_or("a part of the reply is of another form"))
            .map_or_else(|error| Err(error.to_owned()), |()| Ok(read)),
    )
}

/// How a form is known by its first part, and how each part is read.
type Form = (fn(&Value) -> bool, fn(&Value, &mut Generated) -> Option<()>);

static FORMS: [Form; 3] = [
    (|part| part.get("meta_info").is_some(), sglang),
    (|part| part.get("completion_probabilities").is_some() || part.get("tokens").is_some(), llamacpp),
    (|part| part.get("request_id").is_some() && part.get("object").is_none(), vllm),
];

/// `meta_info.output_token_logprobs` is `[log-probability, id, text]` of each token: of all so far, or of what is new.
fn sglang(part: &Value, read: &mut Generated) -> Option<()> {
    let meta = part.get("meta_info")?;
    let entries = meta.get("output_token_logprobs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if meta.get("completion_tokens").and_then(Value::as_u64) == Some(entries.len() as u64) {
        (read.ids, read.logprobs) = <_>::default();
    }
    for entry in entries {
        read.logprobs.push(entry.get(0)?.as_f64()?);
        read.ids.push(id(entry.get(1)?)?);
    }
    Some(())
}

fn llamacpp(part: &Value, read: &mut Generated) -> Option<()> {
    for token in part.get("tokens").and_then(Value::as_array).into_iter().flatten() {
        read.ids.push(id(token)?);
    }
    for entry in part.get("completion_probabilities").and_then(Value::as_array).into_iter().flatten() {
        read.logprobs.push(entry.get("logprob")?.as_f64()?);
    }
    Some(())
}

fn vllm(part: &Value, read: &mut Generated) -> Option<()> {
    let Some(choice) = part.get("choices").and_then(|choices| choices.get(0)) else { return Some(()) };
    for token in choice.get("token_ids").and_then(Value::as_array).into_iter().flatten() {
        read.ids.push(id(token)?);
    }
    for entry in choice.pointer("/logprobs/content").and_then(Value::as_array).into_iter().flatten() {
        read.logprobs.push(entry.get("logprob")?.as_f64()?);
    }
    Some(())
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

impl Generated {
    fn capture(mut self, recorded: &Capture) -> Capture {
        // A reply that was resumed went up again with what it had so far.
        let again = self.prompt_ids.len().saturating_sub(recorded.prompt_ids.len()).min(self.ids.len());
        if again > 0 && self.prompt_ids.ends_with(&self.ids[..again]) {
            self.prompt_ids.truncate(self.prompt_ids.len() - again);
        }
        let full = self.logprobs.len() == self.ids.len() && self.logprobs.iter().all(|logprob| capture::is_logprob(*logprob));
        Capture {
            level: if full { CaptureLevel::Full } else { CaptureLevel::Ids },
            prompt_ids: self.prompt_ids,
            completion_ids: self.ids,
            logprobs: if full { self.logprobs } else { Vec::new() },
            logprob_kind: recorded.logprob_kind,
            constrained: recorded.constrained,
            ..Capture::default()
        }
    }
}

/// The JSON values of a response: one of a whole body, one an event of a stream.
fn parts(response: &Bytes) -> Result<Vec<Value>, String> {
    if is_whole(response) {
        return serde_json::from_slice(response).map(|body| vec![body]).map_err(|error| error.to_string());
    }
    let (mut decoder, mut events) = (sse::Decoder::new(LARGEST_EVENT), Vec::new());
    decoder.push(response, &mut events).map_err(|error| error.to_string())?;
    events.extend(decoder.finish().map_err(|error| error.to_string())?);
    let data = events.iter().map(|event| event.data.trim_ascii()).filter(|data| !data.is_empty() && *data != b"[DONE]");
    Ok(data.filter_map(|data| serde_json::from_slice(data).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{LogprobKind, Rendered};
    use crate::policy::stub::call;

    fn raw(upstream: &str, response: &str, prompt: &str) -> RawParts {
        let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
        RawParts { upstream: bytes(upstream), response: bytes(response), prompt: bytes(prompt) }
    }

    /// Level, prompt, ids and log-probabilities.
    type Tokens = (CaptureLevel, Vec<u32>, Vec<u32>, Vec<f64>);

    /// What the raw bytes say.
    fn read(raw: &RawParts) -> Result<Tokens, String> {
        let recorded = Capture { logprob_kind: LogprobKind::Raw, prompt_ids: vec![1, 2], ..Capture::default() };
        let capture = reread(&Arc::new(call()), raw, &recorded)?;
        assert_eq!(capture.logprob_kind, LogprobKind::Raw);
        Ok((capture.level, capture.prompt_ids, capture.completion_ids, capture.logprobs))
    }

    fn whole() -> Tokens {
        (CaptureLevel::Full, vec![1, 2], vec![7, 8], vec![-0.5, -0.25])
    }

    const USAGE: &str = r#""usage":{"prompt_tokens":2,"completion_tokens":2}"#;

    #[test]
    fn completions_are_read_by_the_names_that_their_server_has() {
        let content = r#""logprobs":{"content":[{"token":"a","logprob":-0.5},{"token":"b","logprob":-0.25}]}"#;
        let vllm = format!(
            r#"{{"prompt_token_ids":[1,2],"choices":[{{"message":{{"content":"\"sglext\""}},"token_ids":[7,8],{content},"finish_reason":"stop"}}],{USAGE}}}"#
        );
        assert_eq!(read(&raw("{}", &vllm, "")), Ok(whole()));
        let stream = [
            r#"{"prompt_token_ids":[1,2],"choices":[{"delta":{"content":""}}]}"#.to_owned(),
            format!(r#"{{"choices":[{{"delta":{{"content":"ab"}},"token_ids":[7,8],{content},"finish_reason":"stop"}}]}}"#),
            format!(r#"{{"choices":[],{USAGE}}}"#),
            "[DONE]".to_owned(),
        ];
        let stream: String = stream.iter().flat_map(|data| ["data: ", data.as_str(), "\n\n"]).collect();
        assert_eq!(read(&raw("{}", &stream, "")), Ok(whole()));
        let entries = r#""logprobs":{"content":[{"id":7,"token":"a","logprob":-0.5},{"id":8,"token":"b","logprob":-0.25}]}"#;
        let llamacpp = format!(r#"{{"choices":[{{"message":{{"content":"ab"}},{entries},"finish_reason":"stop"}}],{USAGE}}}"#);
        assert_eq!(read(&raw("{}", &llamacpp, r#"{"tokens":[1,2]}"#)), Ok(whole()));
        let sglang = format!(
            "data: {{\"choices\":[{{\"delta\":{{\"content\":\"ab\"}},{content},\"finish_reason\":\"stop\"}}]}}\n\n\
             data: {{\"choices\":[],\"sglext\":{{\"input_ids\":[1,2],\"output_ids\":[[7,8]]}},{USAGE}}}\n\ndata: [DONE]\n\n"
        );
        assert_eq!(read(&raw("{}", &sglang, "")), Ok(whole()));
    }

    #[test]
    fn generate_endpoints_have_their_prompt_in_what_went_up() {
        let sglang = r#"{"text":"ab","output_ids":[7,8],"meta_info":{"completion_tokens":2,"output_token_logprobs":[[-0.5,7,null],[-0.25,8,null]]}}"#;
        assert_eq!(read(&raw(r#"{"input_ids":[1,2]}"#, sglang, "")), Ok(whole()));
        // Each event tells all so far, or only what is new.
        let so_far = |count: usize, entries: &str| {
            format!("data: {{\"meta_info\":{{\"completion_tokens\":{count},\"output_token_logprobs\":[{entries}]}}}}\n\n")
        };
        let all = so_far(1, "[-0.5,7,null]") + &so_far(2, "[-0.5,7,null],[-0.25,8,null]") + "data: [DONE]\n\n";
        let new = so_far(1, "[-0.5,7,null]") + &so_far(2, "[-0.25,8,null]") + "data: [DONE]\n\n";
        for stream in [all, new] {
            assert_eq!(read(&raw(r#"{"input_ids":[1,2]}"#, &stream, "")), Ok(whole()));
        }
        let llamacpp =
            r#"{"content":"ab","tokens":[7,8],"completion_probabilities":[{"id":7,"logprob":-0.5},{"id":8,"logprob":-0.25}]}"#;
        assert_eq!(read(&raw(r#"{"prompt":[1,2]}"#, llamacpp, "")), Ok(whole()));
        let vllm =
            r#"{"request_id":"r","choices":[{"token_ids":[7,8],"logprobs":{"content":[{"logprob":-0.5},{"logprob":-0.25}]}}]}"#;
        assert_eq!(read(&raw(r#"{"token_ids":[1,2]}"#, vllm, "")), Ok(whole()));
        // A reply that was resumed: the first token went up again.
        assert_eq!(read(&raw(r#"{"token_ids":[1,2,7]}"#, vllm, "")), Ok(whole()));
        assert_eq!(read(&raw(r#"{"token_ids":[1,2,9]}"#, vllm, "")).unwrap().1, [1, 2, 9]);
    }

    #[test]
    fn completions_of_ids_have_their_prompt_in_what_went_up_too() {
        let said = format!(
            r#"{{"object":"text_completion","choices":[{{"text":"ab","token_ids":[7,8],"logprobs":{{"tokens":["a","b"],"token_logprobs":[-0.5,-0.25]}},"finish_reason":"stop"}}],{USAGE}}}"#
        );
        let recorded = Capture { rendered: Some(Rendered::default()), constrained: true, ..Capture::default() };
        let capture = reread(&Arc::new(call()), &raw(r#"{"prompt":[1,2]}"#, &said, ""), &recorded).unwrap();
        assert_eq!((capture.level, capture.prompt_ids, capture.completion_ids), (CaptureLevel::Full, vec![1, 2], vec![7, 8]));
        assert!(capture.constrained && capture.rendered.is_some(), "what no bytes tell stays");
    }

    #[test]
    fn what_does_not_add_up_is_not_full() {
        let short = format!(
            r#"{{"prompt_token_ids":[1,2],"choices":[{{"message":{{"content":"a"}},"token_ids":[7],"finish_reason":"stop"}}],{USAGE}}}"#
        );
        assert_eq!(read(&raw("{}", &short, "")).unwrap().0, CaptureLevel::Text);
        let lost = r#"{"meta_info":{"completion_tokens":1,"output_token_logprobs":[[0.5,7,null]]}}"#;
        assert_eq!(read(&raw(r#"{"input_ids":[1,2]}"#, lost, "")).unwrap().0, CaptureLevel::Ids);
        let placeholder = lost.replace("0.5", "-9999.0");
        assert_eq!(read(&raw(r#"{"input_ids":[1,2]}"#, &placeholder, "")).unwrap().0, CaptureLevel::Ids);
        assert!(read(&raw("{}", "", "")).is_err());
        assert!(read(&raw("{}", "{\"choices\":", "")).is_err());
        assert!(read(&raw("{}", &short, "no JSON")).unwrap_err().contains("prompt"));
    }
}
