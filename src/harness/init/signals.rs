//! Signals as a file to poll.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

use crate::sys;

/// Signals as a file to poll.
pub struct Signals(pub File);

impl Signals {
    /// Takes over the signals that matter here.
    pub fn open() -> io::Result<Self> {
        let mut set = sys::SignalSet::default();
        // SAFETY: `set` outlives the calls; the descriptor is new and owned here.
        unsafe {
            for signal in [sys::SIGCHLD, sys::SIGTERM, sys::SIGINT] {
                sys::sigaddset(&raw mut set, signal);
            }
            sys::sigprocmask(sys::SIG_SETMASK, &raw const set, std::ptr::null_mut());
            let fd = sys::signalfd(-1, &raw const set, sys::SFD_NONBLOCK | sys::SFD_CLOEXEC);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(File::from_raw_fd(fd))) }
        }
    }

    /// A child starts with no signal blocked.
    pub fn unblock() {
        let set = sys::SignalSet::default();
        // SAFETY: `set` outlives the call.
        unsafe { sys::sigprocmask(sys::SIG_SETMASK, &raw const set, std::ptr::null_mut()) };
    }

    /// Whether the engine asked to end. In a sandbox only a sender from outside counts, whose process id shows as 0.
    pub fn drain(&self) -> bool {
        let mut asked = false;
        let mut info = [0; 128];
        while matches!((&self.0).read(&mut info), Ok(128)) {
            let field = |at: usize| i32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
            asked |= field(0) != sys::SIGCHLD && (sys::getpid() != 1 || field(12) == 0);
        }
        asked
    }
}
