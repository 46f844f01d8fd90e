//! Images and other large base64 in requests: kept once, by the hash of their bytes.
//!
//! A harness sends its whole history with each call, images included, and the policy is sent them again. So runs of base64 are
//! cut out of a body before it is packed, and the body is kept as what is left with a list of what belongs where. Only what can
//! be written again byte for byte is cut. A kept body begins with [`CHECKED`] and the checksum of what follows as it is before it is
//! packed; where something was cut out follow [`CUT`], the number of places, and for each how far it is from the one before, its
//! form and its hash; then what is left, packed as any body. Bodies of before have no checksum.

use std::collections::HashMap;
use std::ops::Range;

use bytes::Bytes;

use super::body::{self, Base};
use super::pack::{read_varint, varint};
use crate::call::{Base64Form, ImageHash};
use crate::ids::CallId;

// `store/body.rs` has the other first bytes.
const CUT: u8 = 4;
const CHECKED: u8 = 5;
/// Bytes of the first and the checksum.
const HEAD: usize = 5;

/// Base64 that nothing names as such is looked for in strings of this length and longer.
const LARGE: usize = 16 << 10;
/// A string of [`LARGE`] bytes has at least one whole stretch of this length that begins at a multiple of it.
const STRIDE: usize = LARGE / 2;
/// So much of a stretch is looked at.
const LOOK: usize = 64;
/// What stands before base64 in a data URL.
const NAMED: &[u8] = b";base64,";
/// A data URL shorter than this takes less room than a reference.
const SMALL: usize = 40;

/// What is kept once, by its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blob {
    pub hash: ImageHash,
    /// As it is kept.
    pub bytes: Bytes,
    /// Whether it is kept packed, as `store/body.rs` says.
    pub packed: bool,
}

/// A body as it is kept.
#[derive(Default)]
pub(super) struct Packed {
    pub bytes: Vec<u8>,
    /// What is to be kept beside it.
    pub blobs: Vec<Blob>,
    /// What it refers to, whether that is in `blobs` or was known.
    pub hashes: Vec<ImageHash>,
    /// Of that, what came in data URLs: hash after hash, in their order.
    pub images: Vec<u8>,
    /// The call without whose body this one can't be read.
    pub base: Option<CallId>,
}

/// A body with its blobs cut out.
pub(super) struct Cut {
    places: Vec<Place>,
    /// What is left.
    pub rest: Bytes,
}

/// Where something was cut out.
struct Place {
    /// Its text, in the body as it came.
    at: Range<usize>,
    form: Base64Form,
    hash: ImageHash,
    /// It stands in a data URL.
    named: bool,
}

/// Puts a kept body together: what was cut out of it, and what is left, which is `packed`.
pub(super) fn finish(body: &[u8], cut: Option<&Cut>, blobs: Vec<Blob>, packed: &[u8]) -> Packed {
    if body.is_empty() {
        return Packed::default();
    }
    let places = cut.map_or(&[][..], |cut| &cut.places);
    let mut bytes = Vec::with_capacity(packed.len() + places.len() * 40 + 16);
    bytes.extend_from_slice(&[CHECKED, 0, 0, 0, 0]);
    if !places.is_empty() {
        bytes.push(CUT);
        varint(&mut bytes, places.len() as u64);
    }
    let mut last = 0;
    for place in places {
        varint(&mut bytes, (place.at.start - last) as u64);
        bytes.push(place.form.code());
        bytes.extend_from_slice(place.hash.as_bytes());
        last = place.at.end;
    }
    let sum = sum(&bytes[HEAD..], cut.map_or(body, |cut| &cut.rest));
    bytes[1..HEAD].copy_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(packed);
    let images = places.iter().filter(|place| place.named).flat_map(|place| *place.hash.as_bytes()).collect();
    Packed { bytes, blobs, hashes: places.iter().map(|place| place.hash).collect(), images, base: None }
}

/// The checksum of a body as it is kept, before it is packed.
fn sum(places: &[u8], rest: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(places);
    sum.update(rest);
    sum.finalize()
}

/// Cuts out what can be; gives the bytes of what `known`, the cut of the `request` that the body was made from, has not.
pub(super) fn cut(body: &[u8], request: &[u8], known: Option<&Cut>) -> (Option<Cut>, Vec<Blob>) {
    let mut blobs = Vec::new();
    let mut places = Vec::new();
    // The body mostly has what the request has, in its order.
    let mut expected = known.map_or(&[][..], |cut| &cut.places).iter();
    for at in runs(body) {
        let text = &body[at.clone()];
        let named = body[..at.start].ends_with(NAMED);
        let same = expected.as_slice().first().filter(|place| request.get(place.at.clone()) == Some(text));
        let place = if let Some(place) = same {
            let place = Place { at, form: place.form, hash: place.hash, named };
            expected.next();
            place
        } else {
            let Some((form, bytes)) = Base64Form::read(text) else { continue };
            let hash = ImageHash::of(&bytes);
            blobs.push(Blob { hash, bytes: bytes.into(), packed: false });
            Place { at, form, hash, named }
        };
        places.push(place);
    }
    if places.is_empty() {
        return (None, blobs);
    }
    let mut rest = Vec::with_capacity(body.len() - places.iter().map(|place| place.at.len()).sum::<usize>());
    let mut last = 0;
    for place in &places {
        rest.extend_from_slice(&body[last..place.at.start]);
        last = place.at.end;
    }
    rest.extend_from_slice(&body[last..]);
    (Some(Cut { places, rest: rest.into() }), blobs)
}

/// Where base64 may stand in a body, in order: in data URLs, and as large strings. Each byte is looked at a few times at most.
fn runs(body: &[u8]) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut seen = 0;
    for named in memchr::memmem::find_iter(body, NAMED) {
        let start = named + NAMED.len();
        strings(body, seen..named, &mut found);
        seen = end_of(body, start);
        if seen - start >= SMALL && body.get(seen) == Some(&b'"') {
            found.push(start..seen);
        }
    }
    strings(body, seen..body.len(), &mut found);
    found
}

/// Looks for large strings of base64 within a stretch of the body.
fn strings(body: &[u8], within: Range<usize>, found: &mut Vec<Range<usize>>) {
    let mut floor = within.start;
    let mut look = within.start.next_multiple_of(STRIDE);
    while look + STRIDE <= within.end {
        let next = look + STRIDE;
        if is_mixed(&body[look..look + LOOK]) {
            let start = start_of(body, floor, look);
            let end = end_of(body, look);
            floor = end;
            let quoted = start > 0 && body[start - 1] == b'"' && body.get(end) == Some(&b'"');
            if quoted && end - start >= LARGE {
                found.push(start..end);
            }
        }
        look = next.max(floor.next_multiple_of(STRIDE));
    }
}

/// Whether bytes are base64 that stands for something, not one letter over and over: letters of both cases, and digits.
fn is_mixed(bytes: &[u8]) -> bool {
    let has = |kind: fn(&u8) -> bool| bytes.iter().any(kind);
    bytes.iter().all(|byte| is_base64(*byte) || *byte == b'\\')
        && has(u8::is_ascii_uppercase)
        && has(u8::is_ascii_lowercase)
        && has(u8::is_ascii_digit)
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=')
}

/// The end of the base64 that has begun before `at`; a slash may be escaped.
fn end_of(body: &[u8], mut at: usize) -> usize {
    while let Some(&byte) = body.get(at) {
        if is_base64(byte) {
            at += 1;
        } else if byte == b'\\' && body.get(at + 1) == Some(&b'/') {
            at += 2;
        } else {
            break;
        }
    }
    at
}

/// The start of the base64 that `at` is in, not before `floor`.
fn start_of(body: &[u8], floor: usize, mut at: usize) -> usize {
    while at > floor && (is_base64(body[at - 1]) || body[at - 1] == b'\\') {
        at -= 1;
    }
    at
}

/// A kept body, its parts still to be put together.
pub(super) struct Opened<'a> {
    /// The checksum of what follows; bodies of before have none.
    sum: Option<u32>,
    /// The places as they are written.
    written: &'a [u8],
    places: Vec<(usize, Base64Form, ImageHash)>,
    /// What is left of the body without its blobs, packed.
    rest: &'a [u8],
}

/// Takes a kept body apart; `None` if the bytes are no such thing.
pub(super) fn open(mut bytes: &[u8]) -> Option<Opened<'_>> {
    let mut sum = None;
    if let Some((&CHECKED, after)) = bytes.split_first() {
        let (written, after) = after.split_first_chunk::<4>()?;
        (sum, bytes) = (Some(u32::from_le_bytes(*written)), after);
    }
    let mut places = Vec::new();
    let whole = bytes;
    if let Some((&CUT, after)) = bytes.split_first() {
        bytes = after;
        for _ in 0..read_varint(&mut bytes)? {
            let gap = usize::try_from(read_varint(&mut bytes)?).ok()?;
            let (code, after) = bytes.split_first()?;
            let (hash, after) = after.split_at_checked(32)?;
            places.push((gap, Base64Form::of_code(*code)?, ImageHash::from_bytes(hash)?));
            bytes = after;
        }
    }
    Some(Opened { sum, written: &whole[..whole.len() - bytes.len()], places, rest: bytes })
}

impl Opened<'_> {
    /// What the rest is told by, if by anything; the outer `None` if it can't be read.
    #[expect(clippy::option_option, reason = "that it can't be read is not that it has none")]
    pub fn base(&self) -> Option<Option<Base>> {
        body::base(self.rest)
    }

    /// What is left of the body without its blobs, given its base's bytes; `None` if it is another than was kept.
    pub fn rest(&self, base: &[u8]) -> Option<Vec<u8>> {
        let rest = body::unpack(self.rest, base)?;
        self.sum.is_none_or(|written| written == sum(self.written, &rest)).then_some(rest)
    }

    /// The blobs that belong into it.
    pub fn hashes(&self) -> impl Iterator<Item = ImageHash> + '_ {
        self.places.iter().map(|(_, _, hash)| *hash)
    }

    /// The body as it came, from its rest; `None` if a blob is missing, or the places are none of its.
    pub fn close(&self, rest: Bytes, blobs: &HashMap<ImageHash, Bytes>) -> Option<Bytes> {
        if self.places.is_empty() {
            return Some(rest);
        }
        let mut rest = rest.as_ref();
        let mut body = Vec::new();
        for (gap, form, hash) in &self.places {
            let (before, after) = rest.split_at_checked(*gap)?;
            body.extend_from_slice(before);
            form.write(blobs.get(hash)?, &mut body);
            rest = after;
        }
        body.extend_from_slice(rest);
        Some(body.into())
    }
}
