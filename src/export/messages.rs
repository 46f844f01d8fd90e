//! `messages`: conversations for supervised fine-tuning, one a line: `{"messages": [...], "tools": "[...]"}`.
//!
//! `datasets` takes a column's type from the first 10 MB it reads, so what varies must not show in it. `tools` is a string of JSON,
//! because tools of two harnesses have schemas of different shape (trl and slime read it so). Messages have different fields
//! in every row, because each of the assistant's carries `step_loss_mask`: 1 on the replies that this row trains, 0 on those that an
//! earlier row of the rollout has and on text that the policy never sampled.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::lines::{self, Lines};
use super::{Added, ExportError, Form, Format, Material, Rows, Target};
use crate::call::{CallStatus, Raw};
use crate::trajectory::{self, Broken, LeftOut, REASONING, Reason, Turn};

/// Conversations as text.
pub(super) struct Messages;

impl Format for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn forms(&self) -> &'static [Form] {
        &[Form::JsonLines]
    }

    fn reads_all(&self) -> bool {
        true
    }

    fn begin(&self, _form: Form, target: Target) -> Result<Box<dyn Rows>, ExportError> {
        Ok(Box::new(Lines::new(target, write_lines)))
    }

    fn check(&self, _form: Form, path: &Path) -> Result<(), ExportError> {
        lines::each(path, |row, text| check(text).map_err(|what| ExportError::Check { row, what }))
    }
}

#[expect(clippy::unnecessary_wraps, reason = "rows of other formats can break an invariant")]
fn write_lines(from: &Material, out: &mut Vec<u8>) -> Result<Added, Broken> {
    let turns = &from.turns;
    let had = |turn: &Turn| turn.trained && turn.record.status == CallStatus::Done && turn.record.delivered != Some(false);
    let parents = trajectory::parents(turns, &had);
    let classes = trajectory::classify(turns);
    let gone_on: HashSet<usize> = parents.iter().copied().flatten().collect();
    let mut left_out = Vec::new();
    let mut kept = HashSet::new();
    for (index, turn) in turns.iter().enumerate().filter(|(_, turn)| turn.record.status != CallStatus::Running) {
        match reason(turn, gone_on.contains(&index), from.rules.leave_out(&turn.record, classes[index])) {
            Some(reason) => left_out.push(reason),
            None => drop(kept.insert(index)),
        }
    }
    let inner: HashSet<usize> = kept.iter().filter_map(|turn| parents[*turn]).collect();
    let mut trained = HashSet::new();
    let mut added = Added { written: 0, left_out };
    for leaf in (0..turns.len()).filter(|turn| kept.contains(turn) && !inner.contains(turn)) {
        let mut chain: Vec<usize> = std::iter::successors(Some(leaf), |turn| parents[*turn]).collect();
        chain.reverse();
        let replies: Vec<&Raw> = chain.iter().filter_map(|turn| turns[*turn].record.message.as_ref()).collect();
        // A reply's place among the messages is how many its request had.
        let new = chain.into_iter().filter(|turn| kept.contains(turn) && trained.insert(*turn));
        let places: HashSet<usize> = new.map(|turn| turns[turn].messages.len()).collect();
        lines::push(out, &row(&turns[leaf], &replies, &places));
        added.written += 1;
    }
    Ok(added)
}

/// Why a call gives no reply to train.
fn reason(turn: &Turn, gone_on: bool, left: Option<(Reason, Option<String>)>) -> Option<LeftOut> {
    let record = &turn.record;
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
    if said && turn.messages.is_empty() && record.wire == "completions" {
        let detail = Some("a text completion is no conversation".to_owned());
        return Some(LeftOut { call_id: record.id, reason: Reason::Filtered, detail });
    }
    let left = if said && !turn.messages.is_empty() { left } else { Some((Reason::NoOutput, None)) };
    left.map(|(reason, detail)| LeftOut { call_id: record.id, reason, detail })
}

/// A conversation's row; `places` are those of the replies that it trains.
fn row(leaf: &Turn, replies: &[&Raw], places: &HashSet<usize>) -> Vec<u8> {
    let mut messages = trajectory::with_reasoning(&leaf.messages, replies);
    messages.extend(leaf.record.message.clone());
    let messages: Vec<Value> =
        messages.iter().enumerate().map(|(place, message)| plain(message, places.contains(&place))).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CallRecord, Capture};
    use crate::ids::{CallId, RolloutId};
    use crate::trajectory::{RolloutFacts, Rules};

    fn turn(messages: &Value, reply: &Value, tools: &Value) -> Turn {
        let raws = |list: &Value| list.as_array().unwrap().iter().map(Raw::from_value).collect();
        Turn {
            record: CallRecord {
                images: Vec::new(),
                id: CallId::generate(),
                rollout_id: RolloutId::generate(),
                started_at: 0,
                wire: "chat".to_owned(),
                target: "/chat/completions".to_owned(),
                choice: 0,
                policy: "default".to_owned(),
                model: "m".to_owned(),
                stream: false,
                marks: Vec::new(),
                status: CallStatus::Done,
                delivered: Some(true),
                ended_at: None,
                first_event_at: None,
                failure: None,
                message: Some(Raw::from_value(reply)),
                finish: None,
                usage: None,
                capture: Capture::default(),
                sampling_asked: <_>::default(),
                sampling_used: <_>::default(),
                max_tokens_asked: None,
                max_tokens_used: None,
                version: <_>::default(),
                notes: Vec::new(),
            },
            prompt: trajectory::Prompt::default(),
            messages: raws(messages),
            tools: raws(tools),
            trained: true,
            rewards: <_>::default(),
        }
    }

    fn written(turns: Vec<Turn>) -> (String, Added) {
        let facts = RolloutFacts {
            id: RolloutId::generate(),
            index: 0,
            group_id: None,
            task_id: None,
            harness: None,
            purpose: "record".to_owned(),
            reward: None,
            rewards: <_>::default(),
            outcome: None,
            metadata: Map::new(),
        };
        let mut out = Vec::new();
        let rows = write_lines(
            &Material { facts, turns, rules: Rules::default(), artifacts: &crate::store::Artifacts::default() },
            &mut out,
        )
        .unwrap();
        (String::from_utf8(out).unwrap(), rows)
    }

    /// Two conversations as unlike as they come. The same file is read by `datasets` and trl in `tests/python`.
    #[test]
    fn the_golden_file_is_what_is_written() {
        let system = json!({"role": "system", "content": "s"});
        let ask = json!({"role": "user", "content": [{"type": "text", "text": "list "}, {"type": "text", "text": "files"}]});
        let act = json!({"role": "assistant", "content": null, "reasoning_content": "I look.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{\"command\": \"ls\"}"}}]});
        let echoed = json!({"role": "assistant", "content": "", "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "sh", "arguments": {"command": "ls"}}}]});
        let saw = json!({"role": "tool", "content": "a.txt", "tool_call_id": "x"});
        let tools = json!([{"type": "function", "function": {"name": "sh", "parameters": {"type": "object",
            "properties": {"command": {"type": ["string", "null"], "default": 3}}}}}]);
        let (plain, _) = written(vec![turn(
            &json!([{"role": "user", "content": "hi"}]),
            &json!({"role": "assistant", "content": "ho"}),
            &json!([]),
        )]);
        let (tooled, rows) = written(vec![
            turn(&json!([system, ask]), &act, &tools),
            turn(&json!([system, ask, echoed, saw]), &json!({"role": "assistant", "content": "a.txt"}), &tools),
        ]);
        assert_eq!(rows, Added { written: 1, left_out: Vec::new() });
        assert_eq!(plain + &tooled, include_str!("../../tests/fixtures/export/messages.jsonl"));
    }

    #[test]
    fn a_reply_is_trained_in_one_row_and_foreign_text_in_none() {
        let (user, shot) = (json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "example"}));
        let say = json!({"role": "assistant", "content": "b"});
        let branch = |text: &str| {
            let more = json!({"role": "user", "content": text});
            turn(&json!([user, shot, user, say, more]), &json!({"role": "assistant", "content": text}), &json!([]))
        };
        let mut cut = branch("cut");
        cut.record.status = CallStatus::Cancelled;
        let mut silent = branch("silent");
        silent.record.message = Some(Raw::from_value(&json!({"role": "assistant", "content": ""})));
        let (text, rows) =
            written(vec![turn(&json!([user, shot, user]), &say, &json!([])), branch("c"), branch("d"), cut, silent]);
        let masks: Vec<Vec<Option<u64>>> = text
            .lines()
            .map(|line| {
                let row: Value = serde_json::from_str(line).unwrap();
                row["messages"].as_array().unwrap().iter().map(|message| message["step_loss_mask"].as_u64()).collect()
            })
            .collect();
        assert_eq!(masks, [[None, Some(0), None, Some(1), None, Some(1)], [None, Some(0), None, Some(0), None, Some(1)]]);
        assert_eq!(rows.left_out.iter().map(|left| left.reason).collect::<Vec<_>>(), [Reason::Undelivered, Reason::NoOutput]);
        assert!(text.lines().all(|line| check(line).is_ok()));
    }

    #[test]
    fn a_text_completion_is_no_conversation_and_says_so() {
        let mut completion = turn(&json!([]), &json!({"role": "assistant", "content": "and so on"}), &json!([]));
        "completions".clone_into(&mut completion.record.wire);
        let (text, rows) = written(vec![completion]);
        let left: Vec<_> = rows.left_out.iter().map(|left| (left.reason, left.detail.as_deref())).collect();
        assert_eq!((text.as_str(), left), ("", vec![(Reason::Filtered, Some("a text completion is no conversation"))]));
    }

    #[test]
    fn a_row_that_trains_nothing_is_found() {
        let row = |mask: u8| {
            json!({"messages": [{"role": "assistant", "content": "", "step_loss_mask": mask}], "tools": "[]"}).to_string()
        };
        assert_eq!(check(&row(1)), Ok(()));
        assert!(check(&row(0)).is_err());
        assert!(check(&row(1).replace("\"[]\"", "[]")).is_err());
        assert!(check(&row(1).replace("assistant", "user")).is_err());
    }
}
