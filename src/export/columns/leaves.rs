//! Where each leaf of the columns comes from.

use std::collections::BTreeMap;

use parquet::column::writer::ColumnWriter;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result};
use serde::Serialize;
use serde_json::Value;

use super::cells::Cells;
use crate::call::Raw;
use crate::trajectory::{Sample, SampleImage, Span};

/// How a leaf's values are had of a sample, by what Parquet keeps them as.
pub(super) enum Leaf {
    Bool(fn(&Sample, &mut Cells<BoolType>)),
    Int32(fn(&Sample, &mut Cells<Int32Type>)),
    Int64(fn(&Sample, &mut Cells<Int64Type>)),
    Double(fn(&Sample, &mut Cells<DoubleType>)),
    Text(fn(&Sample, &mut Cells<ByteArrayType>)),
}

use Leaf::{Bool, Double, Int32, Int64, Text};

/// Every leaf by its path, in the order of the schema.
pub(super) static LEAVES: &[(&str, Leaf)] = &[
    ("schema", Text(|s, c| c.one(text(&s.schema)))),
    ("id", Text(|s, c| c.one(text(&s.id)))),
    ("rollout_id", Text(|s, c| c.one(text(&s.rollout_id.to_string())))),
    ("rollout_index", Int64(|s, c| c.one(s.rollout_index.into()))),
    ("group_id", Text(|s, c| c.maybe(s.group_id.as_deref().map(text)))),
    ("task_id", Text(|s, c| c.maybe(s.task_id.as_deref().map(text)))),
    ("harness", Text(|s, c| c.maybe(s.harness.as_deref().map(text)))),
    ("purpose", Text(|s, c| c.one(text(&s.purpose)))),
    ("index", Int64(|s, c| c.one(s.index.into()))),
    ("kind", Text(|s, c| c.one(name(s.kind).unwrap_or_default()))),
    // That ids fit was seen when the sample was added.
    ("token_ids.list.element", Int32(|s, c| c.list(s.token_ids.iter().map(|id| id.cast_signed())))),
    ("loss_mask.list.element", Int32(|s, c| c.list(s.loss_mask.iter().map(|mask| i32::from(*mask))))),
    ("logprobs.list.element", Double(|s, c| c.nullables(s.logprobs.iter().copied()))),
    ("prompt_length", Int64(|s, c| c.one(count(s.prompt_length)))),
    ("spans.list.element.call_id", Text(|s, c| c.list(spans(s, |span| text(&span.call_id.to_string()))))),
    ("spans.list.element.start", Int64(|s, c| c.list(spans(s, |span| count(span.start))))),
    ("spans.list.element.end", Int64(|s, c| c.list(spans(s, |span| count(span.end))))),
    ("spans.list.element.policy_version", Text(|s, c| c.nullables(spans(s, |span| span.policy_version.as_deref().map(text))))),
    ("spans.list.element.policy_seq", Int64(|s, c| c.list(spans(s, |span| span.policy_seq)))),
    ("spans.list.element.version_source", Text(|s, c| c.nullables(spans(s, |span| span.version_source.and_then(name))))),
    ("spans.list.element.finish_reason", Text(|s, c| c.nullables(spans(s, |span| span.finish_reason.as_ref().and_then(name))))),
    ("spans.list.element.sampling", Text(|s, c| c.list(spans(s, |span| json(&span.sampling))))),
    ("spans.list.element.logprob_kind", Text(|s, c| c.list(spans(s, |span| name(span.logprob_kind).unwrap_or_default())))),
    ("spans.list.element.constrained", Bool(|s, c| c.list(spans(s, |span| span.constrained)))),
    ("spans.list.element.rewards.list.element.name", Text(|s, c| c.lists(spans(s, |span| names(&span.rewards))))),
    ("spans.list.element.rewards.list.element.value", Double(|s, c| c.lists(spans(s, |span| span.rewards.values().copied())))),
    ("spans.list.element.abandoned", Bool(|s, c| c.list(spans(s, |span| span.abandoned)))),
    ("spans.list.element.abandoned_as", Text(|s, c| c.nullables(spans(s, |span| span.abandoned_as.and_then(name))))),
    ("spans.list.element.realigned", Bool(|s, c| c.list(spans(s, |span| span.realigned)))),
    ("reward", Double(|s, c| c.maybe(s.reward))),
    ("rewards.list.element.name", Text(|s, c| c.list(names(&s.rewards)))),
    ("rewards.list.element.value", Double(|s, c| c.list(s.rewards.values().copied()))),
    ("outcome", Text(|s, c| c.maybe(s.outcome.as_deref().map(text)))),
    ("status", Text(|s, c| c.one(name(s.status).unwrap_or_default()))),
    ("rollout_mask_total", Int64(|s, c| c.one(s.rollout_mask_total.cast_signed()))),
    ("rollout_samples", Int64(|s, c| c.one(s.rollout_samples.into()))),
    ("parent.sample_id", Text(|s, c| c.maybe(s.parent.as_ref().map(|parent| text(&parent.sample_id))))),
    ("parent.at", Int64(|s, c| c.maybe(s.parent.as_ref().map(|parent| count(parent.at))))),
    ("policy", Text(|s, c| c.one(text(&s.policy)))),
    ("model", Text(|s, c| c.one(text(&s.model)))),
    ("tokenizer_hash", Text(|s, c| c.maybe(s.tokenizer_hash.as_deref().map(text)))),
    ("template_hash", Text(|s, c| c.maybe(s.template_hash.as_deref().map(text)))),
    ("messages", Text(|s, c| c.one(array(&s.messages)))),
    ("tools", Text(|s, c| c.one(array(&s.tools)))),
    ("images.list.element.hash", Text(|s, c| c.list(images(s, |image| name(image.hash).unwrap_or_default())))),
    ("images.list.element.mime", Text(|s, c| c.list(images(s, |image| text(&image.mime))))),
    ("images.list.element.start", Int64(|s, c| c.nullables(images(s, |image| image.start.map(count))))),
    ("images.list.element.end", Int64(|s, c| c.nullables(images(s, |image| image.end.map(count))))),
    ("metadata", Text(|s, c| c.one(json(&s.metadata)))),
];

impl Leaf {
    /// Writes this leaf of all rows.
    pub(super) fn write(&self, rows: &[Sample], column: &mut ColumnWriter<'_>) -> Result<()> {
        match (self, column) {
            (Bool(fill), ColumnWriter::BoolColumnWriter(column)) => Cells::write(rows, fill, column),
            (Int32(fill), ColumnWriter::Int32ColumnWriter(column)) => Cells::write(rows, fill, column),
            (Int64(fill), ColumnWriter::Int64ColumnWriter(column)) => Cells::write(rows, fill, column),
            (Double(fill), ColumnWriter::DoubleColumnWriter(column)) => Cells::write(rows, fill, column),
            (Text(fill), ColumnWriter::ByteArrayColumnWriter(column)) => Cells::write(rows, fill, column),
            _ => Err(ParquetError::General("a column is of another kind than its values".to_owned())),
        }
    }
}

fn spans<'a, T: 'a>(sample: &'a Sample, read: impl Fn(&'a Span) -> T + 'a) -> impl ExactSizeIterator<Item = T> + 'a {
    sample.spans.iter().map(read)
}

fn images<'a, T: 'a>(sample: &'a Sample, read: impl Fn(&'a SampleImage) -> T + 'a) -> impl ExactSizeIterator<Item = T> + 'a {
    sample.images.iter().map(read)
}

fn names(rewards: &BTreeMap<String, f64>) -> impl ExactSizeIterator<Item = ByteArray> + '_ {
    rewards.keys().map(|name| text(name))
}

fn text(text: &str) -> ByteArray {
    text.as_bytes().to_vec().into()
}

/// Places and counts stay far below what is signed.
fn count(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The name that a plain enum has in JSON.
fn name(value: impl Serialize) -> Option<ByteArray> {
    match serde_json::to_value(value) {
        Ok(Value::String(name)) => Some(name.into_bytes().into()),
        _ => None,
    }
}

fn json(value: &impl Serialize) -> ByteArray {
    Raw::from_value(value).as_bytes().to_vec().into()
}

fn array(raws: &[Raw]) -> ByteArray {
    let mut out = vec![b'['];
    for (at, raw) in raws.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(raw.as_bytes());
    }
    out.push(b']');
    out.into()
}
