//! Medians of pairs, as a table and as JSON.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::load::Load;
use super::scenario::{Goal, Scenario};

/// One target's load in one round.
pub struct Measured<'a> {
    pub round: usize,
    pub scenario: &'a Scenario,
    pub target: String,
    pub load: Load,
}

/// A target's figures in one scenario, each the median over the rounds.
struct Figures {
    per_second: f64,
    share: f64,
    p50: f64,
    p99: f64,
    added_first: f64,
    added_p50: f64,
    added_p99: f64,
    cpu_us: f64,
    resident_mb: f64,
    failed: usize,
    /// Streams that came whole but later than the goal allows.
    late: usize,
    calls: usize,
    /// Processor time, as a multiple of that of the scenario which a goal names.
    cost: f64,
    event_cost: f64,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => f64::midpoint(values[length / 2 - 1], values[length / 2]),
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index below the length")]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    sorted.get(((sorted.len() as f64 * part) as usize).min(sorted.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
}

impl Figures {
    fn of(measured: &[Measured<'_>], scenario: &Scenario, target: &str) -> Self {
        let of = |target: &'_ str| -> Vec<&Load> {
            let same = |one: &&Measured<'_>| one.scenario.name == scenario.name && one.target == target;
            measured.iter().filter(same).map(|one| &one.load).collect()
        };
        let pairs: Vec<(&Load, &Load)> = of(target).into_iter().zip(of("direct")).collect();
        let over = |figure: &dyn Fn(&Load, &Load) -> f64| median(pairs.iter().map(|(own, direct)| figure(own, direct)).collect());
        let limit = scenario.goals.iter().find_map(|goal| if let Goal::AllKept(part) = goal { Some(1.0 + part) } else { None });
        let late = |(own, direct): &(&Load, &Load)| {
            let most = quantile(&direct.total_ms, 0.5) * limit.unwrap_or(f64::INFINITY);
            own.total_ms.iter().filter(|ms| **ms > most).count()
        };
        // Paired within a round, as all figures are.
        let cost = |part: &dyn Fn(&Scenario) -> f64| {
            let named = scenario.goals.iter().find_map(|goal| goal.beside());
            let Some(other) = named.and_then(|name| super::scenario::ALL.iter().find(|one| one.name == name)) else {
                return f64::NAN;
            };
            let spent = |of: &Scenario| -> Vec<f64> {
                let same = |one: &&Measured<'_>| one.scenario.name == of.name && one.target == target;
                measured.iter().filter(same).map(|one| one.load.cpu_us.unwrap_or(f64::NAN) / part(of)).collect()
            };
            median(spent(scenario).into_iter().zip(spent(other)).map(|(own, other)| own / other).collect())
        };
        Self {
            cost: cost(&|_| 1.0),
            event_cost: cost(&|of| of.tokens as f64),
            per_second: over(&|own, _| own.per_second),
            share: over(&|own, direct| own.per_second / direct.per_second),
            p50: over(&|own, _| quantile(&own.total_ms, 0.5)),
            p99: over(&|own, _| quantile(&own.total_ms, 0.99)),
            added_first: over(&|own, direct| quantile(&own.first_ms, 0.5) - quantile(&direct.first_ms, 0.5)),
            added_p50: over(&|own, direct| quantile(&own.total_ms, 0.5) - quantile(&direct.total_ms, 0.5)),
            added_p99: over(&|own, direct| quantile(&own.total_ms, 0.99) - quantile(&direct.total_ms, 0.99)),
            cpu_us: over(&|own, _| own.cpu_us.unwrap_or(f64::NAN)),
            resident_mb: over(&|own, _| own.resident_kb as f64 / 1024.0),
            failed: pairs.iter().map(|(own, _)| own.failed).sum(),
            late: pairs.iter().map(late).sum(),
            calls: pairs.iter().map(|(own, _)| own.sent).sum(),
        }
    }

    fn as_json(&self) -> Value {
        json!({"per_second": self.per_second, "share": self.share, "p50_ms": self.p50, "p99_ms": self.p99,
               "added_first_p50_ms": self.added_first, "added_p50_ms": self.added_p50, "added_p99_ms": self.added_p99,
               "cpu_us_per_call": self.cpu_us, "resident_mb": self.resident_mb, "failed": self.failed, "late": self.late,
               "calls": self.calls, "cost": self.cost, "event_cost": self.event_cost})
    }

    /// The figure that a goal is about, in words, and whether it is reached.
    fn judge(&self, goal: Goal) -> (String, bool) {
        let direct_p50 = self.p50 - self.added_p50;
        match goal {
            Goal::AddedP50(most) => (format!("adds {:.3} ms at p50, at most {most}", self.added_p50), self.added_p50 <= most),
            Goal::AddedP99(most) => (format!("adds {:.3} ms at p99, at most {most}", self.added_p99), self.added_p99 <= most),
            Goal::Share(least, aim) => {
                (format!("keeps {:.3} of direct, at least {least} (aim {aim})", self.share), self.share >= least)
            }
            Goal::Slower(most) => {
                let slower = self.added_p50 / direct_p50;
                (format!("{:+.2} % of direct's time, at most {:.0} %", slower * 100.0, most * 100.0), slower <= most)
            }
            Goal::Resident(most) => (format!("{:.1} MB resident, under {most}", self.resident_mb), self.resident_mb < most),
            Goal::Cost(name, most) if most.is_infinite() => (format!("costs {:.2} x {name}", self.cost), self.cost.is_finite()),
            Goal::Cost(name, most) => (format!("costs {:.2} x {name}, at most {most}", self.cost), self.cost <= most),
            Goal::EventCost(name, most) => {
                (format!("an event costs {:.2} x one of {name}, at most {most}", self.event_cost), self.event_cost <= most)
            }
            Goal::AllKept(part) => {
                let kept = self.calls - self.failed - self.late;
                let words = format!("{kept} of {} streams kept (whole, within {:.0} % of direct)", self.calls, part * 100.0);
                (words, kept == self.calls)
            }
        }
    }
}

/// Prints the table; gives the number of goals that were missed.
pub fn print(measured: &[Measured<'_>], scenarios: &[&Scenario], targets: &[String]) -> usize {
    let mut missed = 0;
    println!(
        "\n{:<15} {:<8} {:>9} {:>6} {:>9} {:>9} {:>10} {:>10} {:>10} {:>8} {:>7}",
        "scenario", "target", "calls/s", "share", "p50 ms", "p99 ms", "+first p50", "+p50", "+p99", "cpu us", "RSS MB"
    );
    for scenario in scenarios {
        for target in targets {
            let figures = Figures::of(measured, scenario, target);
            println!(
                "{:<15} {:<8} {:>9.0} {:>6.3} {:>9.3} {:>9.3} {:>10.3} {:>10.3} {:>10.3} {:>8.1} {:>7.1}{}",
                scenario.name,
                target,
                figures.per_second,
                figures.share,
                figures.p50,
                figures.p99,
                figures.added_first,
                figures.added_p50,
                figures.added_p99,
                figures.cpu_us,
                figures.resident_mb,
                if figures.failed > 0 { format!("  {} FAILED", figures.failed) } else { String::new() }
            );
        }
    }
    if targets.iter().any(|target| target == "gleaner") {
        println!("\n{:<15} {:<11} target", "scenario", "");
        for scenario in scenarios {
            let figures = Figures::of(measured, scenario, "gleaner");
            for goal in scenario.goals {
                let (words, reached) = figures.judge(*goal);
                missed += usize::from(!reached);
                println!("{:<15} {:<11} {words}", scenario.name, if reached { "reached" } else { "NOT REACHED" });
            }
            if figures.failed > 0 {
                missed += 1;
                println!("{:<15} {:<11} {} calls failed", scenario.name, "NOT REACHED", figures.failed);
            }
        }
    }
    missed
}

/// Writes everything as JSON; gives the file's path.
pub fn keep(measured: &[Measured<'_>], scenarios: &[&Scenario]) -> PathBuf {
    let rounds: Vec<Value> = measured
        .iter()
        .map(|one| {
            let load = &one.load;
            json!({"round": one.round, "scenario": one.scenario.name, "target": one.target, "per_second": load.per_second,
                   "p50_ms": quantile(&load.total_ms, 0.5), "p99_ms": quantile(&load.total_ms, 0.99),
                   "first_p50_ms": quantile(&load.first_ms, 0.5), "sent": load.sent, "failed": load.failed,
                   "cpu_us_per_call": load.cpu_us, "resident_kb": load.resident_kb})
        })
        .collect();
    let mut medians = serde_json::Map::new();
    for scenario in scenarios {
        let mut targets: Vec<&str> = measured.iter().map(|one| one.target.as_str()).collect();
        targets.sort_unstable();
        targets.dedup();
        let figures: serde_json::Map<String, Value> =
            targets.iter().map(|target| ((*target).to_owned(), Figures::of(measured, scenario, target).as_json())).collect();
        let gleaner = Figures::of(measured, scenario, "gleaner");
        let goals: Vec<Value> = if targets.contains(&"gleaner") {
            let judge = |goal: &Goal| {
                let (words, reached) = gleaner.judge(*goal);
                json!({"goal": words, "reached": reached})
            };
            scenario.goals.iter().map(judge).collect()
        } else {
            Vec::new()
        };
        medians.insert(scenario.name.to_owned(), json!({"targets": figures, "goals": goals}));
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("bench");
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("proxy.json");
    let all = json!({"scenarios": medians, "rounds": rounds});
    std::fs::write(&path, serde_json::to_vec_pretty(&all).unwrap()).unwrap();
    path
}
