//! Tools and which of them may be called. Those that Google's servers run themselves are dropped, with a note.

use std::collections::HashSet;

use super::schema;
use super::spelling::spelled;
use crate::call::{Failure, Tool, ToolChoice, ToolKind};
use crate::wire::fields::{At, Fields, STRINGS};
use crate::wire::notes::Notes;

const TOOL: [&str; 2] = ["functionDeclarations", "function_declarations"];
const DECLARATION: [&str; 9] = [
    "name",
    "description",
    "parameters",
    "parametersJsonSchema",
    "parameters_json_schema",
    // What a function gives, and when: no policy is told.
    "response",
    "responseJsonSchema",
    "response_json_schema",
    "behavior",
];
const CONFIG: [&str; 2] = ["functionCallingConfig", "function_calling_config"];
const CALLING: [&str; 3] = ["mode", "allowedFunctionNames", "allowed_function_names"];

/// Reads the list of tools.
pub(super) fn read<const N: usize>(at: &At<'_>, fields: &Fields<'_, N>, notes: &mut Notes) -> Result<Vec<Tool>, Failure> {
    let mut tools = Vec::new();
    fields.list(at, "tools", &TOOL, |at, tool| {
        for (name, value) in tool.rest(at)? {
            if value.as_bytes() != b"null" {
                notes.say(format!("dropped the tool {}: it runs on its provider's own servers", name.decode()));
            }
        }
        tool.list(at, spelled(&tool, TOOL), &DECLARATION, |at, declaration| {
            tools.push(read_declaration(at, &declaration)?);
            Ok(())
        })
    })?;
    Ok(tools)
}

fn read_declaration(at: &At<'_>, declaration: &Fields<'_, { DECLARATION.len() }>) -> Result<Tool, Failure> {
    let schema = declaration.keep(at, spelled(declaration, ["parametersJsonSchema", "parameters_json_schema"]))?;
    let parameters = match declaration.keep(at, "parameters")? {
        Some(parameters) if schema.is_none() => Some(schema::translate(&At::Field(at, "parameters"), &parameters)?),
        _ => schema,
    };
    Ok(Tool {
        kind: ToolKind::Function,
        namespace: None,
        name: declaration.required_text(at, "name")?,
        description: declaration.text(at, "description")?,
        parameters,
        rest: Vec::new(),
    })
}

/// Reads which tools may be called; where only some are allowed, the others are taken out of `tools`.
pub(super) fn read_choice<const N: usize>(
    at: &At<'_>,
    fields: &Fields<'_, N>,
    tools: &mut Vec<Tool>,
) -> Result<Option<ToolChoice>, Failure> {
    let name = spelled(fields, ["toolConfig", "tool_config"]);
    let Some(config) = fields.object(at, name, &CONFIG)? else { return Ok(None) };
    let at = &At::Field(at, name);
    let name = spelled(&config, CONFIG);
    let Some(calling) = config.object(at, name, &CALLING)? else { return Ok(None) };
    let at = &At::Field(at, name);
    let mode = calling.string(at, "mode")?.unwrap_or_default().to_ascii_uppercase();
    let name = spelled(&calling, ["allowedFunctionNames", "allowed_function_names"]);
    let allowed: Vec<String> = calling.read(at, name, STRINGS)?.unwrap_or_default();
    let choice = match mode.as_str() {
        "" | "MODE_UNSPECIFIED" => return Ok(None),
        "AUTO" => return Ok(Some(ToolChoice::Auto)),
        "NONE" => return Ok(Some(ToolChoice::None)),
        "ANY" => ToolChoice::Required,
        // The model answers or calls, and what it calls fits its schema: the policy's own parsers see to that.
        "VALIDATED" => ToolChoice::Auto,
        other => return Err(At::Field(at, "mode").invalid(format_args!("must be AUTO, ANY, NONE or VALIDATED, not {other:?}"))),
    };
    if allowed.is_empty() {
        return Ok(Some(choice));
    }
    let allowed: HashSet<&str> = allowed.iter().map(String::as_str).collect();
    tools.retain(|tool| allowed.contains(&*tool.name.decode()));
    match (tools.as_slice(), choice) {
        ([], _) => Err(At::Field(at, name).invalid("names none of the declared functions")),
        ([only], ToolChoice::Required) => Ok(Some(ToolChoice::Named { namespace: None, name: only.name.clone() })),
        (_, choice) => Ok(Some(choice)),
    }
}
