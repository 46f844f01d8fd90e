//! Bodies as they are kept: compressed on the writer's thread, what goes up against what came in.
//!
//! A policy is mostly sent what the client sent, with a field more or another name for the model. So a body that has the
//! client's request beside it is first trimmed by what the two share at both ends (two comparisons of memory, whatever its
//! length); what is left is compressed, with the request as dictionary where that pays. A packed body begins with its form:
//!
//! - [`PLAIN`]: the bytes follow.
//! - [`ZSTD`]: a zstd frame follows, its size in its header.
//! - [`SHARED`]: two varints say how many bytes the head and the tail share with the request's; then the middle, in a form of
//!   its own.
//! - [`DICTIONARY`]: as `ZSTD`, with the request as dictionary.

use zstd_safe::{CCtx, DCtx};

use super::pack::{read_varint, varint};

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const SHARED: u8 = 2;
const DICTIONARY: u8 = 3;

/// Level of compression. A reply of 14 KB shrinks to 8,047 bytes in 17 µs at -7, to 8,205 in 10 µs at -15, to 3,750 in 42 µs at 1.
const LEVEL: i32 = -15;
/// Bodies shorter than this stay as they are: nothing to win.
const SMALL: usize = 512;
/// Larger than any body that is let in; a frame that claims more is broken.
const LARGEST: u64 = 1 << 31;

/// Packs bodies. Keeps its contexts and its buffer: making them anew costs as much as a small body's compression.
pub(super) struct Packer {
    context: CCtx<'static>,
    scratch: Vec<u8>,
    level: i32,
}

impl Packer {
    pub(super) fn new() -> Self {
        Self { context: CCtx::create(), scratch: Vec::new(), level: LEVEL }
    }

    /// Packs a body that stands alone. An empty one is empty.
    pub(super) fn pack(&mut self, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if !body.is_empty() {
            self.append(&mut out, body, None);
        }
        out
    }

    /// Packs a body beside the request that it was made from.
    pub(super) fn pack_beside(&mut self, body: &[u8], request: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        if body.is_empty() {
            return out;
        }
        let head = shared_head(body, request);
        let tail = shared_tail(&body[head..], &request[head..]);
        // A few bytes in common are in every two JSON objects, and not worth saying.
        let middle = if head + tail > 16 {
            out.push(SHARED);
            varint(&mut out, head as u64);
            varint(&mut out, tail as u64);
            &body[head..body.len() - tail]
        } else {
            body
        };
        self.append(&mut out, middle, dictionary(middle, request));
        out
    }

    fn append(&mut self, out: &mut Vec<u8>, body: &[u8], dictionary: Option<&[u8]>) {
        if body.len() >= SMALL {
            self.scratch.clear();
            self.scratch.reserve(zstd_safe::compress_bound(body.len()));
            let packed = match dictionary {
                Some(request) => self.context.compress_using_dict(&mut self.scratch, body, request, self.level),
                None => self.context.compress(&mut self.scratch, body, self.level),
            };
            // A body that zstd can't take is kept as it is, like one that it can't shorten.
            if packed.is_ok() && self.scratch.len() < body.len() {
                out.reserve_exact(1 + self.scratch.len());
                out.push(if dictionary.is_some() { DICTIONARY } else { ZSTD });
                out.extend_from_slice(&self.scratch);
                if self.scratch.capacity() > 4 << 20 {
                    self.scratch = Vec::new();
                }
                return;
            }
        }
        out.reserve_exact(1 + body.len());
        out.push(PLAIN);
        out.extend_from_slice(body);
    }
}

/// The request as dictionary for `body`: reading it into zstd's tables costs about a compression of its own, so it must be
/// worth it, and zstd must not take it for a trained dictionary.
fn dictionary<'a>(body: &[u8], request: &'a [u8]) -> Option<&'a [u8]> {
    (request.starts_with(b"{") && body.len() >= SMALL && body.len() >= request.len() / 8).then_some(request)
}

/// Unpacks a body; `request` gives the request that it may have been packed beside. `None` if the bytes are no such thing.
pub(super) fn unpack(packed: &[u8], request: &[u8]) -> Option<Vec<u8>> {
    let Some((form, mut rest)) = packed.split_first() else { return Some(Vec::new()) };
    match *form {
        PLAIN => Some(rest.to_vec()),
        ZSTD => inflate(rest, &[]),
        DICTIONARY => inflate(rest, request),
        SHARED => {
            let head = usize::try_from(read_varint(&mut rest)?).ok()?;
            let tail = usize::try_from(read_varint(&mut rest)?).ok()?;
            if rest.first() == Some(&SHARED) {
                return None;
            }
            let mut body = request.get(..head)?.to_vec();
            body.extend_from_slice(&unpack(rest, request)?);
            body.extend_from_slice(&request[request.len().checked_sub(tail)?..]);
            Some(body)
        }
        _ => None,
    }
}

fn inflate(frame: &[u8], dictionary: &[u8]) -> Option<Vec<u8>> {
    let size = zstd_safe::get_frame_content_size(frame).ok()??;
    if size > LARGEST {
        return None;
    }
    let mut body = Vec::with_capacity(usize::try_from(size).ok()?);
    let mut context = DCtx::create();
    context.decompress_using_dict(&mut body, frame, dictionary).ok()?;
    (body.len() as u64 == size).then_some(body)
}

fn shared_head(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 64;
    let blocks = a.chunks_exact(STEP).zip(b.chunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    blocks + a[blocks..].iter().zip(&b[blocks..]).take_while(|(a, b)| a == b).count()
}

fn shared_tail(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 64;
    let blocks = a.rchunks_exact(STEP).zip(b.rchunks_exact(STEP)).take_while(|(a, b)| a == b).count() * STEP;
    let (a, b) = (&a[..a.len() - blocks], &b[..b.len() - blocks]);
    blocks + a.iter().rev().zip(b.iter().rev()).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(turns: usize) -> Vec<u8> {
        let mut body = br#"{"model":"m","messages":["#.to_vec();
        for turn in 0..turns {
            body.extend_from_slice(format!("{{\"role\":\"user\",\"content\":\"{:x}\"}},", turn * 7_919_773).as_bytes());
        }
        body.extend_from_slice(br#"{"role":"user","content":"end"}],"stream":true}"#);
        body
    }

    #[test]
    fn a_spliced_request_costs_next_to_nothing() {
        let request = request(2000);
        let mut upstream = br#"{"return_token_ids":true,"#.to_vec();
        upstream.extend_from_slice(&request[1..]);
        let packed = Packer::new().pack_beside(&upstream, &request);
        assert!(packed.len() < 64, "{}", packed.len());
        assert_eq!(unpack(&packed, &request), Some(upstream));
    }

    #[test]
    fn a_request_written_anew_is_packed_by_the_old_one() {
        let request = request(500);
        // Another order of fields and the text inside: nothing is shared at the ends.
        let upstream = [b"[" as &[u8], &request[1000..], b" and ", &request[..1000], b"]"].concat();
        let mut packer = Packer::new();
        let beside = packer.pack_beside(&upstream, &request);
        assert!(beside.len() * 4 < packer.pack(&upstream).len(), "{}", beside.len());
        assert_eq!(unpack(&beside, &request), Some(upstream));
    }

    proptest! {
        #[test]
        fn bodies_come_back(
            request in prop_oneof![prop::collection::vec(any::<u8>(), 0..400), (0_usize..60).prop_map(request)],
            cut in any::<prop::sample::Index>(), cut2 in any::<prop::sample::Index>(),
            insert in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let (a, b) = (cut.index(request.len() + 1), cut2.index(request.len() + 1));
            let body = [&request[..a], &insert, &request[b..]].concat();
            let mut packer = Packer::new();
            let alone = packer.pack(&body);
            prop_assert_eq!(unpack(&alone, b""), Some(body.clone()));
            let beside = packer.pack_beside(&body, &request);
            prop_assert_eq!(unpack(&beside, &request), Some(body));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, request: Vec<u8>) {
            let _ = unpack(&bytes, &request);
        }
    }
}
