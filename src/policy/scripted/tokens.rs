//! The scripted policy's tokenizer, chat template and log-probabilities: small, whole, and the same in every process.
//!
//! Up to three ASCII characters are one token, any other character one of its own; its id says which. A conversation is written
//! with control tokens between its parts, an earlier reply exactly as it was sampled. So a prompt goes on from an earlier exchange
//! token by token if, and only if, the harness sends back what was said.

use serde_json::Value;

use super::script::{Turn, functions};

/// Control tokens: ids that no text has.
const END: u32 = 1;
const TOOL: u32 = 2;
const IMAGE: u32 = 3;
const THINK: u32 = 4;
const THOUGHT: u32 = 5;
const CALL: u32 = 6;
const ARGUMENTS: u32 = 7;
const SYSTEM: u32 = 8;
const USER: u32 = 9;
const RESULT: u32 = 10;
const ASSISTANT: u32 = 11;

/// What a token of a reply is a piece of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Reasoning(String),
    Text(String),
    /// The first token of a call: the name is told whole there, as servers' parsers do.
    Call(String),
    Arguments(String),
    /// Seen by a server's parsers only.
    Hidden,
}

/// One sampled token.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Token {
    pub id: u32,
    /// What it reads as.
    pub text: String,
    pub piece: Piece,
    pub logprob: f64,
}

/// Splits a text into its tokens' texts.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let ascii = rest.bytes().take(3).take_while(u8::is_ascii).count();
        let length = if ascii > 0 { ascii } else { rest.chars().next()?.len_utf8() };
        let (token, left) = rest.split_at(length);
        rest = left;
        Some(token)
    })
}

/// The id of a token's text: ASCII bytes and, on top, how many they are; else the character's number.
fn id(token: &str) -> u32 {
    match *token.as_bytes() {
        [a] => u32::from_le_bytes([a, 0, 0, 1]),
        [a, b] if a.is_ascii() => u32::from_le_bytes([a, b, 0, 2]),
        [a, b, c] if a.is_ascii() => u32::from_le_bytes([a, b, c, 3]),
        _ => token.chars().next().map_or(END, u32::from),
    }
}

fn encode(text: &str, ids: &mut Vec<u32>) {
    ids.extend(split(text).map(id));
}

/// The ids of a request's prompt.
pub(super) fn prompt(request: &Value) -> Vec<u32> {
    let mut ids = Vec::new();
    for function in functions(request) {
        ids.push(TOOL);
        encode(&function.to_string(), &mut ids);
        ids.push(END);
    }
    for message in request["messages"].as_array().into_iter().flatten() {
        let role = match message["role"].as_str() {
            Some("system" | "developer") => SYSTEM,
            Some("assistant") => ASSISTANT,
            Some("tool") => RESULT,
            _ => USER,
        };
        ids.push(role);
        if role == ASSISTANT {
            ids.extend(said(message).iter().map(|(id, ..)| id));
        } else {
            encode(&content(&message["content"]), &mut ids);
            let parts = message["content"].as_array().into_iter().flatten();
            ids.extend(parts.filter(|part| part["type"] == "image_url").map(|_| IMAGE));
            ids.push(END);
        }
    }
    ids.push(ASSISTANT);
    ids
}

/// A message's text, whether it came as a string or in parts.
pub(super) fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// A token without its log-probability.
type Written = (u32, String, Piece);

/// An earlier turn, as it came back.
fn said(message: &Value) -> Vec<Written> {
    let reasoning = message["reasoning"].as_str().unwrap_or_default();
    let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
        let function = &call["function"];
        let text = |name: &str| function[name].as_str().unwrap_or_default();
        (text("name").to_owned(), text("arguments").to_owned())
    });
    write(reasoning, &content(&message["content"]), &calls.collect::<Vec<_>>())
}

/// A turn in tokens. Arguments are written by what they mean, as templates write them.
fn write(reasoning: &str, text: &str, calls: &[(String, String)]) -> Vec<Written> {
    let mut out: Vec<Written> = Vec::new();
    let hidden = |id| (id, String::new(), Piece::Hidden);
    let pieces = |text: &str, piece: fn(String) -> Piece| -> Vec<Written> {
        split(text).map(|token| (id(token), token.to_owned(), piece(token.to_owned()))).collect()
    };
    if !reasoning.is_empty() {
        out.push(hidden(THINK));
        out.extend(pieces(reasoning, Piece::Reasoning));
        out.push(hidden(THOUGHT));
    }
    out.extend(pieces(text, Piece::Text));
    for (name, arguments) in calls {
        let meaning = serde_json::from_str::<Value>(arguments).map_or_else(|_| arguments.clone(), |value| value.to_string());
        out.push((CALL, String::new(), Piece::Call(name.clone())));
        out.extend(split(name).map(|token| (id(token), token.to_owned(), Piece::Hidden)));
        out.push(hidden(ARGUMENTS));
        out.extend(pieces(&meaning, Piece::Arguments));
    }
    out.push(hidden(END));
    out
}

/// How likely tokens are: each by its seed, all that stands before it, and itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Likelihood(u64);

impl Likelihood {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed ^ 0xcbf2_9ce4_8422_2325)
    }

    /// Takes the next token of a sequence and gives its log-probability: some millionths below 0, so that it is written in
    /// decimal and read again without loss.
    pub(super) fn next(&mut self, id: u32) -> f64 {
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        let mut mixed = self.0;
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb_u64] {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
        }
        let millionths = u32::try_from((mixed >> 32) % 8_000_000).unwrap_or_default() + 1;
        -f64::from(millionths) / 1e6
    }
}

/// Samples a turn after a prompt: its tokens, the end included.
pub(super) fn sample(turn: &Turn, prompt: &[u32], seed: u64) -> Vec<Token> {
    let mut likelihood = Likelihood::new(seed);
    for id in prompt {
        likelihood.next(*id);
    }
    let calls: Vec<(String, String)> = turn.call.iter().cloned().collect();
    let written = write(&turn.reasoning, &turn.text, &calls);
    written.into_iter().map(|(id, text, piece)| Token { id, text, piece, logprob: likelihood.next(id) }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn turn() -> Turn {
        let call = Some(("bash".to_owned(), r#"{"command":"echo \"ü\" 𝄞"}"#.to_owned()));
        Turn { reasoning: "so".to_owned(), text: "I use it.".to_owned(), call, guessed: false }
    }

    fn ids(tokens: &[Token]) -> Vec<u32> {
        tokens.iter().map(|token| token.id).collect()
    }

    #[test]
    fn ids_tell_texts_apart_and_pieces_join_to_what_was_said() {
        let mut seen = std::collections::HashMap::new();
        for text in ["a", "ab", "abc", "b", "ba", "\0", "\u{1}\0", "é", "ü", "𝄞", "한"] {
            let tokens: Vec<&str> = split(text).collect();
            assert_eq!(tokens, [text], "one token");
            assert_eq!(seen.insert(id(text), text), None, "{text:?} and another have one id");
            assert!(id(text) > ASSISTANT, "{text:?} is no control token");
        }
        let sampled = sample(&turn(), &[1], 0);
        let arguments: String = sampled
            .iter()
            .filter_map(|token| match &token.piece {
                Piece::Arguments(piece) => Some(piece.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(arguments, turn().call.unwrap().1);
    }

    #[test]
    fn the_next_prompt_goes_on_from_a_reply_that_came_back() {
        let question = json!({"role": "user", "content": "q"});
        let tools = json!([{"type": "function", "function": {"name": "bash", "parameters": {"z": 1, "a": 2}}}]);
        let first = prompt(&json!({"tools": tools, "messages": [question]}));
        let whole = [first.clone(), ids(&sample(&turn(), &first, 7))].concat();
        let back =
            |message: Value| prompt(&json!({"tools": tools, "messages": [question, message, {"role": "tool", "content": "r"}]}));
        let arguments = "{ \"command\" : \"echo \\\"\\u00fc\\\" 𝄞\" }";
        let call = |arguments: &str| json!([{"id": "other", "function": {"name": "bash", "arguments": arguments}}]);
        let echoed = json!({"role": "assistant", "reasoning": "so", "content": [{"type": "text", "text": "I use it."}],
            "tool_calls": call(arguments)});
        assert!(back(echoed.clone()).starts_with(&whole), "spelt otherwise it is the same");
        for (field, other) in [("reasoning", json!(null)), ("content", json!("I used it.")), ("tool_calls", call("{}"))] {
            let mut changed = echoed.clone();
            changed[field] = other;
            assert!(!back(changed).starts_with(&whole), "another {field} is other tokens");
        }
    }

    #[test]
    fn a_token_is_as_likely_as_all_before_it_make_it() {
        let (once, again) = (sample(&turn(), &[1, 2], 7), sample(&turn(), &[1, 2], 7));
        assert_eq!(once, again);
        for other in [sample(&turn(), &[1, 3], 7), sample(&turn(), &[1, 2], 8)] {
            assert!(once.iter().zip(&other).all(|(one, other)| one.id == other.id && one.logprob < 0.0));
            assert!(once.iter().zip(&other).all(|(one, other)| one.logprob.to_bits() != other.logprob.to_bits()));
        }
    }
}
