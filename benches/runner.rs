//! How fast rollouts start: a trivial harness by `gleaner run`, all of it, beside bare containers with the same limits on the same engine
//! in the same run. `cargo bench --bench runner`
//!
//! A round is [`COUNT`] containers, [`AT_ONCE`] at once, of which the engine starts [`STARTS`] at a time, then as many rollouts; rounds
//! alternate, since a machine's other work comes and goes. A rate is containers, or rollouts, a second from the first's begin to the last's
//! removal; a rollout's has the program's own start in it.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::cast_precision_loss, reason = "a benchmark")]

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bollard::models::{ContainerCreateBody, HostConfig};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptionsBuilder};
use futures::{StreamExt as _, TryStreamExt as _};
use gleaner::engine::{EngineConfig, base_image};
use tokio::sync::Semaphore;

/// As a batch would have them.
const AT_ONCE: usize = 50;
/// Of each in a round.
const COUNT: usize = 100;
/// What `[engine] parallel_starts` is by itself.
const STARTS: usize = 4;
const ROUNDS: usize = 3;
/// Of the engine's own rate, at least.
const LEAST: f64 = 0.95;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    lay_harness(folder.path());
    let api = bollard::Docker::connect_with_defaults().unwrap().negotiate_version().await.unwrap();
    // The payload, the image whose working folder is the harness's, and the self-test are made once.
    rollouts(folder.path(), 1);
    println!("{:<6} {:>12} {:>12} {:>7}", "round", "bare a s", "rollouts a s", "ratio");
    let mut rates = Vec::new();
    for round in 1..=ROUNDS {
        let bare = COUNT as f64 / bare(&api).await.as_secs_f64();
        let ours = COUNT as f64 / rollouts(folder.path(), COUNT).as_secs_f64();
        println!("{round:<6} {bare:>12.2} {ours:>12.2} {:>7.3}", ours / bare);
        rates.push((bare, ours));
    }
    let total = |of: fn(&(f64, f64)) -> f64| rates.len() as f64 / rates.iter().map(|rate| 1.0 / of(rate)).sum::<f64>();
    let (bare, ours) = (total(|rate| rate.0), total(|rate| rate.1));
    println!("{:<6} {bare:>12.2} {ours:>12.2} {:>7.3}  (at least {LEAST})", "all", ours / bare);
    std::process::exit(i32::from(ours / bare < LEAST));
}

fn lay_harness(folder: &Path) {
    let harness = folder.join("harnesses/trivial");
    std::fs::create_dir_all(&harness).unwrap();
    let text = "name = \"trivial\"\nversion = \"1\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"build.sh\"\nwhere = \"host\"\n\
                [run]\ncommand = [\"true\"]\n";
    std::fs::write(harness.join("harness.toml"), text).unwrap();
    std::fs::write(harness.join("build.sh"), "touch $OUT/x\n").unwrap();
}

/// Runs so many rollouts; each must pass.
fn rollouts(folder: &Path, count: usize) -> Duration {
    let (count, at_once) = (count.to_string(), AT_ONCE.to_string());
    let began = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_gleaner"))
        .args(["run", "trivial", "nothing", "--json", "--samples", &count, "--concurrency", &at_once])
        .args(["--policy", "http://127.0.0.1:9"])
        .arg("--harnesses")
        .arg(folder.join("harnesses"))
        .arg("--database")
        .arg(folder.join("gleaner.db"))
        .env("XDG_CACHE_HOME", folder.join("cache"))
        .output()
        .unwrap();
    let took = began.elapsed();
    let said = String::from_utf8_lossy(&output.stdout);
    let passed = said.matches("\"outcome\":\"passed\"").count();
    assert!(
        output.status.success() && passed.to_string() == count,
        "{passed} passed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    took
}

/// Creates, starts, awaits and removes as many containers.
async fn bare(api: &bollard::Docker) -> Duration {
    let starts = Semaphore::new(STARTS);
    let began = Instant::now();
    futures::stream::iter(0..COUNT).for_each_concurrent(AT_ONCE, |_| one(api, &starts)).await;
    began.elapsed()
}

async fn one(api: &bollard::Docker, starts: &Semaphore) {
    let id = api.create_container(None::<CreateContainerOptions>, body()).await.unwrap().id;
    {
        let _permit = starts.acquire().await.unwrap();
        api.start_container(&id, None).await.unwrap();
    }
    let ended: Vec<_> = api.wait_container(&id, None).try_collect().await.unwrap();
    assert_eq!(ended[0].status_code, 0);
    api.remove_container(&id, Some(RemoveContainerOptionsBuilder::new().force(true).v(true).build())).await.unwrap();
}

fn body() -> ContainerCreateBody {
    let limits = EngineConfig::default();
    let memory = i64::try_from(limits.memory).unwrap();
    #[expect(clippy::cast_possible_truncation, reason = "a few processors")]
    let nano_cpus = (limits.cpus * 1e9) as i64;
    ContainerCreateBody {
        image: Some(base_image::DEFAULT.to_owned()),
        cmd: Some(vec!["true".to_owned()]),
        user: Some("1000:1000".to_owned()),
        labels: Some(HashMap::from([("gleaner".to_owned(), "bench".to_owned())])),
        host_config: Some(HostConfig {
            network_mode: Some("none".to_owned()),
            cap_drop: Some(vec!["ALL".to_owned()]),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            memory: Some(memory),
            memory_swap: Some(memory),
            nano_cpus: Some(nano_cpus),
            pids_limit: Some(i64::from(limits.pids)),
            tmpfs: Some(HashMap::from(
                [("/tmp", "exec"), ("/home/agent", "exec")].map(|(at, how)| (at.to_owned(), how.to_owned())),
            )),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    }
}
