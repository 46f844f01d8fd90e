//! Tools: the client's own, and those of its that Anthropic's models know by their type. Those that Anthropic's servers run
//! themselves are dropped, with a note.

use std::collections::{HashMap, HashSet};

use super::client_tools;
use crate::call::{Failure, Raw, Text, Tool, ToolChoice, ToolKind};
use crate::wire::fields::{self, At, BOOLEAN, COUNT, Fields};
use crate::wire::notes::Notes;

const TOOL: [&str; 8] =
    ["type", "name", "description", "input_schema", "strict", "defer_loading", "display_width_px", "display_height_px"];
const CHOICE: [&str; 3] = ["type", "name", "disable_parallel_tool_use"];

type ToolFields<'de> = Fields<'de, { TOOL.len() }>;

/// What a request offers.
#[derive(Default)]
pub(super) struct Offered {
    pub(super) tools: Vec<Tool>,
    /// Those that are told of only where the conversation refers to them, so that loading one changes nothing before it; and
    /// whether that was done.
    deferred: HashMap<String, (Tool, bool)>,
    /// Of all of them.
    names: HashSet<String>,
}

/// How the model may use its tools.
#[derive(Default)]
pub(super) struct Choice {
    pub(super) tool: Option<ToolChoice>,
    pub(super) parallel: Option<bool>,
}

impl Offered {
    /// Reads the tools that stand under `name`.
    pub(super) fn read<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>, notes: &mut Notes) -> Result<Self, Failure> {
        let mut names = HashSet::new();
        let (mut tools, mut deferred) = (Vec::new(), Vec::new());
        let mut searched = false;
        fields.list(at, "tools", &TOOL, |at, tool| {
            let later = tool.read(at, "defer_loading", BOOLEAN)?.unwrap_or(false);
            searched |= tool.string(at, "type")?.is_some_and(|kind| kind.starts_with("tool_search_tool"));
            let Some(tool) = read_tool(at, &tool, notes)? else { return Ok(()) };
            if !names.insert(tool.name.decode().into_owned()) {
                return Err(At::Field(at, "name").invalid(format_args!("must be unique: {:?}", tool.name)));
            }
            let list = if later { &mut deferred } else { &mut tools };
            list.push(tool);
            Ok(())
        })?;
        // Where nobody is there who could find them, they would never be seen.
        if searched || tools.is_empty() {
            if !deferred.is_empty() {
                notes.say("deferred tools were offered from the start: the search for them is not served");
            }
            tools.append(&mut deferred);
        }
        let deferred = deferred.into_iter().map(|tool| (tool.name.decode().into_owned(), (tool, false)));
        Ok(Self { tools, deferred: deferred.collect(), names })
    }

    /// Reads the choice of a tool.
    pub(super) fn choose<const N: usize>(
        &mut self,
        at: &At<'_>,
        fields: &Fields<'_, N>,
        notes: &mut Notes,
    ) -> Result<Choice, Failure> {
        let Some(choice) = fields.object(at, "tool_choice", &CHOICE)? else { return Ok(Choice::default()) };
        let here = &At::Field(at, "tool_choice");
        let single = choice.read::<bool>(here, "disable_parallel_tool_use", BOOLEAN)?;
        let tool = match choice.string(here, "type")?.as_deref() {
            Some("auto") => ToolChoice::Auto,
            Some("any") => ToolChoice::Required,
            Some("none") => ToolChoice::None,
            Some("tool") => self.named(choice.required_text(here, "name")?, notes),
            Some(other) => {
                return Err(At::Field(here, "type").invalid(format_args!("must be auto, any, tool or none, not {other:?}")));
            }
            None => return Err(At::Field(here, "type").invalid("is missing")),
        };
        // Chat servers refuse to be told how to call tools where there are none.
        let some = !self.tools.is_empty();
        Ok(Choice { tool: some.then_some(tool), parallel: single.filter(|single| some && *single).map(|_| false) })
    }

    fn named(&mut self, name: Text, notes: &mut Notes) -> ToolChoice {
        let plain = name.decode();
        if let Some((tool, _)) = self.deferred.remove(&*plain) {
            self.tools.push(tool);
        }
        if self.tools.iter().any(|tool| tool.name.decode() == plain) {
            return ToolChoice::Named { namespace: None, name };
        }
        notes.say(format!("the choice of the tool {plain:.64} became auto: it is not offered"));
        ToolChoice::Auto
    }

    /// What the conversation says where it refers to a tool.
    pub(super) fn tell(&mut self, name: &Text, notes: &mut Notes) -> Text {
        match self.deferred.get_mut(&*name.decode()) {
            Some((tool, told @ false)) => {
                *told = true;
                notes.say("deferred tools were spelt out where the conversation refers to them");
                spell_out(tool)
            }
            _ if self.names.contains(&*name.decode()) => {
                Text::from_inner(&[b"The tool ", name.inner(), b" can be called."].concat())
            }
            _ => {
                notes.say(format!("the conversation refers to the tool {:.64}, which the request does not have", name.decode()));
                Text::from_inner(&[b"There is no tool ", name.inner(), b"."].concat())
            }
        }
    }

    /// What the conversation says where it brings a tool of its own.
    pub(super) fn tell_new(tool: &Tool, notes: &mut Notes) -> Text {
        notes.say("tools that the conversation brings were spelt out there");
        spell_out(tool)
    }

    /// Notes the deferred tools that nothing in the conversation refers to.
    pub(super) fn note_hidden(&self, notes: &mut Notes) {
        let hidden = self.deferred.values().filter(|(_, told)| !told).count();
        if hidden > 0 {
            notes.say(format!("{hidden} deferred tools were not offered: nothing in the conversation refers to them yet"));
        }
    }
}

/// Reads the one tool that stands under `name`; `None` if it is dropped.
pub(super) fn read_one<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    name: &str,
    notes: &mut Notes,
) -> Result<Option<Tool>, Failure> {
    let here = &At::Field(at, name);
    let tool = fields.object(at, name, &TOOL)?.ok_or_else(|| here.invalid("is missing"))?;
    read_tool(here, &tool, notes)
}

fn read_tool(at: &At<'_>, tool: &ToolFields<'_>, notes: &mut Notes) -> Result<Option<Tool>, Failure> {
    let kind = tool.string(at, "type")?;
    let known = match kind.as_deref() {
        None | Some("custom") => None,
        Some(kind) => {
            let screen = [tool.read::<u64>(at, "display_width_px", COUNT)?, tool.read(at, "display_height_px", COUNT)?];
            let known = client_tools::known(kind, screen);
            if known.is_none() {
                notes.say(format!("dropped the tool {kind:.64}: what it is made of is known to its provider's own servers only"));
                return Ok(None);
            }
            known
        }
    };
    let name = tool.required_text(at, "name")?;
    let (description, parameters) = if let Some((description, schema)) = known {
        (Some(Text::new(&description)), Raw::from_value(&schema))
    } else {
        let here = &At::Field(at, "input_schema");
        let parameters = tool.keep(at, "input_schema")?.ok_or_else(|| here.invalid("is missing"))?;
        if let Some(value) = tool.value("input_schema").filter(|value| !value.get().starts_with('{')) {
            return Err(fields::wrong(here, "an object", value));
        }
        (tool.text(at, "description")?, parameters)
    };
    let strict = tool.read::<bool>(at, "strict", BOOLEAN)?;
    Ok(Some(Tool {
        kind: ToolKind::Function,
        namespace: None,
        name,
        description,
        parameters: Some(parameters),
        rest: strict.map(|strict| (Text::new("strict"), Raw::from_value(&strict))).into_iter().collect(),
    }))
}

/// A tool as a text of the conversation, in the form in which templates show tools.
fn spell_out(tool: &Tool) -> Text {
    let mut json = Vec::new();
    tool.write_chat(&mut json, &tool.name);
    let name = tool.name.decode();
    Text::new(&format!("The tool {name} can be called from now on:\n{}", String::from_utf8_lossy(&json)))
}
