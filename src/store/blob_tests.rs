//! Bodies with images: what was cut out is put back byte for byte.

use std::collections::HashMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::blob::{Blob, Packed, cut, finish, open};
use super::body::{Base, Packer};
use super::delta::Delta;
use crate::call::ImageHash;

/// Bytes that no packing makes shorter.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |value: u32| char::from(DIGITS[(value & 63) as usize]);
    let three = |chunk: &[u8]| {
        let value = (0..3).fold(0, |value, at| value << 8 | u32::from(chunk.get(at).copied().unwrap_or_default()));
        let text: String = [18, 12, 6, 0].map(|shift| digit(value >> shift)).into_iter().take(chunk.len() + 1).collect();
        format!("{text:=<4}")
    };
    bytes.chunks(3).map(three).collect()
}

/// What is kept of bodies, and what comes out of it again.
#[derive(Default)]
struct Kept(HashMap<ImageHash, Bytes>);

impl Kept {
    fn keep(&mut self, packed: &Packed) {
        for Blob { hash, bytes, packed } in &packed.blobs {
            assert_eq!((ImageHash::of(bytes), packed), (*hash, &false));
            self.0.insert(*hash, bytes.clone());
        }
        assert!(packed.hashes.iter().all(|hash| self.0.contains_key(hash)), "a reference to what is not kept");
    }

    /// Keeps a request and what was made of it, and reads both again; gives how much was kept of each beside the blobs.
    fn round(&mut self, request: &[u8], upstream: &[u8]) -> (usize, usize) {
        let mut packer = Packer::new();
        let (request_cut, blobs) = cut(request, request, None);
        let rest = request_cut.as_ref().map_or(request, |cut| &cut.rest);
        let kept = finish(request, request_cut.as_ref(), blobs, &packer.pack(rest));
        self.keep(&kept);
        let (upstream_cut, blobs) = cut(upstream, request, request_cut.as_ref());
        let delta = Delta::of(upstream_cut.as_ref().map_or(upstream, |cut| &cut.rest), rest);
        let beside = finish(upstream, upstream_cut.as_ref(), blobs, &packer.pack_delta(&delta, Base::Own));
        self.keep(&beside);
        let opened = open(&kept.bytes).unwrap();
        let rest = Bytes::from(opened.rest(&[]).unwrap());
        assert!(opened.close(rest.clone(), &self.0).unwrap() == request, "the request is another");
        let opened = open(&beside.bytes).unwrap();
        let rest = opened.rest(&rest).unwrap().into();
        assert!(opened.close(rest, &self.0).unwrap() == upstream, "the upstream body is another");
        (kept.bytes.len(), beside.bytes.len())
    }
}

fn chat(urls: &[String]) -> String {
    let parts: Vec<String> = urls.iter().map(|url| format!(r#"{{"type":"image_url","image_url":{{"url":"{url}"}}}}"#)).collect();
    format!(r#"{{"model":"m","messages":[{{"role":"user","content":[{}]}}]}}"#, parts.join(","))
}

#[test]
fn an_image_that_is_sent_again_is_kept_once() {
    let mut kept = Kept::default();
    let images: Vec<String> = (0..3).map(|seed| format!("data:image/png;base64,{}", base64(&noise(100_000, seed)))).collect();
    for turns in 1..=3 {
        let request = chat(&images[..turns]);
        let (request_size, upstream_size) = kept.round(request.as_bytes(), request.replace("\"m\"", "\"policy\"").as_bytes());
        assert!(request_size + upstream_size < 1000, "{request_size} and {upstream_size}");
        assert_eq!(kept.0.len(), turns);
    }
    let twice = chat(&[images[0].clone(), images[0].clone()]);
    kept.round(twice.as_bytes(), chat(&[images[1].clone(), images[0].clone()]).as_bytes());
    assert_eq!(kept.0.len(), 3);
}

#[test]
fn every_wires_own_place_is_found() {
    let (large, small) = (base64(&noise(20_000, 7)), base64(&noise(50, 8)));
    for (body, blobs) in [
        (format!(r#"{{"source":{{"type":"base64","media_type":"image/png","data":"{large}"}}}}"#), 1),
        (format!(r#"{{"inlineData":{{"mimeType":"image/png","data":"{}"}}}}"#, large.replace('/', "_").replace('+', "-")), 1),
        (format!(r#"{{"data":"{}"}}"#, large.replace('/', "\\/")), 1),
        (format!(r#"{{"url":"data:image\/png;base64,{}"}}"#, small.replace('/', "\\/")), 1),
        (format!(r#"{{"data":"{small}"}}"#), 0),
        (format!(r#"{{"data":"{}"}}"#, large.replace('/', "?")), 0),
        (format!(r#"{{"text":"see {large}"}}"#), 0),
        (format!(r#"{{"text":"{large} and so on"}}"#), 0),
        (format!(r#"{{"text":"{large}\n"}}"#), 0),
        (format!(r#"{{"text":"{}"}}"#, "a".repeat(40_000)), 0),
        (format!(r#"{{"data":"{large}"#), 0),
        (large.clone(), 0),
    ] {
        let mut kept = Kept::default();
        kept.round(body.as_bytes(), body.as_bytes());
        assert_eq!(kept.0.len(), blobs, "{}", &body[..60]);
    }
}

#[test]
fn what_is_broken_is_refused() {
    let body = chat(&[format!("data:image/png;base64,{}", base64(&noise(3000, 1)))]);
    let (cut, blobs) = cut(body.as_bytes(), body.as_bytes(), None);
    let cut = cut.unwrap();
    let packed = finish(body.as_bytes(), Some(&cut), blobs.clone(), &Packer::new().pack(&cut.rest));
    let opened = open(&packed.bytes).unwrap();
    assert_eq!(opened.close(cut.rest.clone(), &HashMap::new()), None, "without the image");
    let whole: HashMap<_, _> = blobs.iter().map(|blob| (blob.hash, blob.bytes.clone())).collect();
    assert_eq!(opened.close(cut.rest.clone(), &whole).as_deref(), Some(body.as_bytes()));
    let mut flipped = packed.bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(open(&flipped).unwrap().rest(&[]), None, "another rest");
    assert!(open(&packed.bytes[..20]).is_none());
}

/// Pieces of bodies: text, base64 in all forms and nearly so, with and without quotes.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let length = prop_oneof![0..200_usize, 16_000..40_000_usize];
    let encoded = (length, any::<u64>(), 0..6_u8).prop_map(|(length, seed, form)| {
        let text = base64(&noise(length, seed));
        match form {
            0 => text.replace('/', "\\/"),
            1 => text.replace('/', "_").replace('+', "-"),
            2 => text.trim_end_matches('=').to_owned(),
            3 => text.replacen('A', "\\n", 1),
            4 => text.replacen('B', "=", 1),
            _ => text,
        }
        .into_bytes()
    });
    prop_oneof![
        4 => encoded,
        2 => Just(b"\"".to_vec()),
        1 => Just(b"\"data:image/png;base64,".to_vec()),
        1 => Just(b"\",\"".to_vec()),
        1 => Just(b"\\\"".to_vec()),
        1 => Just(b";base64,".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..50),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn bodies_come_back(
        mut pieces in prop::collection::vec(piece(), 0..12), other in prop::collection::vec(piece(), 0..4), at in any::<prop::sample::Index>(),
    ) {
        let request = [b"{" as &[u8], &pieces.concat()].concat();
        let at = at.index(pieces.len() + 1);
        pieces.splice(at..at, other);
        Kept::default().round(&request, &[b"{\"model\":\"policy\"," as &[u8], &pieces.concat()].concat());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, request: Vec<u8>) {
        // As they are, and as a body that something was cut from.
        for packed in [bytes.clone(), [&[4], bytes.as_slice()].concat()] {
            if let Some(opened) = open(&packed)
                && let Some(rest) = opened.rest(&request)
            {
                let _ = opened.close(rest.into(), &HashMap::new());
            }
        }
    }
}
