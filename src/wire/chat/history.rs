//! What the messages of a request have said of tools so far: the older form of calls has no ids, and results must have calls.

use crate::call::{Failure, Message, Role, Text};
use crate::wire::fields::At;

/// The calls of the messages read so far.
#[derive(Default)]
pub(super) struct History {
    calls: usize,
    /// Calls of the older form that have no result yet: their names and the ids that they were given.
    open: Vec<(Text, Text)>,
}

impl History {
    /// An id for a call of the older form.
    pub(super) fn begin(&mut self, name: &Text) -> Text {
        let id = Text::new(&format!("call_{}", self.calls));
        self.open.push((name.clone(), id.clone()));
        id
    }

    /// The id of the call that a result of the older form answers: the last one of that name, else the last one.
    pub(super) fn answer(&mut self, name: Option<&Text>) -> Option<Text> {
        let named = self.open.iter().rposition(|(called, _)| name.is_some_and(|name| name.decode() == called.decode()));
        let at = named.or(self.open.len().checked_sub(1))?;
        Some(self.open.remove(at).1)
    }

    /// Takes a message that was read.
    ///
    /// # Errors
    /// If it is a tool's result and no tool was ever called.
    pub(super) fn take(&mut self, at: &At<'_>, message: &Message) -> Result<(), Failure> {
        self.calls += message.tool_calls.len();
        if message.role == Role::Tool && self.calls == 0 {
            return Err(At::Field(at, "role").invalid("must follow a message with tool_calls, as it is a tool's result"));
        }
        Ok(())
    }
}
