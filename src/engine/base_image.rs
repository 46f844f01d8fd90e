//! The default base image: of tasks that name no image of their own.

use std::process::Stdio;

use tokio::process::Command;

use crate::ids::ProcessId;

use super::{Docker, Engine, EngineError, ImageFacts};

/// Its name. It is made on this machine, never pulled: nobody publishes it, so what a registry gave under this name would
/// be a stranger's.
pub const DEFAULT: &str = "gleaner-base:bookworm";

/// Makes its root file system; also a command for people.
const SCRIPT: &str = include_str!("../../docker/base-image");

/// The distribution's certificates and the machine's own, for the clients that do not look there by themselves.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
const ENV: [(&str, &str); 4] = [
    ("SSL_CERT_FILE", CERTIFICATES),
    ("REQUESTS_CA_BUNDLE", CERTIFICATES),
    ("PIP_CERT", CERTIFICATES),
    ("NODE_EXTRA_CA_CERTS", CERTIFICATES),
];

/// The image `name`, made (if it is [`DEFAULT`]) or pulled (if it is another) when the engine does not have it. Progress
/// goes to standard error; making it takes about half a minute.
///
/// # Errors
/// Says what failed: the script, the pull, or the import.
pub async fn ensure(engine: &Docker, name: &str) -> Result<ImageFacts, EngineError> {
    if let Some(facts) = engine.image(name).await? {
        return Ok(facts);
    }
    if name == DEFAULT {
        make(engine).await?;
    } else {
        tracing::info!(image = name, "pulling the image");
        engine.pull(name).await?;
    }
    engine.image(name).await?.ok_or_else(|| EngineError::NoImage(name.to_owned()))
}

async fn make(engine: &Docker) -> Result<(), EngineError> {
    let failed = |why: String| EngineError::Failed { doing: format!("make the base image {DEFAULT}"), why };
    tracing::info!(image = DEFAULT, "making the base image, once");
    let tar = Scratch(std::env::temp_dir().join(format!("gleaner-base-{}.tar", ProcessId::generate())));
    let status = Command::new("sh")
        .args(["-c", SCRIPT, "base-image", "--tar"])
        .arg(&tar.0)
        .stdin(Stdio::null())
        // Standard output is for results.
        .stdout(std::io::stderr())
        .kill_on_drop(true)
        .status()
        .await
        .map_err(|error| failed(format!("run sh: {error}")))?;
    if !status.success() {
        return Err(failed(format!("docker/base-image ended with {status}; its messages stand above")));
    }
    engine.import(DEFAULT, &tar.0, &ENV).await
}

/// A file that is removed when it is no longer needed, whatever happened.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
