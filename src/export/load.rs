//! From the store to turns.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{Earlier, ExportError};
use crate::call::{Call, CallRecord, Message, Raw, RawKind, Tool, ToolCall, grouped_name};
use crate::store::{Rollout, Store, StoreError};
use crate::trajectory::{Needs, REASONING, RolloutFacts, Turn, needs};
use crate::wire;

/// What samples say of a rollout.
pub(super) fn facts(rollout: &Rollout) -> RolloutFacts {
    RolloutFacts {
        id: rollout.id,
        index: rollout.index,
        group_id: rollout.group_id.clone(),
        task_id: rollout.task_id.clone(),
        harness: rollout.harness.clone(),
        purpose: name(&rollout.purpose).unwrap_or_default(),
        reward: rollout.reward(),
        rewards: rollout.rewards.clone(),
        outcome: rollout.outcome.as_ref().and_then(name),
        metadata: rollout.metadata.clone(),
    }
}

/// The name that a plain enum has in JSON.
fn name(value: &impl serde::Serialize) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => Some(name),
        _ => None,
    }
}

/// The rollout's calls in the order in which they began. Requests are read as text where they are needed, or `all` of them.
pub(super) async fn turns(
    store: &dyn Store,
    rollout: &Rollout,
    trained: &(dyn Fn(&str) -> bool + Sync),
    all: bool,
) -> Result<Vec<Turn>, ExportError> {
    let records = store.calls(rollout.id).await?;
    let needed = if all { Needs::All } else { needs(&records.iter().collect::<Vec<_>>()) };
    let mut earlier = Earlier::new(store, rollout.id);
    let mut turns = Vec::with_capacity(records.len());
    for (index, mut record) in records.into_iter().enumerate() {
        let read = match &needed {
            Needs::All => true,
            Needs::Some(turns) => turns.contains(&index),
        };
        let (messages, tools) = if read { request(store, &record, &mut earlier).await? } else { <_>::default() };
        record.message = record.message.map(reasoning_content);
        let rewards = rollout.call_rewards.iter().filter(|(call, ..)| *call == record.id);
        turns.push(Turn {
            rewards: rewards.map(|(_, name, value)| (name.clone(), *value)).collect(),
            trained: trained(&record.policy),
            record,
            messages,
            tools,
        });
    }
    Ok(turns)
}

/// What a recorded call asked for, read anew from its request; `None` if that can't be read.
///
/// # Errors
/// If the store fails.
pub async fn asked(store: &dyn Store, record: &CallRecord) -> Result<Option<Call>, StoreError> {
    asked_after(store, record, &mut Earlier::new(store, record.rollout_id)).await
}

/// The same, where `earlier` has read others of the rollout's calls.
///
/// # Errors
/// If the store fails.
pub async fn asked_after(store: &dyn Store, record: &CallRecord, earlier: &mut Earlier<'_>) -> Result<Option<Call>, StoreError> {
    let Some(wire) = wire::named(&record.wire) else { return Ok(None) };
    let Some(body) = store.raw(record.id, RawKind::Request).await? else { return Ok(None) };
    let calls = earlier.read(wire, &record.target, &body).await?.unwrap_or_default();
    Ok(calls.into_iter().nth(record.choice as usize))
}

/// A request's messages and tools in chat completions' form; empty if it can't be read.
async fn request(store: &dyn Store, record: &CallRecord, earlier: &mut Earlier<'_>) -> Result<(Vec<Raw>, Vec<Raw>), ExportError> {
    Ok(asked_after(store, record, earlier).await?.as_ref().map(text).unwrap_or_default())
}

fn text(call: &Call) -> (Vec<Raw>, Vec<Raw>) {
    let messages = call.messages.iter().map(|message| {
        // Data sets know reasoning by one name, whatever the client calls it.
        let message = Message { reasoning_field: None, ..message.clone() };
        written(|out| message.write_chat(out, REASONING, &|tool: &ToolCall| grouped_name(tool.namespace.as_ref(), &tool.name)))
    });
    let tools = call
        .tools
        .iter()
        .map(|tool: &Tool| written(|out| tool.write_chat(out, &grouped_name(tool.namespace.as_ref(), &tool.name))));
    (messages.collect(), tools.collect())
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Raw {
    let mut out = Vec::new();
    write(&mut out);
    raw(&String::from_utf8_lossy(&out))
}

/// Takes JSON text; text that is none, which no writer of ours gives, becomes a string.
pub(super) fn raw(text: &str) -> Raw {
    match serde_json::from_str::<&serde_json::value::RawValue>(text) {
        Ok(value) => Raw::from_value(&value),
        Err(_) => Raw::from_value(&text),
    }
}

/// A reply's message, its reasoning under the one name that data sets know.
fn reasoning_content(message: Raw) -> Raw {
    let Ok(fields) = message.read::<Map<String, Value>>() else { return message };
    if !fields.contains_key("reasoning") || fields.contains_key(REASONING) {
        return message;
    }
    let renamed: Map<String, Value> = fields
        .into_iter()
        .map(|(name, value)| {
            let name = if name == "reasoning" { Cow::Borrowed(REASONING) } else { Cow::Owned(name) };
            (name.into_owned(), value)
        })
        .collect();
    Raw::from_value(&renamed)
}
