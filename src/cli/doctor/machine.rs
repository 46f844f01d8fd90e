//! This machine: its limits, and the room on its disks.

use std::fs;
use std::path::{Path, PathBuf};

use tokio::process::Command;

use crate::cli::harness::cache_folder;
use crate::config::Config;
use crate::engine::{Finding, Health};
use crate::harness::try_sockets;
use crate::store;

/// Descriptors for some hundred rollouts: a listener, a line, a few connections each.
const OPEN_FILES: u64 = 4_096;
/// Harnesses watch their working folder; the kernel counts all of a user's watches together.
const WATCHES: u64 = 65_536;
const WATCHERS: u64 = 512;
/// Processes and threads of all sandboxes together.
const PROCESSES: u64 = 16_384;
/// A socket's path may have so many bytes.
const SOCKET_PATH: usize = 107;
/// Less room than the first is said, less than the second is a fault.
const ROOM: [u64; 2] = [5 << 30, 256 << 20];

/// Limits of this machine.
pub(super) fn look() -> Vec<Finding> {
    let mut findings = Vec::new();
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    if let Some(files) = limit(&limits, "Max open files") {
        let advice = format!("raise it before a large batch: ulimit -n {OPEN_FILES}");
        findings.push(Finding::expect(files >= OPEN_FILES, "open files", number(files), advice));
    }
    let least = [limit(&limits, "Max processes"), sysctl("kernel/pid_max"), sysctl("kernel/threads-max")];
    if let Some(processes) = least.into_iter().flatten().min() {
        let advice = format!("raise ulimit -u, kernel.pid_max and kernel.threads-max to {PROCESSES} or more");
        findings.push(Finding::expect(processes >= PROCESSES, "processes", number(processes), advice));
    }
    if let (Some(watches), Some(watchers)) = (sysctl("fs/inotify/max_user_watches"), sysctl("fs/inotify/max_user_instances")) {
        let well = watches >= WATCHES && watchers >= WATCHERS;
        let (enough, many) = (watches.max(WATCHES), watchers.max(WATCHERS));
        let advice = format!(
            "some harnesses watch files: sysctl fs.inotify.max_user_watches={enough} fs.inotify.max_user_instances={many}"
        );
        findings.push(Finding::expect(well, "file watches", format!("{watches}, of {watchers} watchers"), advice));
    }
    findings.push(sockets());
    findings
}

/// A limit of this process, by its name in `/proc/self/limits`; the most there is if it has none.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let soft = limits.lines().find_map(|line| line.strip_prefix(name))?.split_ascii_whitespace().next()?;
    if soft == "unlimited" { Some(u64::MAX) } else { soft.parse().ok() }
}

fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

fn number(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { value.to_string() }
}

/// A rollout's sockets can be made.
fn sockets() -> Finding {
    match try_sockets() {
        Ok(path) => {
            let length = path.as_os_str().len();
            Finding::expect(
                length <= SOCKET_PATH,
                "sockets",
                format!("{length} of {SOCKET_PATH} bytes of a path"),
                "use a shorter path",
            )
        }
        Err(error) => Finding::fault(
            "sockets",
            format!("a rollout's sockets can't be made in /tmp: {error}"),
            "make /tmp writable for this user, with room",
        ),
    }
}

/// Room on the disks that runs write to.
pub(super) async fn room(config: &Config) -> Vec<Finding> {
    let mut findings = vec![room_in("room for files of a moment", &std::env::temp_dir()).await];
    if let Ok(folder) = store::folder(&config.store) {
        findings.push(room_in("room for the store", &folder).await);
    }
    if let Ok(folder) = cache_folder() {
        findings.push(room_in("room for payloads", &folder).await);
    }
    findings
}

/// The room in a folder, or where it will be made.
pub(super) async fn room_in(name: &str, folder: &Path) -> Finding {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let there: PathBuf = folder.ancestors().find(|folder| folder.exists()).unwrap_or(folder).to_owned();
    let ran = Command::new("df").args(["-Pk", "--"]).arg(&there).env("LC_ALL", "C").kill_on_drop(true).output().await;
    match ran.ok().and_then(|output| free(&String::from_utf8_lossy(&output.stdout))) {
        Some(bytes) => judged(name, &there, bytes),
        None => Finding::warning(name, format!("df does not tell of {}", there.display()), "look at it yourself"),
    }
}

/// The free bytes that `df -Pk` prints.
fn free(printed: &str) -> Option<u64> {
    let kilobytes: u64 = printed.lines().nth(1)?.split_ascii_whitespace().nth(3)?.parse().ok()?;
    Some(kilobytes << 10)
}

fn judged(name: &str, folder: &Path, bytes: u64) -> Finding {
    let tenths = (bytes / (1 << 20)) * 10 / 1024;
    let seen = format!("{}.{} GiB free in {}", tenths / 10, tenths % 10, folder.display());
    let [scarce, none] = ROOM;
    let state = match bytes {
        _ if bytes < none => Health::Fault,
        _ if bytes < scarce => Health::Warning,
        _ => return Finding::ok(name, seen),
    };
    Finding { state, ..Finding::warning(name, seen, "make room, or name a folder on a larger disk") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_and_room_are_read_and_judged() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max processes             unlimited            unlimited            processes \n\
                      Max open files            1024                 524288               files     \n";
        assert_eq!((limit(limits, "Max open files"), limit(limits, "Max processes")), (Some(1024), Some(u64::MAX)));
        assert_eq!(limit(limits, "Max nothing"), None);
        let printed = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/vda 100 50 2097152 50% /\n";
        assert_eq!(free(printed), Some(2 << 30));
        let states = [100 << 20, 1 << 30, 10 << 30].map(|bytes| judged("x", Path::new("/"), bytes).state);
        assert_eq!(states, [Health::Fault, Health::Warning, Health::Ok]);
        assert_eq!(judged("x", Path::new("/data"), 1 << 30).seen, "1.0 GiB free in /data");
    }
}
