//! Files and templates that are broken, or mean harm.

use std::io::Read;

use serde_json::json;

use super::super::gguf::{self, GgufError};
use super::super::{ModelError, ggml};
use super::{CHATML, ask, config, hi, read, small, small_gguf};
use crate::call::SpecialText;
use crate::policy::exact::model::Model;

async fn says(place: &std::path::Path, words: &[&str]) {
    let error = match read(place).await {
        Ok(_) => panic!("{} is no model", place.display()),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
}

#[tokio::test]
async fn broken_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    says(folder.path(), &["tokenizer.json", "GGUF"]).await;
    says(&path("missing.gguf"), &["missing.gguf"]).await;
    std::fs::write(path("tokenizer.json"), "{\"version\": ").unwrap();
    says(folder.path(), &["tokenizer"]).await;
    let parts = ggml::parts(&gguf::read(&small_gguf(CHATML)[..], "tokenizer.").unwrap()).unwrap();
    std::fs::write(path("tokenizer.json"), &parts.tokenizer).unwrap();
    says(folder.path(), &["no chat template", "chat_template"]).await;
    std::fs::write(path("tokenizer_config.json"), "{").unwrap();
    says(folder.path(), &["tokenizer_config.json", "line 1"]).await;
    std::fs::write(path("tokenizer_config.json"), r#"{"chat_template": "{% if %}"}"#).unwrap();
    says(folder.path(), &["chat template"]).await;
    std::fs::write(
        path("tokenizer_config.json"),
        r#"{"chat_template": "x", "added_tokens_decoder": {"9": {"content": "<|im_end|>"}}}"#,
    )
    .unwrap();
    says(folder.path(), &["<|im_end|>", "9", "263"]).await;
    std::fs::write(path("a.gguf"), "GGML").unwrap();
    says(&path("a.gguf"), &["a.gguf", "no GGUF file"]).await;
}

#[tokio::test]
async fn unknown_kinds_of_tokenizers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.gguf");
    let with = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let mut bytes = small_gguf(CHATML);
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, bytes).unwrap();
    };
    with("smollm", "wizard");
    says(&path, &["\"wizard\"", "tokenizer.ggml.pre", "qwen2", "folder"]).await;
    with("gpt2", "bert");
    says(&path, &["\"bert\"", "folder"]).await;
    with("tokenizer.ggml.tokens", "tokenizer.ggml.tokenz");
    says(&path, &["has no tokenizer.ggml.tokens"]).await;
}

/// Every cut is an error, and none is a panic.
#[test]
fn a_gguf_file_cut_anywhere_is_an_error() {
    let bytes = small_gguf(CHATML);
    for length in 0..bytes.len() {
        let cut = gguf::read(&bytes[..length], "tokenizer.");
        assert!(matches!(cut, Err(GgufError::Cut)), "{length} of {} bytes: {cut:?}", bytes.len());
    }
    assert!(gguf::read(&bytes[..], "tokenizer.").is_ok());
}

/// Every flipped byte is read or refused, in bounded memory: no length is believed.
#[test]
fn a_gguf_file_with_a_flipped_byte_is_read_or_refused() {
    let bytes = small_gguf(CHATML);
    let mut refused = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xFF] {
            let mut bytes = bytes.clone();
            bytes[at] ^= flip;
            match gguf::read(&bytes[..], "tokenizer.") {
                Ok(metadata) => {
                    if flip == 0xFF && at % 7 == 0 {
                        // The tokenizer that is made of it may be none, too.
                        let _ =
                            ggml::parts(&metadata).map(|parts| super::super::tokenizer::Tokenizer::new(&parts, false).is_ok());
                    }
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > bytes.len() / 4, "only {refused} were refused");
}

/// A string that says it is endless takes no memory before it comes, and stops at the bound.
#[test]
fn an_endless_gguf_file_is_refused() {
    let mut head = b"GGUF".to_vec();
    head.extend(3_u32.to_le_bytes());
    head.extend(0_u64.to_le_bytes());
    head.extend(1_u64.to_le_bytes());
    head.extend(11_u64.to_le_bytes());
    head.extend(b"tokenizer.x");
    let with = |rest: &[&[u8]]| [&head[..], &rest.concat()].concat();
    let long = with(&[&8_u32.to_le_bytes(), &u64::MAX.to_le_bytes()]);
    assert!(matches!(gguf::read(long.chain(std::io::repeat(b'a')), "tokenizer."), Err(GgufError::Malformed(_))));
    let many = with(&[&9_u32.to_le_bytes(), &0_u32.to_le_bytes(), &u64::MAX.to_le_bytes()]);
    assert!(matches!(gguf::read(many.chain(std::io::repeat(0)), "tokenizer."), Err(GgufError::Malformed(_))));
    let nested = with(&[&9_u32.to_le_bytes(), &9_u32.to_le_bytes(), &1_u64.to_le_bytes()]);
    assert!(matches!(gguf::read(&nested[..], "tokenizer."), Err(GgufError::Malformed(_))));
    let big_endian = [&b"GGUF"[..], &3_u32.to_be_bytes()].concat();
    assert!(matches!(gguf::read(&big_endian[..], "tokenizer."), Err(GgufError::Version(0x0300_0000))));
}

async fn refusal(template: &str) -> String {
    let model = read(&small(template).path).await.unwrap();
    match model.render(&hi()).await {
        Err(ModelError::Refused(why)) => why,
        other => panic!("{template}: {other:?}"),
    }
}

#[tokio::test]
async fn a_template_that_raises_says_why() {
    assert_eq!(refusal("{{ raise_exception('Only user turns, please') }}").await, "Only user turns, please");
    assert!(refusal("a\n{{ messages[0].content + none }}").await.contains("line 2"));
    assert!(refusal("{{ nothing.at.all }}").await.contains("undefined"));
    assert!(refusal("{{ nothing | tojson }}").await.contains("not defined"));
}

#[tokio::test]
async fn a_template_that_loops_comes_to_an_end() {
    let loops = "{% for a in range(100000) %}{% for b in range(100000) %}{% set c = a %}{% endfor %}{% endfor %}";
    assert_eq!(refusal(loops).await, "it does not come to an end");
    let recurses = "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}";
    assert!(refusal(recurses).await.contains("recursion"), "{}", refusal(recurses).await);
    let writes = "{% set long = 'a' * 1000000 %}{% for a in range(100000) %}{{ long }}{% endfor %}";
    assert_eq!(refusal(writes).await, "it writes more than 128 MiB");
}

/// A conversation as long as they get is none of that.
#[tokio::test]
async fn a_long_conversation_is_no_loop() {
    let model = read(&small(CHATML).path).await.unwrap();
    let turn = json!({"role": "user", "content": "Hi"});
    let text = model.render(&ask(vec![turn; 20_000].into())).await.unwrap();
    assert_eq!(text.matches("Hi").count(), 20_000);
}

#[tokio::test]
async fn choices_that_nothing_can_be_made_of_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let place = small(CHATML);
    let mut config = config(&place.path, SpecialText::Control);
    config.chat_template = Some(folder.path().join("none.jinja"));
    let error = Model::read(&config).await.err().unwrap().to_string();
    assert!(error.contains("none.jinja"), "{error}");
}
