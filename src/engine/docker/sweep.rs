//! Finds the sandboxes that dead processes of ours left behind.

use std::collections::HashMap;

use bollard::query_parameters::ListContainersOptionsBuilder;

use super::failed;
use crate::engine::{EngineError, SandboxId};

/// Every sandbox has it; its value is Gleaner's version.
pub(super) const LABEL: &str = "gleaner";
/// The Gleaner process that made it.
pub(super) const PROCESS_LABEL: &str = "gleaner.process";

pub(super) async fn leftovers(
    api: &bollard::Docker,
    own: &str,
    is_alive: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Vec<SandboxId>, EngineError> {
    let filters = HashMap::from([("label", vec![LABEL])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let found = api.list_containers(Some(options)).await.map_err(failed("list sandboxes".to_owned()))?;
    Ok(found
        .into_iter()
        .filter(|one| is_left(one.labels.as_ref(), own, is_alive))
        .filter_map(|one| one.id)
        .map(SandboxId)
        .collect())
}

/// A container with our label but no process may be someone's own (a payload being built): it is left alone.
fn is_left(labels: Option<&HashMap<String, String>>, own: &str, is_alive: &(dyn Fn(&str) -> bool + Send + Sync)) -> bool {
    labels.and_then(|labels| labels.get(PROCESS_LABEL)).is_some_and(|process| process != own && !is_alive(process))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_dead_process_made_is_left() {
        let labels = |process: &str| HashMap::from([(PROCESS_LABEL.to_owned(), process.to_owned())]);
        let is_alive = |process: &str| process == "living";
        let left = |labels: Option<&HashMap<String, String>>| is_left(labels, "own", &is_alive);
        assert!(left(Some(&labels("dead"))));
        assert!(!left(Some(&labels("living"))));
        assert!(!left(Some(&labels("own"))));
        assert!(!left(Some(&HashMap::new())));
        assert!(!left(None));
    }
}
