//! Images that are made of containers: what a sandbox left, and images whose working folder is a user's.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use bollard::errors::Error;
use bollard::models::{ContainerConfig, ContainerCreateBody};
use bollard::query_parameters::{CommitContainerOptionsBuilder, CreateContainerOptions};
use futures::TryStreamExt;
use tokio::sync::OnceCell;

use super::patience::{LONG, SHORT, patiently, within};
use super::sweep::{LABEL, PROCESS_LABEL};
use super::{Docker, failed, image, sandbox};
use crate::engine::{Engine, EngineError, Network, Powers, SandboxId, SandboxSpec};

/// The image that one was made of, with a working folder that is a user's.
pub(super) const OF_LABEL: &str = "gleaner.of";

/// Keeps the files of a sandbox as an image that belongs to our process.
pub(super) async fn of_sandbox(engine: &Docker, sandbox: &SandboxId) -> Result<String, EngineError> {
    let doing = || format!("keep sandbox {} as an image", sandbox.0);
    let facts = patiently(|| engine.api.inspect_container(&sandbox.0, None)).await.map_err(failed(doing()))?;
    let origin = facts.image.unwrap_or_default();
    let origin = engine.image(&origin).await?.unwrap_or_default().env;
    let env = facts.config.and_then(|config| config.env).unwrap_or_default();
    let tag = sandbox.0.get(..32).unwrap_or(&sandbox.0);
    let labels = [(PROCESS_LABEL, engine.process_id.as_str())];
    commit(engine, &sandbox.0, ("gleaner-snapshot", tag), &labels, undo(&env, &origin)).await
}

/// The environment of an image that is made of a container, such that the container's own part is gone: its keys are in it.
/// A name without a value takes a variable away.
fn undo(env: &[String], origin: &[(String, String)]) -> Vec<String> {
    let origin: HashMap<&str, &str> = origin.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let changed = env.iter().filter_map(|pair| pair.split_once('=')).filter(|(name, value)| origin.get(name) != Some(value));
    changed.map(|(name, _)| origin.get(name).map_or_else(|| name.to_owned(), |value| format!("{name}={value}"))).collect()
}

/// Not paused meanwhile: the harness has ended. What a container has (labels, settings) its image has too, where it is not set here.
async fn commit(
    engine: &Docker,
    container: &str,
    (repo, tag): (&str, &str),
    labels: &[(&str, &str)],
    env: Vec<String>,
) -> Result<String, EngineError> {
    let options = CommitContainerOptionsBuilder::new().container(container).repo(repo).tag(tag).pause(false).build();
    let labels = [(LABEL, env!("CARGO_PKG_VERSION"))].iter().chain(labels);
    let config = ContainerConfig {
        labels: Some(labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()),
        env: Some(env),
        ..ContainerConfig::default()
    };
    let api = engine.api.clone().with_timeout(LONG);
    let doing = || format!("keep container {container} as image {repo}:{tag}");
    within(LONG, doing, api.commit_container(options, config)).await?;
    Ok(format!("{repo}:{tag}"))
}

/// Images whose working folder is a user's, made once for each image, folder and user, and kept: giving files to a user copies
/// them, which would else be done in every sandbox, by a command as root.
#[derive(Default)]
pub(super) struct Owned {
    made: Mutex<HashMap<String, Arc<OnceCell<String>>>>,
}

impl Owned {
    /// The image that a sandbox is of.
    pub(super) async fn image(&self, engine: &Docker, spec: &SandboxSpec) -> Result<String, EngineError> {
        let (uid, gid) = spec.user.split_once(':').unwrap_or((&spec.user, &spec.user));
        // Root owns what an image has, and the engine makes a folder that is missing for root.
        if !spec.own_workdir || uid == "0" {
            return Ok(spec.image.clone());
        }
        let id = if spec.image.starts_with("sha256:") {
            spec.image.clone()
        } else {
            engine.image(&spec.image).await?.ok_or_else(|| EngineError::NoImage(spec.image.clone()))?.id
        };
        let mut hasher = DefaultHasher::new();
        (&id, &spec.workdir, uid, gid).hash(&mut hasher);
        let name = format!("gleaner-sandbox:{:016x}", hasher.finish());
        let cell = self.made.lock().unwrap_or_else(PoisonError::into_inner).entry(name.clone()).or_default().clone();
        cell.get_or_try_init(|| async {
            if image::facts(&engine.api, &name).await?.is_none() {
                make(engine, spec, &id, &name).await?;
            }
            Ok(name.clone())
        })
        .await
        .cloned()
    }

    /// It was removed meanwhile.
    pub(super) fn forget(&self, name: &str) {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// A container as root with nothing but our helper in it, kept as an image.
async fn make(engine: &Docker, spec: &SandboxSpec, id: &str, name: &str) -> Result<(), EngineError> {
    let doing = || format!("give {} in image {} to user {}", spec.workdir, spec.image, spec.user);
    let (repo, tag) = name.split_once(':').unwrap_or((name, "latest"));
    let body = body(spec, id, &engine.process_id);
    let made = engine.api.create_container(None::<CreateContainerOptions>, body);
    let container = SandboxId(within(SHORT, doing, made).await?.id);
    let run = async {
        {
            let _permit = engine.starts.acquire().await.ok();
            within(SHORT, doing, engine.api.start_container(&container.0, None)).await?;
        }
        let code = within(LONG, doing, ended(&engine.api, &container.0)).await?;
        if code != 0 {
            let (_, stderr) = engine.logs(&container).await?;
            let why = String::from_utf8_lossy(&stderr).trim().to_owned();
            return Err(EngineError::Failed { doing: doing(), why: format!("exit code {code}: {why}") });
        }
        // No owner: it is kept.
        commit(engine, &container.0, (repo, tag), &[(OF_LABEL, id), (PROCESS_LABEL, "")], Vec::new()).await.map(drop)
    };
    let done = run.await;
    engine.remove(&container).await?;
    done
}

async fn ended(api: &bollard::Docker, container: &str) -> Result<i64, Error> {
    match api.wait_container(container, None).try_next().await {
        Ok(ended) => Ok(ended.map_or(-1, |ended| ended.status_code)),
        // That is how bollard tells of a code other than 0.
        Err(Error::DockerContainerWaitError { code, .. }) => Ok(code),
        Err(error) => Err(error),
    }
}

fn body(spec: &SandboxSpec, id: &str, process_id: &str) -> ContainerCreateBody {
    let helper = spec.command.first().cloned().unwrap_or_default();
    let (uid, gid) = spec.user.split_once(':').unwrap_or((&spec.user, &spec.user));
    let own = SandboxSpec {
        image: id.to_owned(),
        command: vec![helper.clone(), "own".to_owned(), uid.to_owned(), gid.to_owned(), spec.workdir.clone()],
        env: Vec::new(),
        workdir: "/".to_owned(),
        user: "0:0".to_owned(),
        mounts: spec.mounts.iter().filter(|mount| mount.inside == helper).cloned().collect(),
        tmpfs: Vec::new(),
        network: Network::None,
        powers: Powers::None,
        labels: Vec::new(),
        ..spec.clone()
    };
    let mut body = sandbox::body(&own, process_id);
    // The image's own folder must stay what the kept image names.
    body.working_dir = None;
    if let Some(host) = &mut body.host_config {
        host.cap_add = Some(["CHOWN", "DAC_OVERRIDE", "FOWNER"].map(str::to_owned).into());
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_container_adds_to_the_environment_is_taken_away() {
        let origin = [("PATH", "/bin"), ("LANG", "C")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let env = ["PATH=/bin", "LANG=de", "KEY=glr_x=y", "HOME=/home/agent"].map(str::to_owned);
        assert_eq!(undo(&env, &origin), ["LANG=C", "KEY", "HOME"]);
    }
}
