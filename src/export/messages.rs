//! `messages`: conversations for supervised fine-tuning, one a line: `{"messages": [...], "tools": "[...]"}`.
//!
//! `datasets` takes a column's type from the first 10 MB it reads, so what varies must not show in it. `tools` is a string of JSON,
//! because tools of two harnesses have schemas of different shape (trl and slime read it so). Messages have different fields
//! in every row, because each of the assistant's carries `step_loss_mask`: 1 on the replies that this row trains, 0 on those that an
//! earlier row of the rollout has and on text that the policy never sampled.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::load::REASONING;
use super::samples::each_line;
use super::{ExportError, Format, Material, Rows, push_line};
use crate::call::{CallStatus, Raw};
use crate::trajectory::{self, Broken, LeftOut, Reason, Turn};

/// Conversations as text.
pub(super) struct Messages;

impl Format for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn reads_all(&self) -> bool {
        true
    }

    fn rows(&self, from: &Material, out: &mut Vec<u8>) -> Result<Rows, Broken> {
        let turns = &from.turns;
        let had = |turn: &Turn| turn.trained && turn.record.status == CallStatus::Done && turn.record.delivered != Some(false);
        let parents = trajectory::parents(turns, &had);
        let gone_on: HashSet<usize> = parents.iter().copied().flatten().collect();
        let mut left_out = Vec::new();
        let mut kept = HashSet::new();
        for (index, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.record.status != CallStatus::Running) {
            match reason(turn, gone_on.contains(&index), (from.chosen)(&turn.record)) {
                Some(reason) => left_out.push(reason),
                None => drop(kept.insert(index)),
            }
        }
        let inner: HashSet<usize> = kept.iter().filter_map(|turn| parents[*turn]).collect();
        let mut trained = HashSet::new();
        let mut rows = Rows { written: 0, left_out };
        for leaf in (0..turns.len()).filter(|turn| kept.contains(turn) && !inner.contains(turn)) {
            let chain = std::iter::successors(Some(leaf), |turn| parents[*turn]);
            // A reply's place among the messages is how many its request had.
            let places: HashSet<usize> = chain
                .filter(|turn| kept.contains(turn) && trained.insert(*turn))
                .map(|turn| turns[turn].messages.len())
                .collect();
            push_line(out, &row(&turns[leaf], &places));
            rows.written += 1;
        }
        Ok(rows)
    }

    fn check(&self, path: &Path) -> Result<(), ExportError> {
        each_line(path, |line, text| check(text).map_err(|what| ExportError::Check { line, what }))
    }
}

/// Why a call gives no reply to train.
fn reason(turn: &Turn, gone_on: bool, chosen: bool) -> Option<LeftOut> {
    let record = &turn.record;
    let left_out = |reason| Some(LeftOut { call_id: record.id, reason, detail: None });
    if let Some(lost) = trajectory::lost(record, turn.trained, gone_on) {
        return Some(lost);
    }
    let said = record.message.as_ref().is_some_and(|message| {
        let fields = message.read::<Map<String, Value>>().unwrap_or_default();
        ["content", REASONING, "tool_calls"].iter().filter_map(|name| fields.get(*name)).any(|value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(items) => !items.is_empty(),
            _ => true,
        })
    });
    match (said && !turn.messages.is_empty(), chosen) {
        (false, _) => left_out(Reason::NoOutput),
        (true, false) => left_out(Reason::Filtered),
        (true, true) => None,
    }
}

/// A conversation's row; `places` are those of the replies that it trains.
fn row(leaf: &Turn, places: &HashSet<usize>) -> Vec<u8> {
    let messages = leaf.messages.iter().chain(&leaf.record.message);
    let messages: Vec<Value> = messages.enumerate().map(|(place, message)| plain(message, places.contains(&place))).collect();
    let tools = leaf.tools.iter().map(Raw::as_str).collect::<Vec<_>>().join(",");
    json!({ "messages": messages, "tools": format!("[{tools}]") }).to_string().into_bytes()
}

/// A message whose content is a string wherever it is text, and whose tools' arguments are strings.
fn plain(message: &Raw, trained: bool) -> Value {
    let mut fields = message.read::<Map<String, Value>>().unwrap_or_default();
    let content = fields.shift_remove("content").unwrap_or_default();
    let mut said = Map::new();
    said.insert("role".to_owned(), fields.shift_remove("role").unwrap_or_default());
    said.insert("content".to_owned(), text(content));
    if let Some(calls) = fields.get_mut("tool_calls").and_then(Value::as_array_mut) {
        for arguments in calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments")) {
            if !arguments.is_string() {
                *arguments = Value::String(arguments.to_string());
            }
        }
    }
    said.extend(fields);
    if said["role"] == "assistant" {
        said.insert("step_loss_mask".to_owned(), json!(u8::from(trained)));
    }
    Value::Object(said)
}

/// Content as a string, unless it has parts that are no text.
fn text(content: Value) -> Value {
    match content {
        Value::Null => Value::String(String::new()),
        Value::Array(parts) => match parts.iter().map(|part| part.get("text")?.as_str()).collect::<Option<Vec<_>>>() {
            Some(texts) => Value::String(texts.concat()),
            None => Value::Array(parts),
        },
        content => content,
    }
}

/// Checks one written row.
fn check(line: &str) -> Result<(), String> {
    let row: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let messages = row["messages"].as_array().ok_or("messages is no list")?;
    let tools = row["tools"].as_str().ok_or("tools is no string")?;
    serde_json::from_str::<Vec<Map<String, Value>>>(tools)
        .map_err(|error| format!("tools is no JSON list of objects: {error}"))?;
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        return Err("it does not end with the assistant".to_owned());
    }
    let mut trained = false;
    for message in messages {
        if !message["role"].is_string() || !(message["content"].is_string() || message["content"].is_array()) {
            return Err("a message has no role or no content".to_owned());
        }
        let mask = &message["step_loss_mask"];
        if (message["role"] == "assistant") != mask.is_u64() {
            return Err("step_loss_mask is not on the assistant's messages alone".to_owned());
        }
        trained |= *mask == 1;
    }
    if trained { Ok(()) } else { Err("nothing in it is trained".to_owned()) }
}
