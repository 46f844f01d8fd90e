//! What a run left: listed, read and deleted, whatever names harnesses give it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

mod support;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use support::client::get;
use support::gleaner::{Gleaner, Made, Start, binary};
use tokio::process::Command;

/// A rollout that left files, some of them hostile, beside a secret.
async fn left() -> (Gleaner, Made, PathBuf) {
    let gleaner = Start::new("http://127.0.0.1:9").run().await;
    let made = gleaner.rollout(json!({})).await;
    let folder = gleaner.dir.path().join("artifacts").join(&made.id);
    std::fs::create_dir_all(folder.join("files/a b")).unwrap();
    for (name, bytes) in [
        ("patch.diff", &b"+1\n"[..]),
        ("files/a b/%2e%2e é", b"odd"),
        ("files/page.html", b"<script>"),
        ("files/x\x1b[2J", b"\x1b[2J"),
    ] {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    std::fs::write(gleaner.dir.path().join("secret"), "secret").unwrap();
    symlink(gleaner.dir.path().join("secret"), folder.join("link")).unwrap();
    symlink(gleaner.dir.path(), folder.join("files/up")).unwrap();
    (gleaner, made, folder)
}

/// Runs one of our commands on the server's store.
async fn command(gleaner: &Gleaner, words: &[&str]) -> (Option<i32>, Vec<u8>, String) {
    let mut command = Command::new(binary());
    command.args(words).arg("--database").arg(&gleaner.database).env_remove("GLEANER_CONFIG").stdin(Stdio::null());
    let output = command.output().await.unwrap();
    (output.status.code(), output.stdout, String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn files_are_listed_and_read_byte_for_byte() {
    let (gleaner, made, _) = left().await;
    let list = gleaner.api(&format!("/rollouts/{}/artifacts", made.id)).await;
    let expected = json!({"artifacts": [
        {"name": "files/a b/%2e%2e é", "bytes": 3}, {"name": "files/page.html", "bytes": 8}, {"name": "files/x\u{1b}[2J", "bytes": 4},
        {"name": "patch.diff", "bytes": 3},
    ]});
    assert_eq!(list, expected);
    for (name, bytes, media) in [
        ("patch.diff", &b"+1\n"[..], "text/plain; charset=utf-8"),
        ("files/a%20b/%252e%252e%20%C3%A9", b"odd", "application/octet-stream"),
        ("files/page.html", b"<script>", "application/octet-stream"),
    ] {
        let mut answer = get(gleaner.addr, &format!("/api/v1/rollouts/{}/artifacts/{name}", made.id), &[]).await;
        let header = |name: &str| answer.head.header(name).unwrap_or_default().to_owned();
        let seen = (answer.status(), header("content-type"), header("x-content-type-options"));
        assert_eq!(seen, (200, media.to_owned(), "nosniff".to_owned()), "{name}");
        assert_eq!(answer.bytes().await.unwrap(), bytes, "{name}");
    }
}

#[tokio::test]
async fn no_name_leads_out_of_a_rollout_s_files() {
    let (gleaner, made, _) = left().await;
    let other = gleaner.rollout(json!({})).await;
    for name in [
        "link",
        "files/up/secret",
        "../../secret",
        "..%2f..%2fsecret",
        "%2e%2e/%2e%2e/secret",
        "files/..%2f..%2f..%2fsecret",
        "%2fetc%2fpasswd",
        "%00",
        "files",
        "files/",
        "none",
    ] {
        let mut answer = get(gleaner.addr, &format!("/api/v1/rollouts/{}/artifacts/{name}", made.id), &[]).await;
        let body = String::from_utf8_lossy(&answer.bytes().await.unwrap()).into_owned();
        assert!(answer.status() == 404 && !body.starts_with("secret"), "{name}: {} {body}", answer.status());
    }
    for path in [format!("{}/artifacts/patch.diff", other.id), "..%2fx/artifacts/patch.diff".to_owned(), "x/artifacts".to_owned()]
    {
        assert_eq!(get(gleaner.addr, &format!("/api/v1/rollouts/{path}"), &[]).await.status(), 404, "{path}");
    }
    assert_eq!(gleaner.api(&format!("/rollouts/{}/artifacts", other.id)).await, json!({"artifacts": []}));
}

#[tokio::test]
async fn show_lists_them_and_prints_one() {
    let (gleaner, made, _) = left().await;
    let (code, out, _) = command(&gleaner, &["show", &made.id]).await;
    let text = String::from_utf8(out).unwrap();
    assert_eq!(code, Some(0));
    assert!(text.contains("patch.diff") && text.contains("files/x\\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    assert!(!text.contains("link") && !text.contains("secret"), "{text}");
    let (code, out, _) = command(&gleaner, &["show", &made.id, "--artifact", "files/x\u{1b}[2J"]).await;
    assert_eq!((code, out), (Some(0), b"\x1b[2J".to_vec()), "bytes as they are where no terminal reads them");
    let (code, out, error) = command(&gleaner, &["show", &made.id, "--artifact", "link"]).await;
    assert_eq!((code, out.len()), (Some(1), 0));
    assert!(error.contains("has no artifact link"), "{error}");
    let (_, out, _) = command(&gleaner, &["show", &made.id, "--json"]).await;
    let shown: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(shown["artifacts"][3], json!({"name": "patch.diff", "bytes": 3}));
}

#[tokio::test]
async fn what_is_pruned_leaves_no_files() {
    let (gleaner, made, folder) = left().await;
    let (code, out, error) = command(&gleaner, &["store", "prune", "--rollout", &made.id, "--json"]).await;
    assert_eq!(code, Some(0), "{error}");
    let pruned: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((&pruned["rollouts"], &pruned["artifact_bytes"]), (&json!(1), &json!(18)));
    assert!(!folder.exists() && gleaner.dir.path().join("secret").exists());
}
