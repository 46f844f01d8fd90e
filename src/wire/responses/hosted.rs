//! Items of tools that the original's own models know without being told, some of which its servers run. Nobody here offers
//! them; a conversation that was begun elsewhere may have them. Calls that came with what they gave are told as calls of a tool of
//! that name, and what they gave as its output; of others the model would miss the output more than the call.

use bytes::Bytes;
use serde_json::value::RawValue;

use super::content;
use super::items::Item;
use super::turns::Turns;
use crate::call::{Content, Failure, Message, Part, Raw, Role, Text, ToolCall, ToolKind};
use crate::wire::fields::{self, At};

/// Reads an item of this kind; false if it can't be told.
pub(super) fn read(kind: &str, body: &Bytes, at: &At<'_>, item: &Item<'_>, turns: &mut Turns) -> Result<bool, Failure> {
    let told = match kind {
        // The client runs these, and sends their outputs as items of their own.
        "local_shell_call" | "shell_call" | "computer_call" | "apply_patch_call" | "tool_search_call" | "program" => {
            client_call(kind, at, item)?.map(|call| turns.call(call))
        }
        "local_shell_call_output"
        | "shell_call_output"
        | "computer_call_output"
        | "apply_patch_call_output"
        | "tool_search_output"
        | "program_output" => output(kind, body, at, item)?.map(|message| turns.push(message)),
        "mcp_call" | "code_interpreter_call" | "file_search_call" => server_call(kind, body, at, item)?.map(|(call, output)| {
            turns.call(call);
            turns.push(output);
        }),
        _ => None,
    };
    Ok(told.is_some())
}

fn client_call(kind: &str, at: &At<'_>, item: &Item<'_>) -> Result<Option<ToolCall>, Failure> {
    // Without an id of the call, the server searched by itself.
    let Some(id) = item.text(at, "call_id")? else { return Ok(None) };
    let arguments = match kind {
        "apply_patch_call" => item.keep(at, "operation")?,
        "tool_search_call" => item.keep(at, "arguments")?,
        "program" => item.text(at, "code")?.map(|code| object("code", &code)),
        _ => item.keep(at, "action")?.or(item.keep(at, "actions")?),
    };
    Ok(arguments.map(|arguments| call(id, kind.trim_end_matches("_call"), &arguments)))
}

/// A call that came with its output in one item; `None` if the output is not there.
fn server_call(kind: &str, body: &Bytes, at: &At<'_>, item: &Item<'_>) -> Result<Option<(ToolCall, Message)>, Failure> {
    let id = item.required_text(at, "id")?;
    let (output, call) = match kind {
        "mcp_call" => {
            let Some(output) = item.value("error").or_else(|| item.value("output")) else { return Ok(None) };
            let arguments = item.text(at, "arguments")?.filter(|text| !text.is_empty()).unwrap_or_else(|| Text::new("{}"));
            let name = item.required_text(at, "name")?;
            (output, ToolCall { id: id.clone(), kind: ToolKind::Function, namespace: None, name, arguments })
        }
        "code_interpreter_call" => {
            let (Some(output), Some(code)) = (item.value("outputs"), item.text(at, "code")?) else { return Ok(None) };
            (output, call(id.clone(), "code_interpreter", &object("code", &code)))
        }
        _ => {
            let (Some(output), Some(queries)) = (item.value("results"), item.keep(at, "queries")?) else { return Ok(None) };
            (output, call(id.clone(), "file_search", &Raw::from_value(&serde_json::json!({ "queries": queries }))))
        }
    };
    Ok(Some((call, answer(id, Content::Text(as_text(body, output))))))
}

fn output(kind: &str, body: &Bytes, at: &At<'_>, item: &Item<'_>) -> Result<Option<Message>, Failure> {
    // A local shell's output names its call in the place of its own id.
    let own = if kind == "local_shell_call_output" { item.text(at, "id")? } else { None };
    let Some(id) = item.text(at, "call_id")?.or(own) else { return Ok(None) };
    let value = match kind {
        "tool_search_output" => item.value("tools"),
        "program_output" => item.value("result"),
        "apply_patch_call_output" => item.value("output").or_else(|| item.value("status")),
        _ => item.value("output"),
    };
    let here = At::Field(at, "output");
    let value = value.ok_or_else(|| here.invalid("is missing"))?;
    let content = if kind == "computer_call_output" {
        let screenshot = fields::object(body, value, &here, &["image_url"])?;
        let url = screenshot.text(&here, "image_url")?;
        let url = url.ok_or_else(|| At::Field(&here, "image_url").invalid(content::NO_FILES))?;
        Content::Parts(vec![Part::Image(url)])
    } else {
        Content::Text(as_text(body, value))
    };
    Ok(Some(answer(id, content)))
}

fn call(id: Text, name: &str, arguments: &Raw) -> ToolCall {
    let arguments = Text::new(arguments.as_str());
    ToolCall { id, kind: ToolKind::Function, namespace: None, name: Text::new(name), arguments }
}

fn answer(id: Text, content: Content) -> Message {
    Message { content, tool_call_id: Some(id), ..Message::new(Role::Tool) }
}

fn object(name: &str, value: &Text) -> Raw {
    let value = [b"{\"", name.as_bytes(), b"\":", value.literal(), b"}"].concat();
    Raw::from_json(value)
}

/// A string as it is, anything else as its JSON text.
fn as_text(body: &Bytes, value: &RawValue) -> Text {
    Text::of(body, value).unwrap_or_else(|| Text::new(value.get()))
}
