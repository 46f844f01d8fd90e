//! Whether the policies answer that are about to be called: who waits for a rollout shall know at once that it waits for a server
//! that is not there.

use std::collections::BTreeSet;
use std::future::Future;

use super::assemble;
use crate::config::Config;
use crate::harness::Order;
use crate::policy::Policy;
use crate::proxy::Policies;

/// The orders whose harnesses call a model.
pub(super) fn calling(orders: &[Order]) -> impl Iterator<Item = &Order> {
    orders.iter().filter(|order| order.harness.baseline.is_none())
}

/// Asks the policies of these orders once, all at the same time, and says of each that does not answer why.
pub(super) async fn look(config: &Config, policies: &Policies, orders: &[Order], say: &(dyn Fn(&str) + Sync)) {
    let names: BTreeSet<&str> =
        calling(orders).filter_map(|order| assemble::answering(config, order.policy.as_deref())).collect();
    let asked = names.into_iter().filter_map(|name| policies.get(name)).map(|policy| async move {
        if let Some(complaint) = complaint(policy.as_ref(), retry_s(config, policy.as_ref())).await {
            say(&complaint);
        }
    });
    futures::future::join_all(asked).await;
}

/// For how many seconds calls to a policy are retried.
pub(super) fn retry_s(config: &Config, policy: &dyn Policy) -> u64 {
    config.policies.get(policy.name()).map_or(0, |settings| settings.retry_s)
}

/// What there is to say of a policy that does not answer; its calls are retried for `retry_s` seconds.
pub(super) async fn complaint(policy: &dyn Policy, retry_s: u64) -> Option<String> {
    let failure = policy.ready().await.err()?;
    let help = "start the model server, or mend its address (--policy, [policies])";
    Some(format!("{failure}; {help}. Each call is retried for {retry_s} s"))
}

/// Waits for `main`, with `side` beside it for as long as both take.
pub(super) async fn beside<T>(side: impl Future<Output = ()>, main: impl Future<Output = T>) -> T {
    tokio::pin!(side, main);
    tokio::select! {
        ended = &mut main => return ended,
        () = &mut side => {}
    }
    main.await
}
