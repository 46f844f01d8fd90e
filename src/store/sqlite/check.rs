//! Looks at all that is in the file, and says what is not as it was written.

use std::collections::BTreeSet;

use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::call::blob_id;
use super::{SqliteStore, seal};
use crate::call::{ImageHash, RawKind};
use crate::ids::{CallId, RolloutId};
use crate::store::body::Base;
use crate::store::upkeep::{Checked, Fault};
use crate::store::{StoreError, blob};

/// Rows that are looked at together.
const PAGE: i64 = 500;

/// Rows that name what is not there: what they are, and the query that counts them.
const STRAY: [(&str, &str); 9] = [
    ("replies of calls that are not there", "SELECT count(*) FROM replies WHERE call NOT IN (SELECT seq FROM calls)"),
    ("calls of rollouts that are not there", "SELECT count(*) FROM calls WHERE rollout NOT IN (SELECT seq FROM rollouts)"),
    ("deliveries of calls that are not there", "SELECT count(*) FROM delivered WHERE call NOT IN (SELECT seq FROM calls)"),
    ("rewards of rollouts that are not there", "SELECT count(*) FROM rewards WHERE rollout NOT IN (SELECT seq FROM rollouts)"),
    (
        "rewards of calls that are not there",
        "SELECT count(*) FROM rewards WHERE call <> 0 AND call NOT IN (SELECT seq FROM calls)",
    ),
    ("runs of rollouts that are not there", "SELECT count(*) FROM runs WHERE rollout NOT IN (SELECT seq FROM rollouts)"),
    ("runs for batches that are not there", "SELECT count(*) FROM runs WHERE batch NOT IN (SELECT seq FROM batches)"),
    ("references of calls that are not there", "SELECT count(*) FROM call_blobs WHERE call NOT IN (SELECT seq FROM calls)"),
    ("references to blobs that are not there", "SELECT count(*) FROM call_blobs WHERE blob NOT IN (SELECT seq FROM blobs)"),
];

impl Checked {
    #[expect(clippy::needless_pass_by_value, reason = "errors are handed over")]
    fn fault(&mut self, part: &str, what: impl ToString) {
        self.faults.push(Fault { rollout: None, call: None, part: part.to_owned(), what: what.to_string() });
    }

    #[expect(clippy::needless_pass_by_value, reason = "errors are handed over")]
    fn of_call(&mut self, rollout: RolloutId, call: CallId, part: &str, what: impl ToString) {
        let (rollout, call) = (Some(rollout), Some(call));
        self.faults.push(Fault { rollout, call, part: part.to_owned(), what: what.to_string() });
    }
}

impl SqliteStore {
    pub(super) async fn check_all(&self) -> Checked {
        let mut checked = Checked::default();
        self.check_file(&mut checked).await;
        self.check_rows(&mut checked).await;
        let mut after = 0;
        loop {
            match self.rollouts_after(after).await {
                Ok(page) if page.is_empty() => break,
                Ok(page) => {
                    for (seq, id) in page {
                        after = seq;
                        checked.rollouts += 1;
                        self.check_rollout(seq, id, &mut checked).await;
                    }
                }
                Err(error) => {
                    checked.fault("rollouts", error);
                    break;
                }
            }
        }
        match self.number("SELECT count(*) FROM calls").await {
            Ok(calls) if calls.cast_unsigned() == checked.calls => {}
            Ok(calls) => {
                let seen = checked.calls;
                checked.fault("calls", format!("{calls} calls are kept, and {seen} are found by their rollouts"));
            }
            Err(error) => checked.fault("calls", error),
        }
        self.check_blobs(&mut checked).await;
        checked
    }

    /// SQLite's own look at its pages and indexes.
    async fn check_file(&self, checked: &mut Checked) {
        let lines: Result<Vec<String>, _> = sqlx::query_scalar("PRAGMA integrity_check(100)").fetch_all(&self.reads).await;
        match lines {
            Ok(lines) => lines.into_iter().filter(|line| line != "ok").for_each(|line| checked.fault("file", line)),
            Err(error) => checked.fault("file", self.failed(&error)),
        }
        for (what, sql) in STRAY {
            match self.number(sql).await {
                Ok(0) => {}
                Ok(count) => checked.fault("file", format!("{count} {what}")),
                Err(error) => checked.fault("file", error),
            }
        }
    }

    /// The sums of rows that are not calls'.
    async fn check_rows(&self, checked: &mut Checked) {
        let of = &self.unsealed;
        for (table, key, columns, old) in [
            ("rollouts", "seq", seal::ROLLOUT, of.rollouts),
            ("rewards", "rollout", seal::REWARD, of.rollouts),
            ("delivered", "call", seal::DELIVERED, of.calls),
            ("processes", "seq", seal::PROCESS, of.processes),
            ("batches", "seq", seal::BATCH, 0),
            ("runs", "rollout", seal::RUN, 0),
        ] {
            let sql = format!("SELECT {}, sum FROM {table}", columns.join(", "));
            let rows = match sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(&self.reads).await {
                Ok(rows) => rows,
                Err(error) => {
                    checked.fault(table, self.failed(&error));
                    continue;
                }
            };
            for row in rows {
                let holds =
                    seal::holds(&row, columns, "sum").and_then(|holds| Ok(holds.unwrap_or(row.try_get::<i64, _>(key)? <= old)));
                if !matches!(holds, Ok(true)) {
                    let rollout = if table == "rollouts" { blob_id(&row, "id").ok().map(RolloutId) } else { None };
                    let number = row.try_get::<i64, _>(key).unwrap_or_default();
                    let what = format!("row {number} of {table} is not as it was written");
                    checked.faults.push(Fault { rollout, call: None, part: table.to_owned(), what });
                }
            }
        }
    }

    async fn check_rollout(&self, seq: i64, rollout: RolloutId, checked: &mut Checked) {
        let sql = "SELECT id FROM calls WHERE rollout = ? ORDER BY seq";
        let ids: Result<Vec<Vec<u8>>, _> = sqlx::query_scalar(sql).bind(seq).fetch_all(&self.reads).await;
        let ids = match ids {
            Ok(ids) => ids,
            Err(error) => {
                let what = self.failed(&error).to_string();
                checked.faults.push(Fault { rollout: Some(rollout), call: None, part: "calls".to_owned(), what });
                return;
            }
        };
        // All at once is linear; one by one names who can't be read.
        let whole = self.calls_of(rollout).await.is_ok_and(|records| records.len() == ids.len());
        for id in ids {
            let Ok(id) = Uuid::from_slice(&id).map(CallId) else {
                checked.fault("calls", format!("an id of rollout {rollout}'s calls is none"));
                continue;
            };
            checked.calls += 1;
            if !whole {
                match self.call_of(id).await {
                    Ok(Some(_)) => {}
                    Ok(None) => checked.of_call(rollout, id, "record", "it is in one index and not in the other"),
                    Err(error) => checked.of_call(rollout, id, "record", error),
                }
            }
            for kind in [RawKind::Request, RawKind::Upstream, RawKind::Response, RawKind::Prompt] {
                match self.read_raw(id, kind).await {
                    Ok(Some(body)) => checked.bodies += u64::from(!body.is_empty()),
                    Ok(None) => checked.of_call(rollout, id, name(kind), "it is not there"),
                    Err(error) => checked.of_call(rollout, id, name(kind), error),
                }
            }
            if let Err(error) = self.check_references(id).await {
                checked.of_call(rollout, id, "references", error);
            }
        }
    }

    /// Whether the blobs that a call's bodies name are those that it is noted to refer to.
    async fn check_references(&self, call: CallId) -> Result<(), String> {
        let mut named = BTreeSet::new();
        for kind in [RawKind::Request, RawKind::Upstream] {
            let packed = self.packed((call, kind)).await.map_err(|error| error.to_string())?.unwrap_or_default();
            // One that can't be opened was named already.
            let Some(opened) = blob::open(&packed) else { return Ok(()) };
            named.extend(opened.hashes());
            if let Some(Some(Base::Blob(hash))) = opened.base() {
                named.insert(hash);
            }
        }
        let sql = "SELECT b.hash FROM calls c JOIN call_blobs r ON r.call = c.seq JOIN blobs b ON b.seq = r.blob WHERE c.id = ?";
        let query = sqlx::query_scalar(sql).bind(call.0.as_bytes().to_vec());
        let noted: Vec<Vec<u8>> = query.fetch_all(&self.reads).await.map_err(|error| self.failed(&error).to_string())?;
        let noted: BTreeSet<_> = noted.iter().filter_map(|hash| ImageHash::from_bytes(hash)).collect();
        if named == noted { Ok(()) } else { Err("its bodies refer to other blobs than are noted".to_owned()) }
    }

    async fn check_blobs(&self, checked: &mut Checked) {
        let mut after = i64::MIN;
        loop {
            let sql = "SELECT seq, hash FROM blobs WHERE seq > ? ORDER BY seq LIMIT 1";
            let row: Result<Option<SqliteRow>, _> = sqlx::query(sql).bind(after).fetch_optional(&self.reads).await;
            let next =
                row.and_then(|row| row.map(|row| Ok((row.try_get::<i64, _>(0)?, row.try_get::<Vec<u8>, _>(1)?))).transpose());
            let (seq, hash) = match next {
                Ok(Some(next)) => next,
                Ok(None) => return,
                Err(error) => return checked.fault("blobs", self.failed(&error)),
            };
            after = seq;
            checked.blobs += 1;
            let Some(hash) = ImageHash::from_bytes(&hash) else {
                checked.fault("blobs", format!("the hash of blob {seq} is none"));
                continue;
            };
            match self.read_blob(hash).await {
                Ok(Some(bytes)) if ImageHash::of(&bytes) == hash => {}
                Ok(_) => checked.fault("blobs", format!("blob {hash} has other bytes than were kept")),
                Err(error) => checked.fault("blobs", error),
            }
        }
    }

    async fn rollouts_after(&self, seq: i64) -> Result<Vec<(i64, RolloutId)>, StoreError> {
        let query = sqlx::query("SELECT seq, id FROM rollouts WHERE seq > ? ORDER BY seq LIMIT ?").bind(seq).bind(PAGE);
        let rows = query.fetch_all(&self.reads).await.map_err(|error| self.failed(&error))?;
        let read = |row: &SqliteRow| Ok((row.try_get("seq")?, RolloutId(blob_id(row, "id")?)));
        rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(|error| self.failed(&error))
    }

    async fn number(&self, sql: &'static str) -> Result<i64, StoreError> {
        sqlx::query_scalar(sql).fetch_one(&self.reads).await.map_err(|error| self.failed(&error))
    }
}

fn name(kind: RawKind) -> &'static str {
    match kind {
        RawKind::Request => "request",
        RawKind::Upstream => "upstream",
        RawKind::Response => "response",
        RawKind::Prompt => "prompt",
    }
}
