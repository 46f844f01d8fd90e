//! Tools: functions, custom tools, and groups of both (namespaces). Those that `OpenAI`'s servers run themselves are dropped, with
//! a note.

use std::collections::HashSet;

use serde::Deserialize;

use crate::call::{Failure, Raw, Text, Tool, ToolChoice, ToolKind};
use crate::wire::fields::{self, At, BOOLEAN, Fields};
use crate::wire::notes::Notes;
use crate::wire::openai_tools;

const TOOL: [&str; 7] = ["type", "name", "description", "parameters", "strict", "format", "tools"];
const FORMAT: [&str; 3] = ["type", "syntax", "definition"];
const CHOICE: [&str; 5] = ["type", "name", "namespace", "mode", "tools"];

type ToolFields<'de> = Fields<'de, { TOOL.len() }>;

/// Reads the list of tools called `name`.
pub(super) fn read<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    name: &str,
    tools: &mut Vec<Tool>,
    notes: &mut Notes,
) -> Result<(), Failure> {
    fields.list(at, name, &TOOL, |at, tool| {
        if tool.string(at, "type")?.as_deref() != Some("namespace") {
            return read_tool(at, &tool, None, tools, notes);
        }
        let namespace = tool.required_text(at, "name")?;
        tool.list(at, "tools", &TOOL, |at, tool| read_tool(at, &tool, Some(&namespace), tools, notes))
    })
}

/// A custom tool's input out of the arguments of the function that stands for it; what is no such object is taken as it is.
pub(super) fn custom_input(arguments: &Text) -> Text {
    #[derive(Deserialize)]
    struct Arguments {
        // `ToolKind::CUSTOM_FIELD`
        input: String,
    }
    match serde_json::from_str::<Arguments>(&arguments.decode()) {
        Ok(arguments) => Text::new(&arguments.input),
        Err(_) => arguments.clone(),
    }
}

/// Adds tools; of two with one name the first stays, since clients offer the same ones again in later items.
pub(super) fn add(tools: &mut Vec<Tool>, more: Vec<Tool>) {
    if more.is_empty() {
        return;
    }
    let mut known = HashSet::new();
    tools.extend(more);
    tools.retain(|tool| {
        let namespace = tool.namespace.as_ref().map(|namespace| namespace.literal().to_vec());
        known.insert((namespace, tool.name.literal().to_vec()))
    });
}

fn read_tool(
    at: &At<'_>,
    tool: &ToolFields<'_>,
    namespace: Option<&Text>,
    tools: &mut Vec<Tool>,
    notes: &mut Notes,
) -> Result<(), Failure> {
    let kind = match tool.string(at, "type")?.as_deref() {
        Some("function") => ToolKind::Function,
        Some("custom") => ToolKind::Custom,
        Some(other) => {
            notes.say(format!("dropped the tool {other}: its provider's own models and servers know it alone"));
            return Ok(());
        }
        None => return Err(At::Field(at, "type").invalid("is missing")),
    };
    let description = tool.text(at, "description")?;
    let (description, parameters) = match kind {
        ToolKind::Function => (description, tool.keep(at, "parameters")?),
        ToolKind::Custom => (describe_grammar(at, tool, description)?, None),
    };
    let strict = tool.read::<bool>(at, "strict", BOOLEAN)?;
    tools.push(Tool {
        kind,
        namespace: namespace.cloned(),
        name: tool.required_text(at, "name")?,
        description,
        parameters,
        rest: strict.map(|strict| (Text::new("strict"), Raw::from_value(&strict))).into_iter().collect(),
    });
    Ok(())
}

fn describe_grammar(at: &At<'_>, tool: &ToolFields<'_>, description: Option<Text>) -> Result<Option<Text>, Failure> {
    let Some(format) = tool.object(at, "format", &FORMAT)? else { return Ok(description) };
    let at = &At::Field(at, "format");
    let Some(definition) = format.string(at, "definition")? else { return Ok(description) };
    let syntax = format.string(at, "syntax")?.unwrap_or_default();
    Ok(Some(openai_tools::with_grammar(description.as_ref(), &syntax, &definition)))
}

/// Reads the choice of a tool; of a list of allowed ones, the others are taken out of `tools`.
pub(super) fn read_choice<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    tools: &mut Vec<Tool>,
    notes: &mut Notes,
) -> Result<Option<ToolChoice>, Failure> {
    let Some(value) = fields.value("tool_choice") else { return Ok(None) };
    let here = &At::Field(at, "tool_choice");
    if let Some(name) = fields::string(value) {
        return mode(here, &name).map(Some);
    }
    let Some(choice) = fields.object(at, "tool_choice", &CHOICE)? else { return Ok(None) };
    let kind = choice.string(here, "type")?;
    match kind.as_deref() {
        Some("function" | "custom") => {
            Ok(Some(ToolChoice::Named { namespace: choice.text(here, "namespace")?, name: choice.required_text(here, "name")? }))
        }
        Some("allowed_tools") => {
            let mut names = HashSet::new();
            choice.list(here, "tools", &CHOICE, |at, tool| {
                // Hosted tools have no name, and are not offered anyway.
                names.extend(tool.string(at, "name")?);
                Ok(())
            })?;
            tools.retain(|tool| names.contains(&tool.name.decode()));
            let chosen = choice.string(here, "mode")?;
            mode(&At::Field(here, "mode"), chosen.as_deref().unwrap_or("auto")).map(Some)
        }
        Some(other) => {
            notes.say(format!("the choice of the tool {other} became auto: it is not offered"));
            Ok(Some(ToolChoice::Auto))
        }
        None => Err(At::Field(here, "type").invalid("is missing")),
    }
}

fn mode(at: &At<'_>, name: &str) -> Result<ToolChoice, Failure> {
    match name {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        other => Err(at.invalid(format_args!("must be auto, none, required or a tool, not {other:?}"))),
    }
}
