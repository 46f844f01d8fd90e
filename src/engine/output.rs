//! What a command prints, bounded.

use bytes::{Bytes, BytesMut};

/// Bounded output. What was dropped is said at the end of standard error, so that standard output stays a true prefix.
pub(super) struct Output {
    limit: usize,
    kept: [BytesMut; 2],
    dropped: [usize; 2],
}

impl Output {
    /// Keeps so many bytes of each stream.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, kept: [BytesMut::new(), BytesMut::new()], dropped: [0, 0] }
    }

    /// Takes what was printed, on standard error or standard output.
    pub(super) fn push(&mut self, is_error: bool, bytes: &[u8]) {
        let at = usize::from(is_error);
        let room = self.limit - self.kept[at].len();
        let taken = bytes.len().min(room);
        self.kept[at].extend_from_slice(&bytes[..taken]);
        self.dropped[at] += bytes.len() - taken;
    }

    /// Standard output, standard error.
    pub(super) fn finish(self) -> (Bytes, Bytes) {
        let [stdout, mut stderr] = self.kept;
        for (name, dropped) in [("standard output", self.dropped[0]), ("standard error", self.dropped[1])] {
            if dropped > 0 {
                stderr.extend_from_slice(format!("\n[gleaner: {dropped} more bytes of {name} dropped]\n").as_bytes());
            }
        }
        (stdout.freeze(), stderr.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_past_the_limit_is_dropped_and_said_so() {
        let mut output = Output::new(4);
        output.push(false, b"abc");
        output.push(false, b"def");
        output.push(true, b"e");
        let (stdout, stderr) = output.finish();
        assert_eq!((&stdout[..], &stderr[..]), (&b"abcd"[..], &b"e\n[gleaner: 2 more bytes of standard output dropped]\n"[..]));
    }
}
