//! The metadata of a GGUF file. Reads no tensor, believes no length.

use std::collections::HashMap;
use std::io::{self, Read};

/// The most keys that a file may have, and the most items of all its arrays together.
const MOST_KEYS: u64 = 1 << 16;
const MOST_ITEMS: u64 = 1 << 24;

/// The longest name and the longest string, in bytes.
const LONGEST_NAME: u64 = 1 << 16;
const LONGEST_STRING: u64 = 16 << 20;

/// The most bytes of metadata.
const MOST_BYTES: u64 = 512 << 20;

/// What stands before the tensors. Only keys that begin as asked are kept.
pub(super) type Metadata = HashMap<String, Value>;

/// A value, of the types that tokenizers use.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Integer(i64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    /// Anything else.
    Other,
}

/// Why a file has no metadata.
#[derive(Debug, thiserror::Error)]
pub(super) enum GgufError {
    #[error("it is no GGUF file")]
    Magic,
    #[error("its version is {0}, only little-endian 2 and 3 are known")]
    Version(u32),
    #[error("{0}")]
    Malformed(String),
    #[error("it ends within its metadata")]
    Cut,
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for GgufError {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Io(error) }
    }
}

/// Reads the keys that begin with `prefix`.
pub(super) fn read(source: impl Read, prefix: &str) -> Result<Metadata, GgufError> {
    Reader { source: source.take(MOST_BYTES), items: 0 }.metadata(prefix)
}

struct Reader<R> {
    source: R,
    /// Items of arrays so far.
    items: u64,
}

impl<R: Read> Reader<R> {
    fn metadata(&mut self, prefix: &str) -> Result<Metadata, GgufError> {
        if &self.bytes::<4>()? != b"GGUF" {
            return Err(GgufError::Magic);
        }
        let version = u32::from_le_bytes(self.bytes()?);
        if !(2..=3).contains(&version) {
            return Err(GgufError::Version(version));
        }
        let _tensors = self.length()?;
        let keys = self.length()?;
        if keys > MOST_KEYS {
            return Err(GgufError::Malformed(format!("it says that it has {keys} keys")));
        }
        let mut metadata = Metadata::new();
        for _ in 0..keys {
            let name = self.text(LONGEST_NAME)?;
            let kind = u32::from_le_bytes(self.bytes()?);
            let wanted = name.starts_with(prefix);
            let value = self.value(kind, wanted)?;
            if wanted {
                metadata.insert(name, value);
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: u32, wanted: bool) -> Result<Value, GgufError> {
        Ok(match kind {
            8 if wanted => Value::Text(self.text(LONGEST_STRING)?),
            8 => self.skip_text()?,
            9 => self.array(wanted)?,
            _ => match self.integer(kind)? {
                Some(value) if kind == 7 => Value::Bool(value != 0),
                Some(value) => Value::Integer(value),
                None => Value::Other,
            },
        })
    }

    fn array(&mut self, wanted: bool) -> Result<Value, GgufError> {
        let kind = u32::from_le_bytes(self.bytes()?);
        let count = self.length()?;
        self.items = self.items.saturating_add(count);
        if self.items > MOST_ITEMS {
            return Err(GgufError::Malformed(format!("an array of it says that it has {count} items")));
        }
        // Nothing is set aside for a count: what comes is what takes memory.
        match kind {
            8 if wanted => {
                let mut texts = Vec::new();
                for _ in 0..count {
                    texts.push(self.text(LONGEST_STRING)?);
                }
                Ok(Value::Texts(texts))
            }
            8 => {
                for _ in 0..count {
                    self.skip_text()?;
                }
                Ok(Value::Other)
            }
            9 => Err(GgufError::Malformed("an array of it holds arrays".to_owned())),
            _ => {
                let mut integers = Vec::new();
                for _ in 0..count {
                    if let Some(value) = self.integer(kind)?.filter(|_| wanted) {
                        integers.push(value);
                    }
                }
                Ok(Value::Integers(integers))
            }
        }
    }

    /// A number; `None` if it is a float.
    fn integer(&mut self, kind: u32) -> Result<Option<i64>, GgufError> {
        Ok(Some(match kind {
            0 | 7 => i64::from(u8::from_le_bytes(self.bytes()?)),
            1 => i64::from(i8::from_le_bytes(self.bytes()?)),
            2 => i64::from(u16::from_le_bytes(self.bytes()?)),
            3 => i64::from(i16::from_le_bytes(self.bytes()?)),
            4 => i64::from(u32::from_le_bytes(self.bytes()?)),
            5 => i64::from(i32::from_le_bytes(self.bytes()?)),
            6 => {
                self.bytes::<4>()?;
                return Ok(None);
            }
            10 | 11 => i64::from_le_bytes(self.bytes()?),
            12 => {
                self.bytes::<8>()?;
                return Ok(None);
            }
            kind => return Err(GgufError::Malformed(format!("a value of it has the unknown type {kind}"))),
        }))
    }

    fn text(&mut self, longest: u64) -> Result<String, GgufError> {
        let length = self.length()?;
        if length > longest {
            return Err(GgufError::Malformed(format!("a string of it says that it has {length} bytes")));
        }
        let mut bytes = Vec::new();
        self.source.by_ref().take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(GgufError::Cut);
        }
        String::from_utf8(bytes).map_err(|_| GgufError::Malformed("a string of it is not UTF-8".to_owned()))
    }

    /// Passes a string that may be anything.
    fn skip_text(&mut self) -> Result<Value, GgufError> {
        let length = self.length()?;
        let passed = io::copy(&mut self.source.by_ref().take(length), &mut io::sink())?;
        if passed == length { Ok(Value::Other) } else { Err(GgufError::Cut) }
    }

    fn length(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}
