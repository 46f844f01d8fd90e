//! Request bodies: bounded, their content coding undone.

use std::io::Read;

use axum::body::Body;
use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;

use crate::call::{Failure, FailureKind};
use crate::proxy::Refused;

/// How much of a body that is too large is kept in its record.
const KEPT: usize = 4096;
/// How much more of a body that is too large is read and let go, so that its sender gets to read the answer.
const DISCARDED: u64 = 256 << 20;
/// Bodies past this size are unpacked away from the runtime's threads.
const LARGE: usize = 256 << 10;

/// Reads a whole body of at most `limit` bytes and undoes its content coding.
///
/// # Errors
/// If it is too large, packed or in its packing, its coding is not known, or it can't be unpacked.
pub(super) async fn read(headers: &HeaderMap, body: Body, limit: u64) -> Result<Bytes, Refused> {
    let codings = codings(headers).map_err(|failure| Refused { failure, begun: Bytes::new() })?;
    let packed = collect(headers, body, limit).await?;
    if codings.is_empty() {
        return Ok(packed);
    }
    let begun = packed.slice(..packed.len().min(KEPT));
    let unpacked = if packed.len() > LARGE {
        let unpacking = tokio::task::spawn_blocking(move || unpack(&packed, &codings, limit));
        unpacking.await.unwrap_or_else(|_| Err(Failure::new(FailureKind::Invalid, "the request body could not be unpacked")))
    } else {
        unpack(&packed, &codings, limit)
    };
    unpacked.map_err(|failure| Refused { failure, begun })
}

async fn collect(headers: &HeaderMap, body: Body, limit: u64) -> Result<Bytes, Refused> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) && headers.contains_key(header::EXPECT) {
        // The client waits for leave to send: it is refused before it does.
        return Err(too_large(limit, &Bytes::new()));
    }
    let mut chunks = body.into_data_stream();
    let mut first = Bytes::new();
    let mut joined = BytesMut::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refused {
            failure: Failure::new(FailureKind::Cancelled, "the client hung up before its request was whole"),
            begun: keep(&first, &joined),
        })?;
        if (first.len() + joined.len() + chunk.len()) as u64 > limit {
            let begun = keep(&first, &joined);
            let mut discarded = 0;
            while let Some(Ok(chunk)) = chunks.next().await {
                discarded += chunk.len() as u64;
                if discarded > DISCARDED {
                    break;
                }
            }
            return Err(too_large(limit, &begun));
        }
        // Most bodies come in one piece, which is kept as it is.
        if first.is_empty() && joined.is_empty() {
            first = chunk;
        } else {
            if joined.is_empty() {
                joined.reserve(announced.map_or(0, |length| usize::try_from(length.min(limit)).unwrap_or(0)));
                joined.extend_from_slice(&std::mem::take(&mut first));
            }
            joined.extend_from_slice(&chunk);
        }
    }
    Ok(if joined.is_empty() { first } else { joined.freeze() })
}

fn keep(first: &Bytes, joined: &BytesMut) -> Bytes {
    let begun: &[u8] = if joined.is_empty() { first } else { joined };
    Bytes::copy_from_slice(&begun[..begun.len().min(KEPT)])
}

fn too_large(limit: u64, begun: &Bytes) -> Refused {
    let message =
        format!("the request body is larger than {} MiB, the most that is taken ([server] body_limit_mib)", limit >> 20);
    Refused { failure: Failure::new(FailureKind::TooLarge, message), begun: begun.clone() }
}

#[derive(Clone, Copy)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

/// The content codings of a body, in the order in which they were applied.
fn codings(headers: &HeaderMap) -> Result<Vec<Coding>, Failure> {
    let values = headers.get_all(header::CONTENT_ENCODING).iter();
    let names = values.flat_map(|value| value.to_str().unwrap_or("?").split(',')).map(str::trim);
    names
        .filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
        .map(|name| match name.to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => Ok(Coding::Gzip),
            "deflate" => Ok(Coding::Deflate),
            "br" => Ok(Coding::Brotli),
            "zstd" => Ok(Coding::Zstd),
            other => {
                let message =
                    format!("the request's content-encoding {other:?} is not known; use gzip, deflate, br, zstd or none");
                Err(Failure { status: 415, ..Failure::new(FailureKind::Invalid, message) })
            }
        })
        .collect()
}

fn unpack(packed: &[u8], codings: &[Coding], limit: u64) -> Result<Bytes, Failure> {
    let mut bytes = Bytes::copy_from_slice(packed);
    for coding in codings.iter().rev() {
        bytes = unpack_one(&bytes, *coding, limit)?;
    }
    Ok(bytes)
}

fn unpack_one(packed: &[u8], coding: Coding, limit: u64) -> Result<Bytes, Failure> {
    let mut unpacked = Vec::new();
    let read = |reader: &mut dyn Read, unpacked: &mut Vec<u8>| reader.take(limit + 1).read_to_end(unpacked);
    let result = match coding {
        Coding::Gzip => read(&mut flate2::read::MultiGzDecoder::new(packed), &mut unpacked),
        // Clients send both what the standard calls deflate (zlib) and the bare stream.
        Coding::Deflate => read(&mut flate2::read::ZlibDecoder::new(packed), &mut unpacked).or_else(|_| {
            unpacked.clear();
            read(&mut flate2::read::DeflateDecoder::new(packed), &mut unpacked)
        }),
        Coding::Brotli => read(&mut brotli::Decompressor::new(packed, 4096), &mut unpacked),
        Coding::Zstd => zstd::stream::read::Decoder::with_buffer(packed).and_then(|mut reader| read(&mut reader, &mut unpacked)),
    };
    match result {
        Ok(_) if unpacked.len() as u64 > limit => Err(too_large(limit, &Bytes::new()).failure),
        Ok(_) => Ok(unpacked.into()),
        Err(error) => Err(Failure::new(FailureKind::Invalid, format!("the request body could not be unpacked: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn codings_are_undone_from_the_last() {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_ENCODING, "gzip, zstd".parse().unwrap());
        let packed = zstd::encode_all(gzip(b"{}").as_slice(), 1).unwrap();
        assert_eq!(unpack(&packed, &codings(&headers).unwrap(), 100).unwrap(), "{}");
    }

    #[test]
    fn a_bomb_is_refused_when_it_has_grown_past_the_limit() {
        let failure = unpack(&gzip(&vec![b' '; 4 << 20]), &[Coding::Gzip], 1 << 20).unwrap_err();
        assert_eq!((failure.kind, failure.status), (FailureKind::TooLarge, 413));
    }

    #[test]
    fn what_is_not_in_its_coding_is_the_clients_fault() {
        for coding in [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd] {
            assert_eq!(unpack(b"no packing of any kind", &[coding], 100).unwrap_err().status, 400);
        }
    }
}
