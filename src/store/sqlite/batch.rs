//! Batches, and which rollouts are run for them.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};
use uuid::Uuid;

use super::call::{blob_id, json, wrong};
use super::insert::Fault;
use super::{SqliteStore, code, insert, process, seal, sweep};
use crate::ids::{BatchId, ProcessId};
use crate::store::{Batch, BatchBrief, BatchStatus, NewBatch, Outcome, RunOf, StoreError};

/// Keeps a batch that `process` runs from now on, unless its id is there already.
pub(super) fn new(db: &Connection, process: i64, new: &NewBatch) -> rusqlite::Result<()> {
    let added = db
        .prepare_cached(
            "INSERT INTO batches (id, created_at, plan, rollouts, process, status) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
        )?
        .execute(params![
            new.id.0.as_bytes(),
            new.created_at,
            new.plan.to_string(),
            new.rollouts.cast_signed(),
            process,
            code::name(&BatchStatus::Running),
        ])?;
    if added == 0 {
        return Ok(());
    }
    seal::row(db, "batches", db.last_insert_rowid())
}

/// Says what becomes of a batch. `process` takes it over where it runs again, which fails while one that lives runs it; what a dead
/// one left of it is ended before.
pub(super) fn status(db: &Connection, database: &Path, process: i64, id: BatchId, status: BatchStatus) -> Result<(), Fault> {
    let (batch, was) = find(db, id)?;
    if status == BatchStatus::Running {
        let folder = process::folder(database);
        if was == BatchStatus::Running && runner(db, batch)?.is_some_and(|runner| process::lives(&folder, runner)) {
            let help = "wait for its end, or end it first";
            return Err(Fault::Unknown(format!("batch {id} is being run by a gleaner process already; {help}")));
        }
        if was == BatchStatus::Cancelled {
            return Err(Fault::Unknown(format!("batch {id} was cancelled; start another one")));
        }
        sweep::dead(db, &folder)?;
    } else if was == BatchStatus::Cancelled {
        // For good: who ran it stops it afterwards.
        return Ok(());
    }
    let taken = if status == BatchStatus::Running { Some(process) } else { None };
    db.prepare_cached("UPDATE batches SET status = ?, process = coalesce(?, process) WHERE seq = ?")?.execute(params![
        code::name(&status),
        taken,
        batch
    ])?;
    Ok(seal::row(db, "batches", batch)?)
}

/// Notes what a rollout is run for: the batch of this number.
pub(super) fn run(db: &Connection, process: i64, rollout: i64, batch: i64, attempt: u32) -> rusqlite::Result<()> {
    let sum = seal::sum(&[&rollout, &batch, &attempt, &process])?;
    db.prepare_cached("INSERT INTO runs (rollout, batch, attempt, process, sum) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING")?
        .execute(params![rollout, batch, attempt, process, sum])
        .map(drop)
}

/// Deletes the batch of a rollout that is deleted, if it was the last of it and nobody runs it.
pub(super) fn forget(db: &Connection, database: &Path, rollout: i64) -> rusqlite::Result<()> {
    let batch: Option<i64> =
        db.query_row("DELETE FROM runs WHERE rollout = ? RETURNING batch", [rollout], |row| row.get(0)).optional()?;
    let Some(batch) = batch else { return Ok(()) };
    let more = db.prepare("SELECT 1 FROM runs WHERE batch = ? LIMIT 1")?.exists([batch])?;
    let running = db
        .prepare("SELECT 1 FROM batches WHERE seq = ? AND status = ?")?
        .exists(params![batch, code::name(&BatchStatus::Running)])?;
    if more || running && runner(db, batch)?.is_some_and(|runner| process::lives(&process::folder(database), runner)) {
        return Ok(());
    }
    db.execute("DELETE FROM batches WHERE seq = ?", [batch]).map(drop)
}

/// Ends the rollouts that a process runs and has not ended: nobody else can. Gives their number.
pub(super) fn end_runs(db: &Connection, process: i64, now: i64, why: &str) -> rusqlite::Result<usize> {
    let open: Vec<i64> = db
        .prepare("SELECT o.seq FROM runs r JOIN rollouts o ON o.seq = r.rollout WHERE r.process = ? AND o.ended_at IS NULL")?
        .query_map([process], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    let evidence = serde_json::json!({ "error": why });
    for rollout in &open {
        insert::ended(db, *rollout, now, Outcome::InfraError, true, Some(&evidence))?;
    }
    Ok(open.len())
}

/// The number of a batch.
pub(super) fn seq(db: &Connection, id: BatchId) -> Result<i64, Fault> {
    Ok(find(db, id)?.0)
}

fn find(db: &Connection, id: BatchId) -> Result<(i64, BatchStatus), Fault> {
    let found = db
        .prepare_cached("SELECT seq, status FROM batches WHERE id = ?")?
        .query_row([id.0.as_bytes()], |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))
        .optional()?;
    let (seq, status) = found.ok_or_else(|| Fault::Unknown(format!("there is no batch {id}")))?;
    let status =
        code::named(&status).ok_or_else(|| Fault::Unknown(format!("batch {id} has no status that is known: {status}")))?;
    Ok((seq, status))
}

/// The process that runs a batch or ran it last, if it did not end in order and was not found dead.
fn runner(db: &Connection, batch: i64) -> rusqlite::Result<Option<ProcessId>> {
    db.query_row(
        "SELECT p.id FROM batches b JOIN processes p ON p.seq = b.process WHERE b.seq = ? AND p.crashed = 0",
        [batch],
        |row| Ok(ProcessId(Uuid::from_bytes(row.get(0)?))),
    )
    .optional()
}

/// Batches in short; what a list does not show is not read.
const BRIEFS: &str = "SELECT b.id, b.created_at, b.rollouts, b.status, p.id AS runner \
     FROM batches b LEFT JOIN processes p ON p.seq = b.process AND p.crashed = 0 WHERE ";

/// Batches with all that is kept of them.
const BATCHES: &str =
    "SELECT b.*, p.id AS runner FROM batches b LEFT JOIN processes p ON p.seq = b.process AND p.crashed = 0 WHERE ";

/// How many of a batch's places have a rollout that has ended: one that was replaced has the place of the other.
const ENDED: &str = "SELECT count(*) AS ended FROM (SELECT DISTINCT o.group_id, o.group_index FROM batches b \
     JOIN runs r ON r.batch = b.seq JOIN rollouts o ON o.seq = r.rollout WHERE o.ended_at IS NOT NULL AND b.id = ?)";

/// What rollouts are run for.
pub(super) const RUNS: &str = "SELECT r.rollout, b.id, r.attempt FROM runs r JOIN batches b ON b.seq = r.batch \
     WHERE r.rollout IN (SELECT value FROM json_each(?))";

/// What a row of [`RUNS`] says.
pub(super) fn run_of(row: &SqliteRow) -> Result<RunOf, sqlx::Error> {
    let attempt = u32::try_from(row.try_get::<i64, _>("attempt")?).map_err(|_| wrong("attempt"))?;
    Ok(RunOf { batch: BatchId(blob_id(row, "id")?), attempt })
}

impl SqliteStore {
    pub(super) async fn read_batch(&self, id: BatchId) -> Result<Option<Batch>, StoreError> {
        let mut query = QueryBuilder::new(BATCHES);
        query.push("b.id = ").push_bind(id.0.as_bytes().to_vec());
        let read = |row: &SqliteRow, processes: &Path| {
            let BatchBrief { id, created_at, rollouts, status } = brief(row, processes)?;
            let plan = json(row, "plan")?.ok_or_else(|| wrong("plan"))?;
            Ok(Batch { id, created_at, plan, rollouts, status })
        };
        Ok(self.read_batches(query, read).await?.pop())
    }

    pub(super) async fn page_of_batches(&self, after: Option<BatchId>, limit: u32) -> Result<Vec<BatchBrief>, StoreError> {
        let mut query = QueryBuilder::new(BRIEFS);
        query.push("true");
        if let Some(after) = after {
            query.push(" AND b.seq > (SELECT seq FROM batches WHERE id = ").push_bind(after.0.as_bytes().to_vec()).push(")");
        }
        query.push(" ORDER BY b.seq");
        if limit > 0 {
            query.push(" LIMIT ").push_bind(i64::from(limit));
        }
        self.read_batches(query, brief).await
    }

    pub(super) async fn ended_of_batch(&self, id: BatchId) -> Result<u64, StoreError> {
        let query = sqlx::query_scalar::<_, i64>(ENDED).bind(id.0.as_bytes().to_vec());
        Ok(query.fetch_one(&self.reads).await.map_err(|error| self.failed(&error))?.cast_unsigned())
    }

    async fn read_batches<T>(
        &self,
        mut query: QueryBuilder<Sqlite>,
        read: impl Fn(&SqliteRow, &Path) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, StoreError> {
        let rows = query.build().fetch_all(&self.reads).await.map_err(|error| self.failed(&error))?;
        let folder = process::folder(&self.path);
        let read = rows.iter().map(|row| read(row, &folder)).collect::<Result<_, sqlx::Error>>();
        read.map_err(|error| self.broken(&format!("a batch ({error})")))
    }
}

fn brief(row: &SqliteRow, processes: &Path) -> Result<BatchBrief, sqlx::Error> {
    let runner = match row.try_get::<Option<&[u8]>, _>("runner")? {
        Some(_) => Some(ProcessId(blob_id(row, "runner")?)),
        None => None,
    };
    let said = code::named(row.try_get("status")?).ok_or_else(|| wrong("status"))?;
    let runs = runner.is_some_and(|runner| process::lives(processes, runner));
    Ok(BatchBrief {
        id: BatchId(blob_id(row, "id")?),
        created_at: row.try_get("created_at")?,
        rollouts: row.try_get::<i64, _>("rollouts")?.cast_unsigned(),
        status: if said == BatchStatus::Running && !runs { BatchStatus::Stopped } else { said },
    })
}
