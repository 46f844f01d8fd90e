//! A sum that tells contents apart and stays the same from build to build: FNV-1a of 64 bits. Against chance, not against malice.

use std::fmt;

/// The sum of what was put in so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds bytes, with their number, so that parts don't run into each other.
    pub(super) fn part(&mut self, bytes: &[u8]) -> &mut Self {
        self.add(&(bytes.len() as u64).to_le_bytes());
        self.add(bytes);
        self
    }

    /// The sum.
    pub(super) fn get(self) -> u64 {
        self.0
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    }
}

/// Takes what is written as one part that has no number.
impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.add(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let of = |parts: &[&str]| parts.iter().fold(Digest::default(), |mut sum, part| *sum.part(part.as_bytes())).get();
        assert_eq!(of(&["a", "b"]), of(&["a", "b"]));
        assert_ne!(of(&["a", "b"]), of(&["ab"]));
        assert_ne!(of(&["a", "b"]), of(&["b", "a"]));
        // The published value for "a" (FNV-1a, 64 bits), which is what is written without a number.
        let mut written = Digest::default();
        fmt::Write::write_str(&mut written, "a").unwrap();
        assert_eq!(written.get(), 0xaf63_dc4c_8601_ec8c);
    }
}
