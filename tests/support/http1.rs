//! HTTP/1.1 by hand, both sides: so that a test may send and see any bytes, and cut anywhere.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

/// The lines before a body.
#[derive(Clone, Debug, Default)]
pub struct Head {
    pub first: String,
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The part of the first line with this number.
    pub fn word(&self, at: usize) -> &str {
        self.first.split(' ').nth(at).unwrap_or_default()
    }

    /// The status of an answer's head.
    pub fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or_default()
    }
}

/// Reads a head; `None` if the peer closed before its first byte.
pub async fn read_head(reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Head>> {
    let mut head = Head::default();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).await? == 0 {
            return if head.first.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        let line = line.trim_end();
        if line.is_empty() {
            if head.first.is_empty() {
                continue;
            }
            return Ok(Some(head));
        }
        if head.first.is_empty() {
            line.clone_into(&mut head.first);
        } else if let Some((name, value)) = line.split_once(':') {
            head.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
}

/// How a body's end is told.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    Length(u64),
    Chunked,
    UntilClose,
    Ended,
}

impl Body {
    /// The body that follows this head.
    pub fn of(head: &Head, request: bool) -> Self {
        let chunked = head.header("transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
        match head.header("content-length").and_then(|value| value.parse().ok()) {
            _ if chunked => Self::Chunked,
            Some(0) => Self::Ended,
            Some(length) => Self::Length(length),
            None if request => Self::Ended,
            None => Self::UntilClose,
        }
    }

    /// The next bytes; `None` at a whole body's end, an error if it was cut.
    pub async fn next(&mut self, reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
        match *self {
            Self::Ended => Ok(None),
            Self::Length(left) => {
                let bytes = reader.fill_buf().await?;
                let take = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                if take == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let bytes = bytes[..take].to_vec();
                reader.consume(take);
                let left = left - take as u64;
                *self = if left == 0 { Self::Ended } else { Self::Length(left) };
                Ok(Some(bytes))
            }
            Self::UntilClose => {
                let bytes = reader.fill_buf().await?.to_vec();
                reader.consume(bytes.len());
                if bytes.is_empty() {
                    *self = Self::Ended;
                    return Ok(None);
                }
                Ok(Some(bytes))
            }
            Self::Chunked => {
                let mut line = String::new();
                if reader.read_line(&mut line).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let size = line.trim().split(';').next().unwrap_or_default();
                let size = usize::from_str_radix(size, 16).map_err(|_| io::Error::other(format!("bad chunk size {line:?}")))?;
                let mut bytes = vec![0; size + 2];
                reader.read_exact(&mut bytes).await?;
                bytes.truncate(size);
                if size == 0 {
                    *self = Self::Ended;
                    return Ok(None);
                }
                Ok(Some(bytes))
            }
        }
    }

    /// All that is left; an error if it was cut.
    pub async fn all(&mut self, reader: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next(reader).await? {
            all.extend_from_slice(&bytes);
        }
        Ok(all)
    }
}
