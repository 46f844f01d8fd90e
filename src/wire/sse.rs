//! Server-sent events, read from bytes as they come: hand-fed, linear in the bytes however they are cut, bounded.
//!
//! Data are bytes: whether they are UTF-8 or JSON is the reader's matter.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;

/// The largest event that is taken where nothing else is configured: 32 MiB, several times a first chunk with 1 M prompt ids.
pub const DEFAULT_LIMIT: usize = 32 << 20;

/// A byte-order mark.
const MARK: &[u8] = b"\xEF\xBB\xBF";

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// The value of its `event` field; empty if it had none.
    pub name: Bytes,
    /// The values of its `data` fields, joined by line feeds. A slice of the bytes pushed, where one push held all of it.
    pub data: Bytes,
}

/// An event outgrew the decoder's limit; what follows can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a server-sent event is larger than {limit} bytes")]
pub struct EventTooLarge {
    /// In bytes.
    pub limit: usize,
}

/// Reads server-sent events from a stream of bytes.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    /// The start of a line whose end has not come.
    line: Vec<u8>,
    name: Bytes,
    data: Data,
    /// The last byte was a carriage return: a line feed right after it belongs to the same line end.
    after_cr: bool,
    /// No line has been read: a byte-order mark may stand before the first.
    at_start: bool,
}

/// The data of the event that is being read.
#[derive(Debug, Default)]
enum Data {
    #[default]
    None,
    One(Bytes),
    Joined(BytesMut),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(line) => line.len(),
            Self::Joined(lines) => lines.len(),
        }
    }

    fn push(&mut self, line: Bytes) {
        *self = match std::mem::take(self) {
            Self::None => Self::One(line),
            Self::One(first) => {
                let mut lines = BytesMut::with_capacity(first.len() + line.len() + 1);
                lines.extend_from_slice(&first);
                lines.extend_from_slice(b"\n");
                lines.extend_from_slice(&line);
                Self::Joined(lines)
            }
            Self::Joined(mut lines) => {
                lines.extend_from_slice(b"\n");
                lines.extend_from_slice(&line);
                Self::Joined(lines)
            }
        };
    }

    fn take(&mut self) -> Option<Bytes> {
        match std::mem::take(self) {
            Self::None => None,
            Self::One(line) => Some(line),
            Self::Joined(lines) => Some(lines.freeze()),
        }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT)
    }
}

impl Decoder {
    /// A decoder that takes no event whose data, or line, is longer than `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), name: Bytes::new(), data: Data::None, after_cr: false, at_start: true }
    }

    /// Takes the next bytes and appends the events that they complete.
    ///
    /// # Errors
    /// If an event is larger than the limit; the stream can't be read any further then.
    pub fn push(&mut self, chunk: &Bytes, events: &mut Vec<ServerEvent>) -> Result<(), EventTooLarge> {
        let mut at = 0;
        if self.after_cr && !chunk.is_empty() {
            self.after_cr = false;
            at = usize::from(chunk[0] == b'\n');
        }
        while let Some(length) = memchr::memchr2(b'\n', b'\r', &chunk[at..]) {
            let end = at + length;
            let line = if self.line.is_empty() {
                chunk.slice(at..end)
            } else {
                self.line.extend_from_slice(&chunk[at..end]);
                Bytes::from(std::mem::take(&mut self.line))
            };
            at = end + 1;
            if chunk[end] == b'\r' {
                match chunk.get(at) {
                    Some(b'\n') => at += 1,
                    Some(_) => {}
                    None => self.after_cr = true,
                }
            }
            self.take_line(line, events)?;
        }
        self.line.extend_from_slice(&chunk[at..]);
        // The mark is not of the line, whether its end has come or not.
        let marked = self.at_start && self.line.iter().zip(MARK).all(|(byte, mark)| byte == mark);
        self.check(self.line.len().saturating_sub(if marked { MARK.len() } else { 0 }))
    }

    /// Takes the end of the stream: gives the event that no blank line followed, if there is one.
    ///
    /// # Errors
    /// If that event is larger than the limit.
    pub fn finish(&mut self) -> Result<Option<ServerEvent>, EventTooLarge> {
        let mut events = Vec::new();
        if !self.line.is_empty() {
            let line = Bytes::from(std::mem::take(&mut self.line));
            self.take_line(line, &mut events)?;
        }
        self.take_line(Bytes::new(), &mut events)?;
        Ok(events.pop())
    }

    fn take_line(&mut self, mut line: Bytes, events: &mut Vec<ServerEvent>) -> Result<(), EventTooLarge> {
        if std::mem::take(&mut self.at_start) && line.starts_with(MARK) {
            line = line.slice(MARK.len()..);
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            events.extend(self.data.take().map(|data| ServerEvent { name, data }));
            return Ok(());
        }
        self.check(line.len())?;
        let colon = memchr::memchr(b':', &line).unwrap_or(line.len());
        let value = (colon + 1 + usize::from(line.get(colon + 1) == Some(&b' '))).min(line.len());
        match &line[..colon] {
            b"data" => self.data.push(line.slice(value..)),
            b"event" => self.name = line.slice(value..),
            // A comment, or a field that tells browsers how to reconnect.
            _ => {}
        }
        Ok(())
    }

    fn check(&self, line: usize) -> Result<(), EventTooLarge> {
        if self.data.len() + line > self.limit { Err(EventTooLarge { limit: self.limit }) } else { Ok(()) }
    }
}

/// JSON in one line: a server may lay it out over lines, which would end an event; in JSON's strings there are none.
#[must_use]
pub fn one_line(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return Cow::Borrowed(json);
    }
    let space = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
    Cow::Owned(json.iter().map(space).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, Vec<u8>)> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for chunk in chunks {
            decoder.push(&Bytes::copy_from_slice(chunk), &mut events).unwrap();
        }
        events.extend(decoder.finish().unwrap());
        events.into_iter().map(|event| (String::from_utf8_lossy(&event.name).into_owned(), event.data.to_vec())).collect()
    }

    fn data(stream: &str) -> Vec<String> {
        read([stream.as_bytes()]).into_iter().map(|(_, data)| String::from_utf8(data).unwrap()).collect()
    }

    #[test]
    fn every_line_end_ends_a_line() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = ["data: a", "data:b", "", ": ping", "", "event: x", "data: c", ""].join(end);
            let expected = vec![(String::new(), b"a\nb".to_vec()), ("x".to_owned(), b"c".to_vec())];
            assert_eq!(read([(stream + end).as_bytes()]), expected, "{end:?}");
        }
    }

    #[test]
    fn a_byte_order_mark_comments_and_unknown_fields_are_passed_over() {
        assert_eq!(data("\u{feff}data: a\n\n:c\nid: 1\nretry: 5\nnonsense\ndata:  b\n\ndata\n\n"), ["a", " b", ""]);
    }

    #[test]
    fn an_event_without_its_blank_line_comes_at_the_end() {
        assert_eq!(data("data: a\n\ndata: b"), ["a", "b"]);
        assert_eq!(data("data: a\n\ndata: b\n"), ["a", "b"]);
        assert_eq!(data("event: lonely\n\n"), Vec::<String>::new());
    }

    #[test]
    fn invalid_utf8_stays_as_it_is() {
        assert_eq!(
            read([&b"data: \xff\xfe\n\ndata: ok\n\n"[..]]),
            [(String::new(), b"\xff\xfe".to_vec()), (String::new(), b"ok".to_vec())]
        );
    }

    #[test]
    fn data_within_one_push_is_a_slice_of_it() {
        let chunk = Bytes::from_static(b"data: one\n\ndata: two\n\n");
        let mut events = Vec::new();
        Decoder::default().push(&chunk, &mut events).unwrap();
        let ranges = chunk.as_ptr_range();
        assert_eq!(events.len(), 2);
        assert!(events.iter().all(|event| ranges.contains(&event.data.as_ptr())));
    }

    #[test]
    fn an_event_past_the_limit_is_an_error_in_one_line_or_many() {
        let mut events = Vec::new();
        let long = Bytes::from(vec![b'x'; 40]);
        assert_eq!(Decoder::new(32).push(&long, &mut events), Err(EventTooLarge { limit: 32 }));
        let many = Bytes::from("data: 0123456789\n".repeat(4));
        assert_eq!(Decoder::new(32).push(&many, &mut events), Err(EventTooLarge { limit: 32 }));
        assert_eq!(Decoder::new(64).push(&many, &mut events), Ok(()));
        assert_eq!(events, []);
    }

    #[test]
    fn a_byte_order_mark_does_not_count_however_its_line_is_split() {
        let stream = Bytes::from_static(b"\xEF\xBB\xBFdata\n\n");
        for cut in 0..stream.len() {
            let (mut decoder, mut events) = (Decoder::new(4), Vec::new());
            for piece in [stream.slice(..cut), stream.slice(cut..)] {
                assert_eq!(decoder.push(&piece, &mut events), Ok(()), "cut at {cut}");
            }
            assert_eq!(events.len(), 1, "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_events(
            lines in proptest::collection::vec("(data: ?[a-c\u{e9}\u{4e2d}:]{0,6}|event: e|: c|)(\n|\r\n|\r)", 0..24),
            cuts in proptest::collection::vec(0..200usize, 0..24),
            mark: bool,
        ) {
            let stream = format!("{}{}", if mark { "\u{feff}" } else { "" }, lines.concat()).into_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &stream[cut[0]..cut[1]]);
            prop_assert_eq!(read(pieces), read([&stream[..]]));
        }
    }
}
