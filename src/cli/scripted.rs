//! Scripted policies for runs: where the policy that would answer is one, each harness gets one that knows its shell.

use std::path::Path;

use super::assemble;
use crate::config::Config;
use crate::harness::spec::Spec;
use crate::harness::{Catalog, Choice, Order};
use crate::policy::PolicyConfig;

/// Adds to each scripted policy of the config one for each harness, in each of its ways, that replies by its `[check]`.
///
/// # Errors
/// If the harnesses in the folder `harnesses` can't be read.
pub(super) fn add(config: &mut Config, harnesses: Option<&Path>) -> anyhow::Result<()> {
    let scripted: Vec<(String, PolicyConfig)> = config
        .policies
        .iter()
        .filter(|(_, policy)| policy.is_scripted())
        .map(|(name, policy)| (name.clone(), policy.clone()))
        .collect();
    if scripted.is_empty() {
        return Ok(());
    }
    for (spec, variant) in ways(&Catalog::load(harnesses)?) {
        for (name, policy) in &scripted {
            let own = PolicyConfig { script: Some(spec.script(None)), ..policy.clone() };
            config.policies.insert(own_name(name, &spec, variant.as_deref()), own);
        }
    }
    Ok(())
}

/// Gives each order the policy that was added for its harness, if there is one.
pub(super) fn assign(config: &Config, orders: &mut [Order]) {
    for order in orders {
        let Some(name) = assemble::answering(config, order.policy.as_deref()) else { continue };
        let own = own_name(name, &order.spec, order.choice.variant());
        if config.policies.contains_key(&own) {
            order.policy = Some(own);
        }
    }
}

fn own_name(policy: &str, spec: &Spec, variant: Option<&str>) -> String {
    let variant = variant.map(|variant| format!(":{variant}")).unwrap_or_default();
    format!("{policy}/{}{variant}/{}", spec.name, spec.wire)
}

/// Every harness, with each of its wires and variants.
fn ways(catalog: &Catalog) -> Vec<(Spec, Option<String>)> {
    let mut ways = Vec::new();
    for harness in catalog.all() {
        let variants = harness.spec.variants.keys().map(|name| Some(name.as_str()));
        for variant in variants.chain([None]) {
            let with = |wire| harness.spec.clone().with(&Choice { variant, wire, set: &[] });
            // A variant is not on every wire.
            let spoken = harness.spec.wires().filter_map(|wire| with(Some(wire)).ok());
            ways.extend(spoken.map(|spec| (spec, variant.map(str::to_owned))));
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{HarnessChoice, Plan, Tasks};

    fn orders() -> Vec<Order> {
        let choice = |harness: &str| HarnessChoice { harness: harness.to_owned(), wire: None, set: <_>::default() };
        let plan = Plan {
            tasks: Tasks::Inline(vec![serde_json::json!({"id": "t", "prompt": "p"})]),
            harnesses: vec![choice("codex"), choice("mini-swe-agent:text")],
            samples: 1,
            concurrency: None,
            attempts: None,
            image: None,
            timeout_s: None,
            max_calls: None,
            max_tokens: None,
            policy: None,
            purpose: None,
            only: Vec::new(),
        };
        plan.orders(&Catalog::load(None).unwrap()).unwrap()
    }

    /// The policies of both orders, and the config.
    fn assigned(url: &str) -> (Vec<Option<String>>, Config) {
        let (mut config, mut orders) = (Config::default(), orders());
        config.set_policy_url(url.to_owned());
        add(&mut config, None).unwrap();
        assign(&config, &mut orders);
        (orders.into_iter().map(|order| order.policy).collect(), config)
    }

    #[test]
    fn each_harness_gets_its_own_script() {
        let (policies, config) = assigned("scripted:7");
        let own = ["default/codex/responses", "default/mini-swe-agent:text/chat"];
        assert_eq!(policies, own.map(|name| Some(name.to_owned())));
        let text = &config.policies[own[1]];
        assert!(text.script.as_ref().unwrap().fenced.is_some() && text.url == "scripted:7", "{text:?}");
    }

    #[test]
    fn a_server_speaks_for_itself() {
        let (policies, config) = assigned("http://127.0.0.1:1");
        assert_eq!((policies, config.policies.len()), (vec![None, None], 1));
    }
}
