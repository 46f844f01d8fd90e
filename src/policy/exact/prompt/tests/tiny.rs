//! A tokenizer of bytes and a few merges, in the files that real ones have.

use serde_json::{Map, Value, json};

use crate::call::SpecialText;
use crate::policy::PolicyConfig;
use crate::policy::exact::model::Model;

/// Control tokens, and what is an added token without being one.
const ADDED: [(&str, bool); 8] = [
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<think>", false),
    ("</think>", false),
    ("<tool_response>", false),
];
const MERGES: [(&str, &str); 12] = [
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("o", "n"),
    ("e", "r"),
    ("Ġ", "the"),
    ("Ġ", "a"),
    ("a", "n"),
    ("an", "d"),
    ("Ċ", "Ċ"),
    ("\"", ":"),
    ("Ġ", "{"),
];

/// A model in a folder of its own.
pub(super) struct Tiny {
    pub model: Model,
    _folder: tempfile::TempDir,
}

impl Tiny {
    pub(super) fn new(template: &str) -> Self {
        Self::with(template, SpecialText::Control)
    }

    pub(super) fn with(template: &str, special_text: SpecialText) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, value: &Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
        write("tokenizer.json", &tokenizer());
        write(
            "tokenizer_config.json",
            &json!({"chat_template": template, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
        );
        let config = PolicyConfig { tokenizer: Some(folder.path().to_owned()), special_text, ..PolicyConfig::default() };
        Self { model: super::run(Model::read(&config)).unwrap(), _folder: folder }
    }

    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        super::run(self.model.encode(text, SpecialText::Control)).unwrap()
    }

    /// Other ids of the same text: it is cut every `step` characters, as a model may sample it.
    pub(super) fn drifting(&self, text: &str, step: usize) -> Vec<u32> {
        let mut ids = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let added = ADDED.iter().find_map(|(token, _)| rest.starts_with(token).then_some(token.len()));
            let next = ADDED.iter().filter_map(|(token, _)| rest.find(token)).min().unwrap_or(rest.len());
            let cut = rest.char_indices().nth(step).map_or(rest.len(), |(at, _)| at).min(next);
            let (piece, after) = rest.split_at(added.unwrap_or(cut));
            ids.extend(self.encode(piece));
            rest = after;
        }
        ids
    }

    pub(super) fn id(&self, token: &str) -> u32 {
        let ids = self.encode(token);
        assert_eq!(ids.len(), 1, "{token}");
        ids[0]
    }
}

fn tokenizer() -> Value {
    let mut vocabulary = Map::new();
    for byte in 0..=255_u8 {
        vocabulary.insert(letter(byte).to_string(), vocabulary.len().into());
    }
    for (one, other) in MERGES {
        vocabulary.insert(format!("{one}{other}"), vocabulary.len().into());
    }
    let first = vocabulary.len();
    let added: Vec<Value> = ADDED
        .iter()
        .enumerate()
        .map(|(at, (content, special))| {
            json!({"id": first + at, "content": content, "special": special, "normalized": false, "single_word": false,
                   "lstrip": false, "rstrip": false})
        })
        .collect();
    let merges: Vec<Value> = MERGES.iter().map(|(one, other)| json!([one, other])).collect();
    // Texts that are no conversation begin with a control token.
    let begun = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}], "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [first], "tokens": ["<|endoftext|>"]}}});
    let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": level, "post_processor": begun, "decoder": level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary, "merges": merges},
    })
}

/// The letter that stands for a byte, as GPT-2 has it.
fn letter(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if plain(byte) {
        return char::from(byte);
    }
    let before = u32::try_from((0..byte).filter(|byte| !plain(*byte)).count()).unwrap();
    char::from_u32(256 + before).unwrap()
}
