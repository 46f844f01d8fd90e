//! What the scripted policy says: a first turn that runs one command by the harness's shell tool, and a last one that ends.

use serde_json::{Map, Value, json};

/// Names under which harnesses offer a shell, the likeliest first: what is tried where a script names no tool.
const SHELLS: [&str; 12] = [
    "bash",
    "Bash",
    "shell",
    "exec_command",
    "exec",
    "run_shell_command",
    "terminal",
    "run_command",
    "execute_command",
    "execute_bash",
    "shell_command",
    "local_shell",
];

/// Names of the argument that such a tool takes its command in, the likeliest first.
const COMMANDS: [&str; 5] = ["command", "cmd", "script", "code", "input"];

/// Where the command stands in [`Script::fenced`].
pub const COMMAND: &str = "{command}";

/// What is said to one harness.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// What its shell is told to run in the first turn.
    pub command: String,
    /// The name of its shell tool; a well-known one of those that it offers if `None`.
    pub tool: Option<String>,
    /// The argument that takes the command; by the tool's schema if `None`.
    pub argument: Option<String>,
    /// Other arguments. What the schema requires beside them is filled in by its type.
    pub arguments: Map<String, Value>,
    /// The text of a turn that runs [`COMMAND`], for a harness that takes no tool calls.
    pub fenced: Option<String>,
    pub ending: Ending,
}

/// How a harness is told that the task is done.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A turn of text alone.
    Text(String),
    /// One more command, run as the first was.
    Command(String),
}

impl Default for Script {
    /// For any harness: a command that changes nothing, a tool by its name, an end by words.
    fn default() -> Self {
        Self {
            command: "echo \"The scripted policy was here.\"".to_owned(),
            tool: None,
            argument: None,
            arguments: Map::new(),
            fenced: None,
            ending: Ending::Text("I have used the shell once. That is all that I do.".to_owned()),
        }
    }
}

/// One reply.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Turn {
    pub reasoning: String,
    pub text: String,
    /// The tool that is called, and its arguments' JSON.
    pub call: Option<(String, String)>,
    /// The tool or its argument was not in the script.
    pub guessed: bool,
}

impl Script {
    /// The reply to a request of chat completions. A request that does not offer the tool gets words.
    pub(super) fn turn(&self, request: &Value) -> Turn {
        match (own_turns(request), &self.ending) {
            (0, _) => self.run(&self.command, "I should use the shell.", request),
            (_, Ending::Command(command)) => self.run(command, "", request),
            (_, Ending::Text(text)) => Turn { text: text.clone(), ..Turn::default() },
        }
    }

    fn run(&self, command: &str, reasoning: &str, request: &Value) -> Turn {
        if let Some(fenced) = &self.fenced {
            return Turn { text: fenced.replace(COMMAND, command), ..Turn::default() };
        }
        let said = |text: &str| Turn { reasoning: reasoning.to_owned(), text: text.to_owned(), ..Turn::default() };
        let Some(tool) = self.find(request) else {
            return said("I would use the shell, but no tool of yours is known to me as one.");
        };
        let schema = &tool["parameters"];
        let argument = self.argument.clone().unwrap_or_else(|| takes_command(schema));
        let mut arguments = self.arguments.clone();
        let whole = match schema["properties"][&argument]["type"].as_str() {
            Some("array") => json!(["sh", "-c", command]),
            _ => json!(command),
        };
        arguments.insert(argument, whole);
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !arguments.contains_key(name) {
                arguments.insert(name.to_owned(), filler(&schema["properties"][name]));
            }
        }
        let name = tool["name"].as_str().unwrap_or_default().to_owned();
        let guessed = self.tool.is_none() || self.argument.is_none();
        Turn { call: Some((name, Value::Object(arguments).to_string())), guessed, ..said("I use the shell.") }
    }

    /// The function that is the shell.
    fn find<'a>(&self, request: &'a Value) -> Option<&'a Value> {
        let named = |name: &str| functions(request).find(|function| function["name"] == name);
        match &self.tool {
            Some(name) => named(name),
            None => SHELLS.iter().find_map(|name| named(name)),
        }
    }
}

/// The functions that a request offers.
pub(super) fn functions(request: &Value) -> impl Iterator<Item = &Value> {
    request["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"])
}

/// How many turns of the assistant a request has; messages of it that follow each other are one.
fn own_turns(request: &Value) -> usize {
    let is_own = |message: &Value| message["role"] == "assistant";
    let messages = request["messages"].as_array().map_or(&[][..], Vec::as_slice);
    messages.iter().enumerate().filter(|(at, message)| is_own(message) && (*at == 0 || !is_own(&messages[at - 1]))).count()
}

fn takes_command(schema: &Value) -> String {
    let properties = &schema["properties"];
    let known = COMMANDS.iter().find(|name| properties.get(**name).is_some()).map(|name| (*name).to_owned());
    let required =
        || schema["required"].as_array()?.iter().filter_map(Value::as_str).find(|name| properties[name]["type"] == "string");
    known.or_else(|| required().map(str::to_owned)).unwrap_or_else(|| COMMANDS[0].to_owned())
}

/// Some value of this schema.
fn filler(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].get(0) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("boolean") => json!(false),
        Some("integer" | "number") => json!(1),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("scripted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tools: &[(&str, Value)], messages: &Value) -> Value {
        let tools: Vec<Value> = tools
            .iter()
            .map(|(name, schema)| json!({"type": "function", "function": {"name": name, "parameters": schema}}))
            .collect();
        json!({"messages": messages, "tools": tools})
    }

    fn question() -> Value {
        json!([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    }

    fn call(script: &Script, tools: &[(&str, Value)]) -> (String, Value, bool) {
        let turn = script.turn(&request(tools, &question()));
        let (name, arguments) = turn.call.unwrap();
        (name, serde_json::from_str(&arguments).unwrap(), turn.guessed)
    }

    fn script() -> Script {
        Script { command: "ls".to_owned(), ..Script::default() }
    }

    #[test]
    fn a_shell_is_known_by_its_name_and_its_schema() {
        let object =
            |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required});
        let codex = object(json!({"workdir": {"type": "string"}, "cmd": {"type": "string"}}), json!(["cmd"]));
        let read = ("read", json!({}));
        assert_eq!(call(&script(), &[read, ("exec_command", codex)]), ("exec_command".to_owned(), json!({"cmd": "ls"}), true));
        let list = object(json!({"command": {"type": "array"}}), json!(["command"]));
        assert_eq!(call(&script(), &[("shell", list)]).1, json!({"command": ["sh", "-c", "ls"]}));
        let qwen = object(
            json!({"command": {"type": "string"}, "is_background": {"type": "boolean"}, "how": {"enum": ["a", "b"]}}),
            json!(["command", "is_background", "how", "why"]),
        );
        let filled = json!({"command": "ls", "is_background": false, "how": "a", "why": "scripted"});
        assert_eq!(call(&script(), &[("run_shell_command", qwen)]).1, filled);
        let own = object(json!({"line": {"type": "string"}}), json!(["line"]));
        assert_eq!(call(&script(), &[("terminal", own)]).1, json!({"line": "ls"}));
    }

    #[test]
    fn what_the_script_names_is_used() {
        let own = Script {
            tool: Some("go".to_owned()),
            argument: Some("it".to_owned()),
            arguments: Map::from_iter([("why".to_owned(), json!("x"))]),
            ..script()
        };
        let tools = [("bash", json!({})), ("go", json!({"required": ["it", "why", "more"]}))];
        assert_eq!(call(&own, &tools), ("go".to_owned(), json!({"why": "x", "it": "ls", "more": "scripted"}), false));
        let turn = own.turn(&request(&tools[..1], &question()));
        assert!(turn.call.is_none() && turn.text.contains("no tool"), "{turn:?}");
    }

    #[test]
    fn the_last_turn_is_known_by_the_turns_before_it() {
        let mut messages = question();
        let parts = [json!({"role": "assistant", "content": "a"}), json!({"role": "assistant", "tool_calls": []})];
        messages.as_array_mut().unwrap().extend(parts);
        let tools = [("bash", json!({}))];
        let text = script().turn(&request(&tools, &messages));
        assert_eq!(Ending::Text(text.text), Script::default().ending);
        let command = Script { ending: Ending::Command("exit".to_owned()), ..script() }.turn(&request(&tools, &messages));
        assert_eq!(command.call.unwrap().1, r#"{"command":"exit"}"#);
        let fenced =
            Script { fenced: Some("```\n{command}\n```".to_owned()), ending: Ending::Command("exit".to_owned()), ..script() };
        let both = [question(), messages].map(|messages| fenced.turn(&request(&[], &messages)).text);
        assert_eq!(both, ["```\nls\n```", "```\nexit\n```"]);
    }
}
