//! In this wire's form the field at fault stands in the details, and the API's status beside the code.

use super::{Bytes, Call, Failure, wire};

fn parse(body: impl Into<Vec<u8>>) -> Result<Vec<Call>, Failure> {
    let target = wire::Target::read("/models/m:generateContent");
    wire::named("gemini").unwrap().parse(target, &Bytes::from(body.into()))
}

#[track_caller]
fn refused(body: impl Into<Vec<u8>>) -> (Option<String>, String) {
    let failure = parse(body).unwrap_err();
    let body: serde_json::Value = serde_json::from_slice(&wire::named("gemini").unwrap().failure(&failure)).unwrap();
    let error = &body["error"];
    assert_eq!((failure.status, &error["code"], &error["status"]), (400, &400.into(), &"INVALID_ARGUMENT".into()));
    assert_eq!(error["message"], failure.message);
    assert_eq!(error["details"][0]["fieldViolations"][0]["field"].as_str(), failure.param.as_deref());
    (failure.param, failure.message)
}

#[track_caller]
fn at(body: &str, param: &str, message: &str) {
    assert_eq!(refused(body), (Some(param.to_owned()), message.to_owned()), "{body}");
}

const USER: &str = r#""contents":[{"role":"user","parts":[{"text":"x"}]}]"#;

#[test]
fn a_body_that_is_no_request() {
    assert_eq!(refused("").1, "the body is empty");
    assert!(refused("{\"contents\":[").1.starts_with("the body is not valid JSON: EOF"));
    assert_eq!(refused("[1]"), (Some("body".to_owned()), "body must be an object".to_owned()));
    assert_eq!(refused(b"{\"contents\":\"\xff\"}").1, "the body is not valid UTF-8 at byte 13");
    assert!(refused(b"{\"contents\":\"a\0b\"}").1.contains("control character"));
    at("{}", "contents", "contents is missing");
    at(r#"{"contents":[]}"#, "contents", "contents must not be empty");
    at(r#"{"contents":null}"#, "contents", "contents must not be empty");
    at(r#"{"contents":[{"role":"user","parts":[]}]}"#, "contents", "contents must not be empty");
    at(r#"{"contents":7}"#, "contents", "contents must be a list");
    at(r#"{"contents":["hi"]}"#, "contents[0]", "contents[0] must be an object");
}

#[test]
fn fields_of_the_wrong_type_are_named_as_the_client_spells_them() {
    for (field, param, message) in [
        (r#""generationConfig":[]"#, "generationConfig", "must be an object, not a list"),
        (r#""generationConfig":{"temperature":"hot"}"#, "generationConfig.temperature", "must be a number, not a string"),
        (r#""generationConfig":{"topP":1e999}"#, "generationConfig.topP", "must be a number, not 1e999"),
        (r#""generation_config":{"top_k":1.5}"#, "generation_config.top_k", "must be a whole number, not 1.5"),
        (
            r#""generationConfig":{"maxOutputTokens":-1}"#,
            "generationConfig.maxOutputTokens",
            "must be a whole number of 0 or more, not -1",
        ),
        (
            r#""generationConfig":{"seed":99999999999999999999}"#,
            "generationConfig.seed",
            "must be a whole number, not 99999999999999999999",
        ),
        (
            r#""generationConfig":{"stopSequences":"x"}"#,
            "generationConfig.stopSequences",
            "must be a list of strings, not a string",
        ),
        (r#""generationConfig":{"candidateCount":9}"#, "generationConfig.candidateCount", "must be 8 or less"),
        (
            r#""generationConfig":{"thinkingConfig":{"includeThoughts":1}}"#,
            "generationConfig.thinkingConfig.includeThoughts",
            "must be a boolean, not 1",
        ),
        (r#""generationConfig":{"responseSchema":7}"#, "generationConfig.responseSchema", "must be a schema"),
        (r#""tools":{}"#, "tools", "must be a list"),
        (r#""tools":[{"functionDeclarations":[{}]}]"#, "tools[0].functionDeclarations[0].name", "is missing"),
        (
            r#""tools":[{"function_declarations":[{"name":"f","parameters":"x"}]}]"#,
            "tools[0].function_declarations[0].parameters",
            "must be a schema",
        ),
        (
            r#""toolConfig":{"functionCallingConfig":{"mode":"SOME"}}"#,
            "toolConfig.functionCallingConfig.mode",
            "must be AUTO, ANY, NONE or VALIDATED, not \"SOME\"",
        ),
        (
            r#""tools":[{"functionDeclarations":[{"name":"f"}]}],"toolConfig":{"functionCallingConfig":{"mode":"ANY","allowedFunctionNames":["g"]}}"#,
            "toolConfig.functionCallingConfig.allowedFunctionNames",
            "names none of the declared functions",
        ),
        (r#""systemInstruction":7"#, "systemInstruction", "must be an object, not 7"),
        (r#""cachedContent":7"#, "cachedContent", "must be a string, not 7"),
    ] {
        at(&format!("{{{USER},{field}}}"), param, &format!("{param} {message}"));
        at(&format!("{{{field},{USER}}}"), param, &format!("{param} {message}"));
    }
}

#[test]
fn contents_that_are_none_are_named() {
    for (content, param, message) in [
        (r#"{"role":"wizard","parts":[{"text":"x"}]}"#, "contents[1].role", "must be user or model, not \"wizard\""),
        (r#"{"role":"user","parts":"x"}"#, "contents[1].parts", "must be a list, not a string"),
        (r#"{"role":"user","parts":[{"text":7}]}"#, "contents[1].parts[0].text", "must be a string, not 7"),
        (
            r#"{"role":"user","parts":[{"inlineData":{"mimeType":"image/png"}}]}"#,
            "contents[1].parts[0].inlineData.data",
            "is missing",
        ),
        (
            r#"{"role":"user","parts":[{"inlineData":{"mimeType":"text/plain","data":"!"}}]}"#,
            "contents[1].parts[0].inlineData.data",
            "must be text in base64",
        ),
        (
            r#"{"role":"user","parts":[{"fileData":{"mimeType":"image/png"}}]}"#,
            "contents[1].parts[0].fileData.fileUri",
            "is missing",
        ),
        (r#"{"role":"model","parts":[{"functionCall":{"args":{}}}]}"#, "contents[1].parts[0].functionCall.name", "is missing"),
        (
            r#"{"role":"model","parts":[{"functionCall":{"name":"f","args":"{}"}}]}"#,
            "contents[1].parts[0].functionCall.args",
            "must be an object",
        ),
        (
            r#"{"role":"user","parts":[{"functionCall":{"name":"f"}}]}"#,
            "contents[1].parts[0]",
            "must not be a functionCall: those are the model's",
        ),
        (
            r#"{"role":"model","parts":[{"functionResponse":{"name":"f"}}]}"#,
            "contents[1].parts[0]",
            "must not be a functionResponse: those are the user's",
        ),
        (
            r#"{"role":"user","parts":[{"functionResponse":{"id":"1","name":"f","response":{}}}]}"#,
            "contents[1].parts[0]",
            "is a functionResponse that answers no functionCall before it",
        ),
    ] {
        let body = format!(r#"{{"contents":[{{"role":"user","parts":[{{"text":"x"}}]}},{content}]}}"#);
        at(&body, param, &format!("{param} {message}"));
    }
}

#[test]
fn a_second_response_to_one_call_answers_none() {
    let call = r#"{"role":"model","parts":[{"functionCall":{"id":"a","name":"f"}}]}"#;
    let response = r#"{"functionResponse":{"id":"a","name":"f","response":{}}}"#;
    let body = format!(r#"{{"contents":[{call},{{"parts":[{response},{response}]}}]}}"#);
    at(&body, "contents[1].parts[1]", "contents[1].parts[1] is a functionResponse that answers no functionCall before it");
}

#[test]
fn deep_values_are_refused_wherever_they_hide() {
    let nested = |open: &str, close: &str, levels| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    let schema = nested(r#"{"type":"OBJECT","properties":{"a":"#, "}}", 1_000).replace(":1}", ":{}}");
    for kind in ["parameters", "parametersJsonSchema"] {
        let param = format!("tools[0].functionDeclarations[0].{kind}");
        let body = format!(r#"{{{USER},"tools":[{{"functionDeclarations":[{{"name":"f","{kind}":{schema}}}]}}]}}"#);
        at(&body, &param, &format!("{param} is nested deeper than 100"));
    }
    for deep in [nested("[", "]", 200_000), nested("{\"a\":", "}", 200_000)] {
        for body in [
            format!(r#"{{{USER},"novel":{deep}}}"#),
            format!(r#"{{{USER},"generationConfig":{{"novel":{deep}}}}}"#),
            format!(r#"{{"contents":[{{"role":"user","parts":[{{"novel":{deep}}}]}}]}}"#),
            format!(r#"{{"contents":[{{"role":"model","parts":[{{"functionCall":{{"name":"f","args":{{"a":{deep}}}}}}}]}}]}}"#),
            format!(r#"{{"contents":{deep}}}"#),
            format!(r#"{{"contents":[{{"parts":{deep}}}]}}"#),
        ] {
            refused(body);
        }
    }
}

#[test]
fn ten_thousand_tools_and_calls_are_only_many() {
    let many = |one: &dyn Fn(usize) -> String| (0..10_000).map(one).collect::<Vec<_>>().join(",");
    let declared = many(&|n| format!(r#"{{"name":"f{n}","parameters":{{"type":"OBJECT"}}}}"#));
    let called = many(&|n| format!(r#"{{"functionCall":{{"name":"f","args":{{"n":{n}}}}}}}"#));
    let answered = many(&|n| format!(r#"{{"functionResponse":{{"name":"f","response":{{"output":"{n}"}}}}}}"#));
    let body = format!(
        r#"{{"contents":[{{"role":"model","parts":[{called}]}},{{"parts":[{answered}]}}],"tools":[{{"functionDeclarations":[{declared}]}}]}}"#
    );
    let call = parse(body).unwrap().remove(0);
    assert_eq!((call.tools.len(), call.messages.len()), (10_000, 10_001));
    assert_eq!(format!("{:?}", call.messages[10_000].content), r#"Text("9999")"#);
}

#[test]
fn half_a_character_and_unknown_fields_pass() {
    let body = r#"{"contents":[{"role":"user","novel":1,"parts":[{"text":"\ud800","novel":[]}]}],"novel":{"a":1},"tools":null,"generationConfig":null}"#;
    let call = parse(body).unwrap().remove(0);
    assert_eq!(format!("{:?}", call.messages[0].content), r#"Text("\ud800")"#);
    assert_eq!((call.rest.len(), call.notes), (0, vec!["passed over novel".to_owned()]));
}
