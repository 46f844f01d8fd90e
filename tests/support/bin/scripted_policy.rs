//! The scripted model server as a program of its own, for checks that are not in Rust.
//!
//! `scripted_policy [SCRIPT.json] [--listen 127.0.0.1:0] [--seed N]`: the script is a list of replies. Says where it listens on
//! standard output; `GET /__sampled` gives all that it has sampled, `POST /__script` adds replies. It runs until it
//! is killed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, reason = "a test's program")]

#[path = "../mod.rs"]
mod support;

use support::policy::{Reply, ScriptedPolicy};
use tokio::net::TcpListener;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (mut listen, mut seed, mut script) = ("127.0.0.1:0".to_owned(), 1, Vec::<Reply>::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--listen" => listen = args.next().expect("--listen takes an address"),
            "--seed" => seed = args.next().expect("--seed takes a number").parse().expect("--seed takes a number"),
            path => {
                let text = std::fs::read(path).unwrap_or_else(|error| panic!("can't read the script {path}: {error}"));
                script = serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path} is no script: {error}"));
            }
        }
    }
    let listener = TcpListener::bind(&listen).await.unwrap_or_else(|error| panic!("can't listen on {listen}: {error}"));
    let policy = ScriptedPolicy::serve(listener, seed, script);
    println!("listening on {}", policy.url());
    std::future::pending::<()>().await;
}
