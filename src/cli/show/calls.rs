//! The conversation, call by call: what each request added, and the reply.

use std::fmt::Write as _;

use serde::Deserialize;

use super::super::list::name_of;
use super::super::terminal::{Paint, counted, harmless};
use crate::call::Raw;
use crate::http::api::CallView;

/// A message as far as people read it.
#[derive(Deserialize)]
struct Message {
    role: String,
    #[serde(default)]
    content: Option<Raw>,
    #[serde(default, alias = "reasoning")]
    reasoning_content: Option<String>,
    #[serde(default)]
    tool_calls: Option<Raw>,
}

/// Prints every call with the messages that the one before did not have.
pub(super) fn conversation(calls: &[CallView], paint: Paint) -> String {
    let mut out = String::new();
    let mut before: &[Raw] = &[];
    for call in calls {
        let _ = writeln!(out, "{} {} ({}, {})", paint.bold("call"), call.id, call.wire, name_of(&call.status));
        for note in &call.notes {
            let _ = writeln!(out, "  note: {}", harmless(note));
        }
        if let Some(prompt) = &call.prompt {
            let text = prompt.read::<String>().unwrap_or_else(|_| prompt.as_str().to_owned());
            let _ = writeln!(out, "  {}: {}", paint.bold("prompt"), harmless(&text).replace('\n', "\n    "));
        }
        let messages = call.messages.as_deref().unwrap_or_default();
        let same = messages.iter().zip(before).take_while(|(new, old)| new == old).count();
        if same > 0 {
            let _ = writeln!(out, "{}", paint.dim(&format!("  {} as before", counted(same as u64, "message"))));
        }
        for message in &messages[same..] {
            out.push_str(&shown(message, paint, false));
        }
        match (&call.message, &call.failure) {
            (_, Some(failure)) => {
                let _ = writeln!(out, "  {}: {}", name_of(&failure.kind), harmless(&failure.message));
            }
            (Some(message), None) => out.push_str(&shown(message, paint, true)),
            (None, None) => {}
        }
        before = messages;
    }
    out
}

fn shown(message: &Raw, paint: Paint, reply: bool) -> String {
    let colour = |text: &str| if reply { paint.green(text) } else { text.to_owned() };
    let Ok(read) = message.read::<Message>() else { return format!("  {}\n", colour(&harmless(message.as_str()))) };
    let content =
        read.content.and_then(|content| content.read::<Option<String>>().unwrap_or_else(|_| Some(content.as_str().to_owned())));
    let parts = [
        read.reasoning_content.map(|text| format!("(reasoning) {text}")),
        content,
        read.tool_calls.map(|calls| format!("(tool calls) {}", calls.as_str())),
    ];
    let mut out = String::new();
    for part in parts.into_iter().flatten() {
        let indented = harmless(&part).replace('\n', "\n    ");
        let _ = writeln!(out, "  {}: {}", paint.bold(&read.role), colour(&indented));
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_are_shown_part_by_part() {
        let message = Raw::from_value(&json!({"role": "assistant", "reasoning": "hm", "content": "a\nb", "tool_calls": [1]}));
        let expected = "  assistant: (reasoning) hm\n  assistant: a\n    b\n  assistant: (tool calls) [1]\n";
        assert_eq!(shown(&message, Paint::none(), true), expected);
        let parts = Raw::from_value(&json!({"role": "user", "content": [{"type": "text", "text": "x"}]}));
        assert_eq!(shown(&parts, Paint::none(), false), "  user: [{\"type\":\"text\",\"text\":\"x\"}]\n");
        let null = Raw::from_value(&json!({"role": "assistant", "content": null}));
        assert_eq!(shown(&null, Paint::none(), true), "");
    }
}
