//! Gemini: chunks joined as google-genai's users do, whose Python reader takes only lines that begin with `data: `.

use super::{Reader, Request, Seen, SeenTool, list, object, place, seen};
use crate::call::{FinishReason, Reply};
use crate::json::{self, Json, Units};

pub(super) struct Gemini;

const THOUGHTS: &str =
    r#"{"contents":[{"parts":[{"text":"go"}]}],"generationConfig":{"thinkingConfig":{"includeThoughts":true}}}"#;
const SEVERAL: &str = r#"{"contents":[{"parts":[{"text":"go"}]}],"generationConfig":{"candidateCount":3,"thinkingConfig":{"includeThoughts":true}}}"#;

impl Reader for Gemini {
    fn wire(&self) -> &'static str {
        "gemini"
    }

    fn requests(&self) -> &'static [Request] {
        const EVENTS: &str = "/models/m:streamGenerateContent?alt=sse";
        const ARRAY: &str = "/models/m:streamGenerateContent";
        &[(EVENTS, THOUGHTS), (ARRAY, THOUGHTS), (EVENTS, SEVERAL), (ARRAY, SEVERAL)]
    }

    fn has_refusals(&self) -> bool {
        false
    }

    fn expected(&self, reply: &Reply) -> Seen {
        let mut seen = seen(reply);
        let arguments = |tool: &SeenTool| match &tool.arguments {
            Json::String(text) if text.lossy().trim().is_empty() => Some(Json::Object(Vec::new())),
            Json::String(text) => object(text),
            _ => None,
        };
        let cut = reply.finish == Some(FinishReason::Length);
        // A call that was cut before its arguments began is no call.
        if cut && seen.tools.last().is_some_and(|tool| tool.arguments == Json::String(Units::default())) {
            seen.tools.pop();
        }
        let malformed = seen.tools.iter().any(|tool| arguments(tool).is_none());
        seen.finish = match reply.finish {
            Some(FinishReason::Length) => "MAX_TOKENS",
            Some(FinishReason::ContentFilter) => "SAFETY",
            _ if !seen.refusal.is_empty() => "SAFETY",
            _ if malformed => "MALFORMED_FUNCTION_CALL",
            _ => "STOP",
        }
        .to_owned();
        let refusal = std::mem::take(&mut seen.refusal);
        seen.text.push(&refusal);
        let whole = seen.tools.iter().filter_map(|tool| Some(SeenTool { arguments: arguments(tool)?, ..tool.clone() }));
        seen.tools = if seen.finish == "MALFORMED_FUNCTION_CALL" { Vec::new() } else { whole.collect() };
        seen
    }

    fn stream(&self, request: Request, choices: usize, live: &[u8], held: &[u8]) -> Vec<Seen> {
        let mut replies = vec![Seen::default(); choices];
        let chunks = if request.0.contains("alt=sse") { lines(live).chain(lines(held)).collect() } else { array(live, held) };
        for (early, chunk) in chunks {
            add(&mut replies, &chunk);
            assert!(
                !early || replies.iter().all(|reply| reply.finish.is_empty() && reply.tools.is_empty()),
                "an end leaves early"
            );
        }
        assert!(replies.iter().all(|reply| !reply.finish.is_empty()), "every reply ends");
        replies
    }

    fn whole(&self, body: &[u8]) -> Vec<Seen> {
        let body = json::ours(body);
        let mut replies = vec![Seen::default(); list(body.get("candidates")).len()];
        add(&mut replies, &body);
        replies
    }
}

/// The chunks of server-sent events, as the Python SDK reads them; the first half left before the record was committed.
fn lines(stream: &[u8]) -> impl Iterator<Item = (bool, Json)> + '_ {
    let early = !contains(stream, b"\"finishReason\"");
    stream.split(|byte| matches!(byte, b'\n' | b'\r')).filter(|line| !line.is_empty()).map(move |line| {
        let data = line.strip_prefix(b"data: ").expect("a line begins with data");
        (early, json::ours(data))
    })
}

/// The chunks of an array. Nothing of an end may stand in what left early.
fn array(live: &[u8], held: &[u8]) -> Vec<(bool, Json)> {
    assert!(!contains(live, b"\"finishReason\"") && !contains(live, b"\"functionCall\""));
    let whole = json::ours(&[live, held].concat());
    assert!(matches!(whole, Json::List(_)), "an array");
    whole.items().iter().map(|chunk| (false, chunk.clone())).collect()
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

fn add(replies: &mut [Seen], chunk: &Json) {
    if chunk.has("usageMetadata") {
        replies[0].usage = usage(chunk.get("usageMetadata"));
    }
    for candidate in list(chunk.get("candidates")) {
        let reply = &mut replies[candidate.get("index").number().map_or(0, |_| place(candidate.get("index")))];
        assert!(reply.finish.is_empty(), "nothing of a candidate follows its end");
        assert_eq!(candidate.at(&["content", "role"]).plain(), "model");
        assert!(!list(candidate.at(&["content", "parts"])).is_empty(), "clients take a chunk without parts for a broken one");
        for part in list(candidate.at(&["content", "parts"])) {
            if part.has("functionCall") {
                let call = part.get("functionCall");
                assert!(matches!(call.get("args"), Json::Object(_)), "arguments are an object");
                let (id, name, arguments) = (call.get("id").text(), call.get("name").text(), call.get("args").clone());
                reply.tools.push(SeenTool { custom: false, namespace: Units::default(), id, name, arguments });
            } else if *part.get("thought") == Json::Bool(true) {
                reply.reasoning.push(&part.get("text").text());
            } else {
                reply.text.push(&part.get("text").text());
            }
        }
        reply.finish = candidate.get("finishReason").plain();
    }
}

fn usage(usage: &Json) -> Option<[u64; 4]> {
    let count = |name| usage.get(name).number().unwrap_or_default();
    let (prompt, thoughts) = (count("promptTokenCount"), count("thoughtsTokenCount"));
    let completion = count("candidatesTokenCount") + thoughts;
    assert_eq!(count("totalTokenCount"), prompt + completion);
    Some([prompt, completion, count("cachedContentTokenCount"), thoughts])
}
