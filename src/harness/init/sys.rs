//! The few system calls that std has no safe form of.

use std::ffi::c_char;
use std::io;
use std::time::Duration;

pub const SIGINT: i32 = 2;
pub const SIGKILL: i32 = 9;
pub const SIGTERM: i32 = 15;
pub const SIGCHLD: i32 = 17;
pub const SIGSTOP: i32 = 19;
pub const SIG_SETMASK: i32 = 2;
pub const SFD_NONBLOCK: i32 = 0o4000;
pub const SFD_CLOEXEC: i32 = 0o2_000_000;
pub const WNOHANG: i32 = 1;
pub const PR_SET_PDEATHSIG: i32 = 1;
pub const PR_SET_DUMPABLE: i32 = 4;
pub const PTRACE_ATTACH: i32 = 16;
pub const CLONE_NEWNS: i32 = 0x2_0000;
pub const S_IFCHR: u32 = 0o020_000;
pub const PR_SET_CHILD_SUBREAPER: i32 = 36;
pub const ENXIO: i32 = 6;
pub const ELOOP: i32 = 40;
pub const O_NONBLOCK: i32 = 0o4000;
#[cfg(target_arch = "aarch64")]
pub const O_DIRECTORY: i32 = 0o40_000;
#[cfg(target_arch = "aarch64")]
pub const O_NOFOLLOW: i32 = 0o100_000;
#[cfg(not(target_arch = "aarch64"))]
pub const O_DIRECTORY: i32 = 0o200_000;
#[cfg(not(target_arch = "aarch64"))]
pub const O_NOFOLLOW: i32 = 0o400_000;
pub const POLLIN: i16 = 1;
pub const POLLOUT: i16 = 4;
pub const POLLERR: i16 = 8;
pub const POLLHUP: i16 = 16;

#[repr(C)]
#[derive(Default)]
pub struct SignalSet([u64; 16]);

#[repr(C)]
pub struct Poll {
    fd: i32,
    events: i16,
    pub revents: i16,
}

impl Poll {
    /// Nothing to wait for.
    pub const NONE: Self = Self { fd: -1, events: 0, revents: 0 };

    pub fn on(fd: i32, events: i16) -> Self {
        Self { fd, events, revents: 0 }
    }

    pub fn read(fd: i32) -> Self {
        Self::on(fd, POLLIN)
    }
}

/// Waits until one is ready or the time is up.
pub fn poll(fds: &mut [Poll], time: Option<Duration>) -> io::Result<()> {
    // Rounded up: a wake-up before its time would only poll again.
    let ms = time.map_or(-1, |time| i32::try_from(time.as_millis() + 1).unwrap_or(i32::MAX));
    // SAFETY: the pointer and count are those of a live slice.
    if unsafe { ffi_poll(fds.as_mut_ptr(), fds.len(), ms) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

unsafe extern "C" {
    #[link_name = "poll"]
    fn ffi_poll(fds: *mut Poll, count: usize, ms: i32) -> i32;
    pub safe fn getpid() -> i32;
    pub safe fn setsid() -> i32;
    pub safe fn getuid() -> u32;
    pub safe fn setuid(user: u32) -> i32;
    pub safe fn unshare(flags: i32) -> i32;
    pub fn mknod(path: *const c_char, mode: u32, device: u64) -> i32;
    pub fn mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: u64, data: *const c_char) -> i32;
    pub fn ptrace(request: i32, pid: i32, address: usize, data: usize) -> i64;
    pub safe fn dup2(from: i32, to: i32) -> i32;
    pub fn kill(pid: i32, signal: i32) -> i32;
    pub fn prctl(option: i32, value: usize, _: usize, _: usize, _: usize) -> i32;
    pub fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    pub fn sigaddset(set: *mut SignalSet, signal: i32) -> i32;
    pub fn sigprocmask(how: i32, set: *const SignalSet, old: *mut SignalSet) -> i32;
    pub fn signalfd(fd: i32, set: *const SignalSet, flags: i32) -> i32;
}
