//! Markers in text that comes in pieces.

use memchr::memmem;

/// Where the first of some markers is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It begins here.
    At(usize, &'static str),
    /// The text ends with what may be the beginning of one.
    Maybe(usize),
    No,
}

/// Finds the first of `markers` in `text`.
pub(super) fn find(text: &str, markers: &[&'static str]) -> Found {
    let mut from = 0;
    while let Some(at) = next(text.as_bytes(), from, markers) {
        match begins(&text[at..], markers) {
            Found::No => from = at + 1,
            Found::At(_, marker) => return Found::At(at, marker),
            Found::Maybe(_) => return Found::Maybe(at),
        }
    }
    Found::No
}

/// Tells which of `markers` a text begins with.
pub(super) fn begins(text: &str, markers: &[&'static str]) -> Found {
    if let Some(marker) = markers.iter().find(|marker| text.starts_with(**marker)) {
        return Found::At(0, marker);
    }
    if markers.iter().any(|marker| marker.starts_with(text)) { Found::Maybe(0) } else { Found::No }
}

/// The next byte with which a marker may begin. There are only few first bytes, and no marker begins inside a character.
fn next(text: &[u8], from: usize, markers: &[&'static str]) -> Option<usize> {
    let rest = &text[from..];
    let mut firsts = markers.iter().filter_map(|marker| marker.bytes().next());
    let one = firsts.next()?;
    let found = match firsts.find(|first| *first != one) {
        None => memchr::memchr(one, rest),
        Some(other) => memchr::memchr2(one, other, rest),
    };
    looked(found.map_or(rest.len(), |at| at + 1));
    found.map(|at| from + at)
}

/// The end of the white space that is in `text` from `from` on.
pub(super) fn skip_space(text: &str, from: usize) -> usize {
    let rest = &text.as_bytes()[from..];
    let space = rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len());
    looked(space + 1);
    from + space
}

/// Finds `needle` in `text` from `from` on.
pub(super) fn find_from(text: &str, from: usize, needle: &str) -> Option<usize> {
    let found = memmem::find(&text.as_bytes()[from..], needle.as_bytes()).map(|at| from + at);
    looked(found.map_or(text.len(), |at| at + needle.len()) - from);
    found
}

/// Counts the bytes that are looked at, for the test that they are not looked at again and again.
#[cfg(not(test))]
pub(super) fn looked(_bytes: usize) {}

#[cfg(test)]
pub(super) use tests::looked;

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static LOOKED: Cell<usize> = const { Cell::new(0) };
    }

    pub(in super::super) fn looked(bytes: usize) {
        LOOKED.with(|looked| looked.set(looked.get() + bytes));
    }

    /// The bytes that `work` looks at.
    pub(in super::super) fn count(work: impl FnOnce()) -> usize {
        LOOKED.with(|looked| looked.set(0));
        work();
        LOOKED.with(Cell::get)
    }

    #[test]
    fn the_first_marker_is_found_whole_or_begun() {
        let markers = ["<tool_call>", "[CALLS]"];
        assert_eq!(find("a < b [CALLS]<tool_call>", &markers), Found::At(6, "[CALLS]"));
        assert_eq!(find("a <tool_<tool_ca", &markers), Found::Maybe(8));
        assert_eq!(find("é [C", &markers), Found::Maybe(3));
        assert_eq!(find("<tool-call> [CALL", &markers), Found::Maybe(12));
        assert_eq!(find("<tool_cal [X", &markers), Found::No);
        assert_eq!(find("x", &[]), Found::No);
        assert_eq!(find("◁/think", &["◁/think▷"]), Found::Maybe(0));
    }
}
