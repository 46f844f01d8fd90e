//! From items to messages: one system message before all, one message for each turn of the assistant, and every tool's output
//! right after the turn that called it.

use std::collections::{HashMap, HashSet, VecDeque};

use super::content::texts;
use crate::call::{Content, Message, Role, Text, ToolCall};
use crate::wire::notes::Notes;

/// A conversation as it is read.
#[derive(Clone, Default)]
pub(super) struct Turns {
    /// What stands before the conversation's first message.
    system: Vec<Text>,
    messages: Vec<Message>,
    /// The assistant's turn that is being read.
    open: Option<Turn>,
    /// Instructions that came later and were given to the user's side.
    folded: usize,
    /// Ids of calls that are no part of the messages.
    untold: HashSet<Vec<u8>>,
}

#[derive(Clone, Default)]
struct Turn {
    reasoning: Vec<Text>,
    said: Vec<Text>,
    calls: Vec<ToolCall>,
}

impl Turns {
    /// Instructions. Later ones stay where they are, as the user's: moving them to the front would change what was there before,
    /// and with it every token of the conversation; most templates take no system message in the middle.
    pub(super) fn system(&mut self, content: Content) {
        if self.messages.is_empty() && self.open.is_none() {
            self.system.extend(texts(&content).into_iter().filter(|text| !text.is_empty()));
        } else {
            self.folded += 1;
            self.push(Message { content, ..Message::new(Role::User) });
        }
    }

    /// A message of the user's or of a tool; the assistant's turn ends before it.
    pub(super) fn push(&mut self, message: Message) {
        self.close();
        self.messages.push(message);
    }

    /// The assistant's reasoning.
    pub(super) fn reasoning(&mut self, texts: Vec<Text>) {
        self.open.get_or_insert_default().reasoning.extend(texts);
    }

    /// The assistant's text.
    pub(super) fn said(&mut self, content: &Content) {
        let turn = self.open.get_or_insert_default();
        turn.said.extend(Text::join(&texts(content), b"").filter(|text| !text.is_empty()));
    }

    /// A call of a tool.
    pub(super) fn call(&mut self, call: ToolCall) {
        self.open.get_or_insert_default().calls.push(call);
    }

    /// A call that is not told: its output is told by itself.
    pub(super) fn untold(&mut self, call: &Text) {
        self.untold.insert(call.literal().to_vec());
    }

    /// The whole conversation, with the request's instructions before the others; and the call of an output, if there is no such
    /// call.
    pub(super) fn messages(mut self, instructions: Option<Text>, notes: &mut Notes) -> (Vec<Message>, Option<Text>) {
        self.close();
        if self.folded > 0 {
            notes.say(format!("{} later system or developer messages were passed on as the user's", self.folded));
        }
        let system: Vec<Text> = instructions.into_iter().chain(self.system).collect();
        let system = Text::join(&system, Text::BLANK_LINE).map(|text| Message::text(Role::System, text));
        let (messages, orphan) = outputs_after_calls(self.messages, &self.untold, notes);
        (system.into_iter().chain(messages).collect(), orphan)
    }

    fn close(&mut self) {
        let Some(Turn { reasoning, said, calls }) = self.open.take() else { return };
        // Pieces of reasoning are of one stream; nothing was between them.
        let reasoning = Text::join(&reasoning, b"");
        self.messages.push(Message::turn(Text::join(&said, Text::BLANK_LINE), reasoning, calls));
    }
}

/// Puts each tool's output right after the turn that called it, in the order of the calls. Outputs of no call stay in place; the
/// first such call is given too, unless it is one of the `untold`.
fn outputs_after_calls(messages: Vec<Message>, untold: &HashSet<Vec<u8>>, notes: &mut Notes) -> (Vec<Message>, Option<Text>) {
    let mut outputs: HashMap<&[u8], VecDeque<usize>> = HashMap::new();
    for (index, message) in messages.iter().enumerate() {
        if let Some(id) = &message.tool_call_id {
            outputs.entry(id.literal()).or_default().push_back(index);
        }
    }
    let mut order = Vec::with_capacity(messages.len());
    let mut placed = vec![false; messages.len()];
    let (mut called, mut orphan) = (HashSet::new(), None);
    for (index, message) in messages.iter().enumerate() {
        if !std::mem::replace(&mut placed[index], true) {
            order.push(index);
            // A second output of one call is told too.
            let no_call = |id: &&Text| !called.contains(id.literal()) && !untold.contains(id.literal());
            orphan = orphan.or_else(|| message.tool_call_id.as_ref().filter(no_call).cloned());
        }
        for call in &message.tool_calls {
            let Some(waiting) = outputs.get_mut(call.id.literal()) else { continue };
            called.insert(call.id.literal());
            // An output before its call is another call's of the same id.
            while let Some(output) = waiting.pop_front() {
                if output > index && !placed[output] {
                    placed[output] = true;
                    order.push(output);
                    break;
                }
            }
        }
    }
    if !order.is_sorted() {
        notes.say("tool outputs were moved right after their calls");
    }
    let mut messages: Vec<Option<Message>> = messages.into_iter().map(Some).collect();
    (order.into_iter().filter_map(|index| messages[index].take()).collect(), orphan)
}
