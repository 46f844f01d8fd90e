//! Bodies as they are kept: compressed on the writer's thread, by what is new in them beside another body, their base.
//!
//! A policy is mostly sent what the client sent, with a field more or another name for the model; a client's next request is its
//! last one and a turn more. So a body is told by its base (`store/delta.rs`), and what is new is compressed. Which base, is
//! `store/chain.rs`'s to choose. A packed body begins with its form:
//!
//! - [`PLAIN`]: the bytes follow.
//! - [`ZSTD`]: a zstd frame follows, its size in its header.
//! - [`DELTA`]: the base, the copies out of it, and what is new, in a form of its own.
//! - [`SHARED`], [`DICTIONARY`]: written before there was `DELTA`, against the call's own request: what both share at their ends
//!   and the middle in a form of its own; and a frame with the request as dictionary.

use zstd_safe::{CCtx, DCtx};

use super::delta::{Delta, apply, read_copies};
use super::pack::read_varint;
use crate::call::ImageHash;
use crate::ids::CallId;

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const SHARED: u8 = 2;
const DICTIONARY: u8 = 3;
// 4 and 5 are `store/blob.rs`'s.
const DELTA: u8 = 6;

/// Level of compression where all of a body is new. A reply of 14 KB shrinks to 8,047 bytes in 17 µs at -7, to 8,205 in 10 µs at
/// -15, to 3,750 in 42 µs at 1.
const FAST: i32 = -15;
/// Where it is little, or done once for many.
const SMALLER: i32 = 1;
/// Bodies shorter than this stay as they are: nothing to win.
const SMALL: usize = 512;
/// Larger than any body that is let in; a frame that claims more is broken.
const LARGEST: u64 = 1 << 31;

/// What a body is told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The request of the same call.
    Own,
    /// The same part of another call.
    Call(CallId),
    /// A blob.
    Blob(ImageHash),
}

impl Base {
    fn write(self, out: &mut Vec<u8>) {
        match self {
            Self::Own => out.push(0),
            Self::Call(id) => {
                out.push(1);
                out.extend_from_slice(id.0.as_bytes());
            }
            Self::Blob(hash) => {
                out.push(2);
                out.extend_from_slice(hash.as_bytes());
            }
        }
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (base, rest) = match *kind {
            0 => (Self::Own, rest),
            1 => {
                let (id, rest) = rest.split_at_checked(16)?;
                (Self::Call(CallId(uuid::Uuid::from_slice(id).ok()?)), rest)
            }
            2 => {
                let (hash, rest) = rest.split_at_checked(32)?;
                (Self::Blob(ImageHash::from_bytes(hash)?), rest)
            }
            _ => return None,
        };
        *bytes = rest;
        Some(base)
    }
}

/// Packs bodies. Keeps its contexts and its buffer: making them anew costs as much as a small body's compression.
pub(super) struct Packer {
    context: CCtx<'static>,
    scratch: Vec<u8>,
}

impl Packer {
    pub(super) fn new() -> Self {
        Self { context: CCtx::create(), scratch: Vec::new() }
    }

    /// Packs a body that stands alone. An empty one is empty.
    pub(super) fn pack(&mut self, body: &[u8]) -> Vec<u8> {
        self.alone(body, FAST)
    }

    /// Packs a body that stands alone, smaller and slower: for what others are told by.
    pub(super) fn pack_small(&mut self, body: &[u8]) -> Vec<u8> {
        self.alone(body, SMALLER)
    }

    /// Packs a body as what is new beside `base`.
    pub(super) fn pack_delta(&mut self, delta: &Delta, base: Base) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + delta.literals.len() / 2);
        out.push(DELTA);
        base.write(&mut out);
        delta.write(&mut out);
        self.append(&mut out, &delta.literals, SMALLER);
        out
    }

    fn alone(&mut self, body: &[u8], level: i32) -> Vec<u8> {
        let mut out = Vec::new();
        if !body.is_empty() {
            self.append(&mut out, body, level);
        }
        out
    }

    fn append(&mut self, out: &mut Vec<u8>, body: &[u8], level: i32) {
        if body.len() >= SMALL {
            self.scratch.clear();
            self.scratch.reserve(zstd_safe::compress_bound(body.len()));
            let packed = self.context.compress(&mut self.scratch, body, level);
            // A body that zstd can't take is kept as it is, like one that it can't shorten.
            if packed.is_ok() && self.scratch.len() < body.len() {
                out.reserve_exact(1 + self.scratch.len());
                out.push(ZSTD);
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

/// What a packed body is told by, if by anything; the outer `None` if the bytes are no such thing.
#[expect(clippy::option_option, reason = "that it can't be read is not that it has none")]
pub(super) fn base(packed: &[u8]) -> Option<Option<Base>> {
    match packed.split_first() {
        None | Some((&(PLAIN | ZSTD), _)) => Some(None),
        Some((&(SHARED | DICTIONARY), _)) => Some(Some(Base::Own)),
        Some((&DELTA, mut rest)) => Base::read(&mut rest).map(Some),
        Some(_) => None,
    }
}

/// Unpacks a body, given its base's bytes. `None` if the bytes are no such thing.
pub(super) fn unpack(packed: &[u8], base: &[u8]) -> Option<Vec<u8>> {
    let Some((form, mut rest)) = packed.split_first() else { return Some(Vec::new()) };
    match *form {
        PLAIN => Some(rest.to_vec()),
        ZSTD => inflate(rest, &[]),
        DICTIONARY => inflate(rest, base),
        SHARED => {
            let head = usize::try_from(read_varint(&mut rest)?).ok()?;
            let tail = usize::try_from(read_varint(&mut rest)?).ok()?;
            let middle = nested(rest, base)?;
            let mut body = base.get(..head)?.to_vec();
            body.extend_from_slice(&middle);
            body.extend_from_slice(&base[base.len().checked_sub(tail)?..]);
            Some(body)
        }
        DELTA => {
            Base::read(&mut rest)?;
            let copies = read_copies(&mut rest)?;
            apply(&copies, &nested(rest, &[])?, base)
        }
        _ => None,
    }
}

/// What stands inside another form: never one that has something inside in turn.
fn nested(packed: &[u8], base: &[u8]) -> Option<Vec<u8>> {
    if matches!(packed.first(), Some(&(SHARED | DELTA))) { None } else { unpack(packed, base) }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::pack::varint;

    fn request(turns: usize) -> Vec<u8> {
        let mut body = br#"{"model":"m","messages":["#.to_vec();
        for turn in 0..turns {
            body.extend_from_slice(format!("{{\"role\":\"user\",\"content\":\"{:x}\"}},", turn * 7_919_773).as_bytes());
        }
        body.extend_from_slice(br#"{"role":"user","content":"end"}],"stream":true}"#);
        body
    }

    fn beside(body: &[u8], request: &[u8]) -> Vec<u8> {
        Packer::new().pack_delta(&Delta::of(body, request), Base::Own)
    }

    #[test]
    fn a_spliced_request_costs_next_to_nothing() {
        let request = request(2000);
        let mut upstream = br#"{"return_token_ids":true,"#.to_vec();
        upstream.extend_from_slice(&request[1..]);
        let packed = beside(&upstream, &request);
        assert!(packed.len() < 64, "{}", packed.len());
        assert_eq!(base(&packed), Some(Some(Base::Own)));
        assert_eq!(unpack(&packed, &request), Some(upstream));
    }

    #[test]
    fn a_request_written_anew_is_packed_by_the_old_one() {
        let request = request(500);
        // Another order of fields and the text inside: nothing is shared at the ends.
        let upstream = [b"[" as &[u8], &request[1000..], b" and ", &request[..1000], b"]"].concat();
        let packed = beside(&upstream, &request);
        assert!(packed.len() < 100, "{}", packed.len());
        assert_eq!(unpack(&packed, &request), Some(upstream));
    }

    /// As Gleaner wrote it before migration 0006.
    #[test]
    fn bodies_of_before_are_read() {
        let request = request(60);
        let upstream = [&request[..700], request[1400..].as_ref(), &request[..600], b"}"].concat();
        let mut frame = Vec::with_capacity(9000);
        CCtx::create().compress_using_dict(&mut frame, &upstream, &request, -15).unwrap();
        let dictionary = [&[DICTIONARY], frame.as_slice()].concat();
        assert_eq!((base(&dictionary), unpack(&dictionary, &request)), (Some(Some(Base::Own)), Some(upstream)));
        let spliced = [b"{\"a\":1," as &[u8], &request[1..]].concat();
        let tail = request.len() - 1;
        let mut written = vec![SHARED];
        varint(&mut written, 1);
        varint(&mut written, tail as u64);
        written.extend_from_slice(&[&[PLAIN], b"\"a\":1," as &[u8]].concat());
        assert_eq!((base(&written), unpack(&written, &request)), (Some(Some(Base::Own)), Some(spliced)));
        assert_eq!(unpack(&written, b"short"), None);
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
            let alone = Packer::new().pack(&body);
            prop_assert_eq!(base(&alone), Some(None));
            prop_assert_eq!(unpack(&alone, b""), Some(body.clone()));
            prop_assert_eq!(unpack(&beside(&body, &request), &request), Some(body));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, request: Vec<u8>) {
            let _ = (base(&bytes), unpack(&bytes, &request));
        }
    }
}
