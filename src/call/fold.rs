//! From events to a whole reply: used while a reply streams, when one is read anew, and in tests.

use super::event::{Event, FinishReason, ToolStart, Usage};
use super::json::Text;
use super::message::{Content, Message, Role, ToolCall};
use super::tokens::Tokens;

/// A whole reply of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    pub text: Option<Text>,
    pub reasoning: Option<Text>,
    pub refusal: Option<Text>,
    /// In the order in which they began.
    pub tool_calls: Vec<ToolCall>,
    pub finish: Option<FinishReason>,
    /// The stop string that ended it, where the server told.
    pub stop_string: Option<Text>,
    pub usage: Option<Usage>,
    pub prompt_ids: Option<Vec<u32>>,
    /// The prompt's text, if the client wants to see it before the reply's.
    pub prompt_text: Option<Text>,
    pub tokens: Tokens,
    pub version: Option<String>,
    /// Fields beside the reply's own.
    pub extras: Vec<super::Extra>,
}

impl Reply {
    /// Whether the model said anything.
    #[must_use]
    pub fn has_output(&self) -> bool {
        self.text.is_some() || self.reasoning.is_some() || self.refusal.is_some() || !self.tool_calls.is_empty()
    }

    /// The reply as the assistant's message of the conversation.
    #[must_use]
    pub fn message(&self) -> Message {
        // Servers begin every stream with an empty text.
        let said = self.text.as_ref().filter(|text| !text.is_empty()).or(self.refusal.as_ref()).or(self.text.as_ref());
        Message {
            content: said.cloned().map_or(Content::Null, Content::Text),
            reasoning: self.reasoning.clone(),
            tool_calls: self.tool_calls.clone(),
            ..Message::new(Role::Assistant)
        }
    }
}

/// Builds a [`Reply`] from its events, in time linear in their bytes.
#[derive(Debug, Default)]
pub struct Fold {
    text: Joined,
    reasoning: Joined,
    refusal: Joined,
    tools: Vec<(Option<ToolStart>, Joined)>,
    reply: Reply,
}

/// String literals joined without decoding.
#[derive(Debug, Default)]
struct Joined(Option<Vec<u8>>);

impl Joined {
    fn push(&mut self, piece: &Text) {
        self.0.get_or_insert_with(Vec::new).extend_from_slice(piece.inner());
    }

    fn text(self) -> Option<Text> {
        self.0.map(|inner| Text::from_inner(&inner))
    }
}

impl Fold {
    /// Takes the next event.
    pub fn push(&mut self, event: &Event) {
        match event {
            Event::Prompt(ids) => self.reply.prompt_ids = Some(ids.clone()),
            Event::PromptText(text) => self.reply.prompt_text = Some(text.clone()),
            Event::Tokens(tokens) => {
                self.reply.tokens.ids.extend_from_slice(&tokens.ids);
                self.reply.tokens.logprobs.extend_from_slice(&tokens.logprobs);
            }
            Event::Text(piece) => self.text.push(piece),
            Event::Reasoning(piece) => self.reasoning.push(piece),
            Event::Refusal(piece) => self.refusal.push(piece),
            Event::ToolStart { index, tool } => {
                let slot = self.tool(*index);
                slot.0 = Some(tool.clone());
            }
            Event::ToolArguments { index, fragment } => self.tool(*index).1.push(fragment),
            Event::Extra(extra) => self.reply.extras.push(extra.clone()),
            Event::Finish(reason) => self.reply.finish = Some(*reason),
            Event::StopString(stop) => self.reply.stop_string = Some(stop.clone()),
            Event::Usage(usage) => self.reply.usage = Some(*usage),
            Event::Version(version) => self.reply.version = Some(version.clone()),
        }
    }

    /// The reply so far; whole if the stream has ended well.
    #[must_use]
    pub fn reply(self) -> Reply {
        let tool_calls = self.tools.into_iter().filter_map(|(start, arguments)| {
            let start = start?;
            let arguments = arguments.text().unwrap_or_else(|| Text::new(""));
            Some(ToolCall { id: start.id, kind: start.kind, namespace: start.namespace, name: start.name, arguments })
        });
        Reply {
            tool_calls: tool_calls.collect(),
            text: self.text.text(),
            reasoning: self.reasoning.text(),
            refusal: self.refusal.text(),
            ..self.reply
        }
    }

    fn tool(&mut self, index: u32) -> &mut (Option<ToolStart>, Joined) {
        // Decoders number tool calls without gaps, so an index can't outgrow the events that came.
        let index = index as usize;
        while self.tools.len() <= index {
            self.tools.push((None, Joined::default()));
        }
        &mut self.tools[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Extra, Raw, ToolKind};

    fn fold(events: &[Event]) -> Reply {
        let mut fold = Fold::default();
        for event in events {
            fold.push(event);
        }
        fold.reply()
    }

    fn start(index: u32, id: &str) -> Event {
        let tool = ToolStart { id: id.into(), kind: ToolKind::Function, namespace: None, name: "f".into() };
        Event::ToolStart { index, tool }
    }

    fn fragment(index: u32, text: &str) -> Event {
        Event::ToolArguments { index, fragment: text.into() }
    }

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), kind: ToolKind::Function, namespace: None, name: "f".into(), arguments: arguments.into() }
    }

    #[test]
    fn nothing_said_is_an_empty_reply() {
        assert_eq!(fold(&[]), Reply::default());
        assert_eq!(fold(&[]).message().content, Content::Null);
    }

    #[test]
    fn fragments_of_mixed_calls_find_their_call() {
        let events = [start(0, "a"), fragment(0, "{"), start(1, "b"), fragment(1, "[\""), fragment(0, "}"), fragment(1, "\"]")];
        assert_eq!(fold(&events).tool_calls, [call("a", "{}"), call("b", "[\"\"]")]);
    }

    #[test]
    fn a_call_that_never_began_is_left_out() {
        assert_eq!(fold(&[fragment(0, "{}"), start(1, "b")]).tool_calls, [call("b", "")]);
    }

    #[test]
    fn pieces_join_and_the_last_of_each_fact_stands() {
        let usage = |completion_tokens| Usage { completion_tokens, ..Usage::default() };
        let tokens = |id| Tokens { ids: vec![id], logprobs: vec![-f64::from(id)] };
        let extra = Extra::Choice { name: "stop_reason".into(), value: Raw::from_value(&7) };
        let reply = fold(&[
            Event::Prompt(vec![1, 2]),
            Event::Reasoning("th".into()),
            Event::Tokens(tokens(3)),
            Event::Reasoning("ink".into()),
            Event::Text("a\n".into()),
            Event::Tokens(tokens(4)),
            Event::Text("".into()),
            Event::Text("b".into()),
            Event::Extra(extra.clone()),
            Event::Finish(FinishReason::Length),
            Event::Usage(usage(1)),
            Event::Usage(usage(2)),
            Event::Version("v1".to_owned()),
        ]);
        let expected = Reply {
            text: Some("a\nb".into()),
            reasoning: Some("think".into()),
            finish: Some(FinishReason::Length),
            usage: Some(usage(2)),
            prompt_ids: Some(vec![1, 2]),
            tokens: Tokens { ids: vec![3, 4], logprobs: vec![-3.0, -4.0] },
            version: Some("v1".to_owned()),
            extras: vec![extra],
            ..Reply::default()
        };
        assert_eq!(reply, expected);
        let message = Message { reasoning: Some("think".into()), ..Message::text(Role::Assistant, "a\nb".into()) };
        assert_eq!(reply.message(), message);
    }

    #[test]
    fn a_refusal_stands_for_the_text_in_the_message() {
        let reply = fold(&[Event::Refusal("N".into()), Event::Refusal("o".into())]);
        assert_eq!((reply.text.clone(), reply.message().content), (None, Content::Text("No".into())));
        let streamed = fold(&[Event::Text("".into()), Event::Refusal("No".into())]);
        assert_eq!(streamed.message().content, Content::Text("No".into()));
        let silent = fold(&[Event::Text("".into())]);
        assert_eq!(silent.message().content, Content::Text("".into()));
    }
}
