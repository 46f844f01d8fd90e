//! Which policy a call goes to.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::policy::Policy;

/// Sends calls that ask for a model of this name to a policy (`[[routes]]`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The model's name; `*` stands for any run of characters.
    pub model: String,
    /// The policy's name.
    pub policy: String,
}

/// The policies by name, the routes to them, and which of them are trained.
pub struct Policies {
    by_name: BTreeMap<String, (Arc<dyn Policy>, bool)>,
    routes: Vec<Route>,
    default: Arc<dyn Policy>,
}

impl Policies {
    /// The policy that calls go to when nothing says otherwise.
    pub const DEFAULT: &str = "default";

    /// Takes policies with whether each is trained. Without one named `default`, the first by name is it; `None` if there are none.
    #[must_use]
    pub fn new(policies: Vec<(Arc<dyn Policy>, bool)>, routes: Vec<Route>) -> Option<Self> {
        let by_name: BTreeMap<_, _> =
            policies.into_iter().map(|(policy, train)| (policy.name().to_owned(), (policy, train))).collect();
        let (default, _) = by_name.get(Self::DEFAULT).or_else(|| by_name.values().next())?;
        Some(Self { default: Arc::clone(default), by_name, routes })
    }

    /// The policy of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Policy>> {
        self.by_name.get(name).map(|(policy, _)| policy)
    }

    /// All policies, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Policy>> {
        self.by_name.values().map(|(policy, _)| policy)
    }

    /// Whether the policy of this name is trained; one that is gone from the config is taken as trained, as it was by default.
    #[must_use]
    pub fn trained(&self, name: &str) -> bool {
        self.by_name.get(name).is_none_or(|(_, train)| *train)
    }

    /// The policy for a call: its model's route, else its rollout's policy, else the default.
    #[must_use]
    pub fn choose(&self, rollout: Option<&str>, model: &str) -> Arc<dyn Policy> {
        let routed = self.routes.iter().find(|route| glob(&route.model, model)).and_then(|route| self.get(&route.policy));
        let policy = routed.or_else(|| rollout.and_then(|name| self.get(name))).unwrap_or(&self.default);
        Arc::clone(policy)
    }
}

fn glob(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name
            .strip_prefix(start)
            .is_some_and(|tail| (0..=tail.len()).filter(|at| tail.is_char_boundary(*at)).any(|at| glob(rest, &tail[at..]))),
    }
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn a_star_stands_for_any_run() {
        for (pattern, name, fits) in [
            ("gpt-*", "gpt-5", true),
            ("gpt-*", "my/gpt-5", false),
            ("*judge*", "a-judge-b", true),
            ("x", "x", true),
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "abc", false),
        ] {
            assert_eq!(glob(pattern, name), fits, "{pattern} against {name}");
        }
    }
}
