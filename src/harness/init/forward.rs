//! Carries connections from the sandbox's loopback to the rollout's socket, both ways, hang-ups included.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys;

/// Carries connections from the loopback to the rollout's socket.
pub struct Forwarder {
    listener: Option<TcpListener>,
    socket: PathBuf,
    links: VecDeque<Link>,
}

impl Forwarder {
    /// Two descriptors each, under the usual limit of 1024; further clients wait in the listener's queue.
    const MOST: usize = 480;

    /// What `--listen` says where the socket is the standard input, and listens already.
    const INHERITED: &str = "fd:0";

    /// Listens; nothing is accepted before the first turn.
    pub fn open(listen: &str, socket: PathBuf) -> io::Result<Self> {
        let listener = if listen == Self::INHERITED { inherited()? } else { TcpListener::bind(listen)? };
        listener.set_nonblocking(true)?;
        Ok(Self { listener: Some(listener), socket, links: VecDeque::new() })
    }

    /// Adds what it waits for.
    pub fn interests(&self, fds: &mut Vec<sys::Poll>) {
        let listener = self.listener.as_ref().filter(|_| self.links.len() < Self::MOST);
        fds.push(listener.map_or(sys::Poll::NONE, |listener| sys::Poll::read(listener.as_raw_fd())));
        fds.extend(self.links.iter().flat_map(Link::interests));
    }

    /// When it must have a turn, whatever happens.
    pub fn wake(&self) -> Option<Instant> {
        self.links.iter().filter_map(|link| link.linger).min()
    }

    /// Moves what can be moved, for the descriptors that it added.
    pub fn turn(&mut self, fds: &[sys::Poll]) {
        let mut scratch = [0; 1 << 16];
        for ready in fds[1..].chunks_exact(2) {
            // Each link is taken from the front and put back behind, so the order stays that of `fds`.
            let Some(mut link) = self.links.pop_front() else { break };
            if link.turn(ready[0].revents, ready[1].revents, &mut scratch) {
                self.links.push_back(link);
            }
        }
        while fds[0].revents != 0 && self.links.len() < Self::MOST {
            let Some(Ok((tcp, _))) = self.listener.as_ref().map(TcpListener::accept) else { break };
            // A client whose other side does not answer is hung up on.
            if let Ok(link) = Link::open(tcp, &self.socket) {
                self.links.push_back(link);
            }
        }
    }

    /// No harness, no calls: hangs up on both sides.
    pub fn stop(&mut self) {
        self.listener = None;
        self.links.clear();
    }
}

/// The socket that is the standard input, which is nothing then.
fn inherited() -> io::Result<TcpListener> {
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let nothing = File::open("/dev/null")?;
    if sys::dup2(nothing.as_raw_fd(), 0) < 0 { Err(io::Error::last_os_error()) } else { Ok(listener) }
}

/// One client's connection and its other half.
struct Link {
    tcp: TcpStream,
    unix: UnixStream,
    up: Pipe,
    down: Pipe,
    /// The host takes nothing any more. What the client still sends is read and thrown away, because closing with unread
    /// bytes resets the connection and can take the end of the answer from the client.
    host_gone: bool,
    /// Until when that is done.
    linger: Option<Instant>,
}

impl Link {
    const LINGER: Duration = Duration::from_secs(2);

    fn open(tcp: TcpStream, socket: &Path) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        tcp.set_nonblocking(true)?;
        let unix = UnixStream::connect(socket)?;
        unix.set_nonblocking(true)?;
        Ok(Self { tcp, unix, up: Pipe::default(), down: Pipe::default(), host_gone: false, linger: None })
    }

    /// With nothing to do a descriptor still tells of a hang-up; where that is known or must wait, it would only spin.
    fn interests(&self) -> [sys::Poll; 2] {
        let tcp = self.up.reads() | self.down.writes();
        let unix = self.down.reads() | self.up.writes();
        let tcp_quiet = tcp == 0 && self.down.shut;
        let unix_quiet = unix == 0 && (self.host_gone || self.down.writes() != 0);
        [
            if tcp_quiet { sys::Poll::NONE } else { sys::Poll::on(self.tcp.as_raw_fd(), tcp) },
            if unix_quiet { sys::Poll::NONE } else { sys::Poll::on(self.unix.as_raw_fd(), unix) },
        ]
    }

    /// Moves what can be moved; false once the connection is over. Dropping it closes both sides at once.
    fn turn(&mut self, tcp: i16, unix: i16, scratch: &mut [u8]) -> bool {
        const GONE: i16 = sys::POLLHUP | sys::POLLERR;
        if tcp & sys::POLLERR != 0 || self.linger.is_some_and(|until| until <= Instant::now()) {
            return false;
        }
        if unix != 0 || tcp & sys::POLLOUT != 0 {
            match self.down.pump(&mut self.unix, &mut self.tcp, scratch) {
                Ok(()) => {}
                Err(Lost::Sink) => return false,
                Err(Lost::Source) => (self.down.ended, self.host_gone) = (true, true),
            }
            self.host_gone |= unix & GONE != 0 && self.down.ended;
        }
        if !self.host_gone && (tcp != 0 || unix & (sys::POLLOUT | GONE) != 0) {
            match self.up.pump(&mut self.tcp, &mut self.unix, scratch) {
                Ok(()) => {}
                Err(Lost::Source) => return false,
                Err(Lost::Sink) => self.host_gone = true,
            }
        }
        if self.host_gone {
            self.up.waiting.clear();
            match self.tcp.read(scratch) {
                Ok(0) => (self.up.ended, self.up.shut) = (true, true),
                Err(error) if error.kind() != ErrorKind::WouldBlock => return false,
                _ => {}
            }
            if self.down.ended && self.down.pump(&mut self.unix, &mut self.tcp, scratch).is_err() {
                return false;
            }
            if self.down.shut {
                self.linger.get_or_insert_with(|| Instant::now() + Self::LINGER);
            }
        }
        !(self.up.shut && self.down.shut)
    }
}

/// One direction: what was read and could not be written yet.
#[derive(Default)]
struct Pipe {
    waiting: Vec<u8>,
    /// The source has ended.
    ended: bool,
    /// The end was passed on.
    shut: bool,
}

/// Which side of a pipe failed.
enum Lost {
    Source,
    Sink,
}

/// A stream of which one direction can be ended.
trait Half: Read + Write {
    fn end(&self);
}

impl Half for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Half for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Write);
    }
}

impl Pipe {
    fn reads(&self) -> i16 {
        if self.ended || !self.waiting.is_empty() { 0 } else { sys::POLLIN }
    }

    fn writes(&self) -> i16 {
        if self.waiting.is_empty() { 0 } else { sys::POLLOUT }
    }

    fn pump(&mut self, source: &mut dyn Half, sink: &mut dyn Half, scratch: &mut [u8]) -> Result<(), Lost> {
        // A few rounds only: the other connections wait meanwhile, and `poll` comes back to what is left.
        for _ in 0..4 {
            if !self.waiting.is_empty() {
                match sink.write(&self.waiting) {
                    Ok(count) => drop(self.waiting.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Err(Lost::Sink),
                }
            } else if self.ended {
                break;
            } else {
                match source.read(scratch) {
                    Ok(0) => self.ended = true,
                    Ok(count) => self.waiting.extend_from_slice(&scratch[..count]),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return Err(Lost::Source),
                }
            }
        }
        // Not one of the rounds: with nothing to read or write, `poll` would not come back for it.
        if self.ended && self.waiting.is_empty() && !self.shut {
            sink.end();
            self.shut = true;
        }
        Ok(())
    }
}
