//! An engine that dies and comes back while sandboxes run on it: a dockerd of the test's own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code, reason = "each test program uses a part of it")]
mod sandbox;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gleaner::engine::{Docker, Engine, EngineConfig};
use gleaner::harness::helper;
use sandbox::{HELPER, LONG, Options, Sandbox, exec_spec};
use support::dockerd::Dockerd;
use tokio::time::timeout;

/// What waits for a dead engine must not wait longer.
const QUICK: Duration = Duration::from_secs(20);

async fn connect(dockerd: &Dockerd) -> Docker {
    dockerd.answers().await;
    let config = EngineConfig { docker_host: Some(dockerd.host()), ..EngineConfig::default() };
    let connected = Docker::connect(&config, &format!("test-{}", std::process::id()), Arc::new(|_| true)).await;
    connected.unwrap_or_else(|error| panic!("{error:#}: {}", dockerd.log()))
}

/// An image with nothing but our helper.
async fn lay_image(engine: &Docker, folder: &Path) -> String {
    let mut builder = tar::Builder::new(std::fs::File::create(folder.join("root.tar")).unwrap());
    builder.append_path_with_name(helper::install(folder).unwrap(), "init").unwrap();
    builder.into_inner().unwrap();
    let name = "gleaner-test:restart".to_owned();
    engine.import(&name, &folder.join("root.tar"), &[]).await.unwrap();
    name
}

/// A harness that waits: our own helper, for a word that does not come.
fn waits(socket: &str) -> Vec<String> {
    let text = format!(
        "{HELPER} run --control /run/gleaner/{socket} --listen 127.0.0.1:0 --socket /none --deadline-ms 1000000 --grace-ms 1 -- /none"
    );
    text.split(' ').map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a dockerd of its own, which needs root"]
async fn an_engine_that_dies_hangs_nobody_and_is_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut dockerd = Dockerd::start(folder.path());
    let engine = Arc::new(connect(&dockerd).await);
    let image = lay_image(&engine, folder.path()).await;
    let harness = waits("inner.sock");
    let harness: Vec<&str> = harness.iter().map(String::as_str).collect();
    let options = || Options { image: image.clone(), ..Options::default() };
    let mut one = Sandbox::start(engine.as_ref(), &harness, options()).await;
    let mut two = Sandbox::start(engine.as_ref(), &harness, options()).await;
    let sockets = [one.listen("inner.sock"), one.listen("exec.sock"), two.listen("inner.sock")];
    one.go().await;
    two.go().await;
    let _harness = timeout(LONG, sockets[0].accept()).await.expect("the harness runs").unwrap();

    // A command in flight fails, and does not wait for its time to be up.
    let (command, id, running) = (waits("exec.sock"), one.id.clone(), Arc::clone(&engine));
    let command: Vec<String> = command;
    let in_flight = tokio_util::task::TaskTracker::new().spawn(async move {
        let command: Vec<&str> = command.iter().map(String::as_str).collect();
        running.exec(&id, &exec_spec(&command)).await
    });
    let _command = timeout(LONG, sockets[1].accept()).await.expect("the command runs").unwrap();
    dockerd.end("-KILL");
    timeout(QUICK, in_flight).await.expect("it ends with the engine").unwrap().unwrap_err();
    timeout(QUICK, engine.ended(&one.id)).await.expect("nobody waits for an engine that is gone").unwrap_err();
    // Whoever hangs up ends its sandbox, engine or not: the init says no more.
    let id = two.id.clone();
    drop(two);

    // It is back, and nobody connects anew.
    let again = Dockerd::start(folder.path());
    again.answers().await;
    sandbox::ended(engine.as_ref(), &id).await;
    for id in [&one.id, &id] {
        engine.remove(id).await.unwrap();
        assert!(engine.ended(id).await.is_err(), "it is gone");
    }
    let three = Sandbox::start(engine.as_ref(), &["/none"], options()).await;
    engine.remove(&three.id).await.unwrap();
    drop(again);
}

/// An engine that is stopped in good order stops its sandboxes: that is told apart from a harness that ended.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "starts a dockerd of its own, which needs root"]
async fn a_sandbox_that_the_engine_stops_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut dockerd = Dockerd::start(folder.path());
    let engine = connect(&dockerd).await;
    let image = lay_image(&engine, folder.path()).await;
    let harness = waits("inner.sock");
    let harness: Vec<&str> = harness.iter().map(String::as_str).collect();
    let mut one = Sandbox::start(&engine, &harness, Options { image, ..Options::default() }).await;
    let inner = one.listen("inner.sock");
    one.go().await;
    let _harness = timeout(LONG, inner.accept()).await.expect("the harness runs").unwrap();
    dockerd.end("-TERM");
    assert_eq!(one.line().await.as_deref(), Some("terminated"));
}
