//! The line to the host.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// The line to the host: a word a line, each way. ARCHITECTURE.md says what each means.
pub struct Control {
    pub stream: UnixStream,
    pub line: Vec<u8>,
}

/// What the host says.
pub enum Heard {
    Go,
    /// End the harness.
    Stop,
    /// Its time stands still, or goes on.
    Hold(bool),
    /// Write this at the end of both outputs.
    Mark(Vec<u8>),
    Closed,
}

impl Control {
    /// Tells the host; if it is gone, the next read says so.
    pub fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
    }

    /// All that has come.
    pub fn read(&mut self) -> Vec<Heard> {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(0) => return vec![Heard::Closed],
            Ok(count) => self.line.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return vec![Heard::Closed],
        }
        let mut heard = Vec::new();
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            match line.as_slice() {
                b"go\n" => heard.push(Heard::Go),
                b"stop\n" => heard.push(Heard::Stop),
                b"hold\n" => heard.push(Heard::Hold(true)),
                b"pass\n" => heard.push(Heard::Hold(false)),
                line => heard.extend(line.strip_prefix(b"mark ").map(|word| Heard::Mark(word.to_vec()))),
            }
        }
        heard
    }
}
