//! A toy tokenizer and a seeded sampler: what was "sampled" is known, and no re-encoding could give it.

use serde_json::Value;

use super::script::Reply;

/// Ends a message of the prompt, and a reply.
pub const END: u32 = 2;
/// Opens the assistant's turn.
const ASSISTANT: u32 = 3;
/// Stands after a reply in the prompt of the next turn: a token that only the template knows.
const AFTER_REPLY: u32 = 4;
/// Stand where an image was: its embedding replaces them, so that all images have the same ids.
const IMAGE_START: u32 = 5;
const IMAGE: u32 = 6;
const IMAGE_END: u32 = 7;

/// Draws ids that no prompt word has, and log-probabilities.
#[derive(Debug)]
pub struct Sampler(pub u64);

impl Sampler {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn token(&mut self, piece: Piece) -> Token {
        let id = if matches!(piece, Piece::End) { END } else { 100_000 + u32::try_from(self.draw() % 50_000).unwrap() };
        let millionths = u32::try_from(self.draw() % 9_000_000).unwrap();
        let text = piece.spoken().to_owned();
        Token { piece, text, id, logprob: -f64::from(millionths + 1) / 1e6 }
    }

    /// Samples a reply: one token a piece, the end included.
    pub fn sample(&mut self, reply: &Reply, number: usize) -> Vec<Token> {
        let mut pieces = Vec::new();
        if let Some(reasoning) = &reply.reasoning {
            pieces.extend(split(reasoning).map(Piece::Reasoning));
            pieces.push(Piece::Hidden);
        }
        if let Some(text) = &reply.text {
            let text = text.replace("{n}", &number.to_string());
            pieces.extend(split(&text).map(Piece::Text));
        }
        pieces.extend(reply.refusal.as_deref().into_iter().flat_map(split).map(Piece::Refusal));
        let mut fragments: Vec<Vec<Piece>> = Vec::new();
        for (index, call) in reply.tool_calls.iter().enumerate() {
            let id = format!("chatcmpl-tool-{number}-{index}");
            let mut call_pieces = vec![Piece::ToolStart { index, id, name: call.name.clone() }];
            call_pieces.extend(split(&call.arguments).map(|fragment| Piece::ToolArguments { index, fragment }));
            fragments.push(call_pieces);
        }
        if reply.interleave {
            let longest = fragments.iter().map(Vec::len).max().unwrap_or_default();
            for at in 0..longest {
                pieces.extend(fragments.iter().filter_map(|call| call.get(at).cloned()));
            }
        } else {
            pieces.extend(fragments.into_iter().flatten());
        }
        pieces.push(Piece::End);
        pieces.into_iter().map(|piece| self.token(piece)).collect()
    }
}

/// One sampled token.
#[derive(Clone, Debug)]
pub struct Token {
    /// What the server's parsers made of it.
    pub piece: Piece,
    /// What it reads as, also where a stop string cut its piece.
    pub text: String,
    pub id: u32,
    pub logprob: f64,
}

/// What a token says.
#[derive(Clone, Debug)]
pub enum Piece {
    Reasoning(String),
    Text(String),
    Refusal(String),
    ToolStart {
        index: usize,
        id: String,
        name: String,
    },
    ToolArguments {
        index: usize,
        fragment: String,
    },
    /// Sampled, seen by the server's parsers only.
    Hidden,
    End,
}

impl Piece {
    /// What it adds to the reply's text where nothing parses that.
    pub fn spoken(&self) -> &str {
        match self {
            Self::Reasoning(text) | Self::Text(text) | Self::Refusal(text) | Self::ToolArguments { fragment: text, .. } => text,
            Self::ToolStart { name, .. } => name,
            Self::Hidden | Self::End => "",
        }
    }
}

/// Ends the tokens where the first of the stop strings stands in their text, as vLLM does: the text ends before it, while the
/// token that completed it stays as it was sampled. Says which it was.
pub fn stop(tokens: &mut Vec<Token>, stops: &Value) -> Option<String> {
    let stops: Vec<&str> = match stops {
        Value::String(stop) => vec![stop],
        Value::Array(stops) => stops.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut text = String::new();
    for at in 0..tokens.len() {
        let Piece::Text(piece) = &tokens[at].piece else { continue };
        text.push_str(piece);
        let Some((mut left, stop)) = stops.iter().filter_map(|stop| Some((text.find(stop)?, *stop))).min() else { continue };
        tokens.truncate(at + 1);
        for token in tokens {
            if let Piece::Text(piece) = &mut token.piece {
                piece.truncate(left);
                left -= piece.len();
            }
        }
        return Some(stop.to_owned());
    }
    None
}

fn split(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split_inclusive([' ', '\n', ',', ':']).map(str::to_owned)
}

/// An assistant's message as the tokenizer knows it again: its text, and its calls by name and meaning.
#[derive(Clone, Debug, PartialEq)]
pub struct Spoken {
    text: String,
    calls: Vec<(String, Value)>,
}

impl Spoken {
    /// What a reply of the script says.
    pub fn of_tokens(tokens: &[Token]) -> Self {
        let mut text = String::new();
        let mut calls: Vec<(String, String)> = Vec::new();
        for token in tokens {
            match &token.piece {
                Piece::Text(piece) => text.push_str(piece),
                Piece::ToolStart { name, .. } => calls.push((name.clone(), String::new())),
                Piece::ToolArguments { index, fragment } => calls[*index].1.push_str(fragment),
                _ => {}
            }
        }
        Self { text, calls: calls.into_iter().map(|(name, arguments)| (name, meaning(&arguments))).collect() }
    }

    fn of_message(message: &Value) -> Self {
        let calls = message["tool_calls"].as_array().into_iter().flatten().map(|call| {
            let function = &call["function"];
            (
                function["name"].as_str().unwrap_or_default().to_owned(),
                meaning(function["arguments"].as_str().unwrap_or_default()),
            )
        });
        Self { text: content(&message["content"]), calls: calls.collect() }
    }
}

fn meaning(arguments: &str) -> Value {
    // Clients make an object of nothing, and templates render that.
    let arguments = if arguments.is_empty() { "{}" } else { arguments };
    serde_json::from_str(arguments).unwrap_or_else(|_| Value::String(arguments.to_owned()))
}

/// A reply that was sampled before.
#[derive(Clone, Debug)]
pub struct Earlier {
    pub prompt_ids: Vec<u32>,
    pub ids: Vec<u32>,
    pub spoken: Spoken,
}

/// The ids of a request's prompt. An assistant's message that was sampled from this very prompt is given by its sampled ids, so
/// that a conversation's next prompt extends the last prompt and its reply.
pub fn prompt(request: &Value, earlier: &[Earlier]) -> Vec<u32> {
    let mut ids = vec![1];
    if let Some(tools) = request["tools"].as_array().filter(|tools| !tools.is_empty()) {
        words(&serde_json::to_string(tools).unwrap(), &mut ids);
        ids.push(END);
    }
    for message in request["messages"].as_array().into_iter().flatten() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "assistant" {
            ids.push(ASSISTANT);
            let spoken = Spoken::of_message(message);
            if let Some(known) = earlier.iter().rev().find(|known| known.spoken == spoken && known.prompt_ids == ids) {
                ids.extend_from_slice(&known.ids);
                ids.push(AFTER_REPLY);
                continue;
            }
            words(&spoken.text, &mut ids);
            for (name, arguments) in &spoken.calls {
                words(&format!("{name} {arguments}"), &mut ids);
            }
            ids.extend([END, AFTER_REPLY]);
        } else {
            words(role, &mut ids);
            words(&content(&message["content"]), &mut ids);
            for part in message["content"].as_array().into_iter().flatten() {
                if part["type"] == "image_url" {
                    ids.push(IMAGE_START);
                    ids.extend([IMAGE; 8]);
                    ids.push(IMAGE_END);
                }
            }
            ids.push(END);
        }
    }
    ids.push(ASSISTANT);
    ids
}

/// The ids of a prompt that is a text, a list of ids, or a list with one of these.
pub fn plain_prompt(prompt: &Value) -> Result<Vec<u32>, String> {
    match prompt {
        Value::String(text) => {
            let mut ids = vec![1];
            words(text, &mut ids);
            Ok(ids)
        }
        Value::Array(list) if list.first().is_some_and(Value::is_u64) => {
            let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or(format!("{id} is no token id"));
            list.iter().map(id).collect()
        }
        Value::Array(list) if list.len() == 1 => plain_prompt(&list[0]),
        Value::Array(list) if list.len() > 1 => Err("this server is scripted for one prompt a request".to_owned()),
        _ => Err("prompt must be a text, a list of token ids, or a list of one of them".to_owned()),
    }
}

/// How likely a word of a prompt is: always the same.
pub fn word_logprob(id: u32) -> f64 {
    -f64::from(id % 1_000 + 1) / 1e3
}

/// A message's text, whether it came as a string or in parts.
pub fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn words(text: &str, ids: &mut Vec<u32>) {
    ids.extend(text.split_whitespace().map(id_of));
}

/// The id of a word.
pub fn id_of(word: &str) -> u32 {
    let hash = word.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    1_000 + hash % 90_000
}
