//! From contents to messages: one message for each turn of the model, however many contents it came in, and what its functions gave
//! right after it, in the order of the calls.

use std::collections::{HashMap, VecDeque};

use super::contents::content;
use super::parts::{Called, Piece, Response};
use super::signature::Carried;
use crate::call::{Failure, Message, Part, Role, Text, ToolCall, ToolKind};
use crate::wire::fields::At;
use crate::wire::notes::Notes;

/// A conversation as it is read.
#[derive(Default)]
pub(super) struct Turns {
    messages: Vec<Message>,
    /// The model's turn that is being read.
    open: Option<Turn>,
    calls: Calls,
    /// What functions gave came later than right after their call.
    moved: bool,
    /// How many things were said.
    said: usize,
}

#[derive(Default)]
struct Turn {
    carried: String,
    /// The arguments that a signature carried, for the calls that come.
    arguments: VecDeque<String>,
    thoughts: Vec<Text>,
    said: Vec<Text>,
    calls: Vec<ToolCall>,
}

/// The model's calls of functions in their order, and what they gave.
#[derive(Default)]
struct Calls {
    made: Vec<Made>,
    /// The first call of the latest turn.
    latest: usize,
    by_id: HashMap<String, Waiting>,
    by_name: HashMap<String, Waiting>,
    /// The first call that may be unanswered.
    next: usize,
}

/// The calls of one id or name, some of which may be answered.
#[derive(Default)]
struct Waiting {
    /// The first call of the turn that `latest` is of.
    turn: usize,
    latest: VecDeque<usize>,
    older: VecDeque<usize>,
}

struct Made {
    /// The place of the turn's message.
    message: usize,
    id: Text,
    gave: Option<Message>,
}

impl Turns {
    /// How many things were said so far.
    pub(super) fn said(&self) -> usize {
        self.said
    }

    /// A message of the user's; the model's turn ends before it.
    pub(super) fn user(&mut self, parts: Vec<Part>) {
        self.close();
        self.said += 1;
        self.messages.push(Message { content: content(parts), ..Message::new(Role::User) });
    }

    /// A piece of the model's turn.
    pub(super) fn model(
        &mut self,
        at: &At<'_>,
        piece: Piece,
        carried: Option<Carried>,
        notes: &mut Notes,
    ) -> Result<(), Failure> {
        let place = self.messages.len();
        let turn = self.open.get_or_insert_with(|| {
            self.calls.latest = self.calls.made.len();
            Turn::default()
        });
        self.said += 1;
        if let Some(carried) = carried {
            turn.carry(carried);
        }
        match piece {
            Piece::Text(text) => turn.said.push(text),
            Piece::Thought(text) => turn.thoughts.push(text),
            Piece::Call(called) => {
                let id = self.calls.made(place, &called);
                turn.call(id, called);
            }
            Piece::Image(_) => notes.say(format!("left out the image at {at}: the model's turns are text")),
            Piece::Response(_) => return Err(at.invalid("must not be a functionResponse: those are the user's")),
            Piece::Left => {}
        }
        Ok(())
    }

    /// What a function gave; the model's turn ends before it.
    pub(super) fn answered(&mut self, at: &At<'_>, response: Response, notes: &mut Notes) -> Result<(), Failure> {
        self.close();
        self.said += 1;
        let Some(call) = self.calls.answered(&response, notes) else {
            return Err(at.invalid("is a functionResponse that answers no functionCall before it"));
        };
        let made = &mut self.calls.made[call];
        self.moved |= made.message + 1 != self.messages.len();
        let content = content(response.content);
        made.gave = Some(Message { content, tool_call_id: Some(made.id.clone()), ..Message::new(Role::Tool) });
        Ok(())
    }

    /// The whole conversation.
    pub(super) fn messages(mut self, notes: &mut Notes) -> Vec<Message> {
        self.close();
        if self.moved {
            notes.say("functions' responses were moved right after their calls");
        }
        let mut messages = Vec::with_capacity(self.messages.len() + self.calls.made.len());
        let mut made = self.calls.made.into_iter().peekable();
        for (place, message) in self.messages.into_iter().enumerate() {
            messages.push(message);
            while let Some(made) = made.next_if(|made| made.message == place) {
                messages.extend(made.gave);
            }
        }
        messages
    }

    fn close(&mut self) {
        if let Some(turn) = self.open.take() {
            self.messages.push(turn.message());
        }
    }
}

impl Turn {
    /// Takes what a signature carries. Each has all that was thought before it, so that of two the longer one stands.
    fn carry(&mut self, carried: Carried) {
        if carried.reasoning.starts_with(&self.carried) {
            self.carried = carried.reasoning;
        } else if !self.carried.starts_with(&carried.reasoning) {
            // Two replies became one turn.
            self.carried.push_str(&carried.reasoning);
        }
        if !carried.arguments.is_empty() {
            self.arguments = carried.arguments.into();
        }
    }

    fn call(&mut self, id: Text, called: Called) {
        // A client may have changed what the model asked for; then its word stands.
        let sampled = self.arguments.pop_front().filter(|sampled| is_same(sampled, &called.arguments.decode()));
        let arguments = sampled.map_or(called.arguments, |sampled| Text::new(&sampled));
        self.calls.push(ToolCall { id, kind: ToolKind::Function, namespace: None, name: called.name, arguments });
    }

    fn message(self) -> Message {
        // Pieces of one stream; nothing was between them.
        let joined = |texts: &[Text]| Text::join(texts, b"");
        let reasoning = if self.carried.is_empty() { joined(&self.thoughts) } else { Some(Text::new(&self.carried)) };
        Message::turn(joined(&self.said), reasoning.filter(|text| !text.is_empty()), self.calls)
    }
}

impl Calls {
    /// Notes a call; gives its id.
    fn made(&mut self, message: usize, called: &Called) -> Text {
        let number = self.made.len();
        // A number is the same whenever the conversation is read.
        let id = called.id.clone().unwrap_or_else(|| Text::new(&format!("call_{number}")));
        if let Some(id) = &called.id {
            self.by_id.entry(id.decode().into_owned()).or_default().of(self.latest).latest.push_back(number);
        }
        self.by_name.entry(called.name.decode().into_owned()).or_default().of(self.latest).latest.push_back(number);
        self.made.push(Made { message, id: id.clone(), gave: None });
        id
    }

    /// The call that a response answers: by its id, else by its name, else the next one of the latest turn.
    fn answered(&mut self, response: &Response, notes: &mut Notes) -> Option<usize> {
        let key = |text: &Option<Text>| text.as_ref().map(|text| text.decode().into_owned());
        let name = key(&response.name);
        let by_id = key(&response.id).and_then(|id| self.by_id.get_mut(&id)?.of(self.latest).take(&self.made));
        let found = by_id.or_else(|| self.by_name.get_mut(name.as_ref()?)?.of(self.latest).take(&self.made));
        if found.is_some() {
            return found;
        }
        let next = self.next.max(self.latest);
        let unanswered = (next..self.made.len()).find(|call| self.made[*call].gave.is_none())?;
        self.next = unanswered;
        let name = name.unwrap_or_default();
        notes.say(format!("took the response of {name:?} for the next call's: no call is of its id or name"));
        Some(unanswered)
    }
}

impl Waiting {
    /// The same, seen from the turn that begins with this call.
    fn of(&mut self, turn: usize) -> &mut Self {
        if self.turn != turn {
            self.older.append(&mut self.latest);
            self.turn = turn;
        }
        self
    }

    /// Takes the first unanswered call, the latest turn's before older ones.
    fn take(&mut self, made: &[Made]) -> Option<usize> {
        loop {
            let call = self.latest.pop_front().or_else(|| self.older.pop_front())?;
            if made[call].gave.is_none() {
                return Some(call);
            }
        }
    }
}

/// Tells whether two JSON texts mean the same.
fn is_same(one: &str, other: &str) -> bool {
    let value = |json: &str| serde_json::from_str::<serde_json::Value>(json).ok();
    one == other || value(one).is_some_and(|one| value(other) == Some(one))
}
