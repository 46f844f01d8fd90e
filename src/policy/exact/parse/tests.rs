//! The choice of parsers, and the forms that the crates read.

use super::*;
use crate::call::{Fold, Raw, Reply, Tool, ToolKind};
use crate::policy::stub;

fn asked() -> Arc<Call> {
    let schema = r#"{"type":"object","properties":{"path":{"type":"string"},"lines":{"type":"number"}}}"#;
    let tool = |name: &str| Tool {
        kind: ToolKind::Function,
        namespace: None,
        name: Text::new(name),
        description: None,
        parameters: Some(Raw::from_json(schema.as_bytes().to_vec())),
        rest: Vec::new(),
    };
    Arc::new(Call { tools: vec![tool("f"), tool("g")], ..stub::call() })
}

fn parsers(tools: &str, reasoning: &str) -> Parsers {
    let config = PolicyConfig {
        tool_parser: Some(tools.to_owned()),
        reasoning_parser: Some(reasoning.to_owned()),
        ..PolicyConfig::default()
    };
    Parsers::choose("p", &config, "", "").unwrap()
}

async fn read(parsers: &Parsers, call: &Arc<Call>, ending: &str, pieces: &[&str]) -> (Reply, Vec<String>) {
    let mut parser = parsers.begin(call, Names::of(call), ending);
    let mut events = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut events).await;
    }
    // Answers are read on whatever thread there is.
    send(parser.finish(&mut events)).await;
    let mut fold = Fold::default();
    events.iter().for_each(|event| fold.push(event));
    let reply = fold.reply();
    assert_eq!(parser.called(), !reply.tool_calls.is_empty());
    (reply, parser.notes())
}

fn send<T: Send>(future: T) -> T {
    future
}

fn plain(text: Option<&Text>) -> String {
    text.map_or_else(String::new, |text| text.decode().into_owned())
}

/// Text and calls of a reply, the same however it is cut.
async fn calls(name: &str, text: &str) -> (String, Vec<(String, String)>, Vec<String>) {
    let parsers = parsers(name, "none");
    let (reply, notes) = read(&parsers, &asked(), "", &[text]).await;
    let told = |reply: &Reply| {
        let calls = reply.tool_calls.iter().map(|call| (plain(Some(&call.name)), plain(Some(&call.arguments))));
        (plain(reply.text.as_ref()), calls.collect::<Vec<_>>())
    };
    let chars: Vec<String> = text.chars().map(String::from).collect();
    let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
    let (slow, slow_notes) = read(&parsers, &asked(), "", &chars).await;
    assert_eq!((told(&reply), &notes), (told(&slow), &slow_notes), "{name}");
    let (text, calls) = told(&reply);
    (text, calls, notes)
}

/// A call of `f` in each form that the crate reads, and its arguments as they come out.
const FOREIGN: [(&str, &str, &str); 17] = [
    (
        "cohere",
        "<|START_ACTION|>\n{\"tool_name\": \"f\", \"parameters\": {\"path\":\"x\",\"lines\":1.0}}\n<|END_ACTION|>",
        LETTER,
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"path\":\"x\",\"lines\":1.0}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        LETTER,
    ),
    (
        "deepseek31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"path\":\"x\",\"lines\":1.0}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        LETTER,
    ),
    (
        "deepseek32",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"path\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        PATH,
    ),
    (
        "deepseek_v4",
        "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"path\" string=\"true\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
        PATH,
    ),
    (
        "deepseek_v41",
        "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"path\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
        PATH,
    ),
    ("gemma4", "<|tool_call>call:f{path:<|\"|>x<|\"|>}<tool_call|>", PATH),
    ("glm45_moe", "<tool_call>f\n<arg_key>path</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", PATH),
    ("glm47_moe", "<tool_call>f<arg_key>path</arg_key><arg_value>x</arg_value></tool_call>", PATH),
    (
        "inkling",
        "<|message_model|>f<|content_invoke_tool_json|>{\"name\":\"f\",\"args\":{\"path\":\"x\"}}<|end_message|><|content_model_end_sampling|>",
        PATH,
    ),
    (
        "kimi_k3",
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"path\" type=\"string\"<|sep|>x<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        PATH,
    ),
    (
        "kimik2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"path\":\"x\",\"lines\":1.0}<|tool_call_end|><|tool_calls_section_end|>",
        LETTER,
    ),
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"path\">x</parameter>\n</invoke>\n</minimax:tool_call>",
        PATH,
    ),
    (
        "minimax_m3",
        "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<path>x]<]minimax[>[</path>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
        PATH,
    ),
    (
        "step3",
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">\n<steptml:parameter name=\"path\">x</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n<｜tool_calls_end｜>",
        PATH,
    ),
    ("sarashina", "<|tool_calls|>[{'name': 'f', 'arguments': {'path': 'x'}}]", PATH),
    ("pythonic", "[f(path=\"x\")]", PATH),
];
const LETTER: &str = "{\"path\":\"x\",\"lines\":1.0}";
const PATH: &str = "{\"path\":\"x\"}";

#[tokio::test]
async fn forms_of_the_crates_are_read_and_cut_ones_stay_text() {
    for (name, text, arguments) in FOREIGN {
        let (told, called, notes) = calls(name, text).await;
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!((told.trim(), called.len(), notes), ("", 1, vec![]), "{name}: {called:?}");
        assert_eq!((called[0].0.as_str(), value(&called[0].1)), ("f", value(arguments)), "{name}");
        if arguments == LETTER {
            assert_eq!(called[0].1, LETTER, "{name}: to the letter");
        }
        let path = text.find("path").unwrap();
        let cut = &text[..=path + text[path..].find('x').unwrap()];
        let (told, called, notes) = calls(name, cut).await;
        assert_eq!((told.as_str(), called, notes.len()), (cut, vec![], 1), "{name}: {notes:?}");
    }
}

#[tokio::test]
async fn text_around_foreign_calls_is_told() {
    let (_, call, _) = FOREIGN.into_iter().find(|(name, ..)| *name == "glm47_moe").unwrap();
    let (told, called, _) = calls("glm47_moe", &format!("See:\n{call}\n{call} done")).await;
    assert_eq!((told.as_str(), called.len()), ("See:\n done", 2));
    let (told, called, _) = calls("glm47_moe", &format!("{call}<tool_call>{call}")).await;
    assert_eq!((told, called), (format!("{call}<tool_call>{call}"), vec![]), "one of three could not be read");
    let (told, called, _) = calls("cohere", "<|START_RESPONSE|>Hello.<|END_RESPONSE|>").await;
    assert_eq!((told.as_str(), called), ("Hello.", vec![]));
}

#[tokio::test]
async fn garbage_of_foreign_forms_stays_text() {
    for (name, text, _) in FOREIGN {
        let marker: String = text.chars().take(text.len().min(12)).collect();
        for garbage in [format!("{}{}", marker.repeat(500), text), "[".repeat(20_000), format!("{text}{}", "[f(".repeat(5000))] {
            let parsers = parsers(name, "none");
            let (reply, _) = read(&parsers, &asked(), "", &[&garbage]).await;
            assert!(reply.text.is_some() || !reply.tool_calls.is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn without_tools_or_with_none_wanted_calls_stay_text() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    let parsers = parsers("qwen", "none");
    for call in [stub::call(), Call { tool_choice: Some(ToolChoice::None), ..(*asked()).clone() }] {
        let (reply, notes) = read(&parsers, &Arc::new(call), "", &[text]).await;
        assert_eq!((plain(reply.text.as_ref()).as_str(), reply.tool_calls, notes), (text, vec![], vec![]));
    }
}

#[tokio::test]
async fn a_prompts_ending_says_whether_reasoning_has_begun() {
    let cases = [
        ("qwen3", "<|im_start|>assistant\n", "a</think>b", ("", "a</think>b")),
        ("qwen3", "<|im_start|>assistant\n<think>\n", "a</think>b", ("a", "b")),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", "a", ("", "a")),
        ("qwen3", "what is <think>?<|im_end|>\n<|im_start|>assistant\n", "a", ("", "a")),
        ("qwen3", "<think>\nFirst, ", "a</think>b", ("a", "b")),
        ("deepseek_r1", "<｜Assistant｜>", "a</think>b", ("a", "b")),
        ("deepseek_r1", "<think></think>", "a", ("", "a")),
        ("kimi", "<|im_middle|>", "◁think▷a◁/think▷b", ("a", "b")),
        ("gemma4", "<|turn>model\n", "<|channel>thought\na<channel|>b", ("a", "b")),
        ("kimi_k3", "", "<|open|>think<|sep|>a<|close|>think<|sep|><|open|>response<|sep|>b<|close|>response<|sep|>", ("a", "b")),
        ("hy_v4", "", "<think:x>a</think:x>b", ("a", "b")),
        ("none", "<think>\n", "a</think>b", ("", "a</think>b")),
    ];
    for (name, ending, text, expected) in cases {
        let (reply, _) = read(&parsers("none", name), &asked(), ending, &[text]).await;
        let found = (plain(reply.reasoning.as_ref()), plain(reply.text.as_ref()));
        assert_eq!((found.0.as_str(), found.1.as_str()), expected, "{name} {ending:?}");
    }
}

#[test]
fn templates_say_what_they_are() {
    let choose = |template, model| Parsers::choose("p", &PolicyConfig::default(), template, model).unwrap().describe();
    for (template, model, tools, reasoning) in [
        ("{% if tools %}<tool_call>\n{\"name\": </tool_call>{% endif %}<think>", "m", "qwen", "qwen3"),
        ("{% if tools %}<tool_call><function=f>", "m", "qwen_xml", "none"),
        ("{% if tools %}<tool_call>{name}<arg_key></think>", "m", "glm47_moe", "qwen3"),
        ("[AVAILABLE_TOOLS] tools [TOOL_CALLS] [THINK]", "m", "mistral", "mistral"),
        ("tools <|python_tag|>", "m", "llama", "none"),
        ("tools <｜tool▁calls▁begin｜>", "m", "deepseek31", "none"),
        ("tools <|tool_calls_section_begin|>", "m", "kimik2", "none"),
        ("{% for message in messages %}<|im_start|>", "Qwen3-8B", "none", "none"),
        ("", "Qwen/Qwen3-Coder-30B", "qwen_xml", "qwen3"),
        ("", "Qwen2.5-7B", "qwen", "qwen3"),
        ("", "moonshotai/Kimi-K3", "kimi_k3", "kimi_k3"),
        ("", "SmolLM2", "none", "none"),
    ] {
        assert_eq!(choose(template, model), format!("tool calls by {tools}, reasoning by {reasoning}"), "{template} {model}");
    }
}

#[test]
fn every_name_of_the_crates_is_known_and_others_are_refused() {
    for name in tool_parser::ParserFactory::new().list_parsers() {
        assert!(Tools::named(&name).is_some(), "tool parser {name}");
    }
    for name in reasoning_parser::ParserFactory::new().list_parsers() {
        assert!(Reasoning::named(&name).is_some(), "reasoning parser {name}");
    }
    let config = PolicyConfig { tool_parser: Some("gwen".to_owned()), ..PolicyConfig::default() };
    let error = Parsers::choose("p", &config, "", "").unwrap_err().to_string();
    assert!(error.starts_with("policy p: tool_parser \"gwen\" is not known, use one of qwen, hermes, qwen_xml, "), "{error}");
    assert!(error.ends_with("pythonic, none"), "{error}");
    let config = PolicyConfig { reasoning_parser: Some("x".to_owned()), ..PolicyConfig::default() };
    let error = Parsers::choose("p", &config, "", "").unwrap_err().to_string();
    assert!(error.starts_with("policy p: reasoning_parser \"x\" is not known, use one of qwen3, "), "{error}");
}
