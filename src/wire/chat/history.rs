//! What the messages of a request have said of tools so far: the older form of calls has no ids, and results must have calls.

use std::collections::HashMap;

use crate::call::{Failure, Message, Role, Text};
use crate::wire::fields::At;

/// The calls of the messages read so far.
#[derive(Default)]
pub(super) struct History {
    calls: usize,
    /// The ids that calls of the older form were given, until their result comes.
    open: Vec<Option<Text>>,
    /// Their places by name; of those whose result has come, some.
    by_name: HashMap<String, Vec<usize>>,
}

impl History {
    /// An id for a call of the older form.
    pub(super) fn begin(&mut self, name: &Text) -> Text {
        let id = Text::new(&format!("call_{}", self.calls));
        self.by_name.entry(name.decode().into_owned()).or_default().push(self.open.len());
        self.open.push(Some(id.clone()));
        id
    }

    /// The id of the call that a result of the older form answers: the last one of that name, else the last one.
    pub(super) fn answer(&mut self, name: Option<&Text>) -> Option<Text> {
        let named = name.and_then(|name| self.by_name.get_mut(&*name.decode()));
        let named = named.and_then(|places| {
            loop {
                let id = self.open.get_mut(places.pop()?).and_then(Option::take);
                if id.is_some() {
                    break id;
                }
            }
        });
        named.or_else(|| {
            loop {
                let last = self.open.pop()?;
                if last.is_some() {
                    break last;
                }
            }
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(calls: &[&str], results: &[Option<&str>]) -> Vec<Option<String>> {
        let mut history = History::default();
        for name in calls {
            history.begin(&Text::new(name));
            history.calls += 1;
        }
        let answer = |name: Option<&str>| history.answer(name.map(Text::new).as_ref()).map(|id| id.decode().into_owned());
        results.iter().copied().map(answer).collect()
    }

    #[test]
    fn a_result_answers_the_last_open_call_of_its_name_and_else_the_last() {
        let id = |number: usize| Some(format!("call_{number}"));
        let results = [Some("a"), Some("x"), None, Some("a"), Some("b"), Some("a")];
        assert_eq!(answered(&["a", "b", "a", "c", "b"], &results), [id(2), id(4), id(3), id(0), id(1), None]);
    }

    #[test]
    fn many_calls_of_the_older_form_are_answered_in_linear_time() {
        let names: Vec<String> = (0..100_000).map(|number| format!("f{number}")).collect();
        let calls: Vec<&str> = names.iter().map(String::as_str).collect();
        let results: Vec<Option<&str>> = calls.iter().copied().map(Some).collect();
        let begun = std::time::Instant::now();
        let answered = answered(&calls, &results);
        assert!(answered.iter().enumerate().all(|(number, id)| *id == Some(format!("call_{number}"))));
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    }
}
