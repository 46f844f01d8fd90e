//! Equality with transformers, in text and ids: `scripts/exact-fixtures` writes what it makes.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Conversation, Model, ModelError, config, root, smollm2};
use crate::call::SpecialText;

#[derive(Deserialize)]
struct Fixture {
    conversations: Vec<Case>,
    texts: Vec<Text>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    conversation: Asked,
    /// None: the template refuses.
    text: Option<String>,
    ids: Option<Vec<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Asked {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    variables: Map<String, Value>,
    add_generation_prompt: bool,
    continue_final_message: bool,
}

#[derive(Deserialize)]
struct Text {
    name: String,
    text: String,
    ids: Vec<u32>,
    /// With names of control tokens as text.
    plain: Vec<u32>,
    decoded: String,
}

impl From<Asked> for Conversation {
    fn from(asked: Asked) -> Self {
        let Asked { messages, tools, variables, add_generation_prompt, continue_final_message } = asked;
        Self { messages, tools, variables, add_generation_prompt, continue_final_message }
    }
}

fn fixture(name: &str) -> Fixture {
    let path = root().join("tests/fixtures/exact").join(format!("{name}.json"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = root().join("target/tokenizers").join(name);
    assert!(folder.is_dir(), "{} is missing: run scripts/setup tokenizers", folder.display());
    folder
}

async fn equals_transformers(name: &str, place: &Path) {
    let model = Model::read(&config(place, SpecialText::Text)).await.unwrap();
    let Fixture { conversations, texts } = fixture(name);
    assert!(conversations.len() > 30 && texts.len() > 12, "the fixture of {name} is cut");
    for case in conversations {
        let conversation = case.conversation.into();
        let Some(expected) = case.text else {
            let refused = model.render(&conversation).await;
            assert!(matches!(refused, Err(ModelError::Refused(_))), "{name}, {}: {refused:?}", case.name);
            continue;
        };
        let text = model.render(&conversation).await.unwrap_or_else(|error| panic!("{name}, {}: {error}", case.name));
        assert_eq!(text, expected, "{name}, {}", case.name);
        let ids = model.encode(&text, SpecialText::Control).await.unwrap();
        assert_eq!(Some(ids), case.ids, "{name}, {}", case.name);
    }
    for Text { name: title, text, ids, plain, decoded } in texts {
        assert_eq!(model.encode(&text, SpecialText::Control).await.unwrap(), ids, "{name}, {title}");
        let guarded = model.guard(&text);
        assert_eq!(model.encode(&guarded, SpecialText::Text).await.unwrap(), plain, "{name}, {title}, as text");
        // The same between a template's own control tokens.
        let [start] = model.encode("<|im_start|>", SpecialText::Control).await.unwrap()[..] else { panic!("{name}") };
        let [end] = model.encode("<|im_end|>", SpecialText::Control).await.unwrap()[..] else { panic!("{name}") };
        let within = model.encode(&format!("<|im_start|>{guarded}<|im_end|>"), SpecialText::Text).await.unwrap();
        assert_eq!(within, [&[start], &plain[..], &[end]].concat(), "{name}, {title}, as text in a turn");
        let mut detokenizer = model.detokenizer().unwrap();
        let mut read: String = plain.iter().map(|id| detokenizer.push(*id)).collect();
        read += &detokenizer.finish();
        assert_eq!(read, model.decode(&plain).await.unwrap(), "{name}, {title}, detokenized");
        assert_eq!(model.decode(&ids).await.unwrap(), decoded, "{name}, {title}, decoded");
    }
}

#[tokio::test]
#[ignore = "needs scripts/setup tokenizers"]
async fn qwen3_is_transformers() {
    equals_transformers("qwen3", &folder("qwen3")).await;
}

#[tokio::test]
#[ignore = "needs scripts/setup tokenizers"]
async fn qwen2_5_is_transformers() {
    equals_transformers("qwen2_5", &folder("qwen2_5")).await;
}

#[tokio::test]
#[ignore = "needs scripts/setup demo-venv"]
async fn smollm2_is_transformers() {
    equals_transformers("smollm2", &smollm2()).await;
}

#[tokio::test]
#[ignore = "needs scripts/setup tokenizers"]
async fn qwen3_ends_and_writes_as_it_should() {
    let model = Model::read(&config(&folder("qwen3"), SpecialText::Control)).await.unwrap();
    let ids = model.encode("<|im_end|><|endoftext|><tool_call><think>", SpecialText::Control).await.unwrap();
    assert_eq!(ids, [151_645, 151_643, 151_657, 151_667]);
    assert_eq!(ids.iter().map(|id| model.ends(*id)).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(ids.iter().map(|id| model.is_control(*id)).collect::<Vec<_>>(), [true, true, false, false]);
    let mut detokenizer = model.detokenizer().unwrap();
    let read: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    assert_eq!(read, "<tool_call><think>");
    assert_eq!(model.vocabulary(), Some(151_669));
    assert_eq!(detokenizer.push(4_000_000_000), "", "an id beyond the vocabulary reads as nothing");
}

/// What a turn costs: a tail of 4 KB is encoded in well under a millisecond (in release; `cargo test --release -- --ignored --nocapture costs`).
#[tokio::test]
#[ignore = "needs scripts/setup tokenizers"]
async fn a_tail_costs_little() {
    let model = Model::read(&config(&folder("qwen3"), SpecialText::Control)).await.unwrap();
    let text = "fn main() { println!(\"Hello, {}\", 42); } // and some words in a comment\n".repeat(57);
    let mut best = std::time::Duration::MAX;
    for _ in 0..20 {
        let begun = std::time::Instant::now();
        let ids = model.encode(&text, SpecialText::Control).await.unwrap();
        assert!(!ids.is_empty());
        best = best.min(begun.elapsed());
    }
    println!("{} bytes are encoded in {best:?}", text.len());
    let bound = if cfg!(debug_assertions) { 100 } else { 1 };
    assert!(best < std::time::Duration::from_millis(bound), "{} bytes take {best:?}", text.len());
}
