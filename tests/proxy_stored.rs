//! Responses that the server keeps, through the binary: gone on from, quoted by an item's name, and asked for again.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::format_push_string,
    clippy::format_collect,
    clippy::similar_names,
    reason = "tests"
)]

mod support;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Made, Start, assert_sampled};
use support::policy::{Fault, Reply, ScriptedPolicy};
use support::responses::{Reply as Seen, request};

const PATH: &str = "/v1/responses";

async fn start(seed: u64, script: impl IntoIterator<Item = Reply>) -> (ScriptedPolicy, Gleaner, Made) {
    let policy = ScriptedPolicy::start(seed, script).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    (policy, gleaner, rollout)
}

async fn say(gleaner: &Gleaner, rollout: &Made, body: &Value) -> Seen {
    let seen = Seen::read(&mut gleaner.call(PATH, &rollout.key, body).await).await;
    assert!(seen.complete(), "{seen:?}");
    seen
}

/// Sends a request without a body; gives the status and the answer.
async fn ask(gleaner: &Gleaner, rollout: &Made, method: &str, path: &str) -> (u16, Value) {
    let key = format!("Bearer {}", rollout.key);
    let mut answer = gleaner.send(method, path, &[("authorization", &key)], b"").await;
    (answer.status(), answer.json().await)
}

/// Sends a request that must fail; gives the status and the error.
async fn refused(gleaner: &Gleaner, rollout: &Made, body: &Value) -> (u16, Value) {
    let mut answer = gleaner.call(PATH, &rollout.key, body).await;
    (answer.status(), answer.json().await["error"].clone())
}

fn id(seen: &Seen) -> String {
    seen.response["id"].as_str().unwrap().to_owned()
}

fn shell() -> Value {
    json!([{"type": "function", "name": "sh", "parameters": {"type": "object"}},
           {"type": "custom", "name": "patch"},
           {"type": "namespace", "name": "ns", "tools": [{"type": "function", "name": "sh", "parameters": {"type": "object"}}]}])
}

#[tokio::test]
async fn a_conversation_that_only_names_what_came_before_is_one_sample() {
    for stream in [true, false] {
        let calls = Reply::tools(&[("sh", r#"{"cmd": "echo hi"}"#), ("ns__sh", "{}"), ("patch", r#"{"input": "+a \"b\""}"#)]);
        let turns = [calls.thinking("I should run it"), Reply::text("It said hi."), Reply::text("Bye.")];
        let (policy, gleaner, rollout) = start(81, turns).await;
        let with = |input: Value, previous: Option<&Seen>| {
            let mut body = json!({"model": "m", "stream": stream, "instructions": "be brief", "input": input, "tools": shell()});
            body["previous_response_id"] = previous.map_or(Value::Null, |seen| id(seen).into());
            body
        };
        let developer = json!({"role": "developer", "content": "no network"});
        let first = say(&gleaner, &rollout, &with(json!([developer, {"role": "user", "content": "run it"}]), None)).await;
        let kinds: Vec<&Value> = first.items.iter().map(|item| &item["type"]).collect();
        assert_eq!(kinds, ["reasoning", "function_call", "function_call", "custom_tool_call"]);
        assert_eq!(first.items[2]["namespace"], "ns");
        let output = |place: usize| {
            let kind = if place == 3 { "custom_tool_call_output" } else { "function_call_output" };
            json!({"type": kind, "call_id": first.items[place]["call_id"], "output": format!("out {place}")})
        };
        // Out of the calls' order.
        let second = say(&gleaner, &rollout, &with(json!([output(3), output(1), output(2)]), Some(&first))).await;
        assert_eq!((&second.text, &second.response["previous_response_id"]), (&"It said hi.".to_owned(), &json!(id(&first))));
        let third = say(&gleaner, &rollout, &with(json!("thanks"), Some(&second))).await;
        let sent = policy.last().body["messages"].clone();
        let roles: Vec<&Value> = sent.as_array().unwrap().iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "tool", "tool", "assistant", "user"]);
        assert_eq!(sent[0]["content"], "be brief\n\nno network");
        assert_eq!(sent[2]["reasoning"], "I should run it");
        let outputs: Vec<&Value> = (3..6).map(|place| &sent[place]["content"]).collect();
        assert_eq!(outputs, ["out 1", "out 2", "out 3"]);
        let (samples, left_out) = gleaner.samples(&rollout.id).await;
        assert_eq!((samples.len(), left_out), (1, vec![]));
        assert_sampled(&samples[0], &policy.seen());
        // What the record shows is what the policy was told.
        let calls = gleaner.calls(&rollout.id).await;
        let shown = &calls[2].0["messages"];
        let contents = |messages: &Value| messages.as_array().unwrap().iter().map(|m| m["content"].clone()).collect::<Vec<_>>();
        assert_eq!(contents(shown), contents(&sent));
        assert_eq!(shown[2]["tool_calls"], sent[2]["tool_calls"]);
        assert_eq!(samples[0]["messages"].as_array().unwrap().len(), 9);
        assert_eq!(third.response["store"], true);
    }
}

#[tokio::test]
async fn instructions_are_each_request_s_own() {
    let (policy, gleaner, rollout) = start(82, [Reply::text("one"), Reply::text("two")]).await;
    let mut body = request("hi", false);
    body["instructions"] = json!("be brief");
    let first = say(&gleaner, &rollout, &body).await;
    let mut body = request("and?", false);
    body["previous_response_id"] = json!(id(&first));
    say(&gleaner, &rollout, &body).await;
    let said = [("user", "hi"), ("assistant", "one"), ("user", "and?")];
    let said: Vec<Value> = said.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
    assert_eq!(policy.last().body["messages"], json!(said));
}

#[tokio::test]
async fn one_response_may_be_gone_on_from_twice() {
    let replies = ["start", "left", "right", "left again"].map(Reply::text);
    let (policy, gleaner, rollout) = start(83, replies).await;
    let first = say(&gleaner, &rollout, &request("hi", false)).await;
    let mut sides = Vec::new();
    for side in ["left", "right"] {
        let mut body = request(side, false);
        body["previous_response_id"] = json!(id(&first));
        sides.push(say(&gleaner, &rollout, &body).await);
    }
    let mut body = request("more", false);
    body["previous_response_id"] = json!(id(&sides[0]));
    say(&gleaner, &rollout, &body).await;
    let contents: Vec<Value> =
        policy.last().body["messages"].as_array().unwrap().iter().map(|message| message["content"].clone()).collect();
    assert_eq!(contents, ["hi", "start", "left", "left", "more"]);
    assert_eq!(gleaner.samples(&rollout.id).await.0.len(), 2);
}

#[tokio::test]
async fn what_is_not_there_to_go_on_from_is_the_original_s_error() {
    let (policy, gleaner, rollout) = start(84, [Reply::text("kept"), Reply::text("not kept")]).await;
    let other = gleaner.plain_rollout().await;
    let kept = say(&gleaner, &rollout, &request("hi", false)).await;
    let mut body = request("hi", false);
    body["store"] = json!(false);
    let not_kept = say(&gleaner, &rollout, &body).await;
    let asked = policy.count();
    let unknown = "resp_00000000000000000000000000000abc";
    for (whose, name) in [(&rollout, "resp_1"), (&rollout, unknown), (&rollout, &id(&not_kept)), (&other, &id(&kept))] {
        let mut body = request("go on", true);
        body["previous_response_id"] = json!(name);
        let (status, error) = refused(&gleaner, whose, &body).await;
        assert_eq!((status, &error["code"]), (400, &json!("previous_response_not_found")), "{error}");
        assert_eq!((&error["param"], &error["type"]), (&json!("previous_response_id"), &json!("invalid_request_error")));
        assert!(error["message"].as_str().unwrap().starts_with(&format!("Previous response with id '{name}' not found.")));
    }
    assert_eq!(policy.count(), asked);
    let (_, left_out) = gleaner.samples(&other.id).await;
    assert_eq!(left_out.len(), 1, "a refused request is recorded and never trained: {left_out:?}");
}

#[tokio::test]
async fn items_may_be_named_in_place_of_sent() {
    let call = Reply::tools(&[("sh", r#"{"cmd":  "a"}"#), ("patch", r#"{"input": "+b"}"#)]);
    let first = Reply { text: Some("I look.".to_owned()), ..call }.thinking("hm");
    let (policy, gleaner, rollout) = start(85, [first, Reply::text("done")]).await;
    let mut body = request("go", true);
    body["tools"] = shell();
    let first = say(&gleaner, &rollout, &body).await;
    let mut input = vec![json!({"role": "user", "content": "go"})];
    // With a type and without one.
    input.extend(first.items.iter().map(|item| json!({"type": "item_reference", "id": item["id"]})));
    input[2].as_object_mut().unwrap().remove("type");
    for (item, kind) in [(2, "function_call_output"), (3, "custom_tool_call_output")] {
        input.push(json!({"type": kind, "call_id": first.items[item]["call_id"], "output": "ok"}));
    }
    body["input"] = json!(input);
    let second = say(&gleaner, &rollout, &body).await;
    assert_eq!(second.text, "done");
    let (samples, left_out) = gleaner.samples(&rollout.id).await;
    assert_eq!((samples.len(), left_out), (1, vec![]));
    assert_sampled(&samples[0], &policy.seen());
    let name = first.items[1]["id"].as_str().unwrap();
    for gone in [name.replace("_0", "_7").replace("msg", "fc"), "msg_abc".to_owned(), "x".to_owned()] {
        body["input"] = json!([{"role": "user", "content": "go"}, {"type": "item_reference", "id": gone}]);
        let (status, error) = refused(&gleaner, &rollout, &body).await;
        assert_eq!((status, &error["param"]), (404, &json!("input[1].id")), "{error}");
        assert!(error["message"].as_str().unwrap().starts_with(&format!("Item with id '{gone}' not found.")), "{error}");
    }
}

#[tokio::test]
async fn a_reply_that_is_quoted_often_is_read_once() {
    let (_policy, gleaner, rollout) = start(95, [Reply::text("first"), Reply::text("second")]).await;
    let first = say(&gleaner, &rollout, &request(&"x".repeat(4 << 20), true)).await;
    let named = json!({"type": "item_reference", "id": first.items[0]["id"]});
    let mut body = request("go", true);
    body["input"] = vec![named; 2_000].into_iter().chain([json!({"role": "user", "content": "go"})]).collect();
    let begun = std::time::Instant::now();
    assert_eq!(say(&gleaner, &rollout, &body).await.text, "second");
    // With its request read for each of them, most of a minute.
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_response_is_given_again_as_it_was_given() {
    let call = Reply::tools(&[("ns__sh", r#"{"cmd": "a"}"#), ("patch", r#"{"input": "+b"}"#), ("sh", "{}")]);
    let full = Reply { text: Some("I look.".to_owned()), ..call }.thinking("hm");
    for stream in [true, false] {
        let (_policy, gleaner, rollout) = start(86, [full.clone(), Reply::text("one two three four")]).await;
        let mut body = request("go", stream);
        body["tools"] = shell();
        body["metadata"] = json!({"a": "b"});
        body["instructions"] = json!("be brief");
        let first = say(&gleaner, &rollout, &body).await;
        let (status, again) = ask(&gleaner, &rollout, "GET", &format!("{PATH}/{}", id(&first))).await;
        assert_eq!((status, &again), (200, &first.response));
        body["max_output_tokens"] = json!(2);
        let mut answer = gleaner.call(PATH, &rollout.key, &body).await;
        let name = format!("resp_{}", answer.call_id().replace('-', ""));
        answer.bytes().await.unwrap();
        let (status, again) = ask(&gleaner, &rollout, "GET", &format!("/responses/{name}")).await;
        assert_eq!((status, &again["status"]), (200, &json!("incomplete")));
        assert_eq!(again["incomplete_details"], json!({"reason": "max_output_tokens"}));
    }
}

#[tokio::test]
async fn a_response_that_failed_is_shown_so() {
    let policy = ScriptedPolicy::start(
        87,
        [Reply::text("x").with(Fault::Status {
            status: 400,
            headers: BTreeMap::new(),
            body: r#"{"error":{"message":"no"}}"#.to_owned(),
        })],
    )
    .await;
    let gleaner = Gleaner::start(policy.url()).await;
    let rollout = gleaner.plain_rollout().await;
    let mut answer = gleaner.call(PATH, &rollout.key, &request("hi", false)).await;
    let name = format!("resp_{}", answer.call_id().replace('-', ""));
    assert_eq!(answer.status(), 400);
    answer.bytes().await.unwrap();
    let (status, again) = ask(&gleaner, &rollout, "GET", &format!("{PATH}/{name}")).await;
    assert_eq!((status, &again["status"], &again["output"]), (200, &json!("failed"), &json!([])), "{again}");
    assert_eq!(again["error"]["code"], "invalid_prompt");
}

#[tokio::test]
async fn input_items_are_pages_of_all_that_came_before() {
    let (_policy, gleaner, rollout) = start(88, [Reply::text("one"), Reply::text("two")]).await;
    let first = say(&gleaner, &rollout, &request("hi", false)).await;
    let mut body = request("", false);
    body["previous_response_id"] = json!(id(&first));
    body["input"] =
        json!([{"type": "message", "id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "and?"}]}]);
    let second = say(&gleaner, &rollout, &body).await;
    let base = format!("{PATH}/{}/input_items", id(&second));
    let (status, list) = ask(&gleaner, &rollout, "GET", &format!("{base}?order=asc")).await;
    assert_eq!((status, &list["object"], &list["has_more"]), (200, &json!("list"), &json!(false)));
    let texts: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, ["hi", "one", "and?"]);
    assert!(list["data"].as_array().unwrap().iter().all(|item| item["id"].is_string() && item["type"] == "message"));
    assert_eq!((&list["first_id"], &list["last_id"]), (&list["data"][0]["id"], &json!("msg_mine")));
    let (_, page) = ask(&gleaner, &rollout, "GET", &format!("{base}?limit=1")).await;
    assert_eq!((&page["last_id"], &page["has_more"]), (&json!("msg_mine"), &json!(true)));
    let (_, rest) = ask(&gleaner, &rollout, "GET", &format!("{base}?limit=5&after=msg_mine")).await;
    let ids: Vec<&Value> = rest["data"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
    assert_eq!(ids, [&list["data"][1]["id"], &list["data"][0]["id"]]);
    for wrong in ["limit=0", "limit=x", "order=up", "after=nobody"] {
        let (status, error) = ask(&gleaner, &rollout, "GET", &format!("{base}?{wrong}")).await;
        assert_eq!((status, &error["error"]["param"]), (400, &json!(wrong.split('=').next().unwrap())));
    }
}

#[tokio::test]
async fn a_rollout_sees_its_own_responses_only() {
    let (_policy, gleaner, rollout) = start(89, [Reply::text("one"), Reply::text("two")]).await;
    let other = gleaner.plain_rollout().await;
    let first = say(&gleaner, &rollout, &request("hi", false)).await;
    let mut body = request("hi", false);
    body["store"] = json!(false);
    let not_kept = say(&gleaner, &rollout, &body).await;
    let kept = id(&first);
    let unknown = "resp_00000000000000000000000000000abc".to_owned();
    for (whose, name) in [(&other, &kept), (&rollout, &id(&not_kept)), (&rollout, &unknown), (&rollout, &"x".to_owned())] {
        for (method, after) in [("GET", ""), ("GET", "/input_items"), ("POST", "/cancel")] {
            let (status, body) = ask(&gleaner, whose, method, &format!("{PATH}/{name}{after}")).await;
            let message = format!("Response with id '{name}' not found.");
            let error = json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}});
            assert_eq!((status, body), (404, error));
        }
    }
    // By the path's key as by the header's.
    let mut answer = gleaner.send("GET", &format!("/rollouts/{}/v1/responses/{kept}", rollout.key), &[], b"").await;
    assert_eq!((answer.status(), answer.json().await["id"].clone()), (200, json!(kept)));
    let mut answer = gleaner.send("GET", &format!("{PATH}/{kept}"), &[("authorization", "Bearer glr_none")], b"").await;
    assert_eq!((answer.status(), answer.json().await["error"]["type"].clone()), (401, json!("authentication_error")));
}

#[tokio::test]
async fn without_a_key_a_conversation_sees_its_own() {
    let policy = ScriptedPolicy::start(90, [Reply::text("one"), Reply::text("two")]).await;
    let gleaner = Start::new(policy.url()).config("[server]\nopen = true\n").run().await;
    let mine = [("content-type", "application/json"), ("session-id", "a")];
    let body = request("hi", false).to_string();
    let mut answer = gleaner.send("POST", PATH, &mine, body.as_bytes()).await;
    let name = answer.json().await["id"].as_str().unwrap().to_owned();
    let mut again = gleaner.send("GET", &format!("{PATH}/{name}"), &mine, b"").await;
    assert_eq!((again.status(), again.json().await["id"].clone()), (200, json!(name)));
    let mut body = request("and?", false);
    body["previous_response_id"] = json!(name);
    assert_eq!(gleaner.send("POST", PATH, &mine, body.to_string().as_bytes()).await.status(), 200);
    let rollouts = gleaner.api("/rollouts").await["rollouts"].as_array().unwrap().len();
    let others = [("session-id", "b")];
    assert_eq!(gleaner.send("GET", &format!("{PATH}/{name}"), &others, b"").await.status(), 404);
    assert_eq!(gleaner.api("/rollouts").await["rollouts"].as_array().unwrap().len(), rollouts, "asking opens no rollout");
}

#[tokio::test]
async fn what_is_not_served_of_kept_responses_says_so() {
    let (_policy, gleaner, rollout) = start(91, [Reply::text("one")]).await;
    let name = id(&say(&gleaner, &rollout, &request("hi", false)).await);
    for (method, path, status, says) in [
        ("POST", format!("{name}/cancel"), 400, "Cannot cancel a synchronous response."),
        ("DELETE", name.clone(), 405, "responses are not deleted"),
        ("POST", "compact".to_owned(), 404, "/responses/compact is not served"),
        ("GET", format!("{name}?stream=true"), 400, "stream is not served here"),
        ("PUT", name.clone(), 405, "does not take PUT"),
        ("GET", format!("{name}/cancel"), 405, "does not take GET"),
    ] {
        let (got, body) = ask(&gleaner, &rollout, method, &format!("{PATH}/{path}")).await;
        assert_eq!(got, status, "{method} {path}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(says), "{body}");
    }
    let calls = gleaner.calls(&rollout.id).await;
    assert_eq!(calls.len(), 1, "asking is no call");
}

#[tokio::test]
async fn a_count_counts_what_came_before_too() {
    let (_policy, gleaner, rollout) = start(92, [Reply::text("one two three")]).await;
    let first = say(&gleaner, &rollout, &request("hi", false)).await;
    let count = async |body: Value| {
        let mut answer = gleaner.call(&format!("{PATH}/input_tokens"), &rollout.key, &body).await;
        let body = answer.json().await;
        assert_eq!((answer.status(), &body["object"]), (200, &json!("response.input_tokens")), "{body}");
        body["input_tokens"].as_u64().unwrap()
    };
    let alone = count(json!({"model": "m", "input": "and?"})).await;
    let after = count(json!({"model": "m", "input": "and?", "previous_response_id": id(&first)})).await;
    assert!(after > alone + 3, "{after} against {alone}");
    assert_eq!(gleaner.calls(&rollout.id).await.len(), 1);
}
