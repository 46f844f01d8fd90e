//! Bounds what sandboxes write to the disk: by the engine's own quota where its storage has one, else it can be looked at.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bollard::errors::Error;
use bollard::models::SystemInfo;
use bollard::query_parameters::InspectContainerOptionsBuilder;
use tokio::sync::OnceCell;

use super::failed;
use super::patience::patiently;
use crate::engine::{EngineError, SandboxId};

/// What is known of the engine's quotas.
#[derive(Default)]
pub(super) struct Disk {
    /// Its storage may have quotas.
    may: OnceCell<bool>,
    /// It was tried, and has none.
    cannot: AtomicBool,
}

impl Disk {
    /// The option of a new container that bounds it to `bytes`; `None` if there is nothing to bound or no way to.
    pub(super) async fn option(&self, api: &bollard::Docker, bytes: Option<u64>) -> Option<String> {
        let bytes = bytes?;
        let look = || async {
            let info = patiently(|| api.info()).await?;
            let may = has_quotas(&info);
            if !may {
                warn(&described(&info));
            }
            Ok::<_, Error>(may)
        };
        // An engine that does not answer is asked again the next time.
        let may = *self.may.get_or_try_init(look).await.unwrap_or(&false);
        (may && !self.cannot.load(Relaxed)).then(|| bytes.to_string())
    }

    /// The engine refused it.
    pub(super) fn cannot(&self, why: &str) {
        if !self.cannot.swap(true, Relaxed) {
            warn(why);
        }
    }

    /// Bytes of a sandbox's own files; `None` where the engine bounds them.
    pub(super) async fn used(&self, api: &bollard::Docker, sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        if self.may.get().is_some_and(|may| *may) && !self.cannot.load(Relaxed) {
            return Ok(None);
        }
        let options = InspectContainerOptionsBuilder::new().size(true).build();
        let facts = patiently(|| api.inspect_container(&sandbox.0, Some(options.clone()))).await;
        let size = facts.map_err(failed(format!("look at the size of sandbox {}", sandbox.0)))?.size_rw;
        Ok(size.and_then(|size| u64::try_from(size).ok()))
    }
}

fn warn(why: &str) {
    tracing::warn!(
        why,
        "this engine does not bound what a sandbox writes to the disk; it is looked at from time to time, and a sandbox past its bound is ended"
    );
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
    fn a_refusal_is_told_from_other_trouble() {
        assert!(is_refusal("--storage-opt is supported only for overlay over xfs with 'pquota' mount option"));
        assert!(!is_refusal("no space left on device"));
    }
}
