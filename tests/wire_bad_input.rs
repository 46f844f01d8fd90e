//! What is not a request of a wire is refused with the field at fault; what is only unknown passes.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

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
    assert_eq!(body["error"]["param"].as_str(), failure.param.as_deref());
    (failure.param, failure.message)
}

#[track_caller]
fn at(wire: &str, body: &str, param: &str, message: &str) {
    assert_eq!(refused(wire, body), (Some(param.to_owned()), message.to_owned()));
}

#[test]
fn a_body_that_is_no_json_object() {
    for wire in ["chat", "responses"] {
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
    at("responses", "{}", "input", "input is missing");
    at("responses", r#"{"input":[]}"#, "input", "input must not be empty");
    at("responses", r#"{"input":[{"role":"user"}]}"#, "input[0].content", "input[0].content is missing");
    at("responses", r#"{"input":[{"type":"function_call","name":"f"}]}"#, "input[0].call_id", "input[0].call_id is missing");
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
    let inner = format!("{{\"input\":[{{\"role\":\"user\",{}}}]}}", many("\"a\":1"));
    at("responses", &inner, "input[0]", "input[0] has more than 131072 unknown fields");
}

#[test]
fn unknown_fields_pass_and_the_last_of_a_key_stands() {
    let body = r#"{"messages":[{"role":"x"}],"top_k":"no","novel":{"b": 1,"a":2},"m\u006fdel":"n","messages":[{"role":"user","content":"\ud800","name":"me"}],"top_k":4}"#;
    // The first list is read before the second is seen, so what is wrong with it is still told.
    assert_eq!(refused("chat", body).0.as_deref(), Some("messages[0].role"));
    let call = parse("chat", body.replace(r#"[{"role":"x"}]"#, r#"[{"role":"tool"}]"#)).unwrap();
    assert_eq!((call.model.as_str(), call.sampling.top_k, call.messages.len()), ("n", Some(4), 1));
    assert_eq!(format!("{:?} {:?}", call.rest, call.messages[0].rest), r#"[("novel", {"b": 1,"a":2})] [("name", "me")]"#);
    assert_eq!(format!("{:?}", call.messages[0].content), r#"Text("\ud800")"#);
}

#[test]
fn what_responses_can_not_pass_over_is_refused() {
    for body in [
        r#"{"input":"x","previous_response_id":"resp_1"}"#,
        r#"{"input":"x","conversation":"conv_1"}"#,
        r#"{"input":"x","background":true}"#,
        r#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#,
        r#"{"input":[{"type":"compaction","encrypted_content":"x"}]}"#,
        r#"{"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}"#,
    ] {
        assert!(refused("responses", body).0.is_some(), "{body}");
    }
    let nulls = r#"{"input":"x","previous_response_id":null,"conversation":null,"background":false,"text":null,"tools":null}"#;
    assert!(parse("responses", nulls).is_ok());
}
