//! The check on first contact, and servers' own models.

use std::sync::Arc;

use serde_json::Value;

use super::super::check;
use super::{CHATML, Conversation, Model, ModelError, config, hi, read, small, smollm2};
use crate::call::SpecialText;
use crate::policy::http::Http;
use crate::policy::probe::probe;
use crate::policy::stub::{Stub, http};
use crate::policy::{PolicyConfig, PolicyKind};

/// Opens a model as a policy does.
async fn open(config: &PolicyConfig) -> Result<Model, ModelError> {
    let http = Arc::new(Http::new("test", config, None).unwrap());
    let found = probe(&http, config).await.unwrap();
    Model::open(config, &http, &found).await
}

/// What vLLM makes of tokenize's questions with a model's folder: answered from files written by hand.
fn vllm(model: Model, change: impl Fn(Vec<u32>) -> Vec<u32> + Send + Sync + 'static) -> impl std::future::Future<Output = Stub> {
    let runtime = tokio::runtime::Handle::current();
    Stub::start(move |path, body, _| {
        let ask: Value = serde_json::from_str(body).unwrap_or_default();
        let answer = async {
            match path {
                "/version" => r#"{"version": "0.32.0"}"#.to_owned(),
                "/v1/models" => r#"{"data": [{"id": "small", "max_model_len": 4096}]}"#.to_owned(),
                "/tokenize" => {
                    let text = match ask["prompt"].as_str() {
                        Some(text) => text.to_owned(),
                        None => {
                            let conversation = Conversation {
                                messages: ask["messages"].as_array().unwrap().clone(),
                                tools: ask["tools"].as_array().cloned(),
                                add_generation_prompt: ask["add_generation_prompt"].as_bool().unwrap(),
                                ..Conversation::default()
                            };
                            model.render(&conversation).await.unwrap()
                        }
                    };
                    let ids = change(model.encode(&text, SpecialText::Control).await.unwrap());
                    serde_json::json!({"count": ids.len(), "max_model_len": 4096, "tokens": ids}).to_string()
                }
                "/detokenize" => {
                    let ids: Vec<u32> = serde_json::from_value(ask["tokens"].clone()).unwrap();
                    serde_json::json!({"prompt": model.decode(&ids).await.unwrap()}).to_string()
                }
                _ => String::new(),
            }
        };
        let answer = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(answer)).join().unwrap());
        http(if answer.is_empty() { "404 Not Found" } else { "200 OK" }, "application/json", &answer)
    })
}

fn at(stub: &Stub, tokenizer: Option<&std::path::Path>) -> PolicyConfig {
    let tokenizer = tokenizer.map(std::path::Path::to_owned);
    PolicyConfig { url: stub.url.clone(), tokenizer, ..PolicyConfig::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_the_servers_is_opened() {
    let place = small(CHATML);
    let stub = vllm(read(&place.path).await.unwrap(), |ids| ids).await;
    open(&at(&stub, Some(&place.path))).await.unwrap();
    assert!(stub.count("/tokenize") >= 18, "{} questions", stub.count("/tokenize"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_is_not_the_servers_is_refused_with_the_first_difference() {
    let place = small(CHATML);
    let stub = vllm(read(&place.path).await.unwrap(), |mut ids| {
        // "Hi" is of other letters there.
        for id in &mut ids {
            *id = if *id == 257 { 256 } else { *id };
        }
        ids
    })
    .await;
    let error = open(&at(&stub, Some(&place.path))).await.err().unwrap();
    let expected = "the tokenizer is not the server's: of a question, token 6 is 257 (\"Hi\") here and 256 (\"ab\") there";
    assert_eq!(error, ModelError::Mismatch(expected.to_owned()));
    let other = small(&CHATML.replace("assistant", "model"));
    let error = open(&at(&stub, Some(&other.path))).await.err().unwrap();
    assert!(matches!(error, ModelError::Mismatch(_)), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_servers_own_model_is_asked_for() {
    let place = small(CHATML);
    let local = read(&place.path).await.unwrap();
    let stub = vllm(local.clone(), |ids| ids).await;
    let model = open(&at(&stub, None)).await.unwrap();
    let text = model.render(&hi()).await.unwrap();
    assert_eq!(text, local.render(&hi()).await.unwrap());
    let ids = model.encode(&text, SpecialText::Control).await.unwrap();
    assert_eq!(ids, local.encode(&text, SpecialText::Control).await.unwrap());
    assert!(model.ends(263) && model.is_control(262) && !model.ends(262) && !model.ends(264));
    assert!(model.detokenizer().is_none());
    assert_eq!(model.tokenizer_hash().len(), 64);
    let again = open(&at(&stub, None)).await.unwrap();
    assert_eq!((model.tokenizer_hash(), model.template_hash()), (again.tokenizer_hash(), again.template_hash()));
    let asked = PolicyConfig { special_text: SpecialText::Text, ..at(&stub, None) };
    let error = open(&asked).await.err().unwrap().to_string();
    assert!(error.contains("special_text") && error.contains("tokenizer"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_only_counts_is_compared_by_counts() {
    let place = small(CHATML);
    let model = read(&place.path).await.unwrap();
    let runtime = tokio::runtime::Handle::current();
    let wrong = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let more = Arc::clone(&wrong);
    let stub = Stub::start(move |_, body, _| {
        let ask: Value = serde_json::from_str(body).unwrap_or_default();
        let Some(messages) = ask["messages"].as_array() else {
            return http("200 OK", "application/json", r#"{"data": [{"id": "small"}]}"#);
        };
        let tools = ask["tools"].as_array().cloned();
        let conversation =
            Conversation { messages: messages.clone(), tools, add_generation_prompt: true, ..Conversation::default() };
        let count =
            async { model.encode(&model.render(&conversation).await.unwrap(), SpecialText::Control).await.unwrap().len() };
        let count = std::thread::scope(|scope| scope.spawn(|| runtime.block_on(count)).join().unwrap());
        let count = count + usize::from(more.load(std::sync::atomic::Ordering::Relaxed));
        http("200 OK", "application/json", &format!(r#"{{"usage": {{"prompt_tokens": {count}}}}}"#))
    })
    .await;
    let asked = PolicyConfig { kind: PolicyKind::Openai, ..at(&stub, Some(&place.path)) };
    open(&asked).await.unwrap();
    wrong.store(true, std::sync::atomic::Ordering::Relaxed);
    let error = open(&asked).await.err().unwrap().to_string();
    assert!(error.contains("tokens here and") && error.contains("a question"), "{error}");
    let none = PolicyConfig { tokenizer: None, ..asked };
    let error = open(&none).await.err().unwrap().to_string();
    assert!(error.contains("in tokenizer"), "{error}");
}

#[tokio::test]
async fn a_server_without_tokenize_or_on_its_knees_is_said_so() {
    let place = small(CHATML);
    let stub = Stub::start(|path, _, _| match path {
        "/version" => http("200 OK", "application/json", r#"{"version": "0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data": []}"#),
        _ => http("404 Not Found", "application/json", "{}"),
    })
    .await;
    let error = open(&at(&stub, Some(&place.path))).await.err().unwrap();
    assert!(matches!(&error, ModelError::Unreadable(why) if why.contains("/tokenize")), "{error:?}");
    let stub = Stub::start(|path, _, _| match path {
        "/version" => http("200 OK", "application/json", r#"{"version": "0.32.0"}"#),
        "/v1/models" => http("200 OK", "application/json", r#"{"data": []}"#),
        _ => http("503 Service Unavailable", "application/json", "{}"),
    })
    .await;
    let error = open(&at(&stub, Some(&place.path))).await.err().unwrap();
    assert!(matches!(error, ModelError::Unreachable(_)), "{error:?}");
}

/// The server that `scripts/with-llama-server` runs, which has SmolLM2; `None` where none is asked for.
fn llama() -> Option<String> {
    let url = std::env::var("GLEANER_TEST_LLAMACPP_URL").ok();
    assert!(
        url.is_some() || std::env::var("GLEANER_TEST_REAL").is_err(),
        "GLEANER_TEST_REAL is set, so GLEANER_TEST_LLAMACPP_URL must name a llama.cpp server"
    );
    url
}

#[tokio::test]
async fn the_gguf_file_is_the_real_llama_servers() {
    let Some(url) = llama() else { return };
    let model = open(&PolicyConfig { url, ..config(&smollm2(), SpecialText::Control) }).await.unwrap();
    assert_eq!(model.vocabulary(), Some(49_152));
}

#[tokio::test]
async fn the_real_llama_servers_own_model_is_the_gguf_file() {
    let Some(url) = llama() else { return };
    let served = open(&PolicyConfig { url: url.clone(), ..PolicyConfig::default() }).await.unwrap();
    let local = read(&smollm2()).await.unwrap();
    assert_eq!(served.template(), local.template());
    assert_eq!(served.content_form(), local.content_form());
    for (name, conversation) in check::conversations() {
        let (there, here) = (served.render(&conversation).await, local.render(&conversation).await);
        assert_eq!(there, here, "{name}");
        let Ok(text) = here else { continue };
        let ids = served.encode(&text, SpecialText::Control).await.unwrap();
        assert_eq!(ids, local.encode(&text, SpecialText::Control).await.unwrap(), "{name}");
    }
    let end = local.encode("<|im_end|>", SpecialText::Control).await.unwrap()[0];
    assert!(served.ends(end) && served.is_control(end));
}

#[tokio::test]
async fn another_model_is_not_the_real_llama_servers() {
    let Some(url) = llama() else { return };
    let place = small(CHATML);
    let mut config = PolicyConfig { url, ..config(&place.path, SpecialText::Control) };
    let error = open(&config).await.err().unwrap();
    let ModelError::Mismatch(why) = error else { panic!("{error:?}") };
    assert!(why.contains("the chat template is not the server's: a question is") && why.contains("system"), "{why}");
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("a.jinja");
    std::fs::write(&template, read(&smollm2()).await.unwrap().template()).unwrap();
    config.chat_template = Some(template);
    let ModelError::Mismatch(why) = open(&config).await.err().unwrap() else { panic!("it is not the server's") };
    assert!(why.contains("token 0 is 262 (\"<|im_start|>\") here and 1 ("), "{why}");
}
