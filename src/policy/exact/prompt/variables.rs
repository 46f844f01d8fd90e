//! What a request says to the template beside its messages.

use serde_json::Value;

use crate::call::{Call, Failure, Raw};
use crate::policy::exact::model::Conversation;
use crate::policy::transcript::VARIABLES;

/// Reads what a request says to the template: a conversation without messages and tools.
///
/// # Errors
/// If a field is not what it must be, or two contradict each other.
pub(super) fn read(call: &Call, notes: &mut Vec<String>) -> Result<Conversation, Failure> {
    let [kwargs, documents] = VARIABLES;
    let mut conversation = Conversation::default();
    if let Some(given) = field(call, kwargs) {
        conversation.variables = given.read().map_err(|_| wrong(kwargs, "an object"))?;
    }
    if let Some(given) = field(call, documents) {
        let given: Vec<Value> = given.read().map_err(|_| wrong(documents, "a list"))?;
        conversation.variables.insert(documents.to_owned(), given.into());
    }
    if let Some(effort) = &call.reasoning_effort {
        conversation.variables.insert("reasoning_effort".to_owned(), effort.decode().into());
    }
    if field(call, "chat_template").is_some() {
        notes.push("chat_template was dropped: the policy's own is used".to_owned());
    }
    let [continues, begins] = ["continue_final_message", "add_generation_prompt"];
    let (going_on, beginning) = (switch(call, continues)?, switch(call, begins)?);
    conversation.continue_final_message = going_on == Some(true);
    conversation.add_generation_prompt = beginning.unwrap_or(!conversation.continue_final_message);
    if conversation.continue_final_message && conversation.add_generation_prompt {
        return Err(Failure::invalid(continues, format!("{continues} and {begins} can't both be true")));
    }
    Ok(conversation)
}

fn switch(call: &Call, name: &str) -> Result<Option<bool>, Failure> {
    field(call, name).map(|given| given.read().map_err(|_| wrong(name, "true or false"))).transpose()
}

/// A field of the request; null is none.
fn field<'a>(call: &'a Call, name: &str) -> Option<&'a Raw> {
    let (_, given) = call.rest.iter().find(|(field, _)| field.inner() == name.as_bytes())?;
    (given.as_bytes() != b"null").then_some(given)
}

fn wrong(name: &str, what: &str) -> Failure {
    Failure::invalid(name, format!("{name} must be {what}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::call::Text;

    fn call(rest: &[(&str, Value)]) -> Call {
        let rest = rest.iter().map(|(name, value)| (Text::new(name), Raw::from_value(value)));
        Call { rest: rest.collect(), reasoning_effort: Some(Text::new("high")), ..Call::new("chat") }
    }

    #[test]
    fn what_a_template_is_told_is_read() {
        let mut notes = Vec::new();
        let call = call(&[
            ("chat_template_kwargs", json!({"enable_thinking": false, "reasoning_effort": "low"})),
            ("documents", json!([{"text": "d"}])),
            ("chat_template", json!("{{ x }}")),
        ]);
        let read = read(&call, &mut notes).unwrap();
        let expected = json!({"enable_thinking": false, "reasoning_effort": "high", "documents": [{"text": "d"}]});
        assert_eq!(Value::Object(read.variables), expected);
        assert_eq!((read.add_generation_prompt, read.continue_final_message), (true, false));
        assert_eq!(notes, ["chat_template was dropped: the policy's own is used"]);
    }

    #[test]
    fn a_reply_is_begun_or_gone_on_with() {
        let read = |rest: &[(&str, Value)]| {
            read(&call(rest), &mut Vec::new()).map(|read| (read.add_generation_prompt, read.continue_final_message))
        };
        let (going_on, beginning) = ("continue_final_message", "add_generation_prompt");
        assert_eq!(read(&[(going_on, json!(true))]), Ok((false, true)));
        assert_eq!(read(&[(beginning, json!(false))]), Ok((false, false)));
        assert_eq!(read(&[(beginning, json!(null))]), Ok((true, false)));
        for (rest, param) in [
            (vec![(going_on, json!(true)), (beginning, json!(true))], going_on),
            (vec![(beginning, json!("yes"))], beginning),
            (vec![("documents", json!({}))], "documents"),
            (vec![("chat_template_kwargs", json!([]))], "chat_template_kwargs"),
        ] {
            assert_eq!(read(&rest).unwrap_err().param.as_deref(), Some(param));
        }
    }
}
