//! Scripted policies for runs: each harness gets one that knows its shell.

use super::assemble;
use crate::config::Config;
use crate::harness::Order;
use crate::policy::PolicyConfig;

/// Where the policy that would answer an order is scripted, gives the order one of its own in its place, by its harness's `[check]`.
pub(super) fn assign(config: &mut Config, orders: &mut [Order]) {
    for order in orders {
        let Some((name, policy)) = assemble::answering(config, order.policy.as_deref()) else { continue };
        if !policy.is_scripted() || policy.script.is_some() {
            continue;
        }
        let variant = order.variant.as_ref().map(|variant| format!(":{variant}")).unwrap_or_default();
        let name = format!("{name}-{}{variant}-{}", order.spec.name, order.spec.wire);
        let policy = PolicyConfig { script: Some(order.spec.script(None)), ..policy.clone() };
        config.policies.insert(name.clone(), policy);
        order.policy = Some(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Catalog, HarnessChoice, Plan, Tasks};

    #[test]
    fn each_harness_gets_its_own_script_and_a_server_none() {
        let choice = |harness: &str| HarnessChoice { harness: harness.to_owned(), wire: None, set: <_>::default() };
        let plan = Plan {
            tasks: Tasks::Inline(vec![
                serde_json::json!({"id": "t", "prompt": "p"}),
                serde_json::json!({"id": "u", "prompt": "p"}),
            ]),
            harnesses: vec![choice("codex"), choice("mini-swe-agent:text")],
            samples: 1,
            concurrency: None,
            attempts: None,
            image: None,
            timeout_s: None,
            policy: None,
            purpose: None,
            only: Vec::new(),
        };
        let mut orders = plan.orders(&Catalog::load(None).unwrap()).unwrap();
        let mut server = Config::default();
        server.set_policy_url("http://127.0.0.1:1".to_owned());
        assign(&mut server, &mut orders);
        assert_eq!((server.policies.len(), &orders[0].policy), (1, &None));
        let mut config = Config::default();
        config.set_policy_url("scripted:7".to_owned());
        assign(&mut config, &mut orders);
        let own = ["default-codex-responses", "default-mini-swe-agent:text-chat"];
        let named: Vec<&str> = orders.iter().filter_map(|order| order.policy.as_deref()).collect();
        assert_eq!(named, [own[0], own[1], own[0], own[1]]);
        assert_eq!(config.policies.len(), 3);
        let text = &config.policies[own[1]];
        assert!(text.script.as_ref().unwrap().fenced.is_some() && text.url == "scripted:7", "{text:?}");
    }
}
