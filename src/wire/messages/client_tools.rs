//! Tools that clients run and name by a type only, since Anthropic's models know their schemas. Other models must be told.

use serde_json::{Value, json};

/// The description and the schema of the tool of this type; `None` if it is no client's, or made of many tools.
pub(super) fn known(kind: &str, screen: [Option<u64>; 2]) -> Option<(String, Value)> {
    let (family, version) = kind.rsplit_once('_')?;
    let known = match family {
        "bash" => (BASH.to_owned(), bash()),
        "text_editor" => (TEXT_EDITOR.to_owned(), text_editor(version)),
        "memory" => (MEMORY.to_owned(), memory()),
        "computer" => (computer_description(screen), computer()),
        _ => return None,
    };
    Some(known)
}

const BASH: &str = "Runs a command in a bash session that lives on from call to call, and gives its output.";
const TEXT_EDITOR: &str = "Views, creates and edits files. `view` shows a file with line numbers or lists a folder; `create` writes a \
     whole file; `str_replace` replaces `old_str`, which must occur exactly once, by `new_str`; `insert` puts text after a line.";
const MEMORY: &str = "Keeps notes in files under /memories, which outlive this conversation. `view` shows a file or lists a folder; \
     `create` writes a whole file; `str_replace` and `insert` edit one; `delete` and `rename` do as their names say.";

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn object(properties: &Value, required: &[&str]) -> Value {
    json!({ "type": "object", "properties": properties, "required": required })
}

fn bash() -> Value {
    let restart = json!({ "type": "boolean", "description": "Starts the session anew; no command is needed then." });
    object(&json!({ "command": text("The command to run."), "restart": restart }), &[])
}

fn text_editor(version: &str) -> Value {
    // Versions sort as the dates that they are; undoing went away in April 2025.
    let undo = version < "20250429";
    let commands = ["view", "create", "str_replace", "insert"].into_iter().chain(undo.then_some("undo_edit"));
    let properties = json!({
        "command": { "type": "string", "enum": commands.collect::<Vec<_>>() },
        "path": text("The absolute path of the file or folder."),
        "file_text": text("For create: the file's content."),
        "old_str": text("For str_replace: what to replace."),
        "new_str": text("For str_replace: what to put in its place."),
        "insert_line": { "type": "integer", "description": "For insert: the line after which to insert; 0 is the start." },
        "insert_text": text("For insert: the text."),
        "view_range": {
            "type": "array", "items": { "type": "integer" },
            "description": "For view: first and last line; -1 as the last is the end.",
        },
    });
    let mut schema = object(&properties, &["command", "path"]);
    if undo && let Some(properties) = schema["properties"].as_object_mut() {
        // What is inserted had the replacement's name then.
        properties.remove("insert_text");
        properties.insert("new_str".to_owned(), text("For str_replace and insert: the new text."));
    }
    schema
}

fn memory() -> Value {
    let commands = ["view", "create", "str_replace", "insert", "delete", "rename"];
    let properties = json!({
        "command": { "type": "string", "enum": commands },
        "path": text("The path of the file or folder, under /memories."),
        "view_range": { "type": "array", "items": { "type": "integer" }, "description": "For view: first and last line." },
        "file_text": text("For create: the file's content."),
        "old_str": text("For str_replace: what to replace."),
        "new_str": text("For str_replace: what to put in its place."),
        "insert_line": { "type": "integer", "description": "For insert: the line after which to insert; 0 is the start." },
        "insert_text": text("For insert: the text."),
        "old_path": text("For rename: the old path."),
        "new_path": text("For rename: the new path."),
    });
    object(&properties, &["command"])
}

fn computer_description(screen: [Option<u64>; 2]) -> String {
    let size = match screen {
        [Some(width), Some(height)] => format!(" The screen has {width} x {height} pixels."),
        _ => String::new(),
    };
    format!(
        "Uses a computer by its screen, mouse and keyboard, and gives a screenshot.{size} Coordinates count from the top left."
    )
}

fn computer() -> Value {
    let actions = [
        "screenshot",
        "left_click",
        "right_click",
        "middle_click",
        "double_click",
        "triple_click",
        "mouse_move",
        "left_click_drag",
        "left_mouse_down",
        "left_mouse_up",
        "scroll",
        "type",
        "key",
        "hold_key",
        "cursor_position",
        "wait",
        "zoom",
    ];
    let point = |description: &str| json!({ "type": "array", "items": { "type": "integer" }, "description": description });
    let properties = json!({
        "action": { "type": "string", "enum": actions },
        "coordinate": point("[x, y], for actions of the mouse."),
        "start_coordinate": point("[x, y], where a drag begins."),
        "region": point("[x0, y0, x1, y1], for zoom."),
        "text": text("What to type, or the key or keys (joined by +) to press or hold."),
        "scroll_direction": { "type": "string", "enum": ["up", "down", "left", "right"] },
        "scroll_amount": { "type": "integer" },
        "duration": { "type": "number", "description": "Seconds, for wait and hold_key." },
    });
    object(&properties, &["action"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_client_runs_itself_has_a_schema() {
        for kind in ["bash_20250124", "text_editor_20250728", "memory_20250818", "computer_20251124"] {
            let (description, schema) = known(kind, [Some(800), Some(600)]).unwrap();
            assert!(!description.is_empty() && schema["properties"].is_object(), "{kind}");
            assert_eq!(description.contains("800 x 600"), kind.starts_with("computer"));
        }
        for kind in ["web_search_20250305", "code_execution_20250825", "computer_toolset_20260801", "mcp_toolset", "bash", ""] {
            assert_eq!(known(kind, [None, None]), None, "{kind}");
        }
    }

    #[test]
    fn an_older_editor_undoes_and_inserts_by_its_own_names() {
        let (_, old) = known("text_editor_20250124", [None, None]).unwrap();
        let (_, new) = known("text_editor_20250728", [None, None]).unwrap();
        let undoes = |schema: &Value| schema["properties"]["command"]["enum"].to_string().contains("undo_edit");
        let inserts = |schema: &Value| schema["properties"].get("insert_text").is_some();
        assert_eq!((undoes(&old), inserts(&old), undoes(&new), inserts(&new)), (true, false, false, true));
    }
}
