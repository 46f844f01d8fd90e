//! What a sandbox is in Docker's words, and how one ended.

use std::collections::HashMap;

use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerStateStatusEnum, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
};
use bollard::query_parameters::CreateContainerOptionsBuilder;

use tokio::time::timeout;

use super::patience::{SHORT, patiently};
use super::sweep::{LABEL, PROCESS_LABEL};
use super::{Docker, disk, failed};
use crate::engine::{Engine, EngineError, Network, Powers, SandboxEnd, SandboxId, SandboxSpec};

pub(super) async fn create(engine: &Docker, image: &str, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
    let bound = engine.disk.bound(&engine.api, spec.limits.disk_bytes).await;
    let created = ask(engine, image, spec, bound).await;
    let created = match (&created, bound) {
        (Err(Error::DockerResponseServerError { message, .. }), Some(bytes)) if disk::is_refusal(message) => {
            engine.disk.cannot(bytes, message);
            ask(engine, image, spec, None).await
        }
        _ => created,
    };
    match created {
        Ok(id) => Ok(SandboxId(id)),
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => Err(EngineError::NoImage(spec.image.clone())),
        Err(error) => {
            // An engine that refused made none. One that did not answer may have: by its name it can be found.
            if !matches!(error, Error::DockerResponseServerError { .. }) {
                let removed = engine.remove(&SandboxId(spec.name.clone())).await;
                removed.unwrap_or_else(|error| tracing::debug!(%error, "could not remove what may not be there"));
            }
            Err(failed(format!("create sandbox {} of image {}", spec.name, spec.image))(error))
        }
    }
}

async fn ask(engine: &Docker, image: &str, spec: &SandboxSpec, disk: Option<u64>) -> Result<String, Error> {
    let options = CreateContainerOptionsBuilder::new().name(&spec.name).build();
    let mut body = body(spec, &engine.process_id);
    body.image = Some(image.to_owned());
    if let (Some(host), Some(size)) = (&mut body.host_config, disk) {
        host.storage_opt = Some(HashMap::from([("size".to_owned(), size.to_string())]));
    }
    let created = timeout(SHORT, engine.api.create_container(Some(options), body)).await;
    Ok(created.unwrap_or(Err(Error::RequestTimeoutError))?.id)
}

pub(super) fn body(spec: &SandboxSpec, process_id: &str) -> ContainerCreateBody {
    let own = [(LABEL.to_owned(), env!("CARGO_PKG_VERSION").to_owned()), (PROCESS_LABEL.to_owned(), process_id.to_owned())];
    ContainerCreateBody {
        hostname: Some("sandbox".to_owned()),
        user: Some(spec.user.clone()),
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        // The image's own entry point, command and health check say nothing here.
        entrypoint: Some(spec.command.clone()),
        cmd: Some(Vec::new()),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        image: Some(spec.image.clone()),
        working_dir: Some(spec.workdir.clone()),
        labels: Some(spec.labels.iter().cloned().chain(own).collect()),
        host_config: Some(host_config(spec)),
        ..ContainerCreateBody::default()
    }
}

/// No rlimits and no `oom_score_adj`: engines without `CAP_SYS_RESOURCE` refuse to start such containers.
fn host_config(spec: &SandboxSpec) -> HostConfig {
    let memory = i64::try_from(spec.limits.memory_bytes).unwrap_or(i64::MAX);
    let mounts = spec.mounts.iter().map(|mount| Mount {
        target: Some(mount.inside.clone()),
        source: Some(mount.host.display().to_string()),
        typ: Some(MountType::BIND),
        read_only: Some(mount.read_only),
        ..Mount::default()
    });
    #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest integer in range")]
    let nano_cpus = (spec.limits.cpus * 1e9) as i64;
    HostConfig {
        network_mode: Some(
            match spec.network {
                Network::None => "none",
                Network::Outside => "bridge",
            }
            .to_owned(),
        ),
        cap_drop: (spec.powers == Powers::None).then(|| vec!["ALL".to_owned()]),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        memory: Some(memory),
        memory_swap: Some(memory),
        pids_limit: Some(i64::from(spec.limits.pids)),
        nano_cpus: Some(nano_cpus),
        mounts: Some(mounts.collect()),
        tmpfs: Some(spec.tmpfs.iter().cloned().collect::<HashMap<_, _>>()),
        // Written to files: a harness that prints without end is not stopped by a full pipe. Of two files the older is dropped, so
        // that at least the last 16 MB are there.
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".to_owned()),
            config: Some([("max-size", "16m"), ("max-file", "2")].map(|(key, value)| (key.into(), value.into())).into()),
        }),
        init: Some(false),
        // Removed by us: Docker's own removal takes the exit state with it.
        auto_remove: Some(false),
        ..HostConfig::default()
    }
}

pub(super) async fn ended(api: &bollard::Docker, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
    let facts =
        patiently(|| api.inspect_container(&sandbox.0, None)).await.map_err(failed(format!("look at sandbox {}", sandbox.0)))?;
    let Some(state) = facts.state else { return Ok(None) };
    Ok(match state.status {
        Some(ContainerStateStatusEnum::EXITED | ContainerStateStatusEnum::DEAD) => {
            Some(SandboxEnd { exit_code: state.exit_code.unwrap_or(-1), out_of_memory: state.oom_killed.unwrap_or(false) })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::engine::{Limits, Mount as SpecMount, Network, Powers};

    #[test]
    fn a_sandbox_has_nothing_it_does_not_need() {
        let spec = SandboxSpec {
            name: "gleaner-x".into(),
            image: "i".into(),
            command: vec!["/init".into(), "run".into()],
            env: vec![("A".into(), "b=c".into())],
            workdir: "/work".into(),
            own_workdir: true,
            user: "1000:1000".into(),
            mounts: vec![SpecMount { host: PathBuf::from("/a:b"), inside: "/opt/a".into(), read_only: true }],
            tmpfs: vec![("/tmp".into(), "exec,mode=1777".into())],
            limits: Limits { cpus: 1.5, memory_bytes: 1 << 30, pids: 100, disk_bytes: None },
            network: Network::None,
            powers: Powers::None,
            labels: vec![("gleaner.rollout".into(), "r".into())],
        };
        let json = serde_json::to_value(body(&spec, "p")).unwrap();
        let expected = serde_json::json!({
            "Hostname": "sandbox",
            "User": "1000:1000",
            "Env": ["A=b=c"],
            "Cmd": [],
            "Healthcheck": {"Test": ["NONE"]},
            "Image": "i",
            "WorkingDir": "/work",
            "Entrypoint": ["/init", "run"],
            "Labels": {"gleaner": env!("CARGO_PKG_VERSION"), "gleaner.process": "p", "gleaner.rollout": "r"},
            "HostConfig": {
                "Memory": 1 << 30, "MemorySwap": 1 << 30, "NanoCpus": 1_500_000_000, "PidsLimit": 100,
                "Init": false, "AutoRemove": false, "NetworkMode": "none",
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "16m", "max-file": "2"}},
                "Mounts": [{"Target": "/opt/a", "Source": "/a:b", "Type": "bind", "ReadOnly": true}],
                "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "Tmpfs": {"/tmp": "exec,mode=1777"},
            },
        });
        assert_eq!(json, expected);
    }
}
