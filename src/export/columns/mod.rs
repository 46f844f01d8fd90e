//! Samples as Parquet: columns of the same names as in JSON, read alike by pyarrow, polars, duckdb and `datasets`.
//!
//! What has a fixed shape is nested columns. `messages`, `tools`, `metadata` and a span's `sampling` have none, so they are JSON
//! texts; named `rewards` are lists of `{name, value}`, since not every reader knows maps. A rollout is never split between two row
//! groups, and a row group holds no more than [`GROUP_BYTES`], so that memory stays flat however large the file grows.

mod cells;
mod leaves;
mod read;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::trajectory::{SCHEMA, Sample};

pub(super) use read::Reader;

/// The key of the file's metadata under which the schema's name stands.
const SCHEMA_KEY: &str = "gleaner.schema";

/// About how many bytes of samples make a row group; a rollout that has more is one by itself.
const GROUP_BYTES: usize = 32 << 20;

/// The columns. Their leaves, in this order, are [`leaves::LEAVES`].
const COLUMNS: &str = "
message sample {
  required binary schema (STRING);
  required binary id (STRING);
  required binary rollout_id (STRING);
  required int64 rollout_index;
  optional binary group_id (STRING);
  optional binary task_id (STRING);
  optional binary harness (STRING);
  required binary purpose (STRING);
  required int64 index;
  required binary kind (STRING);
  required group token_ids (LIST) { repeated group list { required int32 element; } }
  required group loss_mask (LIST) { repeated group list { required int32 element (INTEGER(8,true)); } }
  required group logprobs (LIST) { repeated group list { optional double element; } }
  required int64 prompt_length;
  required group spans (LIST) { repeated group list { required group element {
    required binary call_id (STRING);
    required int64 start;
    required int64 end;
    optional binary policy_version (STRING);
    required int64 policy_seq;
    optional binary version_source (STRING);
    optional binary finish_reason (STRING);
    required binary sampling (STRING);
    required binary logprob_kind (STRING);
    required boolean constrained;
    required group rewards (LIST) { repeated group list { required group element {
      required binary name (STRING);
      required double value;
    } } }
    required boolean abandoned;
    optional binary abandoned_as (STRING);
    required boolean realigned;
  } } }
  optional double reward;
  required group rewards (LIST) { repeated group list { required group element {
    required binary name (STRING);
    required double value;
  } } }
  optional binary outcome (STRING);
  required binary status (STRING);
  required int64 rollout_mask_total;
  required int64 rollout_samples;
  optional group parent {
    required binary sample_id (STRING);
    required int64 at;
  }
  required binary policy (STRING);
  required binary model (STRING);
  optional binary tokenizer_hash (STRING);
  optional binary template_hash (STRING);
  required binary messages (STRING);
  required binary tools (STRING);
  required group images (LIST) { repeated group list { required group element {
    required binary hash (STRING);
    required binary mime (STRING);
    optional int64 start;
    optional int64 end;
  } } }
  required binary metadata (STRING);
}";

/// Leaves with a value for each token: no two pages are alike, so a dictionary costs, and their bounds tell nothing.
const TOKENS: [(&str, Encoding); 3] = [
    ("token_ids.list.element", Encoding::PLAIN),
    ("loss_mask.list.element", Encoding::PLAIN),
    ("logprobs.list.element", Encoding::PLAIN),
];

/// Leaves whose text is another in each row.
const UNIQUE: [&str; 3] = ["id", "messages", "spans.list.element.call_id"];

/// Why a sample can't be written, or a file be read.
#[derive(Debug, thiserror::Error)]
pub enum ColumnsError {
    #[error(transparent)]
    Io(io::Error),
    #[error("{0}")]
    Parquet(String),
    #[error("token id {id} of sample {sample} is beyond what Parquet's int32 holds; write it as .jsonl")]
    Id { id: u32, sample: String },
}

impl From<ParquetError> for ColumnsError {
    fn from(error: ParquetError) -> Self {
        match error {
            ParquetError::External(error) => match error.downcast::<io::Error>() {
                Ok(error) => Self::Io(*error),
                Err(error) => Self::Parquet(error.to_string()),
            },
            error => Self::Parquet(error.to_string()),
        }
    }
}

/// Writes samples to anything that takes bytes, a row group at a time.
pub struct Writer<W: Write + Send> {
    file: SerializedFileWriter<Lent<W>>,
    /// The rows of the group to come.
    waiting: Vec<Sample>,
    /// About how many bytes they hold.
    bytes: usize,
    most: usize,
}

impl<W: Write + Send> Writer<W> {
    /// Begins a file.
    ///
    /// # Errors
    /// If its first bytes can't be written.
    pub fn new(out: W) -> Result<Self, ColumnsError> {
        Self::with_groups(out, GROUP_BYTES)
    }

    /// Begins a file with row groups of about so many bytes.
    fn with_groups(out: W, most: usize) -> Result<Self, ColumnsError> {
        let schema = Arc::new(parse_message_type(COLUMNS)?);
        let file = SerializedFileWriter::new(Lent(Some(out)), schema, Arc::new(properties()?))?;
        Ok(Self { file, waiting: Vec::new(), bytes: 0, most })
    }

    /// Adds the samples of one rollout.
    ///
    /// # Errors
    /// If a token's id does not fit, or rows before them can't be written.
    pub fn add(&mut self, samples: Vec<Sample>) -> Result<(), ColumnsError> {
        for sample in &samples {
            if let Some(id) = sample.token_ids.iter().find(|id| i32::try_from(**id).is_err()) {
                return Err(ColumnsError::Id { id: *id, sample: sample.id.clone() });
            }
        }
        let bytes = samples.iter().map(size).sum();
        if self.bytes > 0 && self.bytes.saturating_add(bytes) > self.most {
            self.flush()?;
        }
        self.waiting.extend(samples);
        self.bytes += bytes;
        Ok(())
    }

    /// Writes what waits and the file's end, and gives back what it was written to.
    ///
    /// # Errors
    /// If it can't be written.
    pub fn close(mut self) -> Result<W, ColumnsError> {
        self.flush()?;
        self.file.finish()?;
        self.file.inner_mut().0.take().ok_or_else(|| ColumnsError::Io(io::ErrorKind::BrokenPipe.into()))
    }

    fn flush(&mut self) -> Result<(), ColumnsError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        for (_, leaf) in leaves::LEAVES {
            // The leaves are as many as the columns: a test compares them.
            if let Some(mut column) = group.next_column()? {
                leaf.write(&self.waiting, column.untyped())?;
                column.close()?;
            }
        }
        group.close()?;
        self.waiting.clear();
        self.bytes = 0;
        Ok(())
    }
}

/// What is written to, until it is taken back. The file's own way to give it back makes a string of an error of the disk.
struct Lent<W>(Option<W>);

impl<W: Write> Write for Lent<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.as_mut().map_or(Ok(0), |out| out.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}

/// About how many bytes a sample holds here: what grows with its tokens and its text.
fn size(sample: &Sample) -> usize {
    let token = size_of::<u32>() + size_of::<u8>() + size_of::<Option<f64>>();
    let text = sample.messages.iter().chain(&sample.tools).map(|raw| raw.as_bytes().len());
    1024 + sample.token_ids.len() * token + text.sum::<usize>()
}

fn properties() -> Result<WriterProperties, ParquetError> {
    let schema = KeyValue::new(SCHEMA_KEY.to_owned(), SCHEMA.to_owned());
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("gleaner ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(vec![schema]));
    for (leaf, encoding) in TOKENS {
        let path = ColumnPath::from(leaf.split('.').map(str::to_owned).collect::<Vec<_>>());
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path.clone(), encoding)
            .set_column_statistics_enabled(path, EnabledStatistics::None);
    }
    for leaf in UNIQUE {
        let path = ColumnPath::from(leaf.split('.').map(str::to_owned).collect::<Vec<_>>());
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_statistics_enabled(path, EnabledStatistics::None);
    }
    Ok(properties.build())
}
