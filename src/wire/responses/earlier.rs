//! Earlier calls: the names by which clients mean them, and what they said, as the store has it.

use std::collections::HashSet;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::items::{Input, State};
use super::tools;
use crate::call::{CallStatus, Content, Failure, FailureKind, Kept, Raw, Reply, Text, Tool, ToolCall, ToolKind, grouped_name};
use crate::ids::CallId;
use crate::wire::fields::{self, At, BOOLEAN, Fields, Items};
use crate::wire::notes::Notes;

/// The fields of a request that its place among others depends on.
const LINK: [&str; 3] = ["previous_response_id", "store", "tools"];

/// Earlier calls, as far as they are known.
#[derive(Clone, Copy)]
pub(super) struct Earlier<'a>(pub(super) &'a [&'a Kept]);

/// A piece of a reply: what one item of the output is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Pieces of reasoning that came apart are items of their own; the first stands for all.
    Reasoning(usize),
    Message,
    /// By the call's place among the reply's.
    Tool(usize),
}

/// The name of a call's response.
pub(super) fn response_name(call: CallId) -> String {
    format!("resp_{}", call.0.simple())
}

/// The call whose response has this name; `None` if no response of ours could have it.
pub(super) fn response(name: &str) -> Option<CallId> {
    CallId::from_digits(name.strip_prefix("resp_")?)
}

/// The call and the piece of its reply whose item has this name; `None` if no item of ours could have it.
pub(super) fn item(name: &str) -> Option<(CallId, Piece)> {
    let (prefix, rest) = name.split_once('_')?;
    let (call, number) = rest.split_once('_')?;
    let number: usize = number.parse().ok()?;
    let piece = match prefix {
        "rs" => Piece::Reasoning(number),
        "msg" => Piece::Message,
        "fc" | "ctc" => Piece::Tool(number),
        _ => return None,
    };
    Some((CallId::from_digits(call)?, piece))
}

/// The failure of a request that goes on from a response which is not there for it.
pub(super) fn no_previous(name: &str) -> Failure {
    let message = format!(
        "Previous response with id '{name}' not found. It must be a whole response of the same rollout that was not sent with \
         store: false."
    );
    Failure { status: 400, param: Some("previous_response_id".to_owned()), ..Failure::new(FailureKind::NotFound, message) }
}

impl Earlier<'_> {
    fn get(&self, call: CallId) -> Option<&Kept> {
        self.0.iter().copied().find(|kept| kept.record.id == call)
    }

    /// What was said before this request's own input.
    pub(super) fn before(&self, request: &Bytes) -> Result<State, Failure> {
        match previous(&link(request)?)? {
            Some(last) => self.conversation(last),
            None => Ok(State::default()),
        }
    }

    /// The conversation of `last` with its reply, and without its instructions: those are each request's own.
    fn conversation(&self, last: CallId) -> Result<State, Failure> {
        let missing = |call| no_previous(&response_name(call));
        let (mut chain, mut seen, mut next) = (Vec::new(), HashSet::new(), Some(last));
        while let Some(call) = next {
            let kept = self.get(call).filter(|kept| kept.record.status == CallStatus::Done && seen.insert(call));
            let kept = kept.ok_or_else(|| missing(call))?;
            let link = link(&kept.request)?;
            if !is_stored(&link)? {
                return Err(missing(call));
            }
            next = previous(&link)?;
            chain.push((kept, link));
        }
        let mut state = State::default();
        // Most requests of a conversation offer the same tools, to the byte.
        let mut offered = Offered::default();
        for (kept, link) in chain.into_iter().rev() {
            let mut input = Input::after(state, &kept.request, Some(*self));
            fields::read(&kept.request, &LINK, "input", &super::items::ITEM, &mut input)?;
            state = input.state();
            if calls_tools(kept) {
                offered.read(&link)?;
            }
            state.turns.reply(&recorded(kept, &[&offered.tools, &state.tools]));
        }
        Ok(state)
    }

    /// An earlier reply that may be quoted; `None` if there is none of that name. Its request is read anew for it.
    pub(super) fn quoted(&self, call: CallId) -> Option<Reply> {
        let kept = self.get(call).filter(|kept| kept.record.status == CallStatus::Done)?;
        let link = link(&kept.request).ok()?;
        if !is_stored(&link).ok()? {
            return None;
        }
        let mut offered = Offered::default();
        offered.read(&link).ok()?;
        Some(recorded(kept, &[&offered.tools]))
    }
}

/// What a piece of an earlier reply said, as a reply of its own; `None` if it has no such piece.
pub(super) fn piece(reply: &Reply, piece: Piece) -> Option<Reply> {
    let nothing = Reply::default();
    match piece {
        Piece::Reasoning(0) => Some(Reply { reasoning: Some(reply.reasoning.clone()?), ..nothing }),
        Piece::Reasoning(_) => reply.reasoning.as_ref().map(|_| nothing),
        Piece::Message => Some(Reply { text: Some(reply.text.clone()?), ..nothing }),
        Piece::Tool(place) => Some(Reply { tool_calls: vec![reply.tool_calls.get(place)?.clone()], ..nothing }),
    }
}

impl<'a> Earlier<'a> {
    /// A call and those that it goes on from, as far as they are known, the first one first.
    pub(super) fn chain(&self, last: &'a Kept) -> Vec<&'a Kept> {
        let mut chain = vec![last];
        let before = |kept: &Kept| link(&kept.request).and_then(|link| previous(&link)).ok().flatten();
        while let Some(call) = chain.last().and_then(|kept| before(kept)) {
            match self.0.iter().copied().find(|kept| kept.record.id == call) {
                Some(kept) if !chain.iter().any(|known| known.record.id == call) => chain.push(kept),
                _ => break,
            }
        }
        chain.reverse();
        chain
    }
}

type Link<'de> = Fields<'de, { LINK.len() }>;

/// Nothing of the input is read.
struct Unread;

impl<'de> Items<'de, 0> for Unread {
    fn begin(&mut self) {}
    fn item(&mut self, _at: &At<'_>, _item: Fields<'de, 0>) -> Result<(), Failure> {
        Ok(())
    }
}

fn link(request: &Bytes) -> Result<Link<'_>, Failure> {
    fields::read(request, &LINK, "", &[], &mut Unread)
}

fn previous(link: &Link<'_>) -> Result<Option<CallId>, Failure> {
    Ok(link.string(&At::Body, "previous_response_id")?.and_then(|name| response(&name)))
}

fn is_stored(link: &Link<'_>) -> Result<bool, Failure> {
    Ok(link.read(&At::Body, "store", BOOLEAN)?.unwrap_or(true))
}

/// Whether the client of this call wanted its reply to be kept for later requests.
pub(super) fn was_stored(kept: &Kept) -> bool {
    link(&kept.request).and_then(|link| is_stored(&link)).unwrap_or(false)
}

fn calls_tools(kept: &Kept) -> bool {
    kept.record.message.as_ref().is_some_and(|message| message.as_str().contains("\"tool_calls\""))
}

/// The tools of the request that was looked at last.
#[derive(Default)]
struct Offered<'de> {
    json: &'de str,
    tools: Vec<Tool>,
}

impl<'de> Offered<'de> {
    fn read(&mut self, link: &Link<'de>) -> Result<(), Failure> {
        let json = link.value("tools").map_or("", RawValue::get);
        if json != self.json {
            self.json = json;
            self.tools.clear();
            tools::read(&At::Body, link, "tools", &mut self.tools, &mut Notes::default())?;
        }
        Ok(())
    }
}

/// The calls that a request goes on from or quotes; none if it can't be read.
pub(super) fn needs(request: &Bytes) -> Vec<CallId> {
    let mut input = Input::after(State::default(), request, None);
    let link = fields::read(request, &LINK, "input", &super::items::ITEM, &mut input);
    let previous = link.and_then(|link| previous(&link)).ok().flatten();
    previous.into_iter().chain(input.state().quotes).collect()
}

/// The reply of a call as its record has it; `tools` say what its calls are of.
pub(super) fn recorded(kept: &Kept, tools: &[&[Tool]]) -> Reply {
    let record = &kept.record;
    let said = record.message.as_ref().and_then(|message| message.read::<Said>().ok()).unwrap_or_default();
    let text = |raw: Option<Raw>| raw.and_then(|raw| raw.as_text());
    let call = |call: SaidCall| {
        let (name, arguments) = (call.function.name.as_text()?, call.function.arguments.as_text()?);
        let tool = known(&name, tools);
        let kind = tool.map_or(ToolKind::Function, |tool| tool.kind);
        Some(ToolCall {
            id: call.id.as_text()?,
            kind,
            namespace: tool.and_then(|tool| tool.namespace.clone()),
            name: tool.map_or(name, |tool| tool.name.clone()),
            arguments: if kind == ToolKind::Custom { tools::custom_input(&arguments) } else { arguments },
        })
    };
    Reply {
        text: text(said.content),
        reasoning: text(said.reasoning_content),
        tool_calls: said.tool_calls.into_iter().filter_map(call).collect(),
        finish: record.finish,
        usage: record.usage,
        ..Reply::default()
    }
}

/// The tool that a record means: records name the group before the tool, older ones don't.
fn known<'t>(name: &Text, tools: &[&'t [Tool]]) -> Option<&'t Tool> {
    let name = name.decode();
    let all = || tools.iter().copied().flatten();
    let grouped = all().find(|tool| grouped_name(tool.namespace.as_ref(), &tool.name).decode() == name);
    grouped.or_else(|| all().find(|tool| tool.name.decode() == name))
}

/// A recorded reply, in chat completions' form.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    content: Option<Raw>,
    reasoning_content: Option<Raw>,
    tool_calls: Vec<SaidCall>,
}

#[derive(Deserialize)]
struct SaidCall {
    id: Raw,
    function: SaidFunction,
}

#[derive(Deserialize)]
struct SaidFunction {
    name: Raw,
    arguments: Raw,
}

impl super::turns::Turns {
    /// The assistant's turn as an earlier reply, or a piece of one.
    pub(super) fn reply(&mut self, reply: &Reply) {
        if let Some(reasoning) = &reply.reasoning {
            self.reasoning(vec![reasoning.clone()]);
        }
        if let Some(text) = &reply.text {
            self.said(&Content::Text(text.clone()));
        }
        for call in &reply.tool_calls {
            self.call(call.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        let call = CallId(uuid::Uuid::from_u128(0xabc));
        let digits = "00000000000000000000000000000abc";
        assert_eq!(response_name(call), format!("resp_{digits}"));
        assert_eq!(response(&response_name(call)), Some(call));
        for (name, piece) in [
            ("rs_00000000000000000000000000000abc_0", Piece::Reasoning(0)),
            ("msg_00000000000000000000000000000abc_0", Piece::Message),
            ("fc_00000000000000000000000000000abc_12", Piece::Tool(12)),
            ("ctc_00000000000000000000000000000abc_1", Piece::Tool(1)),
        ] {
            assert_eq!(item(name), Some((call, piece)), "{name}");
        }
        let upper = digits.to_uppercase();
        for name in ["", "resp_", "resp_1", &format!("resp_{upper}"), &format!("resp_{digits}0"), &format!("msg_{digits}")] {
            assert_eq!(response(name), None, "{name}");
            assert_eq!(item(name), None, "{name}");
        }
        assert_eq!(item(&format!("fc_{digits}_x")), None);
        assert_eq!(response("resp_00000000-0000-0000-0000-000000000abc"), None);
    }
}
