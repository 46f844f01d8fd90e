//! What is to be known of an engine where something does not work.

use bollard::models::SystemInfo;

use super::Docker;
use crate::engine::{Engine as _, Finding};

pub(super) async fn look(engine: &Docker) -> Vec<Finding> {
    match engine.api.info().await {
        Ok(info) => {
            let mut findings = vec![Finding::ok("engine", described(engine, &info))];
            findings.extend(of(&info));
            findings
        }
        Err(error) => vec![Finding::fault("engine", error.to_string(), "look at the engine's own log; restart it")],
    }
}

fn described(engine: &Docker, info: &SystemInfo) -> String {
    let version = info.server_version.as_deref().unwrap_or("of unknown version");
    let processors = info.ncpu.unwrap_or_default();
    let memory = info.mem_total.unwrap_or_default() >> 20;
    format!("{}, {version}; {processors} processors, {memory} MiB of memory", engine.describe())
}

fn of(info: &SystemInfo) -> Vec<Finding> {
    vec![limits(info), seccomp(info), rootless(info), disk_bound(info)]
}

/// Whether what a sandbox uses can be bounded at all.
fn limits(info: &SystemInfo) -> Finding {
    let kinds = [
        ("memory", info.memory_limit),
        ("swap", info.swap_limit),
        ("processors", info.cpu_cfs_quota),
        ("processes", info.pids_limit),
    ];
    // An engine that does not say has it: only some do.
    let missing: Vec<&str> = kinds.iter().filter(|(_, has)| *has == Some(false)).map(|(name, _)| *name).collect();
    let named = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
    let version = named(info.cgroup_version.map(|version| version.to_string()));
    let driver = named(info.cgroup_driver.map(|driver| driver.to_string()));
    let seen = format!("version {version}, driver {driver}");
    let advice = "give the engine these controllers (on the kernel's command line: cgroup_enable=memory swapaccount=1), or use cgroup version 2";
    match missing.as_slice() {
        [] => Finding::ok("cgroups", seen),
        _ => Finding::warning("cgroups", format!("{seen}; not bounded: {}", missing.join(", ")), advice),
    }
}

fn has_option(info: &SystemInfo, name: &str) -> bool {
    let options = info.security_options.iter().flatten();
    options.flat_map(|option| option.split(',')).any(|part| part == name || part == format!("name={name}"))
}

fn seccomp(info: &SystemInfo) -> Finding {
    let seen = if has_option(info, "seccomp") { "on" } else { "off" };
    Finding::expect(
        seen == "on",
        "seccomp",
        seen,
        "use a kernel and an engine with seccomp: without it every system call is open to harnesses",
    )
}

/// Root of the engine is root of the machine, unless it runs rootless or maps users.
fn rootless(info: &SystemInfo) -> Finding {
    let seen = match (has_option(info, "rootless"), has_option(info, "userns")) {
        (true, _) => "rootless",
        (false, true) => "as root, users are mapped",
        (false, false) => "as root; harnesses run as an ordinary user without capabilities",
    };
    Finding::ok("users", seen)
}

/// Only some storage drivers can bound what a container writes.
fn disk_bound(info: &SystemInfo) -> Finding {
    let driver = info.driver.as_deref().unwrap_or("unknown");
    let status = |key: &str| {
        let pairs = info.driver_status.iter().flatten();
        pairs
            .filter_map(|pair| Some((pair.first()?, pair.get(1)?)))
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.as_str())
    };
    let beneath = status("Backing Filesystem").unwrap_or("an unknown file system");
    let seen = format!("{driver} on {beneath}");
    let can = matches!(driver, "btrfs" | "zfs" | "windowsfilter") || (driver == "overlay2" && beneath == "xfs");
    if can {
        return Finding::ok("storage", format!("{seen}; a bound on a sandbox's disk can be kept"));
    }
    let advice = "for hard bounds give the engine's folder a file system of its own: xfs mounted with pquota, or btrfs";
    Finding::warning("storage", format!("{seen} can't bound what a sandbox writes by itself"), advice)
}

#[cfg(test)]
mod tests {
    use bollard::models::{SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum};

    use super::*;
    use crate::engine::Health;

    #[test]
    fn what_an_engine_lacks_is_warned_of() {
        let pair = |name: &str, value: &str| vec![name.to_owned(), value.to_owned()];
        let good = SystemInfo {
            driver: Some("overlay2".to_owned()),
            driver_status: Some(vec![pair("Backing Filesystem", "xfs")]),
            memory_limit: Some(true),
            swap_limit: Some(true),
            cpu_cfs_quota: Some(true),
            pids_limit: Some(true),
            cgroup_driver: Some(SystemInfoCgroupDriverEnum::SYSTEMD),
            cgroup_version: Some(SystemInfoCgroupVersionEnum::_2),
            security_options: Some(vec!["name=seccomp,profile=default".to_owned(), "name=rootless".to_owned()]),
            ..SystemInfo::default()
        };
        let states = |info: &SystemInfo| of(info).into_iter().map(|one| one.state).collect::<Vec<_>>();
        assert_eq!(states(&good), [Health::Ok; 4], "{:#?}", of(&good));
        assert_eq!(of(&good)[0].seen, "version 2, driver systemd");
        let poor = SystemInfo {
            driver_status: Some(vec![pair("Backing Filesystem", "extfs")]),
            swap_limit: Some(false),
            security_options: Some(Vec::new()),
            ..good
        };
        let findings = of(&poor);
        assert_eq!(states(&poor), [Health::Warning, Health::Warning, Health::Ok, Health::Warning]);
        assert_eq!(findings[0].seen, "version 2, driver systemd; not bounded: swap");
        assert_eq!(findings[3].seen, "overlay2 on extfs can't bound what a sandbox writes by itself");
    }
}
