//! Checksums of rows: what is in a row when it is read is what was written.
//!
//! A row's `sum` is of its columns in a fixed order, each with its type. Bodies are not in it, since they are read apart: each
//! carries its own (`store/blob.rs`), and so do blobs by their hash.

use std::fmt::Write as _;

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql, params};
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, TypeInfo, ValueRef as _};

/// The columns of a call that its sum is of.
pub(super) const CALL: &[&str] =
    &["id", "rollout", "process", "started_at", "wire", "target", "choice", "policy", "model", "stream", "marks"];

/// Those of a reply.
pub(super) const REPLY: &[&str] = &[
    "call",
    "status",
    "ended_at",
    "tokens",
    "version",
    "version_seq",
    "version_source",
    "first_event_at",
    "finish",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "capture_level",
    "logprob_kind",
    "constrained",
    "max_tokens_asked",
    "max_tokens_used",
    "capture_reason",
    "failure",
    "sampling_asked",
    "sampling_used",
    "rendered",
    "runs",
    "notes",
    "images",
    "completion_ids",
    "logprobs",
    "prompt_ids",
    "prompt_base",
    "prompt_sum",
    "message",
];

/// Those of a rollout.
pub(super) const ROLLOUT: &[&str] = &[
    "seq",
    "id",
    "key",
    "created_at",
    "purpose",
    "task_id",
    "group_id",
    "group_size",
    "group_index",
    "harness",
    "policy",
    "sampling",
    "metadata",
    "ttl_s",
    "idempotency_key",
    "conversation",
    "ended_at",
    "outcome",
    "no_reward",
    "evidence",
];

/// Those of a process.
pub(super) const PROCESS: &[&str] = &["seq", "id", "started_at", "after_call", "crashed"];
/// Those of a batch.
pub(super) const BATCH: &[&str] = &["seq", "id", "created_at", "plan", "rollouts", "process", "status"];
/// Those of what a rollout is run for.
pub(super) const RUN: &[&str] = &["rollout", "batch", "attempt", "process"];
/// Those of a reward.
pub(super) const REWARD: &[&str] = &["rollout", "call", "name", "value"];
/// Those of a delivery.
pub(super) const DELIVERED: &[&str] = &["call"];

/// A sum in the making.
#[derive(Default)]
struct Sum(crc32fast::Hasher);

impl Sum {
    fn add(&mut self, value: ValueRef<'_>) {
        match value {
            ValueRef::Null => self.0.update(&[0]),
            ValueRef::Integer(number) => self.fixed(1, number.to_le_bytes()),
            ValueRef::Real(number) => self.fixed(2, number.to_bits().to_le_bytes()),
            ValueRef::Text(bytes) => self.sized(3, bytes),
            ValueRef::Blob(bytes) => self.sized(4, bytes),
        }
    }

    fn fixed(&mut self, kind: u8, bytes: [u8; 8]) {
        let mut tagged = [kind; 9];
        tagged[1..].copy_from_slice(&bytes);
        self.0.update(&tagged);
    }

    fn sized(&mut self, kind: u8, bytes: &[u8]) {
        self.fixed(kind, (bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// The sum of values as SQLite will have them.
pub(super) fn sum(values: &[&dyn ToSql]) -> rusqlite::Result<u32> {
    let mut sum = Sum::default();
    for value in values {
        add(&mut sum, *value)?;
    }
    Ok(sum.0.finalize())
}

fn add(sum: &mut Sum, value: &dyn ToSql) -> rusqlite::Result<()> {
    match value.to_sql()? {
        ToSqlOutput::Borrowed(value) => sum.add(value),
        ToSqlOutput::Owned(value) => sum.add((&value).into()),
        _ => return Err(rusqlite::Error::ToSqlConversionFailure("a value that has no plain form".into())),
    }
    Ok(())
}

/// The statement that writes a sealed row, and `bodies` after it.
pub(super) fn insert(table: &str, columns: &[&str], bodies: &[&str]) -> String {
    let names: Vec<&str> = columns.iter().chain(&["sum"]).chain(bodies).copied().collect();
    let mut sql = format!("INSERT INTO {table} ({}) VALUES (?", names.join(", "));
    (1..names.len()).for_each(|_| sql.push_str(",?"));
    sql.push(')');
    sql
}

/// Writes a row with its sum by a statement of [`insert`].
pub(super) fn write(
    db: &Connection,
    sql: &str,
    columns: &[&str],
    values: &[(&str, &dyn ToSql)],
    bodies: &[&dyn ToSql],
) -> rusqlite::Result<()> {
    debug_assert!(values.iter().map(|(name, _)| name).eq(columns), "the columns stand in another order than their sum's");
    let mut statement = db.prepare_cached(sql)?;
    let mut sum = Sum::default();
    for (at, (_, value)) in values.iter().enumerate() {
        add(&mut sum, *value)?;
        statement.raw_bind_parameter(at + 1, value)?;
    }
    statement.raw_bind_parameter(values.len() + 1, sum.0.finalize())?;
    for (at, body) in bodies.iter().enumerate() {
        statement.raw_bind_parameter(values.len() + 2 + at, body)?;
    }
    statement.raw_execute().map(drop)
}

/// Seals a row of `table` as it stands; for rows that change.
pub(super) fn row(db: &Connection, table: &str, seq: i64) -> rusqlite::Result<()> {
    let columns = match table {
        "rollouts" => ROLLOUT,
        "batches" => BATCH,
        _ => PROCESS,
    };
    let mut select = db.prepare_cached(&format!("SELECT {} FROM {table} WHERE seq = ?", columns.join(", ")))?;
    let values: Vec<Value> =
        select.query_row([seq], |row| (0..columns.len()).map(|at| row.get::<_, Value>(at)).collect::<Result<_, _>>())?;
    let mut sum = Sum::default();
    for value in &values {
        sum.add(value.into());
    }
    db.prepare_cached(&format!("UPDATE {table} SET sum = ? WHERE seq = ?"))?.execute(params![sum.0.finalize(), seq]).map(drop)
}

/// Whether a row is as it was written, by the sum in its column `written`. `None` if it has no sum: it is from before
/// there were any.
pub(super) fn holds(row: &SqliteRow, columns: &[&str], written: &str) -> Result<Option<bool>, sqlx::Error> {
    let Some(written) = row.try_get::<Option<i64>, _>(written)? else { return Ok(None) };
    let mut sum = Sum::default();
    for column in columns {
        let value = row.try_get_raw(*column)?;
        let failed = sqlx::Error::Decode;
        if value.is_null() {
            sum.add(ValueRef::Null);
            continue;
        }
        let kind = value.type_info();
        match kind.name() {
            "INTEGER" => sum.add(ValueRef::Integer(<i64 as Decode<Sqlite>>::decode(value).map_err(failed)?)),
            "REAL" => sum.add(ValueRef::Real(<f64 as Decode<Sqlite>>::decode(value).map_err(failed)?)),
            "TEXT" => sum.add(ValueRef::Text(<&[u8] as Decode<Sqlite>>::decode(value).map_err(failed)?)),
            _ => sum.add(ValueRef::Blob(<&[u8] as Decode<Sqlite>>::decode(value).map_err(failed)?)),
        }
    }
    Ok(Some(i64::from(sum.0.finalize()) == written))
}

/// The columns of `table`, by its short name, for a query.
pub(super) fn select(out: &mut String, table: &str, columns: &[&str]) {
    for column in columns {
        // Writing to a string can't fail.
        let _ = write!(out, "{table}.{column}, ");
    }
}
