//! What a batch is: tasks x harnesses x samples, as its user ordered it and as it is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Catalog, Choice, Order, Task};
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
#[serde(untagged)]
pub enum Tasks {
    /// A file or folder of the machine that runs the batch.
    Path(String),
    /// Objects as JSON Lines have them.
    Inline(Vec<Value>),
}

/// A harness and the way to run it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

fn one() -> u32 {
    1
}

impl Plan {
    /// Its orders: the tasks of each harness, task by task.
    ///
    /// # Errors
    /// If a task, a harness or a choice is wrong.
    pub fn orders(&self, catalog: &Catalog) -> anyhow::Result<Vec<Order>> {
        let tasks = match &self.tasks {
            Tasks::Path(path) => Task::load(Path::new(path))?,
            Tasks::Inline(lines) => {
                let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
                Task::parse("tasks", &text)?
            }
        };
        let mut orders = Vec::new();
        for task in tasks.iter().filter(|task| self.only.is_empty() || self.only.contains(&task.id)) {
            for choice in &self.harnesses {
                orders.push(self.order(catalog, choice, task.clone())?);
            }
        }
        Ok(orders)
    }

    fn order(&self, catalog: &Catalog, choice: &HarnessChoice, task: Task) -> anyhow::Result<Order> {
        let (name, variant) =
            choice.harness.split_once(':').map_or((&*choice.harness, None), |(name, variant)| (name, Some(variant)));
        let harness = catalog.get(name)?;
        let set: Vec<(String, String)> = choice.set.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let spec = harness.spec.clone().with(&Choice { variant, wire: choice.wire.as_deref(), set: &set })?;
        Ok(Order {
            harness: harness.clone(),
            spec,
            variant: variant.map(str::to_owned),
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
