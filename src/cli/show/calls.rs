//! The conversation, call by call: what each request added, and the reply.

use std::fmt::Write as _;

use serde::Deserialize;

use super::super::list::name_of;
use super::super::terminal::{Paint, counted, harmless};
use crate::call::{Image, Raw};
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
    let mut parts: Vec<String> = read.reasoning_content.map(|text| format!("(reasoning) {text}")).into_iter().collect();
    match read.content.map(|content| (content.read::<Option<String>>(), content)) {
        Some((Ok(text), _)) => parts.extend(text),
        Some((Err(_), content)) => match content.read::<Vec<Raw>>() {
            Ok(several) => parts.extend(several.iter().map(part)),
            Err(_) => parts.push(content.as_str().to_owned()),
        },
        None => {}
    }
    parts.extend(read.tool_calls.map(|calls| format!("(tool calls) {}", calls.as_str())));
    let mut out = String::new();
    for part in parts {
        let indented = harmless(&part).replace('\n', "\n    ");
        let _ = writeln!(out, "  {}: {}", paint.bold(&read.role), colour(&indented));
    }
    out
}

/// One part of a message's content: its text, or what its image is in short.
fn part(part: &Raw) -> String {
    #[derive(Deserialize)]
    struct Part {
        #[serde(default)]
        text: Option<String>,
    }
    if let Some(url) = Image::url_of_part(part) {
        let url = url.decode();
        return match Image::of_url(&url) {
            Some(image) => format!("[image {} {} bytes {}]", image.mime, image.bytes, image.hash),
            // What can't be read as data may still be as long.
            None => format!("[image {}]", url.chars().take(200).collect::<String>()),
        };
    }
    match part.read::<Part>() {
        Ok(Part { text: Some(text) }) => text,
        _ => part.as_str().to_owned(),
    }
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
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let several = [
            json!({"type": "text", "text": "x"}),
            image("data:image/png;base64,YWJj"),
            image("https://a.example/b.png"),
            json!({"type": "new", "a": 1}),
        ];
        let expected = "  user: x\n  user: [image image/png 3 bytes ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad]\n\
            \u{20} user: [image https://a.example/b.png]\n  user: {\"type\":\"new\",\"a\":1}\n";
        let several = Raw::from_value(&json!({"role": "user", "content": several}));
        assert_eq!(shown(&several, Paint::none(), false), expected);
        let null = Raw::from_value(&json!({"role": "assistant", "content": null}));
        assert_eq!(shown(&null, Paint::none(), true), "");
    }
}
