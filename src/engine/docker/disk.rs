//! Bounds what sandboxes write to the disk: by the engine's own quota where its storage has one, else it can be looked at.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::query_parameters::InspectContainerOptionsBuilder;
use tokio::sync::OnceCell;

use super::failed;
use super::patience::patiently;
use crate::engine::{EngineConfig, EngineError, SandboxId};

/// What is known of the engine's quotas.
#[derive(Default)]
pub(super) struct Disk {
    /// Why its storage can't have quotas; `None` if it may.
    lacks: OnceCell<Option<String>>,
    /// It was tried, and refused so.
    refused: OnceLock<String>,
    /// Somebody who asked for a bound was told that the engine keeps none.
    told: AtomicBool,
}

impl Disk {
    /// What a new container is to be bounded to, of the `bytes` that are asked for; `None` if there is nothing to bound or no way to.
    pub(super) async fn bound(&self, api: &bollard::Docker, bytes: Option<u64>) -> Option<u64> {
        let bytes = bytes?;
        let look = || async {
            let info = patiently(|| api.info()).await?;
            Ok::<_, Error>((!has_quotas(&info)).then(|| described(&info)))
        };
        // An engine that does not answer is asked again the next time.
        self.lacks.get_or_try_init(look).await.ok()?;
        match self.why_not() {
            None => Some(bytes),
            Some(why) => {
                self.tell(bytes, why);
                None
            }
        }
    }

    /// Why the engine can't bound a container, as far as it was looked at.
    fn why_not(&self) -> Option<&str> {
        self.lacks.get().and_then(Option::as_ref).or(self.refused.get()).map(String::as_str)
    }

    /// The engine refused to bound a container to `bytes`.
    pub(super) fn cannot(&self, bytes: u64, why: &str) {
        self.tell(bytes, self.refused.get_or_init(|| why.to_owned()));
    }

    /// Says once that a bound is not the engine's to keep, if somebody asked for it.
    fn tell(&self, bytes: u64, why: &str) {
        if self.is_news(bytes) {
            tracing::warn!(
                why,
                "this engine does not bound what a sandbox writes to the disk; it is looked at from time to time, and a sandbox past its bound is ended"
            );
        }
    }

    /// Whether nobody was told, and the bound is one that a task or the config names: of the default `gleaner doctor` tells.
    fn is_news(&self, bytes: u64) -> bool {
        bytes != EngineConfig::default().disk && !self.told.swap(true, Relaxed)
    }

    /// Bytes of a sandbox's own files; `None` where the engine bounds them.
    pub(super) async fn used(&self, api: &bollard::Docker, sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        if self.lacks.initialized() && self.why_not().is_none() {
            return Ok(None);
        }
        let options = InspectContainerOptionsBuilder::new().size(true).build();
        let facts = patiently(|| api.inspect_container(&sandbox.0, Some(options.clone()))).await;
        let size = facts.map_err(failed(format!("look at the size of sandbox {}", sandbox.0)))?.size_rw;
        Ok(size.and_then(|size| u64::try_from(size).ok()))
    }
}

/// Drivers with quotas of their own, and overlay2 on xfs, which has them if it is mounted so: that shows when it is tried.
fn has_quotas(info: &SystemInfo) -> bool {
    match info.driver.as_deref() {
        Some("btrfs" | "zfs") => true,
        Some("overlay2") => backing(info) == Some("xfs"),
        _ => false,
    }
}

fn backing(info: &SystemInfo) -> Option<&str> {
    let facts = info.driver_status.as_ref()?;
    let fact = facts.iter().find(|fact| fact.first().is_some_and(|name| name == "Backing Filesystem"))?;
    fact.get(1).map(String::as_str)
}

fn described(info: &SystemInfo) -> String {
    let driver = info.driver.as_deref().unwrap_or("unknown storage");
    let backing = backing(info).map(|name| format!(" on {name}")).unwrap_or_default();
    format!("{driver}{backing} has no quotas; overlay2 on xfs mounted with pquota has")
}

/// Whether a refused creation was refused for its bound.
pub(super) fn is_refusal(message: &str) -> bool {
    ["storage-opt", "storage opt", "pquota", "quota"].iter().any(|word| message.to_ascii_lowercase().contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(driver: &str, backing: &str) -> SystemInfo {
        let status = vec![vec!["Backing Filesystem".to_owned(), backing.to_owned()]];
        SystemInfo { driver: Some(driver.to_owned()), driver_status: Some(status), ..SystemInfo::default() }
    }

    #[test]
    fn only_what_can_is_tried() {
        let cases = [("overlay2", "xfs", true), ("overlay2", "extfs", false), ("zfs", "", true), ("vfs", "extfs", false)];
        for (driver, backing, expected) in cases {
            assert_eq!(has_quotas(&info(driver, backing)), expected, "{driver} on {backing}");
        }
        assert!(!has_quotas(&SystemInfo::default()));
        assert!(described(&info("overlay2", "extfs")).starts_with("overlay2 on extfs has no quotas"));
    }

    #[test]
    fn only_a_bound_that_was_asked_for_is_told_of_and_once() {
        let disk = Disk::default();
        let default = EngineConfig::default().disk;
        let told = [default, 1 << 20, 2 << 20, default].map(|bytes| disk.is_news(bytes));
        assert_eq!(told, [false, true, false, false]);
    }

    #[test]
    fn a_refusal_is_told_from_other_trouble() {
        assert!(is_refusal("--storage-opt is supported only for overlay over xfs with 'pquota' mount option"));
        assert!(!is_refusal("no space left on device"));
    }
}
