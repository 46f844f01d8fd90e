//! What an engine without containers can't run, said before anything begins.

use super::spec::BuildPlace;
use super::task::{Place, TaskImage};
use super::{Order, PAYLOAD};
use crate::engine::{Engine, EngineError};

/// Whether the engine can run this order; `default` is the image of tasks that name none.
///
/// # Errors
/// Says what the order needs that the engine does not have.
pub fn fits(engine: &dyn Engine, order: &Order, default: &str) -> Result<(), EngineError> {
    match needs_container(order, default).filter(|_| !engine.isolates()) {
        None => Ok(()),
        Some(why) => Err(EngineError::Failed {
            doing: format!("run {} on task {} as a plain process", order.spec.name, order.task.id),
            why: format!("{why}; use Docker (--engine docker)"),
        }),
    }
}

fn needs_container(order: &Order, default: &str) -> Option<String> {
    let task = &order.task;
    let image = match (&order.image, &task.image) {
        (Some(image), _) | (None, TaskImage::Named(image)) => Some(image.as_str()),
        (None, TaskImage::Built(_)) => return Some("the task brings an image of its own".to_owned()),
        (None, TaskImage::Default) => None,
    };
    if let Some(image) = image.filter(|image| *image != default) {
        return Some(format!("it is to run in image {image}"));
    }
    if order.spec.payload.place == BuildPlace::Container {
        return Some(format!("the harness's payload runs at {PAYLOAD} only, where containers have it mounted"));
    }
    if let Some(folder) = &task.workdir {
        return Some(format!("the task wants the working folder {folder}"));
    }
    if let Some(user) = task.user {
        return Some(format!("the task wants to run as user {}:{}", user.uid, user.gid));
    }
    let verifier = task.verifier.as_ref()?;
    if verifier.place != Place::After || verifier.network || verifier.user.is_some() {
        return Some("the task's verifier wants a sandbox of its own".to_owned());
    }
    let path = verifier.files.keys().find(|path| path.starts_with('/'))?;
    Some(format!("the task's verifier wants the file {path}, which would be the host's"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::harness::task::{Task, TaskFile, User, Verifier};
    use crate::harness::{Catalog, Harness, HarnessChoice};

    fn order(harness: &str, task: Task) -> Order {
        let harness: Harness = Catalog::load(None).unwrap().get(harness).unwrap().clone();
        let spec = harness.spec.clone();
        let choice = HarnessChoice { harness: harness.spec.name.clone(), wire: None, set: BTreeMap::new() };
        Order {
            harness,
            spec,
            choice,
            task,
            samples: 1,
            image: None,
            timeout: None,
            max_calls: None,
            max_tokens: None,
            policy: None,
            purpose: None,
        }
    }

    fn why(task: Task) -> Option<String> {
        needs_container(&order("codex", task), "base")
    }

    fn verified(verifier: Verifier) -> Task {
        Task { verifier: Some(verifier), ..Task::of_prompt("p") }
    }

    #[test]
    fn what_needs_nothing_fits() {
        assert_eq!(why(Task::of_prompt("p")), None);
        assert_eq!(why(verified(Verifier::shell("true"))), None);
        assert_eq!(why(Task { image: TaskImage::Named("base".to_owned()), ..Task::of_prompt("p") }), None);
    }

    #[test]
    fn what_needs_a_container_says_why() {
        let file = TaskFile { content: Vec::new(), mode: 0o644 };
        let cases = [
            (Task { image: TaskImage::Named("other".to_owned()), ..Task::of_prompt("p") }, "it is to run in image other"),
            (Task { image: TaskImage::Built("x".into()), ..Task::of_prompt("p") }, "the task brings an image of its own"),
            (Task { workdir: Some("/app".to_owned()), ..Task::of_prompt("p") }, "the task wants the working folder /app"),
            (Task { user: Some(User { uid: 0, gid: 0 }), ..Task::of_prompt("p") }, "the task wants to run as user 0:0"),
            (
                verified(Verifier { place: Place::Patched, ..Verifier::shell("true") }),
                "the task's verifier wants a sandbox of its own",
            ),
            (verified(Verifier { network: true, ..Verifier::shell("true") }), "the task's verifier wants a sandbox of its own"),
            (
                verified(Verifier { files: BTreeMap::from([("/tests/x".to_owned(), file)]), ..Verifier::shell("true") }),
                "the task's verifier wants the file /tests/x, which would be the host's",
            ),
        ];
        for (task, expected) in cases {
            assert_eq!(why(task).as_deref(), Some(expected));
        }
        let payload = needs_container(&order("mini-swe-agent", Task::of_prompt("p")), "base").unwrap();
        assert_eq!(payload, "the harness's payload runs at /opt/harness only, where containers have it mounted");
    }
}
