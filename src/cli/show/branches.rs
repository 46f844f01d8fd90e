//! Why a rollout became more samples than one: where the messages of a branch's first call part from what was said before.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::terminal::{Paint, table};
use crate::call::Raw;
use crate::http::api::CallView;
use crate::ids::CallId;
use crate::trajectory::Sample;

/// A sample that does not begin a rollout, and why it goes on from no other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(in crate::cli) struct Branch {
    pub sample_id: String,
    /// The call that it begins with.
    pub call_id: CallId,
    pub why: String,
}

/// The branches among the samples; `calls` are the rollout's, in their order.
pub(super) fn of(samples: &[Sample], calls: &[CallView]) -> Vec<Branch> {
    let said: Vec<Said> = if samples.len() > 1 { calls.iter().map(Said::of).collect() } else { Vec::new() };
    let branch = |sample: &Sample| {
        let at = sample.parent.as_ref().map_or(0, |parent| parent.at);
        let call_id = sample.spans.iter().find(|span| span.start >= at)?.call_id;
        let place = said.iter().position(|call| call.id == call_id)?;
        Some(Branch { sample_id: sample.id.clone(), call_id, why: why(&said[place], &said[..place]) })
    };
    samples.iter().skip(1).filter_map(branch).collect()
}

/// One line a branch; nothing if there is none.
pub(super) fn rendered(branches: &[Branch], paint: Paint) -> String {
    if branches.is_empty() {
        return String::new();
    }
    let row = |branch: &Branch| vec![branch.sample_id.clone(), branch.call_id.to_string(), branch.why.clone()];
    format!("\n{}", table(&["branch", "begins with call", "why"], &branches.iter().map(row).collect::<Vec<_>>(), paint))
}

/// Where the messages of a call part from those of another.
pub(super) fn difference(one: &CallView, two: &CallView) -> String {
    let (one, two) = (Said::of(one), Said::of(two));
    let (earlier, later) = if one.messages.len() <= two.messages.len() { (one, two) } else { (two, one) };
    if later.messages.iter().zip(earlier.after()).all(|(a, b)| a == b) && later.messages.len() > earlier.messages.len() {
        return format!("call {} goes on from call {}", later.id, earlier.id);
    }
    format!("of call {}: {}", later.id, why(&later, &[earlier]))
}

/// What a call's request said, and the reply, without what no model reads: ids, and in which of two ways a text is written.
#[derive(Debug)]
struct Said {
    id: CallId,
    messages: Vec<Value>,
    reply: Option<Value>,
    tools: Vec<Value>,
}

impl Said {
    fn of(call: &CallView) -> Self {
        let read = |raw: &Raw| raw.read::<Value>().unwrap_or_default();
        let list = |list: &Option<Vec<Raw>>| list.iter().flatten().map(read).collect::<Vec<_>>();
        Self {
            id: call.id,
            messages: list(&call.messages).iter().map(plain).collect(),
            reply: call.message.as_ref().map(|message| plain(&read(message))),
            tools: list(&call.tools),
        }
    }

    /// The conversation as it stood after the reply.
    fn after(&self) -> impl Iterator<Item = &Value> {
        self.messages.iter().chain(&self.reply)
    }
}

/// The parts of a message that a model reads, by name; those that it lacks are left out.
fn plain(message: &Value) -> Value {
    let mut plain = Map::new();
    let mut keep = |name: &str, value: Value| {
        if !matches!(&value, Value::Null) && value != "" && value != json!([]) {
            plain.insert(name.to_owned(), value);
        }
    };
    keep("role", message["role"].clone());
    keep("reasoning", message["reasoning_content"].clone());
    let text = |part: &Value| part["text"].as_str().map(str::to_owned);
    let texts = message["content"].as_array().map(|parts| parts.iter().map(text).collect::<Option<String>>());
    keep("content", texts.flatten().map_or_else(|| message["content"].clone(), Value::String));
    let arguments = |text: &Value| text.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| text.clone());
    let call = |call: &Value| json!([call["function"]["name"], arguments(&call["function"]["arguments"])]);
    keep("tool calls", message["tool_calls"].as_array().map(|calls| calls.iter().map(call).collect()).unwrap_or_default());
    Value::Object(plain)
}

/// Why `branch` goes on from none of the earlier calls; it is held against the one with which it has the most in common.
fn why(branch: &Said, earlier: &[Said]) -> String {
    let shared = |other: &&Said| other.after().zip(&branch.messages).take_while(|(a, b)| a == b).count();
    let Some(other) = earlier.iter().max_by_key(shared) else { return "no call came before it".to_owned() };
    let (same, id) = (shared(&other), other.id);
    let number = same + 1;
    let role = |message: &Value| message["role"].as_str().unwrap_or("a").to_owned();
    let ours = branch.messages.get(same);
    if branch.tools != other.tools {
        return format!("its tools are not those of call {id}");
    }
    match (other.after().nth(same), ours) {
        (None, _) => format!("it goes on from call {id}, but those messages are other tokens now"),
        (Some(_), None) if same == other.messages.len() => format!("it asks the same as call {id}"),
        (Some(_), None) => format!("it has only the first {same} messages of call {id}"),
        (Some(theirs), Some(ours)) if same == other.messages.len() && role(theirs) == role(ours) => {
            format!("the reply of call {id} came back {}", changes(theirs, ours))
        }
        (Some(_), Some(_)) if same == other.messages.len() => format!("the reply of call {id} is not in it"),
        (Some(theirs), Some(ours)) => {
            let moved = branch.messages[same..].iter().position(|message| message == theirs);
            let what = match moved {
                Some(by) => format!("now comes as message {}", number + by),
                None if role(theirs) == role(ours) => format!("came back {}", changes(theirs, ours)),
                None => "is gone".to_owned(),
            };
            format!("message {number} ({}) of call {id} {what}", role(theirs))
        }
    }
}

/// What of a message is not as it was.
fn changes(before: &Value, after: &Value) -> String {
    let (Some(before), Some(after)) = (before.as_object(), after.as_object()) else { return "changed".to_owned() };
    let lost = before.keys().filter(|name| !after.contains_key(*name)).map(|name| format!("without its {name}"));
    let other = before
        .iter()
        .filter_map(|(name, value)| after.get(name).filter(|now| *now != value).map(|_| format!("with other {name}")));
    let new = after.keys().filter(|name| !before.contains_key(*name)).map(|name| format!("with new {name}"));
    lost.chain(other).chain(new).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "01900000-0000-7000-8000-000000000001";

    fn said(messages: &[Value], reply: &Value) -> Said {
        let messages = messages.iter().map(plain).collect();
        Said { id: FIRST.parse().unwrap(), messages, reply: Some(plain(reply)), tools: Vec::new() }
    }

    fn user(text: &str) -> Value {
        json!({"role": "user", "content": text})
    }

    fn reply() -> Value {
        let function = json!({"name": "run", "arguments": "{\"a\": 1}"});
        json!({"role": "assistant", "content": null, "reasoning_content": "so", "tool_calls": [{"id": "call_1", "function": function}]})
    }

    /// Why a call that says this goes not on from one that was asked a question and told of its tail.
    fn parts(messages: &[Value]) -> String {
        let earlier = said(&[user("question"), user("tail")], &reply());
        why(&said(messages, &user("")), &[earlier]).replace(FIRST, "1")
    }

    #[test]
    fn what_became_of_an_earlier_message_is_said() {
        assert_eq!(parts(&[user("question"), reply(), user("tail")]), "message 2 (user) of call 1 now comes as message 3");
        assert_eq!(parts(&[user("question"), reply(), user("new tail")]), "message 2 (user) of call 1 is gone");
        assert_eq!(parts(&[user("question"), user("new tail")]), "message 2 (user) of call 1 came back with other content");
        assert_eq!(parts(&[user("question")]), "it has only the first 1 messages of call 1");
    }

    #[test]
    fn what_became_of_the_reply_is_said() {
        let with = |answer: Value| parts(&[user("question"), user("tail"), answer, user("result")]);
        let mut echoed = reply();
        echoed["tool_calls"][0]["id"] = json!("other");
        echoed["tool_calls"][0]["function"]["arguments"] = json!("{\"a\":1}");
        echoed["content"] = json!("");
        assert_eq!(with(echoed.clone()), "it goes on from call 1, but those messages are other tokens now");
        echoed.as_object_mut().unwrap().remove("reasoning_content");
        echoed["content"] = json!([{"type": "text", "text": "so"}]);
        assert_eq!(with(echoed), "the reply of call 1 came back without its reasoning, with new content");
        assert_eq!(with(user("go on")), "the reply of call 1 is not in it");
        assert_eq!(parts(&[user("question"), user("tail")]), "it asks the same as call 1");
    }

    #[test]
    fn other_tools_and_the_first_call_are_told() {
        let earlier = said(&[user("question")], &reply());
        let branch = Said { tools: vec![json!({"type": "function"})], ..said(&[user("question")], &reply()) };
        assert_eq!(why(&branch, &[earlier]), format!("its tools are not those of call {FIRST}"));
        assert_eq!(why(&branch, &[]), "no call came before it");
    }
}
