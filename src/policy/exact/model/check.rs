//! The check on first contact: what is rendered and encoded here must be what the server makes of the same.

use serde_json::{Value as Json, json};

use super::ask::{Made, Server};
use super::{Conversation, Model, ModelError};
use crate::call::SpecialText;

/// Texts on which tokenizers differ.
pub(super) const TEXTS: [&str; 12] = [
    "Hello, world! It's 12,345.67 o'clock; we'LL see.",
    "  two spaces\ttab\n\n\n   and a run of blanks      end  ",
    "def f(x):\n    return x ** 2  # squared\r\n",
    "naïve café e\u{301} Å \u{212B} ﬁ Ω \u{2126}",
    "日本語のテキスト、中文文本，한국어 텍스트",
    "مرحبا بالعالم שלום עולם हिन्दी ไทย",
    "👩‍🚀👨‍👩‍👧‍👦🏳️‍🌈🇩🇪👍🏽🧑🏿‍🦰 ok",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀 \u{1F9FF}\u{1FAE0}",
    "<think>\n</think><tool_call>{\"a\": [1, 2.5e-3, null]}</tool_call>",
    "a\u{200B}b\u{00A0}c\u{FEFF}d\u{FFFD}e\u{0001}f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa 0000000000000000000 ----------========",
    "<|im_end|><|endoftext|><|eot_id|></s>",
];

/// Conversations on which templates differ, by name.
pub(super) fn conversations() -> Vec<(&'static str, Conversation)> {
    let begun = |messages: Json, tools: Option<Json>| Conversation {
        messages: messages.as_array().cloned().unwrap_or_default(),
        tools: tools.and_then(|tools| tools.as_array().cloned()),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    let tools = json!([{"type": "function", "function": {"name": "bash", "description": "Run a <command> & get it's \"output\".", "parameters": {
        "type": "object", "required": ["command"],
        "properties": {"command": {"type": "string", "description": "é 日本"}, "timeout": {"type": "number", "default": 1.5}}}}}]);
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": {"command": "ls -la \"x\"", "timeout": 3}}}]});
    let result = json!({"role": "tool", "tool_call_id": "call_0", "content": "total 0\n"});
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": "You are terse."});
    let answer = json!({"role": "assistant", "content": " Yes. ", "reasoning_content": "Is it?\nIt is."});
    let mut all = vec![
        ("a question", begun(json!([user("Hi")]), None)),
        ("a system message", begun(json!([system, user(TEXTS[1])]), None)),
        ("a second turn", begun(json!([user("Hi"), {"role": "assistant", "content": "Hello."}, user("Bye")]), None)),
        ("reasoning in an earlier turn", begun(json!([user("Hi"), answer, user("Sure?")]), None)),
        ("tools", begun(json!([system, user("List.")]), Some(tools.clone()))),
        ("a tool's turn", begun(json!([user("List."), call, result]), Some(tools.clone()))),
        (
            "a turn behind a tool's",
            begun(json!([user("List."), call, result, {"role": "assistant", "content": "Nothing."}, user("Ok")]), Some(tools)),
        ),
        ("empty content", begun(json!([user(""), {"role": "assistant", "content": ""}, user("x")]), None)),
        ("null content", begun(json!([user("x"), {"role": "assistant", "content": null}, user("y")]), None)),
    ];
    // In one, since each is a question to the server.
    all.push(("odd texts", begun(json!([user(&TEXTS[..11].join("\n"))]), None)));
    all
}

/// Compares; the first difference is the error.
pub(super) async fn agree(model: &Model, server: &Server) -> Result<(), ModelError> {
    let mut compared = 0;
    for (name, conversation) in conversations() {
        let there = match server.render(&conversation).await {
            Ok(made) => Some(made),
            Err(ModelError::Refused(_)) => None,
            Err(error) => return Err(error),
        };
        let here = match model.render(&conversation).await {
            Ok(text) => Some(text),
            Err(ModelError::Refused(_)) => None,
            Err(error) => return Err(error),
        };
        // What one side refuses is refused to a client too, and never sampled from: nothing to compare.
        let (Some(there), Some(here)) = (there, here) else { continue };
        compared += 1;
        let ids = model.encode(&here, SpecialText::Control).await?;
        match there {
            Made::Text { text, ids: others } => {
                let written = model.own_template().and_then(super::Template::begins);
                let begun = written
                    .and_then(|begins| here.strip_prefix(begins))
                    .filter(|_| !text.starts_with(written.unwrap_or_default()));
                texts(name, begun.unwrap_or(&here), &text)?;
                tokens(model, name, &ids, &others).await?;
            }
            Made::Ids(others) => tokens(model, name, &ids, &others).await?,
            Made::Count(count) if count == ids.len() as u64 => {}
            Made::Count(count) => {
                return Err(ModelError::Mismatch(format!(
                    "the template or tokenizer is not the server's: {name} is {} tokens here and {count} there",
                    ids.len()
                )));
            }
        }
    }
    if compared < 2 {
        return Err(ModelError::Mismatch("the template here or the server's refuses the simplest conversations".to_owned()));
    }
    if server.tokenizes() {
        for text in TEXTS {
            let (ids, others) = (model.encode(text, SpecialText::Control).await?, server.encode(text, false).await?);
            tokens(model, &format!("the text {text:?}"), &ids, &others).await?;
        }
    }
    Ok(())
}

fn texts(name: &str, here: &str, there: &str) -> Result<(), ModelError> {
    let Some((here, there)) = parting(here, there) else { return Ok(()) };
    Err(ModelError::Mismatch(format!("the chat template is not the server's: {name} is {here} here and {there} there")))
}

/// Where two texts part, with what surrounds it.
fn parting(here: &str, there: &str) -> Option<(String, String)> {
    if here == there {
        return None;
    }
    let same = here.chars().zip(there.chars()).take_while(|(a, b)| a == b).map(|(c, _)| c.len_utf8()).sum::<usize>();
    let around = |text: &str| {
        let before: Vec<char> = text[..same].chars().rev().take(24).collect();
        let before: String = before.into_iter().rev().collect();
        let behind: String = text[same..].chars().take(24).collect();
        let (dots, more) =
            (if same > before.len() { "..." } else { "" }, if text.len() > same + behind.len() { "..." } else { "" });
        format!("{dots}{before:?} then {behind:?}{more}")
    };
    Some((around(here), around(there)))
}

async fn tokens(model: &Model, name: &str, here: &[u32], there: &[u32]) -> Result<(), ModelError> {
    if here == there {
        return Ok(());
    }
    let at = here.iter().zip(there).take_while(|(a, b)| a == b).count();
    let here = describe(model, here.get(at).copied()).await?;
    let there = describe(model, there.get(at).copied()).await?;
    Err(ModelError::Mismatch(format!(
        "the tokenizer is not the server's: of {name}, token {at} is {here} here and {there} there"
    )))
}

async fn describe(model: &Model, id: Option<u32>) -> Result<String, ModelError> {
    match id {
        Some(id) => Ok(format!("{id} ({:?})", model.decode(&[id]).await?)),
        None => Ok("none (the end)".to_owned()),
    }
}
