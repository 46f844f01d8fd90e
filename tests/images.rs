//! Images on their way from a client to a sample.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use serde_json::{Value, json};
use support::gleaner::{Gleaner, Start, binary};
use support::policy::{Reply, ScriptedPolicy};
use support::{chat, responses, within};

const CHAT: &str = "/v1/chat/completions";
/// A picture of one pixel, and the SHA-256 of its 68 bytes.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAAC0lEQVR4nGNgAAIAAAUAAXpeqz8AAAAASUVORK5CYII=";

fn with_images(urls: &[&str], text: &str) -> Value {
    let mut parts: Vec<Value> = urls.iter().map(|url| json!({"type": "image_url", "image_url": {"url": url}})).collect();
    parts.push(json!({"type": "text", "text": text}));
    json!({"model": "m", "messages": [{"role": "user", "content": parts}]})
}

/// Runs a command on a server's store; gives what it says.
async fn command(gleaner: &Gleaner, arguments: &[&str]) -> String {
    let mut command = tokio::process::Command::new(binary());
    command.args(arguments).arg("--database").arg(&gleaner.database).env_remove("GLEANER_CONFIG");
    let output = within("a command", command.output()).await.unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn an_image_is_recorded_shown_and_named_in_samples() {
    let policy = ScriptedPolicy::start(301, [Reply::text("one pixel")]).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let url = format!("data:image/png;base64,{PIXEL}");
    // A client may escape slashes; what it sent is kept as it sent it.
    let body = with_images(&[&url, &url], "what is it?").to_string().replace('/', "\\/");
    let headers = [("x-api-key", made.key.as_str())];
    let answer = gleaner.send("POST", CHAT, &headers, body.as_bytes()).await;
    assert_eq!(answer.status(), 200);
    let record = gleaner.record(&answer.call_id()).await;
    assert_eq!(gleaner.raw(record.id(), "request").await, body.as_bytes());
    let upstream: Value = serde_json::from_slice(&gleaner.raw(record.id(), "upstream").await).unwrap();
    assert_eq!(upstream, policy.last().body);
    assert_eq!(upstream["messages"][0]["content"][1]["image_url"]["url"], url);
    assert_eq!(record.0["messages"][0]["content"][0]["image_url"]["url"], url);
    let hash = record.0["images"][0]["hash"].as_str().expect("no image").to_owned();
    let image = json!({"hash": hash, "mime": "image/png", "bytes": 68});
    assert_eq!(record.0["images"], json!([image, image]));
    let mut answer = gleaner.send("GET", &format!("/api/v1/images/{hash}"), &[], b"").await;
    let header = |name: &str| answer.head.header(name).unwrap_or("none").to_owned();
    assert_eq!((header("content-type").as_str(), header("x-content-type-options").as_str()), ("image/png", "nosniff"));
    let bytes = answer.bytes().await.unwrap();
    assert_eq!((bytes.len(), &bytes[1..4]), (68, b"PNG" as &[u8]));
    for unknown in ["0".repeat(64), "x".to_owned()] {
        assert_eq!(gleaner.send("GET", &format!("/api/v1/images/{unknown}"), &[], b"").await.status(), 404);
    }
    let (samples, _) = gleaner.samples(&made.id).await;
    let named = json!({"hash": hash, "mime": "image/png", "start": null, "end": null});
    assert_eq!(samples[0]["images"], json!([named, named]));
    let shown = command(&gleaner, &["show", &made.id, "--calls"]).await;
    assert!(shown.contains(&format!("user: [image image/png 68 bytes {hash}]")) && !shown.contains(PIXEL), "{shown}");
    let out = gleaner.dir.path().join("messages.jsonl");
    command(&gleaner, &["export", "messages", "--out", out.to_str().unwrap(), "--rollout", &made.id, "--check"]).await;
    let row: Value = serde_json::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
    assert_eq!(row["messages"][0]["content"][0], json!({"type": "image_url", "image_url": {"url": url}}));
}

#[tokio::test]
async fn a_links_image_is_the_policys_business_and_never_fetched() {
    let policy = ScriptedPolicy::start(302, []).await;
    let site = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let link = format!("http://{}/picture.png", site.local_addr().unwrap());
    let strict = "[policies.default]\nimage_urls = \"refuse\"\n";
    for (config, status) in [("", 200), (strict, 400)] {
        let gleaner = Start::new(policy.url()).config(config).run().await;
        let made = gleaner.plain_rollout().await;
        let asked = policy.count();
        let mut answer = gleaner.call(CHAT, &made.key, &with_images(&[&link], "?")).await;
        let body = answer.json().await;
        assert_eq!(answer.status(), status, "{body}");
        let record = gleaner.record(&answer.call_id()).await;
        assert_eq!(record.0["images"], json!([]));
        if status == 200 {
            assert_eq!(policy.last().body["messages"][0]["content"][0]["image_url"]["url"], link);
        } else {
            assert_eq!(body["error"]["param"], "messages[0].content[0].image_url");
            assert_eq!((record.status(), record.failure_kind()), ("failed", Some("invalid")));
            assert_eq!(policy.count(), asked);
            let data = with_images(&[&format!("data:image/png;base64,{PIXEL}")], "?");
            assert_eq!(gleaner.call(CHAT, &made.key, &data).await.status(), 200, "data is no link");
        }
    }
    let fetched = tokio::time::timeout(std::time::Duration::from_millis(1), site.accept()).await;
    assert!(fetched.is_err(), "somebody followed the link");
}

#[tokio::test]
async fn addresses_that_only_a_server_could_read_are_refused() {
    let policy = ScriptedPolicy::start(303, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    for address in ["file:///etc/passwd", "gs://bucket/picture.png"] {
        let mut answer = gleaner.call(CHAT, &made.key, &with_images(&[address], "?")).await;
        let error = answer.json().await;
        assert_eq!((answer.status(), &error["error"]["param"]), (400, &json!("messages[0].content[0].image_url")), "{error}");
        let input = json!([{"role": "user", "content": [{"type": "input_image", "image_url": address}]}]);
        let mut answer = gleaner.call("/v1/responses", &made.key, &json!({"model": "m", "input": input})).await;
        assert_eq!(answer.status(), 400, "{}", answer.json().await);
    }
    assert_eq!(policy.count(), 0);
}

#[tokio::test]
async fn data_that_is_no_image_goes_to_the_policy_as_it_came() {
    let policy = ScriptedPolicy::start(304, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let many: Vec<String> = (0..300).map(|at| format!("data:image/png;base64,{}", &PIXEL[..PIXEL.len() - at % 7])).collect();
    let odd = ["data:image/png;base64,???", "data:,", "not an address", ""];
    let urls: Vec<&str> = many.iter().map(String::as_str).chain(odd).collect();
    let body = with_images(&urls, "?");
    let answer = gleaner.call(CHAT, &made.key, &body).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(policy.last().body["messages"], body["messages"]);
    let record = gleaner.record(&answer.call_id()).await;
    assert_eq!(gleaner.raw(record.id(), "request").await, body.to_string().as_bytes());
    assert_eq!(serde_json::from_slice::<Value>(&gleaner.raw(record.id(), "upstream").await).unwrap(), policy.last().body);
}

/// The size of all that belongs to a server's database.
fn store_size(gleaner: &Gleaner) -> u64 {
    let files = std::fs::read_dir(gleaner.dir.path()).unwrap().map(|file| file.unwrap());
    let of_store = files.filter(|file| file.file_name().to_string_lossy().starts_with("gleaner.db"));
    of_store.map(|file| file.metadata().unwrap()).filter(std::fs::Metadata::is_file).map(|file| file.len()).sum()
}

#[tokio::test]
async fn a_conversation_about_an_image_costs_the_image_once() {
    const TURNS: usize = 10;
    let policy = ScriptedPolicy::start(305, []).await;
    let mut gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let mut state = 1_u32;
    let picture: String = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[(state >> 26) as usize])
    })
    .take(1 << 20)
    .collect();
    let url = format!("data:image/png;base64,{picture}");
    let mut body = with_images(&[&url], "what is it?");
    for turn in 0..TURNS {
        let mut answer = gleaner.call(CHAT, &made.key, &body).await;
        let said = chat::Reply::read(&mut answer).await.text;
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": format!("and {turn}?")}));
    }
    let (samples, _) = gleaner.samples(&made.id).await;
    assert_eq!((samples.len(), samples[0]["images"].as_array().unwrap().len()), (1, 1));
    let calls = gleaner.calls(&made.id).await;
    assert!(calls.iter().all(|call| call.0["images"] == calls[0].0["images"]));
    let last: Value = serde_json::from_slice(&gleaner.raw(calls[TURNS - 1].id(), "request").await).unwrap();
    assert_eq!(last["messages"][0]["content"][0]["image_url"]["url"], url);
    gleaner.terminate().await;
    gleaner.ended().await;
    let size = store_size(&gleaner);
    assert!(size < 3 << 19, "{size} bytes for an image of 786,432 in {TURNS} turns");
}

#[tokio::test]
async fn the_responses_wires_images_are_the_same_images() {
    let policy = ScriptedPolicy::start(306, []).await;
    let gleaner = Gleaner::start(policy.url()).await;
    let made = gleaner.plain_rollout().await;
    let url = format!("data:image/png;base64,{PIXEL}");
    for detail in ["auto", "high"] {
        let content = json!([{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": url, "detail": detail}]);
        let mut body = responses::request("", false);
        body["input"] = json!([{"role": "user", "content": content}]);
        let answer = gleaner.call("/v1/responses", &made.key, &body).await;
        let record = gleaner.record(&answer.call_id()).await;
        assert_eq!((&record.0["images"][0]["mime"], &record.0["images"][0]["bytes"]), (&json!("image/png"), &json!(68)));
    }
}
