//! What a batch is: tasks x harnesses x samples, as its user ordered it and as it is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::spec::nearest;
use super::{Baseline, Catalog, Choice, Order, Task};
use crate::store::Purpose;

/// A batch as it was ordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub tasks: Tasks,
    pub harnesses: Vec<HarnessChoice>,
    /// Rollouts of each task in each harness: a group.
    #[serde(default = "one")]
    pub samples: u32,
    /// Rollouts at once; the config's if `None`.
    #[serde(default)]
    pub concurrency: Option<usize>,
    /// Tries of each rollout that ends for no fault of harness or model; the config's if `None`.
    #[serde(default)]
    pub attempts: Option<u32>,
    /// Before the tasks' own.
    #[serde(default)]
    pub image: Option<String>,
    /// Before the tasks' own.
    #[serde(default)]
    pub timeout_s: Option<u64>,
    /// Calls that each rollout may make, before the harness's own bound.
    #[serde(default)]
    pub max_calls: Option<u64>,
    /// Tokens that each rollout may sample, before the harness's own bound.
    #[serde(default)]
    pub max_tokens: Option<u64>,
    /// The policy that answers; the one that calls go to by themselves if `None`.
    #[serde(default)]
    pub policy: Option<String>,
    /// Training if `None`.
    #[serde(default)]
    pub purpose: Option<Purpose>,
    /// Only these of the tasks, by id; all if empty.
    #[serde(default)]
    pub only: Vec<String>,
}

/// Where a batch's tasks are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "`tasks` is neither a path nor a list of tasks")]
pub enum Tasks {
    /// A file or folder of the machine that runs the batch.
    Path(String),
    /// Objects as JSON Lines have them.
    Inline(Vec<Value>),
}

/// A harness and the way to run it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HarnessChoice {
    /// `HARNESS` or `HARNESS:VARIANT`.
    pub harness: String,
    #[serde(default)]
    pub wire: Option<String>,
    /// Parameters set otherwise.
    #[serde(default)]
    pub set: BTreeMap<String, String>,
}

impl HarnessChoice {
    /// The harness's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.harness.split_once(':').map_or(&self.harness, |(name, _)| name)
    }

    /// Its variant, if one was chosen.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.harness.split_once(':').map(|(_, variant)| variant)
    }

    /// The whole choice in one word for people; two that differ have different ones.
    #[must_use]
    pub fn label(&self) -> String {
        let wire = self.wire.as_ref().map(|wire| format!("/{wire}")).unwrap_or_default();
        let set = self.set.iter().fold(String::new(), |set, (name, value)| set + " " + name + "=" + value);
        format!("{}{wire}{set}", self.harness)
    }
}

/// What is wrong with a plan; all of it for the user to mend.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("no harness is named; give one or several, `gleaner harness list` shows them")]
    NoHarness,
    #[error("harness {0} is named twice; `samples` says how many rollouts of a task there are")]
    Twice(String),
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    #[error("there is no task {name}{near}")]
    NoTask { name: String, near: String },
    #[error("oracle runs a task's own solution, and task {0} has none; leave it out: --only (`only`) names the tasks to be run")]
    NoSolution(String),
}

fn one() -> u32 {
    1
}

impl Plan {
    /// Its orders: task by task, and of each task harness by harness.
    ///
    /// # Errors
    /// If a task, a harness or a choice is wrong.
    pub fn orders(&self, catalog: &Catalog) -> anyhow::Result<Vec<Order>> {
        self.check()?;
        let tasks = match &self.tasks {
            Tasks::Path(path) => Task::load(Path::new(path))?,
            Tasks::Inline(lines) => {
                let text = lines.iter().fold(String::new(), |text, line| text + &line.to_string() + "\n");
                Task::parse("tasks", &text)?
            }
        };
        for name in &self.only {
            if !tasks.iter().any(|task| task.id == *name) {
                let near = nearest(name, tasks.iter().map(|task| task.id.as_str()));
                let near = near.map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
                return Err(PlanError::NoTask { name: name.clone(), near }.into());
            }
        }
        let mut orders = Vec::new();
        for task in tasks.iter().filter(|task| self.only.is_empty() || self.only.contains(&task.id)) {
            for choice in &self.harnesses {
                orders.push(self.order(catalog, choice, task.clone())?);
            }
        }
        Ok(orders)
    }

    fn check(&self) -> Result<(), PlanError> {
        let mut labels = std::collections::BTreeSet::new();
        if let Some(twice) = self.harnesses.iter().map(HarnessChoice::label).find(|label| !labels.insert(label.clone())) {
            return Err(PlanError::Twice(twice));
        }
        if labels.is_empty() {
            return Err(PlanError::NoHarness);
        }
        let zero = [
            ("samples", self.samples == 0),
            ("concurrency", self.concurrency == Some(0)),
            ("attempts", self.attempts == Some(0)),
            ("timeout_s", self.timeout_s == Some(0)),
            ("max_calls", self.max_calls == Some(0)),
            ("max_tokens", self.max_tokens == Some(0)),
        ];
        zero.into_iter().find(|(_, zero)| *zero).map_or(Ok(()), |(name, _)| Err(PlanError::Zero(name)))
    }

    fn order(&self, catalog: &Catalog, choice: &HarnessChoice, task: Task) -> anyhow::Result<Order> {
        let harness = catalog.get(choice.name())?;
        if harness.baseline == Some(Baseline::Oracle) && task.solution.is_none() {
            return Err(PlanError::NoSolution(task.id).into());
        }
        let set: Vec<(String, String)> = choice.set.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let chosen = Choice { variant: choice.variant(), wire: choice.wire.as_deref(), set: &set };
        Ok(Order {
            harness: harness.clone(),
            spec: harness.spec.clone().with(&chosen)?,
            choice: choice.clone(),
            task,
            samples: self.samples,
            image: self.image.clone(),
            timeout: self.timeout_s.map(Duration::from_secs),
            max_calls: self.max_calls,
            max_tokens: self.max_tokens,
            policy: self.policy.clone(),
            purpose: self.purpose,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(json: &str) -> Result<Plan, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn orders(json: &str) -> Result<Vec<Order>, String> {
        plan(json)?.orders(&Catalog::load(None).unwrap()).map_err(|error| error.to_string())
    }

    const TASKS: &str = r#""tasks": [{"id": "a", "prompt": "p"}, {"id": "b", "prompt": "q"}]"#;

    #[test]
    fn orders_stand_task_by_task() {
        let json = format!(
            r#"{{{TASKS}, "harnesses": [{{"harness": "codex"}}, {{"harness": "mini-swe-agent:text", "set": {{"steps": "4"}}}}]}}"#
        );
        let orders = orders(&json).unwrap();
        let seen: Vec<_> = orders.iter().map(|order| (order.task.id.as_str(), order.choice.label(), order.samples)).collect();
        let (codex, mini) = ("codex".to_owned(), "mini-swe-agent:text steps=4".to_owned());
        assert_eq!(seen, [("a", codex.clone(), 1), ("a", mini.clone(), 1), ("b", codex, 1), ("b", mini, 1)]);
        let kept = plan(&json).unwrap();
        assert_eq!(serde_json::from_value::<Plan>(serde_json::to_value(&kept).unwrap()).unwrap(), kept);
    }

    #[test]
    fn only_some_tasks_are_run() {
        let some = |only: &str| orders(&format!(r#"{{{TASKS}, "harnesses": [{{"harness": "codex"}}], "only": {only}}}"#));
        assert_eq!(some(r#"["b"]"#).unwrap().iter().map(|order| order.task.id.clone()).collect::<Vec<_>>(), ["b"]);
        assert_eq!(some(r#"["bb"]"#).unwrap_err(), "there is no task bb (did you mean b?)");
    }

    #[test]
    fn faults_are_named() {
        let fault = |rest: &str| orders(&format!("{{{TASKS}, {rest}}}")).unwrap_err();
        assert!(fault(r#""harnesses": []"#).starts_with("no harness is named"));
        let twice = r#""harnesses": [{"harness": "codex"}, {"harness": "codex"}]"#;
        assert!(fault(twice).starts_with("harness codex is named twice"));
        for field in ["samples", "concurrency", "attempts", "timeout_s"] {
            let zero = format!(r#""harnesses": [{{"harness": "codex"}}], "{field}": 0"#);
            assert_eq!(fault(&zero), format!("{field} must be at least 1"));
        }
        assert!(fault(r#""harnesses": [{"harness": "oracle"}]"#).contains("task a has none"));
        assert!(fault(r#""harnesses": [], "smaples": 2"#).contains("unknown field `smaples`"));
    }
}
