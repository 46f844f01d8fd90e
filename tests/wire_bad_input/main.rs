//! What is not a request of a wire is refused with the field at fault; what is only unknown passes.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod gemini;

use bytes::Bytes;
use gleaner::call::{Call, Failure, FailureKind};
use gleaner::wire;

fn parse(wire: &str, body: impl Into<Vec<u8>>) -> Result<Call, Failure> {
    let wire = wire::named(wire).unwrap();
    wire.parse(gleaner::wire::Target::read(wire.paths()[0]), &Bytes::from(body.into())).map(|mut calls| calls.remove(0))
}

#[track_caller]
fn refused(wire: &str, body: impl Into<Vec<u8>>) -> (Option<String>, String) {
    let failure = parse(wire, body).unwrap_err();
    assert_eq!((failure.kind, failure.status), (FailureKind::Invalid, 400), "{failure:?}");
    let body: serde_json::Value = serde_json::from_slice(&wire::named(wire).unwrap().failure(&failure)).unwrap();
    assert_eq!(body["error"]["type"], "invalid_request_error");
    if wire == "messages" {
        assert_eq!((&body["type"], &body["error"]["message"]), (&"error".into(), &failure.message.as_str().into()));
    } else {
        assert_eq!(body["error"]["param"].as_str(), failure.param.as_deref());
    }
    (failure.param, failure.message)
}

#[track_caller]
fn at(wire: &str, body: &str, param: &str, message: &str) {
    assert_eq!(refused(wire, body), (Some(param.to_owned()), message.to_owned()));
}

#[test]
fn a_body_that_is_no_json_object() {
    for wire in ["chat", "completions", "responses", "messages"] {
        assert_eq!(refused(wire, "").1, "the body is empty");
        assert_eq!(
            refused(wire, "{\"model\":\"m\",").1,
            "the body is not valid JSON: EOF while parsing a value at line 1 column 13"
        );
        assert_eq!(refused(wire, "{} x").1, "the body is not valid JSON: trailing characters at line 1 column 4");
        assert_eq!(refused(wire, "[1]"), (Some("body".to_owned()), "body must be an object".to_owned()));
        assert_eq!(refused(wire, "\"x\"").1, "body must be an object");
        assert_eq!(refused(wire, b"{\"model\":\"\xff\"}").1, "the body is not valid UTF-8 at byte 10");
        let nul = refused(wire, b"{\"model\":\"a\0b\"}").1;
        assert!(nul.starts_with("the body is not valid JSON: control character"), "{nul}");
        assert!(refused(wire, "{\"a\":tru}").1.starts_with("the body is not valid JSON"));
    }
}

#[test]
fn fields_of_the_wrong_type_are_named() {
    let user = r#""messages":[{"role":"user","content":"x"}]"#;
    for (field, param, message) in [
        (r#""temperature":"hot""#, "temperature", "temperature must be a number, not a string"),
        (r#""temperature":1e999"#, "temperature", "temperature must be a number, not 1e999"),
        (r#""max_tokens":-1"#, "max_tokens", "max_tokens must be a whole number of 0 or more, not -1"),
        (r#""seed":99999999999999999999"#, "seed", "seed must be a whole number, not 99999999999999999999"),
        (r#""stream":"yes""#, "stream", "stream must be a boolean, not a string"),
        (r#""model":7"#, "model", "model must be a string, not 7"),
        (r#""stop":{}"#, "stop", "stop must be a string or a list of strings, not an object"),
        (r#""tools":{}"#, "tools", "tools must be a list"),
        (r#""tools":[1]"#, "tools[0]", "tools[0] must be an object"),
        (r#""tools":[{"type":"function"}]"#, "tools[0].function", "tools[0].function is missing"),
        (r#""tools":[{"type":"x"}]"#, "tools[0].type", "tools[0].type must be function or custom, not \"x\""),
        (r#""tool_choice":"maybe""#, "tool_choice", "tool_choice must be auto, none, required or a tool, not \"maybe\""),
        (r#""stream_options":3"#, "stream_options", "stream_options must be an object, not 3"),
        (r#""n":0"#, "n", "n must be 1 to 128, not 0"),
        (r#""n":1.5"#, "n", "n must be a whole number of 0 or more, not 1.5"),
        (r#""functions":{}"#, "functions", "functions must be a list"),
        (r#""functions":[{}]"#, "functions[0].name", "functions[0].name is missing"),
        (r#""function_call":7"#, "function_call", "function_call must be an object, not 7"),
        (r#""audio":{}"#, "audio", "audio is not served: replies are text"),
        (r#""modalities":["audio"]"#, "modalities", "modalities must be [\"text\"]: replies are text"),
    ] {
        at("chat", &format!("{{{user},{field}}}"), param, message);
        at("chat", &format!("{{{field},{user}}}"), param, message);
    }
    at("responses", r#"{"input":"x","reasoning":"high"}"#, "reasoning", "reasoning must be an object, not a string");
    at("responses", r#"{"input":"x","tools":[{"name":"a"}]}"#, "tools[0].type", "tools[0].type is missing");
    let format = r#"{"input":"x","text":{"format":{"type":"yaml"}}}"#;
    at("responses", format, "text.format.type", "text.format.type must be text, json_object or json_schema, not \"yaml\"");
}

#[test]
fn messages_that_are_none_are_named() {
    for (messages, param, message) in [
        ("7", "messages", "messages must be a list"),
        ("null", "messages", "messages must not be empty"),
        ("[]", "messages", "messages must not be empty"),
        ("\"hi\"", "messages", "messages must be a list, not a string"),
        ("[7]", "messages[0]", "messages[0] must be an object"),
        (r#"[{"role":"user"},{"content":"x"}]"#, "messages[1].role", "messages[1].role is missing"),
        (r#"[{"role":"wizard"}]"#, "messages[0].role", "messages[0].role is unknown: \"wizard\""),
        (
            r#"[{"role":"user","content":7}]"#,
            "messages[0].content",
            "messages[0].content must be a string, null or a list of parts, not 7",
        ),
        (r#"[{"role":"user","content":["x"]}]"#, "messages[0].content[0]", "messages[0].content[0] must be an object"),
        (
            r#"[{"role":"user","content":[{"type":"text"}]}]"#,
            "messages[0].content[0].text",
            "messages[0].content[0].text is missing",
        ),
        (
            r#"[{"role":"assistant","tool_calls":[{"id":"a"}]}]"#,
            "messages[0].tool_calls[0].function",
            "messages[0].tool_calls[0].function is missing",
        ),
    ] {
        at("chat", &format!("{{\"messages\":{messages}}}"), param, message);
    }
    at("chat", "{}", "messages", "messages is missing");
    let result = r#"{"messages":[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"c","content":"y"}]}"#;
    let message = "messages[1].role must follow a message with tool_calls, as it is a tool's result";
    at("chat", result, "messages[1].role", message);
    at("responses", "{}", "input", "input is missing");
    at("responses", r#"{"input":[]}"#, "input", "input must not be empty");
    at("responses", r#"{"input":[{"role":"user"}]}"#, "input[0].content", "input[0].content is missing");
    at("responses", r#"{"input":[{"type":"function_call","name":"f"}]}"#, "input[0].call_id", "input[0].call_id is missing");
}

#[test]
fn prompts_that_are_none_are_named() {
    let what = "a string, a list of strings, a list of token ids or a list of such lists";
    let missing = "prompt is missing".to_owned();
    let ids = |at: &str| format!("{at} must be token ids, whole numbers of 0 or more");
    for (prompt, param, message) in [
        ("null", "prompt", missing),
        ("7", "prompt", format!("prompt must be {what}, not 7")),
        ("{}", "prompt", format!("prompt must be {what}, not an object")),
        ("[]", "prompt", "prompt must not be empty".to_owned()),
        ("[[]]", "prompt[0]", "prompt[0] must not be empty".to_owned()),
        ("[1,-1]", "prompt", ids("prompt")),
        ("[1,\"a\"]", "prompt", ids("prompt")),
        ("[4294967296]", "prompt", ids("prompt")),
        ("[[1],[1.5]]", "prompt[1]", ids("prompt[1]")),
        ("[\"a\",7]", "prompt[1]", "prompt[1] must be a string or a list of token ids, not 7".to_owned()),
    ] {
        at("completions", &format!("{{\"prompt\":{prompt}}}"), param, &message);
    }
    for (field, param, message) in [
        (r#""logprobs":true"#, "logprobs", "logprobs must be a whole number of 0 or more, not a boolean"),
        (r#""echo":"yes""#, "echo", "echo must be a boolean, not a string"),
        (r#""max_tokens":"9""#, "max_tokens", "max_tokens must be a whole number of 0 or more, not a string"),
        (r#""prompt_embeds":"AA==""#, "prompt_embeds", "prompt_embeds is not served: a prompt is text or token ids"),
    ] {
        at("completions", &format!("{{\"prompt\":\"x\",{field}}}"), param, message);
    }
}

#[test]
fn depth_bombs_are_refused_wherever_they_hide() {
    let bomb = |open: &str, close: &str| format!("{}{}", open.repeat(200_000), close.repeat(200_000));
    let (list, object) = (bomb("[", "]"), bomb("{\"a\":", "}").replace(":}", ":1}"));
    for deep in [list, object] {
        let user = r#"{"role":"user","content":"x"}"#;
        assert_eq!(refused("chat", format!("{{\"messages\":[{user}],\"novel\":{deep}}}")).0.as_deref(), Some("novel"));
        assert_eq!(refused("responses", format!("{{\"input\":\"x\",\"novel\":{deep}}}")).0.as_deref(), Some("novel"));
        refused("chat", format!("{{\"messages\":{deep}}}"));
        refused("completions", format!("{{\"prompt\":{deep}}}"));
        assert_eq!(refused("completions", format!("{{\"prompt\":\"x\",\"novel\":{deep}}}")).0.as_deref(), Some("novel"));
        refused("chat", format!("{{\"messages\":[{{\"role\":\"user\",\"content\":{deep}}}]}}"));
        refused("responses", format!("{{\"input\":[{{\"role\":\"user\",\"content\":{deep}}}]}}"));
        refused("chat", deep);
    }
    let brackets = "[{".repeat(500);
    let text = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{brackets}\"}}],\"novel\":[\"{brackets}\\\"[\"]}}");
    assert!(parse("chat", text).is_ok());
}

#[test]
fn bodies_of_countless_things_are_refused() {
    let many = |one: &str| vec![one; 140_000].join(",");
    let messages = format!("{{\"messages\":[{}]}}", many(r#"{"role":"user"}"#));
    at("chat", &messages, "messages", "messages has more than 131072 elements");
    let fields = format!("{{\"messages\":[{{\"role\":\"user\"}}],{}}}", many("\"a\":1"));
    at("chat", &fields, "body", "body has more than 131072 unknown fields");
    let plain = format!("{{\"prompt\":\"x\",{}}}", many("\"a\":1"));
    at("completions", &plain, "body", "body has more than 131072 unknown fields");
    let inner = format!("{{\"input\":[{{\"role\":\"user\",{}}}]}}", many("\"a\":1"));
    at("responses", &inner, "input[0]", "input[0] has more than 131072 unknown fields");
}

/// A request of Messages with these fields beside what it must have.
fn messages(fields: &str) -> String {
    format!(r#"{{"max_tokens":9,"messages":[{{"role":"user","content":"x"}}],{fields}}}"#)
}

/// A request of Messages of these messages.
fn spoken(list: &str) -> String {
    format!(r#"{{"max_tokens":9,"messages":{list}}}"#)
}

#[test]
fn fields_of_messages_that_are_wrong_or_missing_are_named() {
    for (field, param, message) in [
        (r#""temperature":"hot""#, "temperature", "temperature must be a number, not a string"),
        (r#""temperature":1e999"#, "temperature", "temperature must be a number, not 1e999"),
        (r#""top_k":99999999999999999999"#, "top_k", "top_k must be a whole number, not 99999999999999999999"),
        (r#""max_tokens":-1"#, "max_tokens", "max_tokens must be a whole number of 0 or more, not -1"),
        (r#""max_tokens":0"#, "max_tokens", "max_tokens must be 1 or more"),
        (r#""max_tokens":null"#, "max_tokens", "max_tokens is missing"),
        (r#""stream":"yes""#, "stream", "stream must be a boolean, not a string"),
        (r#""model":7"#, "model", "model must be a string, not 7"),
        (r#""system":7"#, "system", "system must be a string or a list of blocks, not 7"),
        (r#""system":[{"text":"x"}]"#, "system[0].type", "system[0].type is missing"),
        (r#""stop_sequences":"x""#, "stop_sequences", "stop_sequences must be a list of strings, not a string"),
        (r#""thinking":true"#, "thinking", "thinking must be an object, not a boolean"),
        (r#""tools":{}"#, "tools", "tools must be a list"),
        (r#""tools":[1]"#, "tools[0]", "tools[0] must be an object"),
        (r#""tools":[{"input_schema":{}}]"#, "tools[0].name", "tools[0].name is missing"),
        (r#""tools":[{"name":"f"}]"#, "tools[0].input_schema", "tools[0].input_schema is missing"),
        (r#""tools":[{"name":"f","input_schema":7}]"#, "tools[0].input_schema", "tools[0].input_schema must be an object, not 7"),
        (
            r#""tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}]"#,
            "tools[1].name",
            "tools[1].name must be unique: \"f\"",
        ),
        (r#""tool_choice":"auto""#, "tool_choice", "tool_choice must be an object, not a string"),
        (
            r#""tool_choice":{"type":"maybe"}"#,
            "tool_choice.type",
            "tool_choice.type must be auto, any, tool or none, not \"maybe\"",
        ),
        (r#""tool_choice":{"type":"tool"}"#, "tool_choice.name", "tool_choice.name is missing"),
        (
            r#""output_config":{"format":{"type":"json_schema"}}"#,
            "output_config.format.schema",
            "output_config.format.schema is missing",
        ),
    ] {
        at("messages", &messages(field), param, message);
    }
    at("messages", r#"{"messages":[{"role":"user","content":"x"}]}"#, "max_tokens", "max_tokens is missing");
    at("messages", r#"{"max_tokens":9}"#, "messages", "messages is missing");
}

#[test]
fn turns_of_messages_that_are_none_are_named() {
    let call = r#"{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{}}]}"#;
    let answer = |id: &str| format!(r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"{id}"}}]}}"#);
    let user = r#"{"role":"user","content":"x"}"#;
    let no_call = "answers no tool_use of the turn before it";
    for (list, param, message) in [
        ("7".to_owned(), "messages", "messages must be a list".to_owned()),
        ("[]".to_owned(), "messages", "messages must not be empty".to_owned()),
        (r#"[{"role":"system","content":"x"}]"#.to_owned(), "messages", "messages must not be empty".to_owned()),
        (r#"[{"content":"x"}]"#.to_owned(), "messages[0].role", "messages[0].role is missing".to_owned()),
        (
            r#"[{"role":"wizard","content":"x"}]"#.to_owned(),
            "messages[0].role",
            "messages[0].role is unknown: \"wizard\"".to_owned(),
        ),
        (r#"[{"role":"user"}]"#.to_owned(), "messages[0].content", "messages[0].content is missing".to_owned()),
        (
            r#"[{"role":"user","content":7}]"#.to_owned(),
            "messages[0].content",
            "messages[0].content must be a string or a list of blocks, not 7".to_owned(),
        ),
        (
            r#"[{"role":"user","content":[{"type":"text"}]}]"#.to_owned(),
            "messages[0].content[0].text",
            "messages[0].content[0].text is missing".to_owned(),
        ),
        (
            r#"[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"x"}}]}]"#.to_owned(),
            "messages[0].content[0].source.media_type",
            "messages[0].content[0].source.media_type is missing".to_owned(),
        ),
        (
            format!("[{user},{}]", call.replace("{}", "\"x\"")),
            "messages[1].content[0].input",
            "messages[1].content[0].input must be an object, not a string".to_owned(),
        ),
        (
            format!("[{}]", call.replace("assistant", "user")),
            "messages[0].content[0].type",
            "messages[0].content[0].type can't be tool_use: only the assistant calls tools".to_owned(),
        ),
        (
            format!("[{user},{}]", answer("a").replace("user\"", "assistant\"")),
            "messages[1].content[0].type",
            "messages[1].content[0].type can't be tool_result: the user gives a tool's results".to_owned(),
        ),
        // A result must answer a call of the turn right before it, once.
        (
            format!("[{}]", answer("a")),
            "messages[0].content[0].tool_use_id",
            format!("messages[0].content[0].tool_use_id {no_call}: \"a\""),
        ),
        (
            format!("[{user},{call},{},{user},{{\"role\":\"assistant\",\"content\":\"ok\"}},{}]", answer("a"), answer("a")),
            "messages[5].content[0].tool_use_id",
            format!("messages[5].content[0].tool_use_id {no_call}: \"a\""),
        ),
        (
            format!("[{user},{call},{},{}]", answer("a"), answer("a")),
            "messages[3].content[0].tool_use_id",
            "messages[3].content[0].tool_use_id has a tool_result already: \"a\"".to_owned(),
        ),
        (
            format!("[{user},{call},{call}]"),
            "messages[2].content[0].id",
            "messages[2].content[0].id must be unique: \"a\"".to_owned(),
        ),
    ] {
        at("messages", &spoken(&list), param, &message);
    }
}

#[test]
fn a_thread_that_is_not_ours_is_not_found() {
    let result = r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}"#;
    for list in ["", result] {
        let body =
            format!(r#"{{"max_tokens":9,"messages":[{list}],"thread":{{"type":"continue","previous_message_id":"msg_1"}}}}"#);
        let failure = parse("messages", body).unwrap_err();
        assert_eq!((failure.kind, failure.status), (FailureKind::NotFound, 404));
        let said = wire::named("messages").unwrap().failure(&failure);
        let said: serde_json::Value = serde_json::from_slice(&said).unwrap();
        // The official SDKs send the whole conversation again where they read this.
        assert_eq!(
            (&said["error"]["type"], &said["error"]["details"]),
            (&"not_found_error".into(), &serde_json::json!({"error_code": "thread_not_found"}))
        );
    }
    assert!(parse("messages", messages(r#""thread":{"type":"create"}"#)).is_ok());
}

#[test]
fn what_messages_can_pass_over_is_no_error() {
    let call =
        parse("messages", messages(r#""novel":{"a":[1]},"top_p":null,"tools":null,"thinking":null,"system":null"#)).unwrap();
    assert_eq!((call.rest.len(), call.notes.as_slice()), (0, ["passed over the field novel".to_owned()].as_slice()));
    let half = spoken(r#"[{"role":"user","content":[{"type":"text","text":"\ud800","novel":1}],"novel":2}]"#);
    assert_eq!(format!("{:?}", parse("messages", half).unwrap().messages[0].content), r#"Text("\ud800")"#);
    let tools: Vec<String> = (0..10_000).map(|at| format!(r#"{{"name":"f{at}","input_schema":{{}}}}"#)).collect();
    let call = parse("messages", messages(&format!("\"tools\":[{}]", tools.join(",")))).unwrap();
    assert_eq!(call.tools.len(), 10_000);
    let kinds: Vec<String> = (0..1_000).map(|at| format!(r#"{{"type":"novel{at}"}}"#)).collect();
    let call = parse("messages", spoken(&format!(r#"[{{"role":"user","content":[{}]}}]"#, kinds.join(",")))).unwrap();
    assert_eq!(call.notes.len(), 20, "a few kinds are named");
}

#[test]
fn depth_bombs_in_messages_are_refused_or_passed_over() {
    let bomb = format!("{}1{}", "{\"a\":".repeat(1_000), "}".repeat(1_000));
    let schema = messages(&format!(r#""tools":[{{"name":"f","input_schema":{bomb}}}]"#));
    at("messages", &schema, "tools[0].input_schema", "tools[0].input_schema is nested deeper than 100");
    let input = format!(r#"[{{"role":"assistant","content":[{{"type":"tool_use","id":"a","name":"f","input":{bomb}}}]}}]"#);
    assert_eq!(refused("messages", spoken(&input)).0.as_deref(), Some("messages[0].content[0].input"));
    let kwargs = messages(&format!(r#""chat_template_kwargs":{bomb}"#));
    assert_eq!(refused("messages", kwargs).0.as_deref(), Some("chat_template_kwargs"));
    assert!(parse("messages", messages(&format!("\"novel\":{bomb}"))).is_ok());
    // Documents inside of documents are not gone into.
    let open = r#"{"type":"document","source":{"type":"content","content":["#;
    let nested = format!("{}{}", open.repeat(30_000), "]}}".repeat(30_000));
    let call = parse("messages", spoken(&format!(r#"[{{"role":"user","content":[{nested}]}}]"#))).unwrap();
    assert_eq!(call.notes, ["passed over the content block document"]);
    // A tool that is referred to again and again is spelt out once.
    let long = "x".repeat(10_000);
    let tools = format!(
        r#""tools":[{{"name":"f","input_schema":{{}}}},{{"name":"g","description":"{long}","input_schema":{{}},"defer_loading":true}}]"#
    );
    let references = vec![r#"{"type":"tool_reference","tool_name":"g"}"#; 20_000].join(",");
    let body = format!(r#"{{"max_tokens":9,{tools},"messages":[{{"role":"user","content":[{references}]}}]}}"#);
    let size = format!("{:?}", parse("messages", body).unwrap().messages).len();
    assert!(size < 2_000_000, "{size}");
}

#[test]
fn unknown_fields_pass_and_the_last_of_a_key_stands() {
    let body = r#"{"messages":[{"role":"x"}],"top_k":"no","novel":{"b": 1,"a":2},"m\u006fdel":"n","messages":[{"role":"user","content":"\ud800","name":"me"}],"top_k":4}"#;
    // The first list is read before the second is seen, so what is wrong with it is still told.
    assert_eq!(refused("chat", body).0.as_deref(), Some("messages[0].role"));
    let call = parse("chat", body.replace(r#"[{"role":"x"}]"#, r#"[{"role":"user"}]"#)).unwrap();
    assert_eq!((call.model.as_str(), call.sampling.top_k, call.messages.len()), ("n", Some(4), 1));
    assert_eq!(format!("{:?} {:?}", call.rest, call.messages[0].rest), r#"[("novel", {"b": 1,"a":2})] [("name", "me")]"#);
    assert_eq!(format!("{:?}", call.messages[0].content), r#"Text("\ud800")"#);
}

#[test]
fn what_responses_can_not_pass_over_is_refused() {
    for body in [
        r#"{"input":"x","conversation":"conv_1"}"#,
        r#"{"input":"x","prompt":{"id":"pmpt_1"}}"#,
        r#"{"input":"x","background":true}"#,
        r#"{"input":[{"role":"user","content":"x"},{"type":"compaction_trigger"}]}"#,
        r#"{"input":"x","include":"reasoning.encrypted_content"}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}"#,
    ] {
        assert!(refused("responses", body).0.is_some(), "{body}");
    }
    let nulls = r#"{"input":"x","previous_response_id":null,"conversation":null,"background":false,"text":null,"tools":null}"#;
    assert!(parse("responses", nulls).is_ok());
}

#[test]
fn of_a_list_that_comes_twice_the_last_stands() {
    for (wire, list, rest) in
        [("chat", "messages", ""), ("responses", "input", ""), ("messages", "messages", r#""max_tokens":9,"#)]
    {
        let first = r#"[{"role":"user","content":"first"}]"#;
        let body = format!(r#"{{"model":"m",{rest}"{list}":{first},"{list}":{}}}"#, first.replace("first", "last"));
        let call = parse(wire, body).unwrap();
        let texts: Vec<_> = call.messages.iter().map(|message| message.content.clone()).collect();
        assert_eq!(texts, [gleaner::call::Content::Text("last".into())], "{wire}");
    }
}
