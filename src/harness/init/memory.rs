//! Whether the sandbox's memory ran out.

use std::fs;

use crate::sys;

/// Where the kernel counts the processes that it killed for memory, in a container with a control group of its own: version 2, 1.
const COUNTS: [&str; 2] = ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// Whether processes of this sandbox were killed because its memory was used up. Where this is not the first process, the control
/// group is others' too, and nothing is said.
pub fn ran_out() -> bool {
    sys::getpid() == 1
        && COUNTS.iter().find_map(|path| fs::read_to_string(path).ok()).is_some_and(|text| killed(&text) > 0)
}

fn killed(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}
