//! The tools of a request, and which of them the model may or must call.

use std::collections::HashSet;

use crate::call::{Failure, Text, Tool, ToolChoice, ToolKind};
use crate::wire::fields::{self, At, BOOLEAN, Fields};
use crate::wire::openai_tools;

const TOOL: [&str; 3] = ["type", "function", "custom"];
const FUNCTION: [&str; 4] = ["name", "description", "parameters", "format"];
const FORMAT: [&str; 2] = ["type", "grammar"];
const GRAMMAR: [&str; 2] = ["syntax", "definition"];
const CHOICE: [&str; 4] = ["type", "function", "custom", "allowed_tools"];
const ALLOWED: [&str; 2] = ["mode", "tools"];

/// What a client offers.
pub(super) struct Offered {
    pub tools: Vec<Tool>,
    pub choice: Option<ToolChoice>,
    pub parallel: Option<bool>,
    /// In the older form, `functions`, in which the client then wants calls too.
    pub older: bool,
}

/// Reads it.
pub(super) fn read<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Offered, Failure> {
    let mut tools = Vec::new();
    fields.list(at, "tools", &TOOL, |at, tool| {
        tools.push(read_tool(at, &tool)?);
        Ok(())
    })?;
    let choice = read_choice(at, fields, &mut tools)?;
    let parallel = fields.read(at, "parallel_tool_calls", BOOLEAN)?;
    let mut functions = Vec::new();
    fields.list(at, "functions", &FUNCTION, |at, function| {
        functions.push(read_named(at, &function, ToolKind::Function)?);
        Ok(())
    })?;
    let function_choice = read_function_call(at, fields)?;
    if functions.is_empty() {
        return Ok(Offered { tools, choice, parallel, older: false });
    }
    if !tools.is_empty() {
        return Err(At::Field(at, "functions").invalid("is the older form of tools: send one of the two"));
    }
    // The older form has no place for a second call.
    Ok(Offered { tools: functions, choice: function_choice, parallel: Some(false), older: true })
}

/// The older form of a tool's choice.
fn read_function_call<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>) -> Result<Option<ToolChoice>, Failure> {
    let Some(value) = fields.value("function_call") else { return Ok(None) };
    let call_at = &At::Field(at, "function_call");
    if let Some(name) = fields::string(value) {
        return mode(call_at, &name).map(Some);
    }
    let Some(choice) = fields.object(at, "function_call", &["name"])? else { return Ok(None) };
    Ok(Some(ToolChoice::Named { namespace: None, name: choice.required_text(call_at, "name")? }))
}

fn read_tool(at: &At<'_>, tool: &Fields<'_, { TOOL.len() }>) -> Result<Tool, Failure> {
    let kind = tool.string(at, "type")?;
    let (field, kind) = match kind.as_deref() {
        Some("function") | None => ("function", ToolKind::Function),
        Some("custom") => ("custom", ToolKind::Custom),
        Some(other) => return Err(At::Field(at, "type").invalid(format_args!("must be function or custom, not {other:?}"))),
    };
    let inner_at = &At::Field(at, field);
    let inner = tool.object(at, field, &FUNCTION)?.ok_or_else(|| inner_at.invalid("is missing"))?;
    read_named(inner_at, &inner, kind)
}

fn read_named(at: &At<'_>, tool: &Fields<'_, { FUNCTION.len() }>, kind: ToolKind) -> Result<Tool, Failure> {
    let mut description = tool.text(at, "description")?;
    if kind == ToolKind::Custom {
        description = describe_grammar(at, tool, description)?;
    }
    Ok(Tool {
        kind,
        namespace: None,
        name: tool.required_text(at, "name")?,
        description,
        parameters: if kind == ToolKind::Function { tool.keep(at, "parameters")? } else { None },
        rest: tool.rest(at)?,
    })
}

fn describe_grammar(
    at: &At<'_>,
    tool: &Fields<'_, { FUNCTION.len() }>,
    description: Option<Text>,
) -> Result<Option<Text>, Failure> {
    let at = &At::Field(at, "format");
    let Some(format) = tool.object(at, "format", &FORMAT)? else { return Ok(description) };
    let Some(grammar) = format.object(at, "grammar", &GRAMMAR)? else { return Ok(description) };
    let at = &At::Field(at, "grammar");
    let syntax = grammar.string(at, "syntax")?.unwrap_or_default();
    let definition = grammar.string(at, "definition")?.unwrap_or_default();
    Ok(Some(openai_tools::with_grammar(description.as_ref(), &syntax, &definition)))
}

/// Reads the choice of a tool; of a list of allowed ones, the others are taken out of `tools`.
fn read_choice<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    tools: &mut Vec<Tool>,
) -> Result<Option<ToolChoice>, Failure> {
    let Some(value) = fields.value("tool_choice") else { return Ok(None) };
    let at = &At::Field(at, "tool_choice");
    if let Some(name) = fields::string(value) {
        return mode(at, &name).map(Some);
    }
    let Some(choice) = fields.object(&At::Body, "tool_choice", &CHOICE)? else { return Ok(None) };
    let kind = choice.string(at, "type")?;
    match kind.as_deref() {
        Some("function" | "custom") => {
            let name = chosen_name(at, &choice)?;
            Ok(Some(ToolChoice::Named { namespace: None, name }))
        }
        Some("allowed_tools") => {
            let at = &At::Field(at, "allowed_tools");
            let allowed = choice.object(&At::Field(&At::Body, "tool_choice"), "allowed_tools", &ALLOWED)?;
            let allowed = allowed.ok_or_else(|| at.invalid("is missing"))?;
            let mut names = HashSet::new();
            allowed.list(at, "tools", &CHOICE, |at, tool| {
                names.insert(chosen_name(at, &tool)?.decode().into_owned());
                Ok(())
            })?;
            tools.retain(|tool| names.contains(tool.name.decode().as_ref()));
            let chosen = allowed.string(at, "mode")?;
            mode(&At::Field(at, "mode"), chosen.as_deref().unwrap_or("auto")).map(Some)
        }
        _ => Err(At::Field(at, "type").invalid("must be function, custom or allowed_tools")),
    }
}

fn chosen_name(at: &At<'_>, choice: &Fields<'_, { CHOICE.len() }>) -> Result<Text, Failure> {
    for field in ["function", "custom"] {
        if let Some(inner) = choice.object(at, field, &["name"])? {
            return inner.required_text(&At::Field(at, field), "name");
        }
    }
    Err(At::Field(at, "function").invalid("is missing"))
}

fn mode(at: &At<'_>, name: &str) -> Result<ToolChoice, Failure> {
    match name {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" | "any" => Ok(ToolChoice::Required),
        other => Err(at.invalid(format_args!("must be auto, none, required or a tool, not {other:?}"))),
    }
}
