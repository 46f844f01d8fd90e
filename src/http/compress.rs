//! Answers' content coding: whole bodies of some size, for clients that ask for it.
//!
//! Streams of events go out as they are: to let each event leave at once, a coder must be flushed at each, which costs 11 µs an
//! event (zlib -1, 180 bytes an event) where all the rest of the way of an event costs 7.

use std::io::Write;

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Body as _;

use super::serve::Http;

/// Bodies shorter than this are sent as they are: they fit into few packets anyway.
pub(super) const SMALLEST: usize = 4096;
/// Bodies past this size are packed away from the runtime's threads.
const LARGE: usize = 256 << 10;

/// A content coding that answers may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Zstd,
    Gzip,
    Brotli,
}

impl Coding {
    /// The cheapest for what it saves comes first.
    const ALL: [Self; 3] = [Self::Zstd, Self::Gzip, Self::Brotli];

    fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Gzip => "gzip",
            Self::Brotli => "br",
        }
    }

    fn pack(self, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut out = Vec::with_capacity(body.len() / 4);
        match self {
            Self::Zstd => zstd::stream::copy_encode(body, &mut out, 1)?,
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
                encoder.write_all(body)?;
                encoder.finish()?;
            }
            Self::Brotli => {
                let mut encoder = brotli::CompressorWriter::new(&mut out, 16 << 10, 2, 20);
                encoder.write_all(body)?;
                drop(encoder);
            }
        }
        Ok(out)
    }
}

/// The coding that a client is to have its answer in: the one that it likes best, of equals the cheapest.
pub(super) fn wanted(http: &Http, headers: &HeaderMap) -> Option<Coding> {
    if !http.compress {
        return None;
    }
    best(headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()))
}

fn best<'a>(values: impl Iterator<Item = &'a str>) -> Option<Coding> {
    let mut named = [None; Coding::ALL.len()];
    let mut others = 0.0_f32;
    for entry in values.flat_map(|value| value.split(',')) {
        let (name, rest) = entry.split_once(';').unwrap_or((entry, ""));
        let weight = rest.trim().strip_prefix("q=").map_or(1.0, |weight| weight.trim().parse().unwrap_or(0.0));
        if name.trim() == "*" {
            others = weight;
        }
        for (coding, named) in Coding::ALL.into_iter().zip(&mut named) {
            if name.trim().eq_ignore_ascii_case(coding.name()) {
                *named = Some(weight);
            }
        }
    }
    let mut best = None;
    let mut most = 0.0;
    for (coding, named) in Coding::ALL.into_iter().zip(named) {
        let weight = named.unwrap_or(others);
        if weight > most {
            (best, most) = (Some(coding), weight);
        }
    }
    best
}

/// Packs a body; `None` if that makes it no shorter.
pub(super) async fn pack(body: &Bytes, coding: Coding) -> Option<Bytes> {
    let packed = if body.len() > LARGE {
        let body = body.clone();
        tokio::task::spawn_blocking(move || coding.pack(&body)).await.ok()?
    } else {
        coding.pack(body)
    };
    packed.ok().filter(|packed| packed.len() < body.len()).map(Bytes::from)
}

/// Says which coding a body has, and that others would have got another.
pub(super) fn say(packed: Option<Coding>, varies: bool, headers: &mut HeaderMap) {
    if let Some(coding) = packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    }
    if varies {
        headers.append(header::VARY, HeaderValue::from_static("accept-encoding"));
    }
}

/// Packs an answer that is no call's: text of known length that has no coding yet.
pub(super) async fn answer(response: Response, coding: Coding) -> Response {
    let length = response.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let headers = response.headers();
    let media = headers.get(header::CONTENT_TYPE).and_then(|media| media.to_str().ok()).unwrap_or_default();
    let text = media.starts_with("text/") || media.contains("json");
    if !text || headers.contains_key(header::CONTENT_ENCODING) || length.is_none_or(|length| length < SMALLEST) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    // A body of known length is in memory already.
    let Ok(body) = axum::body::to_bytes(body, usize::MAX).await else { return Response::from_parts(parts, <_>::default()) };
    let packed = pack(&body, coding).await;
    say(packed.is_some().then_some(coding), true, &mut parts.headers);
    let body = packed.unwrap_or(body);
    if parts.headers.contains_key(header::CONTENT_LENGTH) {
        parts.headers.insert(header::CONTENT_LENGTH, body.len().into());
    }
    Response::from_parts(parts, body.into())
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_best_liked_coding_is_taken_and_a_refused_one_never() {
        for (values, coding) in [
            (vec!["gzip, deflate, br, zstd"], Some(Coding::Zstd)),
            (vec!["gzip, deflate"], Some(Coding::Gzip)),
            (vec!["gzip;q=0.5, br;q=0.8"], Some(Coding::Brotli)),
            (vec!["gzip; q=0.5", "BR"], Some(Coding::Brotli)),
            (vec!["zstd;q=0, *"], Some(Coding::Gzip)),
            (vec!["*;q=0"], None),
            (vec!["identity"], None),
            (vec!["deflate"], None),
            (vec!["gzip;q=nonsense"], None),
            (vec![], None),
        ] {
            assert_eq!(best(values.iter().copied()), coding, "{values:?}");
        }
    }

    #[test]
    fn what_is_packed_comes_back() {
        let body: Vec<u8> = (0..9000_u32).flat_map(|number| number.to_string().into_bytes()).collect();
        for coding in Coding::ALL {
            let packed = coding.pack(&body).unwrap();
            assert!(packed.len() < body.len() / 2, "{coding:?}");
            let mut back = Vec::new();
            match coding {
                Coding::Zstd => back = zstd::decode_all(packed.as_slice()).unwrap(),
                Coding::Gzip => drop(flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut back).unwrap()),
                Coding::Brotli => drop(brotli::Decompressor::new(packed.as_slice(), 4096).read_to_end(&mut back).unwrap()),
            }
            assert_eq!(back, body, "{coding:?}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_packed_once_and_only_if_it_is_long_text() {
        let response = |media: &'static str, length| {
            Response::builder().header(header::CONTENT_TYPE, media).body("x".repeat(length).into()).unwrap()
        };
        let packed = answer(response("application/json", SMALLEST), Coding::Gzip).await;
        assert_eq!(packed.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(packed.headers()[header::VARY], "accept-encoding");
        let length = packed.body().size_hint().exact();
        let again = answer(packed, Coding::Gzip).await;
        assert_eq!(again.body().size_hint().exact(), length);
        for (media, length) in [("application/json", SMALLEST - 1), ("image/png", 99_999)] {
            let plain = answer(response(media, length), Coding::Gzip).await;
            assert!(!plain.headers().contains_key(header::CONTENT_ENCODING), "{media} {length}");
        }
    }
}
