//! Images and other large base64 in requests: kept once, by the hash of their bytes.
//!
//! A harness sends its whole history with each call, images included, and the policy is sent them again. So runs of base64 are
//! cut out of a body before it is packed, and the body is kept as what is left with a list of what belongs where. Only what can
//! be written again byte for byte is cut. A body that something was cut from begins with [`CUT`]; then come the number of
//! places, and for each how far it is from the one before, its form and its hash; then what is left, packed as any body.

use std::collections::HashMap;
use std::ops::Range;

use super::body::{Packer, unpack};
use super::pack::{read_varint, varint};
use crate::call::{Base64Form, ImageHash};

/// The first byte of a body that something was cut from; `store/body.rs` has those of others.
pub(super) const CUT: u8 = 4;

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

/// A body as it is kept.
pub(super) struct Packed {
    pub bytes: Vec<u8>,
    /// What was cut out of it, and is to be kept beside it.
    pub blobs: Vec<(ImageHash, Vec<u8>)>,
    /// What it refers to, whether that is in `blobs` or was known.
    pub hashes: Vec<ImageHash>,
    /// Of that, what came in data URLs: hash after hash, in their order.
    pub images: Vec<u8>,
}

/// A request with its blobs cut out.
pub(super) struct Cut {
    places: Vec<Place>,
    rest: Vec<u8>,
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

/// Packs a request; what was cut out of it is given for the body that will be made from it.
pub(super) fn pack_request(packer: &mut Packer, request: &[u8]) -> (Packed, Option<Cut>) {
    let (cut, blobs) = cut(request, request, None);
    let rest = packer.pack(cut.as_ref().map_or(request, |cut| &cut.rest));
    (finish(cut.as_ref(), blobs, rest), cut)
}

/// Packs a body beside the request that it was made from, and what was cut out of that.
pub(super) fn pack_beside(packer: &mut Packer, body: &[u8], request: &[u8], request_cut: Option<&Cut>) -> Packed {
    let (cut, blobs) = cut(body, request, request_cut);
    let request_rest = request_cut.map_or(request, |cut| &cut.rest);
    let rest = packer.pack_beside(cut.as_ref().map_or(body, |cut| &cut.rest), request_rest);
    finish(cut.as_ref(), blobs, rest)
}

/// What to cut out of a request, where that is not known any more.
pub(super) fn cut_request(request: &[u8]) -> Option<Cut> {
    cut(request, request, None).0
}

fn finish(cut: Option<&Cut>, blobs: Vec<(ImageHash, Vec<u8>)>, rest: Vec<u8>) -> Packed {
    let Some(cut) = cut else { return Packed { bytes: rest, blobs, hashes: Vec::new(), images: Vec::new() } };
    let mut bytes = Vec::with_capacity(rest.len() + cut.places.len() * 40 + 8);
    bytes.push(CUT);
    varint(&mut bytes, cut.places.len() as u64);
    let mut last = 0;
    for place in &cut.places {
        varint(&mut bytes, (place.at.start - last) as u64);
        bytes.push(place.form.code());
        bytes.extend_from_slice(place.hash.as_bytes());
        last = place.at.end;
    }
    bytes.extend_from_slice(&rest);
    let images = cut.places.iter().filter(|place| place.named).flat_map(|place| *place.hash.as_bytes()).collect();
    Packed { bytes, blobs, hashes: cut.places.iter().map(|place| place.hash).collect(), images }
}

/// Cuts out what can be; gives the bytes of what `known`, the cut of `request`, has not.
fn cut(body: &[u8], request: &[u8], known: Option<&Cut>) -> (Option<Cut>, Vec<(ImageHash, Vec<u8>)>) {
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
            blobs.push((hash, bytes));
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
    (Some(Cut { places, rest }), blobs)
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

/// A kept body, its blobs still to be put back.
pub(super) struct Opened {
    places: Vec<(usize, Base64Form, ImageHash)>,
    /// What is left of the body without them.
    pub rest: Vec<u8>,
}

/// Unpacks a body; `request` is what is left of the request that it may have been packed beside. `None` if the bytes are no
/// such thing.
pub(super) fn open(packed: &[u8], request: &[u8]) -> Option<Opened> {
    let Some((&CUT, mut bytes)) = packed.split_first() else {
        return Some(Opened { places: Vec::new(), rest: unpack(packed, request)? });
    };
    let mut places = Vec::new();
    for _ in 0..read_varint(&mut bytes)? {
        let gap = usize::try_from(read_varint(&mut bytes)?).ok()?;
        let (code, after) = bytes.split_first()?;
        let (hash, after) = after.split_at_checked(32)?;
        places.push((gap, Base64Form::of_code(*code)?, ImageHash::from_bytes(hash)?));
        bytes = after;
    }
    Some(Opened { places, rest: unpack(bytes, request)? })
}

impl Opened {
    /// The blobs that belong into it.
    pub fn hashes(&self) -> impl Iterator<Item = ImageHash> + '_ {
        self.places.iter().map(|(_, _, hash)| *hash)
    }

    /// The body as it came; `None` if a blob is missing, or the places are none of its.
    pub fn close(self, blobs: &HashMap<ImageHash, Vec<u8>>) -> Option<Vec<u8>> {
        if self.places.is_empty() {
            return Some(self.rest);
        }
        let mut rest = self.rest.as_slice();
        let mut body = Vec::new();
        for (gap, form, hash) in self.places {
            let (before, after) = rest.split_at_checked(gap)?;
            body.extend_from_slice(before);
            form.write(blobs.get(&hash)?, &mut body);
            rest = after;
        }
        body.extend_from_slice(rest);
        Some(body)
    }
}
