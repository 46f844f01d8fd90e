//! The line to the host.

use std::ffi::OsStr;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// The line to the host: a word a line, each way. ARCHITECTURE.md says what each means.
pub struct Control {
    pub stream: UnixStream,
    pub line: Vec<u8>,
}

/// What the host says.
pub enum Heard {
    Go,
    /// Write a file.
    Write(Content),
    /// End the harness.
    Stop,
    /// Its time stands still, or goes on.
    Hold(bool),
    /// Write this at the end of both outputs.
    Mark(Vec<u8>),
    Closed,
}

/// A file to be written.
pub struct Content {
    pub path: PathBuf,
    pub mode: u32,
    pub bytes: Vec<u8>,
}

impl Control {
    /// Tells the host; if it is gone, the next read says so.
    pub fn say(&mut self, line: &str) {
        let _ = self.stream.write_all(format!("{line}\n").as_bytes());
    }

    /// All that has come.
    pub fn read(&mut self) -> Vec<Heard> {
        let mut bytes = [0; 1 << 14];
        match self.stream.read(&mut bytes) {
            Ok(0) => return vec![Heard::Closed],
            Ok(count) => self.line.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return vec![Heard::Closed],
        }
        let mut heard = Vec::new();
        while let Some(end) = self.line.iter().position(|&byte| byte == b'\n') {
            if let Some(rest) = self.line[..end].strip_prefix(b"write ") {
                let Some((mode, length, path)) = file(rest) else { return vec![Heard::Closed] };
                let whole = end + 1 + length;
                if self.line.len() < whole {
                    break;
                }
                let rest = self.line.split_off(whole);
                let content = std::mem::replace(&mut self.line, rest).split_off(end + 1);
                heard.push(Heard::Write(Content { path, mode, bytes: content }));
                continue;
            }
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

/// `MODE LENGTH PATH`: octal, decimal, and all the rest of the line.
fn file(words: &[u8]) -> Option<(u32, usize, PathBuf)> {
    let mut words = words.splitn(3, |&byte| byte == b' ');
    let mode = u32::from_str_radix(std::str::from_utf8(words.next()?).ok()?, 8).ok()?;
    let length = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    Some((mode, length, PathBuf::from(OsStr::from_bytes(words.next()?))))
}
