//! Runs our helper with root's powers over a sandbox's files, where the engine can't give them to a command in the sandbox.
//!
//! Docker's privileged exec asks for every capability there is, and fails on machines where the engine itself lacks one
//! (seen without `CAP_SYS_RESOURCE`). A container beside the sandbox, which shares only its process ids, reaches the
//! sandbox's files through `/proc/1/root` with five capabilities; the sandbox itself never has any.

use bollard::container::AttachContainerResults;
use bollard::models::{ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, CreateContainerOptions, RemoveContainerOptionsBuilder, StartContainerOptions,
};
use futures::TryStreamExt;
use tokio::time::timeout;

use super::exec::converse;
use super::failed;
use crate::engine::output::Output;
use crate::engine::{EngineError, ExecResult, ExecSpec, SandboxId};

/// Give files away, write and remove any of them, and go to where they are.
const CAPABILITIES: [&str; 5] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SYS_CHROOT", "SYS_PTRACE"];

/// Runs `spec.command`, which must be the helper, mounted in the sandbox.
pub(super) async fn run(api: &bollard::Docker, sandbox: &SandboxId, spec: &ExecSpec) -> Result<ExecResult, EngineError> {
    let doing = || format!("run the helper beside sandbox {}", sandbox.0);
    let facts = api.inspect_container(&sandbox.0, None).await.map_err(failed(doing()))?;
    let config = facts.config.unwrap_or_default();
    let helper = spec.command.first().cloned().unwrap_or_default();
    let mounts = facts.host_config.and_then(|host| host.mounts).unwrap_or_default();
    let body = ContainerCreateBody {
        user: Some("0:0".to_owned()),
        entrypoint: Some([&helper, "inside"].into_iter().map(str::to_owned).chain(spec.command.iter().cloned()).collect()),
        cmd: Some(Vec::new()),
        image: config.image,
        labels: config.labels,
        open_stdin: Some(true),
        stdin_once: Some(true),
        attach_stdin: Some(true),
        host_config: Some(host_config(
            sandbox,
            mounts.into_iter().filter(|mount| mount.target.as_ref() == Some(&helper)).collect(),
        )),
        ..ContainerCreateBody::default()
    };
    let id = api.create_container(None::<CreateContainerOptions>, body).await.map_err(failed(doing()))?.id;
    let mut output = Output::new(spec.output_limit);
    let ended = timeout(spec.timeout, carry(api, &id, spec, &mut output)).await;
    let remove = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
    api.remove_container(&id, Some(remove)).await.map_err(failed(doing()))?;
    let (exit_code, timed_out) = match ended {
        Ok(code) => (code.map_err(failed(doing()))?, false),
        Err(_) => (-1, true),
    };
    let (stdout, stderr) = output.finish();
    Ok(ExecResult { exit_code, stdout, stderr, timed_out })
}

async fn carry(api: &bollard::Docker, id: &str, spec: &ExecSpec, output: &mut Output) -> Result<i64, bollard::errors::Error> {
    let options = AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
    let AttachContainerResults { output: mut lines, mut input } = api.attach_container(id, Some(options)).await?;
    api.start_container(id, None::<StartContainerOptions>).await?;
    converse(&mut lines, &mut input, &spec.stdin, output).await?;
    match api.wait_container(id, None).try_next().await {
        Ok(ended) => Ok(ended.map_or(-1, |ended| ended.status_code)),
        // That is how bollard tells of a code other than 0.
        Err(bollard::errors::Error::DockerContainerWaitError { code, .. }) => Ok(code),
        Err(error) => Err(error),
    }
}

fn host_config(sandbox: &SandboxId, mounts: Vec<Mount>) -> HostConfig {
    HostConfig {
        network_mode: Some("none".to_owned()),
        pid_mode: Some(format!("container:{}", sandbox.0)),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(CAPABILITIES.map(str::to_owned).into()),
        security_opt: Some(vec!["no-new-privileges".to_owned()]),
        readonly_rootfs: Some(true),
        memory: Some(64 << 20),
        memory_swap: Some(64 << 20),
        pids_limit: Some(16),
        mounts: Some(mounts),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        init: Some(false),
        ..HostConfig::default()
    }
}
