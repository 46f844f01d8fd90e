//! A tokenizer that a test can follow by hand (unit tests of `policy::exact` read this file too): each byte is a token, control tokens have names, and there are tokens of two letters that
//! no encoding gives, but that a model may sample.

use std::path::Path;

use serde_json::{Map, Value, json};

/// Control tokens, and what is an added token without being one.
const ADDED: [(&str, bool); 7] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<think>", false),
    ("</think>", false),
];
const PAIRS: [&str; 16] = ["th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "is", "it"];
const FIRST_PAIR: u32 = 256;
const FIRST_ADDED: u32 = FIRST_PAIR + 16;
/// Ends a reply.
pub const END: u32 = FIRST_ADDED + 2;
/// Ids from here on are none.
pub const SIZE: u32 = FIRST_ADDED + 7;

/// Drops reasoning of all turns but the last, as Qwen's does.
pub const TEMPLATE: &str = concat!(
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}",
    "{% for message in messages %}<|im_start|>{{ message.role }}\n",
    "{% if message.reasoning_content and loop.last %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}",
    "{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>\n",
    "{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}",
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
);

/// Writes the files of the model.
pub fn write(folder: &Path) {
    let mut vocabulary = Map::new();
    for byte in 0..=255_u8 {
        vocabulary.insert(letter(byte).to_string(), byte.into());
    }
    for (pair, id) in PAIRS.iter().zip(FIRST_PAIR..) {
        vocabulary.insert((*pair).to_owned(), id.into());
    }
    let added: Vec<Value> = ADDED
        .iter()
        .zip(FIRST_ADDED..)
        .map(|((content, special), id)| {
            json!({"id": id, "content": content, "special": special, "normalized": false, "single_word": false, "lstrip": false,
                   "rstrip": false})
        })
        .collect();
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": null, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": []},
    });
    let config = json!({"chat_template": TEMPLATE, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"});
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
}

/// The letter that stands for a byte in the files, as GPT-2 has it.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if plain(byte) {
        return char::from(byte);
    }
    let before = u32::try_from((0..byte).filter(|byte| !plain(*byte)).count()).unwrap();
    char::from_u32(256 + before).unwrap()
}

/// The ids of a text.
pub fn encode(text: &str) -> Vec<u32> {
    pieces(text, |_| false)
}

/// Ids of a text as a model may sample them: `pair` says whether two letters come as one token.
pub fn pieces(text: &str, mut pair: impl FnMut(&str) -> bool) -> Vec<u32> {
    let (mut ids, mut rest) = (Vec::new(), text);
    while let Some(byte) = rest.bytes().next() {
        let added = ADDED.iter().zip(FIRST_ADDED..).find(|((name, _), _)| rest.starts_with(name));
        let two = PAIRS.iter().zip(FIRST_PAIR..).find(|(two, _)| rest.starts_with(*two)).filter(|(two, _)| pair(two));
        if let Some(((name, _), id)) = added {
            ids.push(id);
            rest = &rest[name.len()..];
        } else if let Some((two, id)) = two {
            ids.push(id);
            rest = &rest[two.len()..];
        } else {
            let character = rest.chars().next().unwrap();
            ids.push(byte.into());
            ids.extend(rest.bytes().take(character.len_utf8()).skip(1).map(u32::from));
            rest = &rest[character.len_utf8()..];
        }
    }
    ids
}

/// What one token is in bytes; control tokens that end a reply are nothing.
pub fn bytes(id: u32) -> Vec<u8> {
    match id {
        0..=255 => vec![u8::try_from(id).unwrap()],
        END => Vec::new(),
        FIRST_PAIR..FIRST_ADDED => PAIRS[(id - FIRST_PAIR) as usize].as_bytes().to_vec(),
        FIRST_ADDED..SIZE => ADDED[(id - FIRST_ADDED) as usize].0.as_bytes().to_vec(),
        _ => Vec::new(),
    }
}

/// What ids read as, without the end.
pub fn decode(ids: &[u32]) -> String {
    String::from_utf8_lossy(&ids.iter().flat_map(|id| bytes(*id)).collect::<Vec<u8>>()).into_owned()
}

/// What ids read as, control tokens too.
pub fn decode_all(ids: &[u32]) -> String {
    let all = |id: &u32| if *id == END { b"<|im_end|>".to_vec() } else { bytes(*id) };
    String::from_utf8_lossy(&ids.iter().flat_map(all).collect::<Vec<u8>>()).into_owned()
}

/// A conversation's text: [`TEMPLATE`], by hand.
pub fn render(request: &Value) -> String {
    let mut out = String::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let tools = list(&request["tools"]);
    if !tools.is_empty() {
        out.push_str("<|im_start|>system\n");
        for tool in &tools {
            out.push_str(&(python(tool) + "\n"));
        }
        out.push_str("<|im_end|>\n");
    }
    let messages = list(&request["messages"]);
    for (at, message) in messages.iter().enumerate() {
        out.push_str(&format!("<|im_start|>{}\n", message["role"].as_str().unwrap()));
        let reasoning = message["reasoning"].as_str().or(message["reasoning_content"].as_str());
        if let Some(reasoning) = reasoning.filter(|reasoning| !reasoning.is_empty() && at + 1 == messages.len()) {
            out.push_str(&format!("<think>\n{reasoning}\n</think>\n\n"));
        }
        out.push_str(&content(&message["content"]));
        for call in list(&message["tool_calls"]) {
            let function = &call["function"];
            let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
            let (name, arguments) = (function["name"].as_str().unwrap(), python(&arguments));
            out.push_str(&format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>"));
        }
        out.push_str("<|im_end|>\n");
    }
    if request["add_generation_prompt"] != false {
        out.push_str("<|im_start|>assistant\n");
    }
    out
}

/// A message's text, whether it came as a string or in parts.
fn content(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// JSON as Python writes it.
fn python(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}: {}", json!(name), python(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(python).collect::<Vec<_>>().join(", ")),
        plain => plain.to_string(),
    }
}
