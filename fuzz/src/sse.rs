//! The decoder of server-sent events: any split gives the same events, they are those that a plain reading of the standard
//! gives, and no event grows past the limit.

use bytes::Bytes;

use crate::wire::sse::{Decoder, EventTooLarge, ServerEvent};

type Events = (Vec<(Vec<u8>, Vec<u8>)>, Result<(), EventTooLarge>);

/// The first byte says how the rest is cut, the second how large an event may be.
pub fn run(data: &[u8]) {
    let [cut, limit, stream @ ..] = data else { return };
    check(stream, *cut, usize::MAX);
    check(stream, *cut, usize::from(*limit) + 1);
    let plain: Vec<_> = read(&[stream], usize::MAX).0;
    assert_eq!(plain, by_the_standard(stream));
}

fn check(stream: &[u8], cut: u8, limit: usize) {
    let whole = read(&[stream], limit);
    let pieces = read(&split(stream, cut), limit);
    // Of a stream that can't be read, what came before its fault is no promise.
    assert_eq!(whole.1, pieces.1);
    assert_eq!(whole.0, pieces.0);
    for (_, data) in &whole.0 {
        assert!(data.len() <= limit, "an event of {} bytes passed the limit of {limit}", data.len());
    }
}

/// Pieces whose lengths a small generator draws from `seed`; some are empty.
pub fn split(mut stream: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut state = u32::from(seed).wrapping_mul(2_654_435_761) | 1;
    let most = [1, 2, 3, 5, 8, 40, 400, 4096][usize::from(seed % 8)];
    let mut pieces = Vec::new();
    while !stream.is_empty() {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let length = (state as usize % (most + 1)).min(stream.len());
        let (piece, rest) = stream.split_at(length);
        pieces.push(piece);
        stream = rest;
    }
    pieces
}

fn read(pieces: &[&[u8]], limit: usize) -> Events {
    let mut decoder = Decoder::new(limit);
    let mut events = Vec::new();
    let mut end = pieces.iter().try_for_each(|piece| decoder.push(&Bytes::copy_from_slice(piece), &mut events));
    if end.is_ok() {
        end = decoder.finish().map(|last| events.extend(last));
    }
    let plain = |event: ServerEvent| (event.name.to_vec(), event.data.to_vec());
    (events.into_iter().map(plain).collect(), end)
}

/// The standard's reading, written down as it says it, over the whole stream at once. What has no blank line after it counts,
/// as it does for Gleaner: servers leave the last one out.
pub fn by_the_standard(stream: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut lines = vec![Vec::new()];
    let mut bytes = stream.iter().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&&b'\n');
                lines.push(Vec::new());
            }
            b'\n' => lines.push(Vec::new()),
            byte => lines.last_mut().unwrap().push(*byte),
        }
    }
    lines.push(Vec::new());
    let (mut events, mut name, mut data): (Vec<_>, Vec<u8>, Option<Vec<u8>>) = (Vec::new(), Vec::new(), None);
    for line in lines {
        if line.is_empty() {
            let name = std::mem::take(&mut name);
            events.extend(data.take().map(|data| (name, data)));
            continue;
        }
        let mut halves = line.splitn(2, |byte| *byte == b':');
        let field = halves.next().unwrap_or_default();
        let value = halves.next().unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"event" => name = value.to_vec(),
            b"data" => {
                data = Some(match data {
                    Some(before) => [&before, &b"\n"[..], value].concat(),
                    None => value.to_vec(),
                });
            }
            _ => {}
        }
    }
    events
}
