//! The values of one column, with the levels by which Parquet tells nulls and lists.

use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::DataType;
use parquet::errors::Result;

/// How many levels are handed over at once.
const BATCH: usize = 8192;

/// Values of one leaf, of one row after the other.
///
/// The definition level says how much of the path to a value is there, the repetition level at which list a value goes on.
pub(super) struct Cells<D: DataType> {
    values: Vec<D::T>,
    definition: Vec<i16>,
    repetition: Vec<i16>,
}

impl<D: DataType> Cells<D> {
    pub(super) fn new() -> Self {
        Self { values: Vec::new(), definition: Vec::new(), repetition: Vec::new() }
    }

    /// A row that has exactly one value.
    pub(super) fn one(&mut self, value: D::T) {
        self.values.push(value);
    }

    /// A row that has a value or null.
    pub(super) fn maybe(&mut self, value: Option<D::T>) {
        self.definition.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    /// A row that has a list of values.
    pub(super) fn list(&mut self, values: impl ExactSizeIterator<Item = D::T>) {
        self.levels(values.len(), 1);
        self.values.extend(values);
    }

    /// A row that has a list of values and nulls.
    pub(super) fn nullables(&mut self, values: impl ExactSizeIterator<Item = Option<D::T>>) {
        self.repeat(values.len());
        if values.len() == 0 {
            self.definition.push(0);
        }
        for value in values {
            self.definition.push(1 + i16::from(value.is_some()));
            self.values.extend(value);
        }
    }

    /// A row that has a list of lists of values.
    pub(super) fn lists<I: ExactSizeIterator<Item = D::T>>(&mut self, lists: impl ExactSizeIterator<Item = I>) {
        if lists.len() == 0 {
            self.levels(0, 1);
        }
        for (at, list) in lists.enumerate() {
            let outer = i16::from(at > 0);
            if list.len() == 0 {
                self.definition.push(1);
                self.repetition.push(outer);
            }
            for (at, value) in list.enumerate() {
                self.definition.push(2);
                self.repetition.push(if at == 0 { outer } else { 2 });
                self.values.push(value);
            }
        }
    }

    /// The levels of a list of so many values, each of which is there.
    fn levels(&mut self, count: usize, there: i16) {
        self.repeat(count);
        let level = if count == 0 { 0 } else { there };
        self.definition.resize(self.definition.len() + count.max(1), level);
    }

    fn repeat(&mut self, count: usize) {
        self.repetition.push(0);
        self.repetition.resize(self.repetition.len() + count.saturating_sub(1), 1);
    }

    /// Writes all rows by `fill`, which adds one of them.
    pub(super) fn write<R>(rows: &[R], fill: impl Fn(&R, &mut Self), column: &mut ColumnWriterImpl<'_, D>) -> Result<()> {
        let mut cells = Self::new();
        for (at, row) in rows.iter().enumerate() {
            fill(row, &mut cells);
            if at + 1 == rows.len() || cells.values.len().max(cells.definition.len()) >= BATCH {
                column.write_batch(&cells.values, some(&cells.definition), some(&cells.repetition))?;
                cells.values.clear();
                cells.definition.clear();
                cells.repetition.clear();
            }
        }
        Ok(())
    }
}

/// Levels, where there are any: a column without nulls or lists has none.
fn some(levels: &[i16]) -> Option<&[i16]> {
    (!levels.is_empty()).then_some(levels)
}
