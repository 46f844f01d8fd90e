//! From a call to its prompt's ids: what was sampled before is spliced in, only what is new is rendered and encoded.
//!
//! ```text
//! Transcript::find -> the earlier sequence, and which messages are its reply
//! tail: the conversation with a mark in that reply's place -> template -> what stands after the mark -> ids
//! earlier sequence ++ tail = prompt
//! ```

mod messages;
mod tail;
#[cfg(test)]
mod tests;
mod variables;

use super::model::{Conversation, Model, ModelError};
use crate::call::{Call, Failure, FailureKind, History, Prompt, Rendered, SpecialText};
use crate::policy::names::Names;
use crate::policy::transcript::{Earlier, Found};
use crate::policy::{PolicyConfig, Prompted, Transcript};

use messages::Writer;

pub(super) use messages::image;

/// How much of a prompt's text is kept to tell a parser how it ends, in bytes.
const ENDING: usize = 256;

/// Makes a call's prompt; adds to `notes` what people should know.
///
/// # Errors
/// If the call has what can't be put into a prompt (images: see [`image`]), the template refuses the conversation, or the server that
/// should render it can't be reached.
pub(super) async fn make(
    model: &Model,
    config: &PolicyConfig,
    call: &Call,
    names: &Names,
    transcript: &Transcript,
    notes: &mut Vec<String>,
) -> Result<Prompted, Failure> {
    if let Some(param) = image(call) {
        return Err(messages::no_text(param, "an image"));
    }
    let mut rendered = Rendered {
        tokenizer_hash: model.tokenizer_hash().to_owned(),
        template_hash: model.template_hash().to_owned(),
        history: config.history,
        special: config.special_text,
        ..Rendered::default()
    };
    if let Some(prompt) = &call.prompt {
        return Ok(Prompted { ids: plain(model, call, prompt).await?, rendered, ending: String::new() });
    }
    let making = Making::new(model, config, call, names, notes)?;
    let Found { earlier, mut afresh } = transcript.find(call, &rendered.tokenizer_hash, &rendered.template_hash);
    if let Some(earlier) = earlier {
        let call_id = earlier.call_id;
        match making.splice(earlier).await? {
            Ok(Text { ids, ending }) => {
                (rendered.after, rendered.afresh) = (Some(call_id), afresh);
                return Ok(Prompted { ids, rendered, ending });
            }
            Err(reason) => afresh = Some(afresh.map_or_else(|| reason.to_owned(), |edited| format!("{reason}; {edited}"))),
        }
    }
    rendered.afresh = afresh;
    let text = making.render(making.conversation()?).await?;
    let ids = model.encode(&text, rendered.special).await.map_err(failed)?;
    Ok(Prompted { ids, rendered, ending: ending(&text) })
}

/// What making one prompt needs.
struct Making<'a> {
    model: &'a Model,
    call: &'a Call,
    writer: Writer<'a>,
    history: History,
    special: SpecialText,
    /// All that the template is given but the messages.
    frame: Conversation,
}

/// A prompt's ids, and how its text ends.
struct Text {
    ids: Vec<u32>,
    ending: String,
}

impl<'a> Making<'a> {
    fn new(
        model: &'a Model,
        config: &PolicyConfig,
        call: &'a Call,
        names: &'a Names,
        notes: &mut Vec<String>,
    ) -> Result<Self, Failure> {
        let writer = Writer::new(model, names, config.special_text);
        let frame = Conversation { tools: writer.tools(call)?, ..variables::read(call, notes)? };
        Ok(Self { model, call, writer, history: config.history, special: config.special_text, frame })
    }

    /// The conversation as the call has it.
    fn conversation(&self) -> Result<Conversation, Failure> {
        let messages = self.call.messages.iter().enumerate().map(|(at, message)| self.writer.message(at, message));
        Ok(Conversation { messages: messages.collect::<Result<_, _>>()?, ..self.frame.clone() })
    }

    async fn render(&self, conversation: Conversation) -> Result<String, Failure> {
        self.model.render(&conversation).await.map_err(failed)
    }

    /// The prompt that goes on from an earlier sequence, or why there is none, for people.
    async fn splice(&self, earlier: Earlier) -> Result<Result<Text, &'static str>, Failure> {
        let Earlier { mut ids, reply, .. } = earlier;
        let ended = ids.last().is_some_and(|id| self.model.ends(*id));
        if ended && self.frame.continue_final_message && reply.1 == self.call.messages.len() {
            return Ok(Err("the reply that is to be continued has ended"));
        }
        let Some(tail) = tail::after(self, reply).await? else {
            return Ok(Err("the chat template does not show where the reply ends"));
        };
        if self.history == History::Template && !self.unchanged(&ids, &tail.text).await? {
            return Ok(Err(
                "the chat template changes what was said before, as where it drops reasoning (history = \"template\")",
            ));
        }
        let said = if tail.text.is_empty() { self.read(&ids[ids.len().saturating_sub(ENDING)..]) } else { None };
        let ending = ending(&said.unwrap_or(tail.text.clone()));
        ids.extend_from_slice(if ended { tail.after_end(self.model) } else { &tail.ids });
        Ok(Ok(Text { ids, ending }))
    }

    /// Whether the template shows all that was said before as it was; `tail` is what it puts after that.
    async fn unchanged(&self, earlier: &[u32], tail: &str) -> Result<bool, Failure> {
        let text = self.render(self.conversation()?).await?;
        let Some(head) = text.strip_suffix(tail) else { return Ok(false) };
        let shown = self.model.encode(head, self.special).await.map_err(failed)?;
        let same = earlier.iter().zip(&shown).take_while(|(one, other)| one == other).count();
        // Other ids may read as the same text, which is all that a template sees.
        Ok(match (self.read(&earlier[same..]), self.read(&shown[same..])) {
            (Some(earlier), Some(shown)) => earlier == shown,
            _ => false,
        })
    }

    /// The text of ids, without what ends a reply.
    fn read(&self, ids: &[u32]) -> Option<String> {
        let ids: Vec<u32> = ids.iter().copied().filter(|id| !self.model.ends(*id)).collect();
        if ids.is_empty() {
            return Some(String::new());
        }
        let mut detokenizer = self.model.detokenizer()?;
        let mut text: String = ids.into_iter().map(|id| detokenizer.push(id)).collect();
        text.push_str(&detokenizer.finish());
        Some(text)
    }
}

/// The ids of a prompt that is no conversation.
async fn plain(model: &Model, call: &Call, prompt: &Prompt) -> Result<Vec<u32>, Failure> {
    match prompt {
        Prompt::Ids(ids) => {
            let foreign = model.vocabulary().and_then(|most| ids.iter().find(|id| **id >= most));
            match foreign {
                Some(id) => Err(Failure::invalid("prompt", format!("prompt has the id {id}, which is none of the model's"))),
                None => Ok(ids.clone()),
            }
        }
        Prompt::Text(text) => {
            let begins =
                !call.rest.iter().any(|(name, value)| name.inner() == b"add_special_tokens" && value.as_bytes() == b"false");
            let text = text.decode();
            let ids = if begins { model.encode_plain(&text).await } else { model.encode(&text, SpecialText::Control).await };
            ids.map_err(failed)
        }
    }
}

/// The end of a prompt's text.
fn ending(text: &str) -> String {
    text[text.floor_char_boundary(text.len().saturating_sub(ENDING))..].to_owned()
}

fn failed(error: ModelError) -> Failure {
    match error {
        ModelError::Refused(_) => Failure::invalid("messages", error.to_string()),
        ModelError::Unreadable(_) | ModelError::Mismatch(_) | ModelError::Unreachable(_) => {
            Failure::new(FailureKind::Unavailable, error.to_string())
        }
    }
}
