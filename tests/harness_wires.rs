//! Real harnesses on every wire that they speak, unmodified, in containers without network. Needs Docker and, the first time, the
//! package registries. The core is in `make test`; all of it, with what is slow to start or to build, in `make test-all`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "what ran and what did not is part of the answer")]

mod support;

use serde_json::{Value, json};
use support::is_wide;
use support::policy::{Reply, ScriptedPolicy};
use support::run::Bench;
use support::turns::{MAKE, SUBMIT, Turns, acted, call, fenced};

/// A harness on a wire.
struct Cell {
    /// `HARNESS` or `HARNESS:VARIANT`.
    harness: &'static str,
    wire: &'static str,
    /// Its shell tool, and what its arguments are beside `command`.
    shell: (&'static str, Value),
    streams: bool,
    /// The first reply has reasoning: what a harness did not send back would part its requests.
    reasons: bool,
    /// Why its second request does not go on from the first, as `gleaner show` says it, if it does not.
    branches: Option<&'static str>,
    when: When,
}

/// When a cell runs.
#[derive(PartialEq)]
enum When {
    /// In `make test`.
    Always,
    /// With `GLEANER_TEST_WIDE=1`; the containers that one of it counts as.
    Wide(u32),
}

impl Cell {
    async fn check(self, sampling: u64) {
        let weight = match self.when {
            When::Wide(_) if !is_wide(&format!("{} on {}", self.harness, self.wire)) => return,
            When::Wide(weight) => weight,
            When::Always => 1,
        };
        let samples = if self.branches.is_some() { 2 } else { 1 };
        let turns = Turns {
            harness: self.harness,
            wire: self.wire,
            sampling,
            replies: self.replies(),
            streams: self.streams,
            rollouts: 1,
            samples,
            weight,
        };
        let (bench, policy, ids) = turns.check().await;
        let (tool, _) = &self.shell;
        let offered = policy.seen()[0].body["tools"].as_array().cloned().unwrap_or_default();
        let named = offered.iter().find(|offer| offer["function"]["name"] == *tool);
        assert_eq!(named.is_some(), !tool.is_empty(), "{offered:#?}");
        if let Some(offer) = named {
            let required = offer["function"]["parameters"]["required"].as_array().cloned().unwrap_or_default();
            let given = self.arguments();
            assert!(required.iter().all(|name| given.get(name.as_str().unwrap()).is_some()), "{offer:#}");
        }
        if let Some(why) = self.branches {
            let shown = bench.look(&["show", &ids[0]]).await;
            assert!(shown.contains(why), "{shown}");
        }
        println!("{:20} {:10} {samples} sample(s)", self.harness, self.wire);
    }

    fn arguments(&self) -> Value {
        let (_, mut arguments) = self.shell.clone();
        let name = if self.harness == "codex" { "cmd" } else { "command" };
        arguments[name] = json!(MAKE);
        arguments
    }

    fn replies(&self) -> [Reply; 2] {
        let (tool, _) = self.shell;
        let [first, last] = match self.harness {
            "mini-swe-agent:text" => [fenced(MAKE), fenced(SUBMIT)],
            "react:text" => [acted(MAKE), Reply::text("Thought: turn {n}.\nFinal Answer: made it.")],
            "mini-swe-agent" => [call(tool, &self.arguments()), call(tool, &json!({"command": SUBMIT}))],
            _ => [call(tool, &self.arguments()), Reply::text("Made it in turn {n}.")],
        };
        let first = if self.reasons { first.thinking("I should look first.") } else { first };
        [first, last]
    }
}

macro_rules! cells {
    ($($test:ident $sampling:literal: $cell:expr;)*) => {
        $(
            #[tokio::test]
            #[ignore = "needs Docker and, once, the package registries"]
            async fn $test() {
                $cell.check($sampling).await;
            }
        )*
    };
}

fn mini(wire: &'static str, when: When) -> Cell {
    let shell = ("bash", json!({}));
    Cell { harness: "mini-swe-agent", wire, shell, streams: false, reasons: true, branches: None, when }
}

fn mini_text(wire: &'static str, when: When) -> Cell {
    let shell = ("", json!({}));
    Cell { harness: "mini-swe-agent:text", wire, shell, streams: false, reasons: false, branches: None, when }
}

fn react(when: When) -> Cell {
    let shell = ("bash", json!({}));
    Cell { harness: "react", wire: "chat", shell, streams: false, reasons: true, branches: None, when }
}

fn react_text(when: When) -> Cell {
    let shell = ("", json!({}));
    Cell { harness: "react:text", wire: "chat", shell, streams: false, reasons: true, branches: None, when }
}

fn hermes() -> Cell {
    let (shell, when) = (("terminal", json!({})), When::Wide(1));
    Cell { harness: "hermes", wire: "chat", shell, streams: true, reasons: true, branches: None, when }
}

fn zeroclaw(wire: &'static str) -> Cell {
    let (shell, when) = (("shell", json!({})), When::Wide(1));
    // On responses it sends no reasoning back.
    Cell { harness: "zeroclaw", wire, shell, streams: false, reasons: wire != "responses", branches: None, when }
}

fn opencode(wire: &'static str, when: When) -> Cell {
    let shell = ("bash", json!({"description": "x"}));
    Cell { harness: "opencode", wire, shell, streams: true, reasons: true, branches: None, when }
}

fn openclaw(wire: &'static str, branches: Option<&'static str>) -> Cell {
    let (shell, when) = (("exec", json!({})), When::Wide(2));
    Cell { harness: "openclaw", wire, shell, streams: true, reasons: true, branches, when }
}

fn qwen(wire: &'static str, when: When) -> Cell {
    let shell = ("run_shell_command", json!({"description": "x", "is_background": false}));
    Cell { harness: "qwen-code", wire, shell, streams: true, reasons: true, branches: None, when }
}

fn codex() -> Cell {
    let shell = ("exec_command", json!({}));
    let (harness, wire, when) = ("codex", "responses", When::Always);
    Cell { harness, wire, shell, streams: true, reasons: true, branches: None, when }
}

fn claude() -> Cell {
    let shell = ("Bash", json!({"description": "x"}));
    let (harness, wire, when) = ("claude-code", "messages", When::Always);
    Cell { harness, wire, shell, streams: true, reasons: true, branches: None, when }
}

fn gemini() -> Cell {
    let shell = ("run_shell_command", json!({"description": "x"}));
    let (harness, wire, when) = ("gemini-cli", "gemini", When::Always);
    Cell { harness, wire, shell, streams: true, reasons: true, branches: None, when }
}

/// On these wires `OpenClaw` moves a message about the state of things to the end of each request. On messages it and the question
/// are one user's message.
const MOVED: &str = "message 3 (user) of call ";
const MOVED_PART: &str = "message 2 (user) of call ";

cells! {
    codex_on_responses 401: codex();
    claude_code_on_messages 402: claude();
    gemini_cli_on_gemini 403: gemini();
    mini_swe_agent_on_chat 404: mini("chat", When::Wide(1));
    mini_swe_agent_on_responses 405: mini("responses", When::Wide(1));
    mini_swe_agent_on_messages 406: mini("messages", When::Always);
    mini_swe_agent_without_tools_on_messages 407: mini_text("messages", When::Wide(1));
    opencode_on_chat 408: opencode("chat", When::Always);
    opencode_on_responses 409: opencode("responses", When::Wide(1));
    opencode_on_messages 410: opencode("messages", When::Wide(1));
    qwen_code_on_chat 411: qwen("chat", When::Always);
    qwen_code_on_responses 412: qwen("responses", When::Wide(1));
    qwen_code_on_messages 413: qwen("messages", When::Wide(1));
    qwen_code_on_gemini 414: qwen("gemini", When::Wide(1));
    zeroclaw_on_chat 415: zeroclaw("chat");
    zeroclaw_on_responses 416: zeroclaw("responses");
    zeroclaw_on_messages 417: zeroclaw("messages");
    openclaw_on_chat 418: openclaw("chat", Some(MOVED));
    openclaw_on_responses 419: openclaw("responses", None);
    openclaw_on_messages 420: openclaw("messages", Some(MOVED_PART));
    react_on_chat 421: react(When::Always);
    react_without_tools_on_chat 422: react_text(When::Always);
    hermes_on_chat 423: hermes();
}

/// What a script sends that the agent wrote: the harness's own key and URL, and nothing else of it.
const SCRIPT: &str = r#"python3 - <<'END'
import json, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "x"}]}).encode()
request = urllib.request.Request("http://127.0.0.1:8080/v1/chat/completions", body, {"content-type": "application/json"})
print(urllib.request.urlopen(request).status)
END"#;

#[tokio::test]
#[ignore = "needs Docker and, once, the package registries"]
async fn a_script_of_the_agent_is_foreign() {
    let policy = ScriptedPolicy::start(424, []).await;
    policy.each_conversation([call("bash", &json!({"command": SCRIPT})), Reply::text("Asked.")]);
    let bench = Bench::new(policy.url());
    let ended = bench.run(&["react", "p"]).await;
    let (id, rollout) = ended.rollout();
    assert_eq!((&rollout["outcome"], &rollout["calls"]), (&json!("passed"), &json!(3)), "{ended:?}");
    let shown = bench.show(&id).await;
    let left_out: Vec<&Value> = shown["left_out"].as_array().unwrap().iter().map(|left| &left["reason"]).collect();
    assert_eq!(left_out, ["foreign"], "{:#}", shown["left_out"]);
    assert_eq!(shown["samples"].as_array().unwrap().len(), 1);
}
