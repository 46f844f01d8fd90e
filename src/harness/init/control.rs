//! The line to the host.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// The line to the host: `ready`, `go`, `started`, `exited`, `mark`.
pub struct Control {
    pub stream: UnixStream,
    pub line: Vec<u8>,
}

/// What the host says.
pub enum Heard {
    Nothing,
    Go,
    /// Write this at the end of both outputs.
    Mark(Vec<u8>),
    Closed,
}

impl Control {
    /// Tells the host; if it is gone, the next read says so.
    pub fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
    }

    pub fn read(&mut self) -> Heard {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Heard::Closed,
            Ok(count) => self.line.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Heard::Closed,
        }
        let mut heard = Heard::Nothing;
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            if line == b"go\n" {
                heard = Heard::Go;
            } else if let Some(word) = line.strip_prefix(b"mark ") {
                heard = Heard::Mark(word.to_vec());
            }
        }
        heard
    }
}
