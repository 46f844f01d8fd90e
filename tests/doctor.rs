//! `gleaner doctor`, as a user starts it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::io::{Read as _, Write as _};

use serde_json::{Value, json};
use support::policy::ScriptedPolicy;
use support::run::{Bench, Ended};

const NOWHERE: &str = "unix:///no/such/socket";

/// The states of the checks, and all that was said.
fn checks(ended: &Ended) -> (Value, impl Fn(&str) -> Value) {
    let said: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"));
    let all = said["checks"].clone();
    let find = move |name: &str| {
        let found = all.as_array().unwrap().iter().find(|check| check["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all:#}")).clone()
    };
    (said["faults"].clone(), find)
}

#[tokio::test]
async fn without_an_engine_it_says_what_to_do() {
    let policy = ScriptedPolicy::start(191, []).await;
    let bench = Bench::new(policy.url()).with_own_cache().with_env("DOCKER_HOST", NOWHERE);
    let ended = bench.ask(&["doctor", "--json", "--policy", &policy.url()]).await;
    let (faults, check) = checks(&ended);
    assert_eq!((ended.code, faults), (Some(1), json!(1)), "{ended:?}");
    let engine = check("engine");
    assert!(
        engine["seen"].as_str().unwrap().contains(NOWHERE) && engine["advice"].as_str().unwrap().contains("--engine process")
    );
    let policy = check("policy default");
    assert_eq!(policy["state"], "ok", "{policy:#}");
    let seen = policy["seen"].as_str().unwrap();
    assert!(seen.starts_with("vllm") && seen.contains("window") && seen.ends_with("capture level full"), "{seen}");
    let store = check("store");
    assert!(store["seen"].as_str().unwrap().ends_with("is not there yet; the first run makes it"), "{store:#}");
    assert!(!bench.database().exists(), "a look makes nothing");
    for name in ["open files", "processes", "sockets", "room for the store", "room for payloads", "payloads"] {
        assert_ne!(check(name)["state"], "fault");
    }

    let text = bench.ask(&["doctor"]).await.stdout;
    assert!(text.contains("\nFAULT    engine") && text.contains("-> start Docker"), "{text}");
    assert!(text.contains("warning  policy") && text.lines().last().unwrap().starts_with("1 fault, "), "{text}");
}

/// Podman speaks Docker's API and does not keep to it: it is named, and nothing is begun on it.
#[tokio::test]
async fn podman_is_told_from_docker() {
    let bench = Bench::new("http://127.0.0.1:9").with_own_cache();
    let socket = bench.dir.path().join("podman.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    std::thread::spawn(move || {
        let answer = include_str!("fixtures/engine/podman_version.json");
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            let read = stream.read(&mut request).unwrap();
            assert!(String::from_utf8_lossy(&request[..read]).contains("/version"), "it asks for no more");
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                answer.len()
            );
            stream.write_all((head + answer).as_bytes()).unwrap();
        }
    });
    let bench = bench.with_env("DOCKER_HOST", format!("unix://{}", socket.display()));
    let ended = bench.ask(&["doctor", "--json"]).await;
    let (_, check) = checks(&ended);
    let seen = check("engine")["seen"].as_str().unwrap().to_owned();
    assert!(seen.contains("is Podman 4.3.1") && seen.contains("use Docker"), "{seen}");
    let ended = bench.run(&["codex", "p"]).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("is Podman 4.3.1"), "{ended:?}");
}

#[tokio::test]
async fn with_plain_processes_all_can_be_well() {
    let policy = ScriptedPolicy::start(192, []).await;
    let bench = Bench::new(policy.url()).with_own_cache().with_env("DOCKER_HOST", NOWHERE);
    bench.look(&["list"]).await;
    let words = ["doctor", "--json", "--engine", "process", "--policy", &policy.url()];
    let ended = bench.ask(&words).await;
    let (faults, check) = checks(&ended);
    assert_eq!((ended.code, faults), (Some(0), json!(0)), "{ended:?}");
    assert!(check("engine")["seen"].as_str().unwrap().contains("WITHOUT ISOLATION"));
    assert_eq!((&check("engine")["state"], &check("store")["state"]), (&json!("warning"), &json!("ok")));
    assert!(check("store")["seen"].as_str().unwrap().contains(", version "), "{}", check("store"));
}

#[tokio::test]
async fn a_policy_that_is_down_and_a_store_that_is_none_are_faults() {
    let bench = Bench::new("").with_own_cache().with_env("DOCKER_HOST", NOWHERE);
    std::fs::write(bench.database(), "no database at all, but a text of some length that is none").unwrap();
    let ended = bench.ask(&["doctor", "--json", "--engine", "process", "--policy", "http://127.0.0.1:9"]).await;
    let (faults, check) = checks(&ended);
    assert_eq!((ended.code, faults), (Some(1), json!(2)), "{ended:?}");
    assert_eq!(check("policy default")["state"], "fault");
    assert!(check("policy default")["seen"].as_str().unwrap().contains("127.0.0.1:9"));
    assert!(check("store")["seen"].as_str().unwrap().contains("gleaner.db"));
}
