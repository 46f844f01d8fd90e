//! How much Gleaner costs: a closed-loop loader against a mock policy server, direct and through Gleaner side by side, with nginx
//! beside them where it is installed.
//!
//! `cargo bench --bench proxy -- [--rounds N] [--only SCENARIO,..] [--targets direct,gleaner,nginx] [--quick]`
//!
//! Loader and mock have one thread each and share the machine's cores with what stands between them. For every round and
//! scenario each target gets a warm-up and a measured time, in an order that is drawn anew; figures are medians over the rounds
//! of values paired within one round. Every call through Gleaner is recorded, with its end held back until the commit, and
//! capture level `full` is asserted afterwards. A table goes to standard output, everything to `target/bench/proxy.json`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::print_stderr, reason = "a benchmark")]
#![allow(clippy::cast_precision_loss, clippy::format_push_string, clippy::format_collect, reason = "counts are small")]

#[path = "proxy/load.rs"]
mod load;
#[path = "proxy/mock.rs"]
mod mock;
#[path = "proxy/report.rs"]
mod report;
#[path = "proxy/scenario.rs"]
mod scenario;
#[path = "proxy/target.rs"]
mod target;
#[path = "proxy/wire.rs"]
mod wire;

use std::hash::{BuildHasher, Hasher};
use std::net::SocketAddr;

use load::Load;
use scenario::Scenario;
use target::{Gleaner, Nginx};

/// What the command line asks for.
struct Options {
    rounds: usize,
    only: Vec<String>,
    targets: Vec<String>,
    /// Short times, for trying the benchmark itself.
    quick: bool,
}

impl Options {
    fn parse() -> Self {
        let list = |text: String| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        let all = list("direct,gleaner,nginx".to_owned());
        let mut options = Self { rounds: 3, only: Vec::new(), targets: all, quick: false };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().unwrap_or_else(|| usage(&format!("{arg} needs a value")));
            match arg.as_str() {
                "--rounds" => options.rounds = value().parse().unwrap_or_else(|_| usage("--rounds takes a number")),
                "--only" => options.only = list(value()),
                "--targets" => options.targets = list(value()),
                "--quick" => options.quick = true,
                // Cargo says this to every benchmark.
                "--bench" => {}
                _ => usage(&format!("there is no option {arg}")),
            }
        }
        if let Some(name) = options.only.iter().find(|name| !scenario::ALL.iter().any(|one| one.name == name.as_str())) {
            usage(&format!("there is no scenario {name}"));
        }
        if !options.targets.iter().any(|name| name == "direct") {
            options.targets.push("direct".to_owned());
        }
        if !target::nginx_is_installed() {
            options.targets.retain(|name| name != "nginx");
        }
        options
    }
}

fn usage(fault: &str) -> ! {
    let names: Vec<&str> = scenario::ALL.iter().map(|one| one.name).collect();
    eprintln!("{fault}\nusage: proxy [--rounds N] [--only {}] [--targets direct,gleaner,nginx] [--quick]", names.join(","));
    std::process::exit(2)
}

fn main() {
    let options = Options::parse();
    let policy = mock::start();
    let mut measured = Vec::new();
    let asked = |one: &Scenario| options.only.is_empty() || options.only.iter().any(|name| name == one.name);
    let beside: Vec<&str> =
        scenario::ALL.iter().filter(|one| asked(one)).flat_map(|one| one.goals).filter_map(|goal| goal.beside()).collect();
    let scenarios: Vec<&Scenario> = scenario::ALL.iter().filter(|one| asked(one) || beside.contains(&one.name)).collect();
    for round in 0..options.rounds {
        for &scenario in &scenarios {
            let mut targets = options.targets.clone();
            shuffle(&mut targets);
            for target in targets {
                eprintln!("round {} of {}: {} {target}", round + 1, options.rounds, scenario.name);
                measured.push(report::Measured {
                    round,
                    scenario,
                    load: measure(&target, scenario, policy, options.quick),
                    target,
                });
            }
        }
    }
    let missed = report::print(&measured, &scenarios, &options.targets);
    let path = report::keep(&measured, &scenarios);
    println!("\nall figures: {}", path.display());
    if missed > 0 {
        println!("{missed} targets were not reached");
    }
}

/// Loads one target once.
fn measure(target: &str, scenario: &Scenario, policy: SocketAddr, quick: bool) -> Load {
    match target {
        "direct" => load::run(scenario, policy, None, quick),
        "nginx" => {
            let nginx = Nginx::start(policy);
            load::run(scenario, nginx.addr, None, quick)
        }
        "gleaner" => {
            let gleaner = Gleaner::start(policy);
            let cpu = target::cpu_us(gleaner.pid());
            let mut load = load::run(scenario, gleaner.addr, Some(&gleaner.key), quick);
            let spent = target::cpu_us(gleaner.pid()) - cpu;
            load.cpu_us = Some(spent / load.sent.max(1) as f64);
            load.resident_kb = target::resident_kb(gleaner.pid());
            gleaner.assert_recorded(&load.call_ids);
            load
        }
        other => usage(&format!("there is no target {other}")),
    }
}

fn shuffle(names: &mut [String]) {
    for at in (1..names.len()).rev() {
        let draw = std::collections::hash_map::RandomState::new().build_hasher().finish();
        names.swap(at, usize::try_from(draw % (at as u64 + 1)).unwrap());
    }
}
