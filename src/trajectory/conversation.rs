//! Conversations as text: which call goes on from which reply, by what was said and not by how it was written.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use serde::Deserialize;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::Turn;
use crate::call::Raw;

/// Finds, for each turn that can be read, the earlier one whose request and reply its request begins with: the longest such.
///
/// `counts` says which turns may be gone on from. Turns of different policies don't go on from each other.
#[must_use]
pub fn parents(turns: &[Turn], counts: &dyn Fn(&Turn) -> bool) -> Vec<Option<usize>> {
    let mut ends: HashMap<(u64, &str, &str), usize> = HashMap::new();
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut found = Vec::with_capacity(turns.len());
    for (index, turn) in turns.iter().enumerate() {
        let (policy, model) = (turn.record.policy.as_str(), turn.record.model.as_str());
        let mut parent = None;
        let mut said = 0;
        for message in &turn.messages {
            // A message is resent with every later turn, mostly byte for byte, so each is read once.
            let key = *seen.entry(hash(&message.as_bytes())).or_insert_with(|| meaning(message));
            said = hash(&(said, key));
            parent = ends.get(&(said, policy, model)).copied().or(parent);
        }
        found.push(parent);
        if let (Some(reply), true, false) = (&turn.record.message, counts(turn), turn.messages.is_empty()) {
            ends.insert((hash(&(said, meaning(reply))), policy, model), index);
        }
    }
    found
}

/// Gives each message a number that is equal where the messages say the same: role, text, tool names, arguments as JSON values.
/// Ids, reasoning and the way it is written don't count.
fn meaning(message: &Raw) -> u64 {
    let Ok(message) = message.read::<Said>() else { return hash(&message.as_bytes()) };
    let mut hasher = DefaultHasher::new();
    message.role.hash(&mut hasher);
    content(message.content, &mut hasher);
    for call in message.tool_calls.unwrap_or_default() {
        Some(tool_name(&call.function.name)).hash(&mut hasher);
        arguments(call.function.arguments, &mut hasher);
    }
    hasher.finish()
}

/// The field of the assistant's reasoning in samples and data sets.
pub const REASONING: &str = "reasoning_content";

/// Gives a request's messages with the reasoning that harnesses leave out when they resend a reply: each of the assistant's messages
/// that says what one of `replies` (in their order) says, and has no reasoning, gets that reply's. Nothing else changes, as tools'
/// results refer to the ids that the harness gave.
#[must_use]
pub fn with_reasoning(messages: &[Raw], replies: &[&Raw]) -> Vec<Raw> {
    // The next one is the last.
    let mut waiting: Vec<(u64, &Raw)> = replies.iter().rev().map(|reply| (meaning(reply), *reply)).collect();
    let kept = messages.iter().map(|message| {
        let said = meaning(message);
        let Some(at) = waiting.iter().rposition(|(reply, _)| *reply == said) else { return message.clone() };
        let reply = waiting[at].1;
        waiting.truncate(at);
        let (Ok(mut echo), Ok(reply)) = (message.read::<Map<String, Value>>(), reply.read::<Map<String, Value>>()) else {
            return message.clone();
        };
        match reply.get(REASONING) {
            Some(reasoning) if !reasoning.is_null() && echo.get(REASONING).is_none_or(Value::is_null) => {
                echo.insert(REASONING.to_owned(), reasoning.clone());
                Raw::from_value(&echo)
            }
            _ => message.clone(),
        }
    });
    kept.collect()
}

#[derive(Deserialize)]
struct Said<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<ToolCall<'a>>>,
}

#[derive(Deserialize)]
struct ToolCall<'a> {
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct TextPart<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

/// Null, an empty string and no content are the same; parts of text are the text that they make.
fn content(content: Option<&RawValue>, hasher: &mut impl Hasher) {
    let Some(content) = content.map(RawValue::get) else { return };
    if let Ok(text) = serde_json::from_str::<Cow<'_, str>>(content) {
        hasher.write(text.as_bytes());
    } else if let Ok(parts) = serde_json::from_str::<Vec<&RawValue>>(content) {
        for part in parts {
            match serde_json::from_str::<TextPart<'_>>(part.get()) {
                Ok(part) => hasher.write(part.text.as_bytes()),
                Err(_) => part.get().hash(hasher),
            }
        }
    } else if content != "null" {
        content.hash(hasher);
    }
}

fn arguments(arguments: Option<&RawValue>, hasher: &mut impl Hasher) {
    let Some(arguments) = arguments.map(RawValue::get) else { return };
    hash_arguments(&serde_json::from_str::<Cow<'_, str>>(arguments).unwrap_or(Cow::Borrowed(arguments)), hasher);
}

/// A tool's own name: wires that group tools name the group before the tool, each in its own way.
#[must_use]
pub fn tool_name(name: &str) -> &str {
    let name = name.rsplit(['.', '/']).next().unwrap_or(name);
    name.rsplit("__").next().unwrap_or(name)
}

/// Hashes a tool call's arguments as the JSON value that they are; text that is none as it is. None at all are an empty object.
pub fn hash_arguments(text: &str, hasher: &mut impl Hasher) {
    let text = if text.trim().is_empty() { "{}" } else { text };
    match serde_json::from_str::<Value>(text) {
        Ok(value) => value_meaning(&value, hasher),
        Err(_) => text.hash(hasher),
    }
}

/// JSON values are equal whatever the order of an object's keys, and numbers whatever their spelling: 1.0 is 1 in JavaScript.
fn value_meaning(value: &Value, hasher: &mut impl Hasher) {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| *name);
            b'{'.hash(hasher);
            for (name, value) in fields {
                name.hash(hasher);
                value_meaning(value, hasher);
            }
            b'}'.hash(hasher);
        }
        Value::Array(items) => {
            b'['.hash(hasher);
            for item in items {
                value_meaning(item, hasher);
            }
            b']'.hash(hasher);
        }
        Value::Number(number) => (b'n', (number.as_f64().unwrap_or(f64::NAN) + 0.0).to_bits()).hash(hasher),
        leaf => leaf.to_string().hash(hasher),
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) -> bool {
        let raw = |text: &str| Raw::from_value(&serde_json::from_str::<Box<RawValue>>(text).unwrap());
        meaning(&raw(a)) == meaning(&raw(b))
    }

    #[test]
    fn messages_that_say_the_same_are_the_same() {
        let call = r#"{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"sh","arguments":"{\"b\":1,\"a\":[\"\\u00e9\"]}"}}]}"#;
        let echoed = r#"{"role":"assistant","content":"","reasoning":"hm","tool_calls":[{"id":"b","type":"function","function":{"name":"ns__sh","arguments":"{ \"a\": [\"é\"], \"b\": 1 }"}}]}"#;
        assert!(same(call, echoed));
        assert!(same(
            r#"{"role":"user","content":"ab"}"#,
            r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#
        ));
    }

    #[test]
    fn reasoning_that_was_not_resent_is_kept() {
        let raw = |role: &str, text: &str, reasoning: Option<&str>| {
            let mut message = serde_json::json!({"role": role, "content": text});
            if let Some(reasoning) = reasoning {
                message[REASONING] = reasoning.into();
            }
            Raw::from_value(&message)
        };
        let resent = ["user a", "assistant b", "user c", "assistant b", "assistant other", "assistant own"];
        let mut messages: Vec<Raw> =
            resent.iter().filter_map(|said| said.split_once(' ')).map(|(role, text)| raw(role, text, None)).collect();
        messages[5] = raw("assistant", "own", Some("echoed"));
        let replies = [raw("assistant", "b", Some("1")), raw("assistant", "b", Some("2")), raw("assistant", "own", Some("3"))];
        let kept = with_reasoning(&messages, &replies.iter().collect::<Vec<_>>());
        let mut expected = messages.clone();
        expected[1] = replies[0].clone();
        expected[3] = replies[1].clone();
        assert_eq!(kept, expected);
    }

    #[test]
    fn messages_that_say_something_else_differ() {
        assert!(!same(r#"{"role":"user","content":"a"}"#, r#"{"role":"user","content":"b"}"#));
        assert!(!same(r#"{"role":"user","content":"a"}"#, r#"{"role":"system","content":"a"}"#));
        let call = |arguments: &str| {
            serde_json::json!({"role": "assistant", "tool_calls": [{"function": {"name": "sh", "arguments": arguments}}]})
                .to_string()
        };
        assert!(!same(&call(r#"{"a":1}"#), &call(r#"{"a":2}"#)));
        assert!(!same(&call(r#"{"a":1}"#), &call(r#"{"a":"1"}"#)));
        assert!(same(&call(r#"{"a":1.0,"b":-0.0}"#), &call(r#"{"b":0,"a":1}"#)));
        assert!(same(&call(""), &call("{ }")));
        assert!(!same(&call("not json"), &call("not  json")));
    }
}
