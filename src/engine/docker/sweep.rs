//! Finds the sandboxes and images that dead processes of ours left behind.

use std::collections::{HashMap, HashSet};

use bollard::models::ImageSummary;
use bollard::query_parameters::{ListContainersOptionsBuilder, ListImagesOptionsBuilder};

use super::failed;
use super::patience::patiently;
use super::snapshot::OF_LABEL;
use crate::engine::{EngineError, SandboxId};

/// Every sandbox has it; its value is Gleaner's version.
pub(super) const LABEL: &str = "gleaner";
/// The Gleaner process that made it; empty for what is to stay.
pub(super) const PROCESS_LABEL: &str = "gleaner.process";

pub(super) async fn sandboxes(
    api: &bollard::Docker,
    own: &str,
    is_alive: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Vec<SandboxId>, EngineError> {
    let filters = HashMap::from([("label", vec![LABEL])]);
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    let found = patiently(|| api.list_containers(Some(options.clone()))).await.map_err(failed("list sandboxes".to_owned()))?;
    Ok(found
        .into_iter()
        .filter(|one| is_left(one.labels.as_ref(), own, is_alive))
        .filter_map(|one| one.id)
        .map(SandboxId)
        .collect())
}

/// Images of dead processes, and those with a working folder that is a user's whose own image is gone.
pub(super) async fn images(
    api: &bollard::Docker,
    own: &str,
    is_alive: &(dyn Fn(&str) -> bool + Send + Sync),
) -> Result<Vec<String>, EngineError> {
    let options = ListImagesOptionsBuilder::new().build();
    let found = patiently(|| api.list_images(Some(options.clone()))).await.map_err(failed("list images".to_owned()))?;
    // By whatever name: an image that others are made of has none when it was built anew.
    let named: HashSet<&str> = found.iter().filter(|one| is_named(&one.repo_tags)).map(|one| one.id.as_str()).collect();
    // Two processes may have made the same one: the later has the name.
    let is_orphan = |one: &ImageSummary| {
        one.labels.get(OF_LABEL).is_some_and(|of| !named.contains(of.as_str()) || !named.contains(one.id.as_str()))
    };
    let left = found.iter().filter(|one| is_left(Some(&one.labels), own, is_alive) || is_orphan(one));
    Ok(left.map(|one| one.id.clone()).collect())
}

fn is_named(tags: &[String]) -> bool {
    tags.iter().any(|tag| !tag.starts_with("<none>"))
}

/// A container with our label but no process may be someone's own (a payload being built): it is left alone.
fn is_left(labels: Option<&HashMap<String, String>>, own: &str, is_alive: &(dyn Fn(&str) -> bool + Send + Sync)) -> bool {
    labels
        .and_then(|labels| labels.get(PROCESS_LABEL))
        .is_some_and(|process| !process.is_empty() && process != own && !is_alive(process))
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
        assert!(!left(Some(&labels(""))), "what is to stay");
        assert!(!left(Some(&HashMap::new())));
        assert!(!left(None));
    }
}
