//! Which process a sandbox belongs to, so that the sandboxes of dead ones can be removed and nobody else's.

use std::fs;
use std::io;

/// Names this process for as long as the machine runs: its number, when it started, and in which world of numbers that holds.
///
/// # Errors
/// If the system does not tell (not Linux).
pub fn current() -> io::Result<String> {
    let pid = std::process::id();
    let started =
        started(pid).ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "/proc does not tell when a process started"))?;
    Ok(format!("{pid}.{started}.{}", world()?))
}

/// Whether the process of this name may live. One of another machine or of another world of process numbers may: it is not ours
/// to judge.
#[must_use]
pub fn may_live(owner: &str) -> bool {
    let mut parts = owner.splitn(3, '.');
    let (Some(pid), Some(began), Some(place)) = (parts.next(), parts.next(), parts.next()) else { return true };
    let (Ok(pid), Ok(here)) = (pid.parse(), world()) else { return true };
    place != here || started(pid).is_some_and(|started| started == began)
}

/// The machine's boot and the namespace of process numbers.
fn world() -> io::Result<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    let namespace: String = namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}.{namespace}", boot.trim()))
}

/// When a process started, in the kernel's clock ticks since the boot; `None` if there is none of this number.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name stands in parentheses and may hold anything; the 22nd field is the 20th after it.
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_living_live_and_the_dead_do_not() {
        let me = current().unwrap();
        assert!(may_live(&me), "{me}");
        let (pid, rest) = me.split_once('.').unwrap();
        let (_, world) = rest.split_once('.').unwrap();
        assert!(!may_live(&format!("{pid}.1.{world}")), "the number was used again by another process");
        assert!(may_live("1.1.elsewhere"), "another machine's process is not ours to judge");
        assert!(may_live("nonsense"));
    }
}
