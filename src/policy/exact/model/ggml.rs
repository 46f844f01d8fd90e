//! A GGUF file's tokenizer, so that it splits text as llama.cpp does.

use serde_json::{Map, Value as Json, json};

use super::folder::Parts;
use super::gguf::{Metadata, Value};
use super::{ModelError, hash};

/// Kinds of tokens in `tokenizer.ggml.token_type`: named in text or not, but always whole.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// How text is split before merging, as the models' own tokenizers say.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What `tokenizer.ggml.pre` stands for.
struct Splitting {
    names: &'static [&'static str],
    /// Applied one after another.
    patterns: &'static [&'static str],
    /// A word that is a token is not merged.
    ignore_merges: bool,
    /// Where the file doesn't say it.
    add_bos: bool,
}

const SPLITTINGS: [Splitting; 4] = [
    Splitting { names: &["gpt-2", "mpt", "olmo", "jais"], patterns: &[GPT2], ignore_merges: false, add_bos: false },
    Splitting {
        names: &["smollm", "starcoder", "refact", "command-r", "codeshell"],
        patterns: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Splitting { names: &["qwen2", "stablelm2", "deepseek-r1-qwen"], patterns: &[QWEN2], ignore_merges: false, add_bos: false },
    Splitting { names: &["llama-bpe", "llama3", "llama-v3"], patterns: &[LLAMA3], ignore_merges: true, add_bos: true },
];

/// The split of files that name none, which llama.cpp itself warns of.
const DEFAULT: Splitting = Splitting {
    names: &["default"],
    patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    ignore_merges: false,
    add_bos: false,
};

/// Makes the tokenizer and finds the template.
pub(super) fn parts(metadata: &Metadata) -> Result<Parts, ModelError> {
    let unreadable = |what: String| ModelError::Unreadable(what);
    let kind = text(metadata, "tokenizer.ggml.model")?;
    if kind != "gpt2" {
        return Err(unreadable(format!(
            "its tokenizer is {kind:?}, only \"gpt2\" (BPE) can be read from a GGUF file: name the model's folder"
        )));
    }
    let splitting = splitting(metadata)?;
    let tokens = texts(metadata, "tokenizer.ggml.tokens")?;
    let merges = texts(metadata, "tokenizer.ggml.merges")?;
    let types = match metadata.get("tokenizer.ggml.token_type") {
        Some(Value::Integers(types)) if types.len() == tokens.len() => types.as_slice(),
        None => &[],
        _ => return Err(unreadable("its tokenizer.ggml.token_type has not one number for each token".to_owned())),
    };
    let json = tokenizer(tokens, merges, types, splitting)?;
    let token = |name: &str| -> Result<Option<u32>, ModelError> {
        let key = format!("tokenizer.ggml.{name}");
        match metadata.get(&key) {
            None => Ok(None),
            Some(Value::Integer(id)) => match usize::try_from(*id).ok().filter(|id| *id < tokens.len()) {
                Some(id) => Ok(u32::try_from(id).ok()),
                None => Err(unreadable(format!("its {key} is {id}, and it has {} tokens", tokens.len()))),
            },
            Some(_) => Err(unreadable(format!("its {key} is no number"))),
        }
    };
    let name = |id: u32| tokens.get(id as usize).cloned();
    let mut names = Map::new();
    for (key, variable) in [("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")] {
        if let Some(name) = token(&format!("{key}_token_id"))?.and_then(name) {
            names.insert(variable.to_owned(), Json::String(name));
        }
    }
    let mut ends = Vec::new();
    for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
        ends.extend(token(key)?);
    }
    let add_bos = match metadata.get("tokenizer.ggml.add_bos_token") {
        Some(Value::Bool(add)) => *add,
        _ => splitting.add_bos,
    };
    let begins = token("bos_token_id")?.filter(|_| add_bos).and_then(name);
    let template = match metadata.get("tokenizer.chat_template") {
        Some(Value::Text(template)) => Some(template.clone()),
        _ => None,
    };
    let bytes = serde_json::to_vec(&json).map_err(|error| unreadable(error.to_string()))?;
    Ok(Parts {
        tokenizer_hash: hash(&[&bytes]),
        tokenizer: bytes,
        added: Vec::new(),
        template,
        names,
        begins,
        ends,
        vocabulary: None,
    })
}

fn splitting(metadata: &Metadata) -> Result<&'static Splitting, ModelError> {
    let pre = match metadata.get("tokenizer.ggml.pre") {
        Some(Value::Text(pre)) => pre.as_str(),
        _ => "default",
    };
    let known = SPLITTINGS.iter().chain([&DEFAULT]);
    known.clone().find(|splitting| splitting.names.contains(&pre)).ok_or_else(|| {
        let names: Vec<&str> = known.flat_map(|splitting| splitting.names).copied().collect();
        ModelError::Unreadable(format!(
            "its tokenizer splits text as {pre:?} (tokenizer.ggml.pre), known are {}: name the model's folder",
            names.join(", ")
        ))
    })
}

/// The same as a `tokenizer.json`.
fn tokenizer(tokens: &[String], merges: &[String], types: &[i64], splitting: &Splitting) -> Result<Json, ModelError> {
    let vocabulary: Map<String, Json> = tokens.iter().zip(0_u32..).map(|(token, id)| (token.clone(), id.into())).collect();
    let mut pairs = Vec::with_capacity(merges.len());
    for merge in merges {
        let pair = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').map(|(at, _)| (&merge[..at], &merge[at + 1..]));
        let Some((left, right)) = pair else {
            return Err(ModelError::Unreadable(format!("its merge {merge:?} has no two parts")));
        };
        pairs.push(json!([left, right]));
    }
    let added: Vec<Json> = tokens
        .iter()
        .zip(types)
        .zip(0_u32..)
        .filter(|((token, kind), _)| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED) && !token.is_empty())
        .map(|((token, kind), id)| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": *kind != USER_DEFINED})
        })
        .collect();
    let split = |pattern: &&str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let mut steps: Vec<Json> = splitting.patterns.iter().map(split).collect();
    steps.push(json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}));
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": splitting.ignore_merges,
            "vocab": vocabulary, "merges": pairs,
        },
    }))
}

fn text<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a str, ModelError> {
    match metadata.get(key) {
        Some(Value::Text(text)) => Ok(text),
        _ => Err(ModelError::Unreadable(format!("it has no {key}"))),
    }
}

fn texts<'a>(metadata: &'a Metadata, key: &str) -> Result<&'a [String], ModelError> {
    match metadata.get(key) {
        Some(Value::Texts(texts)) if !texts.is_empty() => Ok(texts),
        _ => Err(ModelError::Unreadable(format!("it has no {key}"))),
    }
}
