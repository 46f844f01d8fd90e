//! Samples read back, row by row.

use std::fs::File;

use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use serde_json::{Map, Value};

use super::ColumnsError;
use crate::trajectory::Sample;

/// Further columns whose text is JSON.
const TEXTS: [&str; 2] = ["metadata", "sampling"];

/// Reads the rows of a file; one is in memory at a time.
pub(in crate::export) struct Reader {
    rows: RowIter<'static>,
}

impl Reader {
    pub(in crate::export) fn open(file: File) -> Result<Self, ColumnsError> {
        Ok(Self { rows: SerializedFileReader::new(file)?.into_iter() })
    }
}

impl Iterator for Reader {
    type Item = Result<Sample, ColumnsError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.rows.next()?.map_err(ColumnsError::from).and_then(sample))
    }
}

/// A row as a sample. Lists of tokens, which are most of it, are read without a detour, and messages stay to the letter.
fn sample(row: Row) -> Result<Sample, ColumnsError> {
    let (mut ids, mut mask, mut logprobs) = (Vec::new(), Vec::new(), Vec::new());
    let (mut messages, mut tools) = (Vec::new(), Vec::new());
    let mut rest = Map::new();
    for (name, field) in row.into_columns() {
        let read = match (name.as_str(), &field) {
            ("token_ids", Field::ListInternal(list)) => fill(&mut ids, list.elements(), id),
            ("loss_mask", Field::ListInternal(list)) => fill(&mut mask, list.elements(), bit),
            ("logprobs", Field::ListInternal(list)) => fill(&mut logprobs, list.elements(), logprob),
            ("messages", Field::Str(text)) => serde_json::from_str(text).map(|read| messages = read).is_ok(),
            ("tools", Field::Str(text)) => serde_json::from_str(text).map(|read| tools = read).is_ok(),
            _ => {
                let value = value(&name, field)?;
                rest.insert(name, value);
                continue;
            }
        };
        if !read {
            return Err(ColumnsError::Parquet(format!("{name} holds what it can't")));
        }
        rest.insert(name, Value::Array(Vec::new()));
    }
    let sample = serde_json::from_value(Value::Object(rest));
    let sample: Sample = sample.map_err(|error| ColumnsError::Parquet(error.to_string()))?;
    Ok(Sample { token_ids: ids, loss_mask: mask, logprobs, messages, tools, ..sample })
}

/// Takes all elements over; `false` if one is of another kind.
fn fill<T>(into: &mut Vec<T>, elements: &[Field], read: fn(&Field) -> Option<T>) -> bool {
    into.extend(elements.iter().map_while(read));
    into.len() == elements.len()
}

fn id(field: &Field) -> Option<u32> {
    if let Field::Int(id) = field { u32::try_from(*id).ok() } else { None }
}

fn bit(field: &Field) -> Option<u8> {
    if let Field::Byte(bit) = field { u8::try_from(*bit).ok() } else { None }
}

#[expect(clippy::option_option, reason = "the outer one says whether it is one, the inner one whether it is null")]
fn logprob(field: &Field) -> Option<Option<f64>> {
    match field {
        Field::Double(logprob) => Some(Some(*logprob)),
        Field::Null => Some(None),
        _ => None,
    }
}

/// What a field is in a sample's JSON.
fn value(name: &str, field: Field) -> Result<Value, ColumnsError> {
    Ok(match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Long(value) => value.into(),
        Field::Double(value) => value.into(),
        Field::Str(text) if TEXTS.contains(&name) => {
            serde_json::from_str(&text).map_err(|error| ColumnsError::Parquet(format!("{name} is not JSON: {error}")))?
        }
        Field::Str(text) => text.into(),
        Field::Group(row) => {
            let fields = row.into_columns().into_iter().map(|(name, field)| Ok((name.clone(), value(&name, field)?)));
            Value::Object(fields.collect::<Result<_, ColumnsError>>()?)
        }
        Field::ListInternal(list) if name == "rewards" => Value::Object(list.elements().iter().filter_map(reward).collect()),
        Field::ListInternal(list) => {
            let elements = list.elements().iter().map(|element| value("", element.clone()));
            Value::Array(elements.collect::<Result<_, ColumnsError>>()?)
        }
        other => return Err(ColumnsError::Parquet(format!("{name} is of an unknown kind: {other}"))),
    })
}

fn reward(field: &Field) -> Option<(String, Value)> {
    let Field::Group(row) = field else { return None };
    let mut columns = row.get_column_iter().map(|(_, field)| field);
    match (columns.next(), columns.next()) {
        (Some(Field::Str(name)), Some(Field::Double(value))) => Some((name.clone(), (*value).into())),
        _ => None,
    }
}
