//! Deletes rollouts whole, and gives the room back.
//!
//! Each rollout goes in a transaction of its own, with its calls and with the blobs that only they referred to, so that a kill
//! leaves whole rollouts and nothing of those that are gone. Bodies are told by others of their own rollout only, or by blobs, so
//! nobody loses what it is told by. Numbers of rows may be used again; each deletion counts up the file's `user_version`, by which
//! writers of other processes see that what they remember is not to be relied on.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use uuid::Uuid;

use super::{batch, checkpoint, error, process, seal, writer};
use crate::ids::{ProcessId, RolloutId};
use crate::store::upkeep::{Prune, Pruned};
use crate::store::{Artifacts, StoreConfig, StoreError};

/// Pages that are given back in one transaction: writers wait no longer than for that.
const STEP: u32 = 256;
/// `PRAGMA auto_vacuum`'s number for pages that are given back when asked.
const INCREMENTAL: i64 = 2;

/// The bytes of a rollout's calls, as they are kept.
const BYTES: &str = "SELECT coalesce(sum(coalesce(length(c.request), 0) + coalesce(length(r.upstream), 0) + \
     coalesce(length(r.response), 0) + coalesce(length(r.prompt), 0) + coalesce(length(r.prompt_ids), 0) + \
     coalesce(length(r.completion_ids), 0) + coalesce(length(r.logprobs), 0) + coalesce(length(r.message), 0)), 0) \
     FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.rollout = ?";

/// Deletes the rollouts of these ids.
pub(super) fn prune(
    path: &Path,
    config: &StoreConfig,
    artifacts: &Artifacts,
    ids: &[RolloutId],
    how: Prune,
) -> Result<Pruned, StoreError> {
    let failed = |error: rusqlite::Error| error::of_writer(&error, path);
    let mut db = writer::connect(path, config).map_err(failed)?;
    let mut pruned = Pruned { file_before: file_size(&db).map_err(failed)?, ..Pruned::default() };
    for id in ids {
        one(&mut db, path, (*id, artifacts), how, &mut pruned).map_err(|failure| match failure {
            Failure::Database(error) => failed(error),
            Failure::Files(error) => error::of_io(&error, &artifacts.folder(*id)),
        })?;
    }
    if !how.dry_run {
        give_back(&db, how.vacuum).map_err(failed)?;
    }
    pruned.file_after = file_size(&db).map_err(failed)?;
    Ok(pruned)
}

/// Why a rollout could not be deleted.
enum Failure {
    Database(rusqlite::Error),
    Files(std::io::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error)
    }
}

fn one(
    db: &mut Connection,
    path: &Path,
    (id, artifacts): (RolloutId, &Artifacts),
    how: Prune,
    pruned: &mut Pruned,
) -> Result<(), Failure> {
    let turn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = turn
        .query_row("SELECT seq, ended_at IS NULL FROM rollouts WHERE id = ?", [id.0.as_bytes()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?))
        })
        .optional()?;
    let Some((rollout, is_open)) = found else {
        pruned.passed_over += 1;
        return Ok(());
    };
    if is_open && !how.open || in_flight(&turn, path, rollout)? {
        pruned.passed_over += 1;
        return Ok(());
    }
    pruned.bytes += turn.query_row(BYTES, [rollout], |row| row.get::<_, i64>(0))?.cast_unsigned();
    let (calls, blobs, bytes) = delete(&turn, rollout)?;
    batch::forget(&turn, path, rollout)?;
    pruned.rollouts += 1;
    pruned.calls += calls as u64;
    pruned.blobs += blobs;
    pruned.bytes += bytes;
    if how.dry_run {
        pruned.artifact_bytes += artifacts.bytes(id).map_err(Failure::Files)?;
        return Ok(turn.rollback()?);
    }
    let next = writer::prunes(&turn)?.wrapping_add(1) & i64::from(i32::MAX);
    turn.execute_batch(&format!("PRAGMA user_version = {next}"))?;
    // Before the commit: a kill leaves a rollout that was to be deleted without files, and never files that nobody knows of.
    pruned.artifact_bytes += artifacts.remove(id).map_err(Failure::Files)?;
    Ok(turn.commit()?)
}

/// Whether a living process has a call of this rollout in flight, or runs it.
fn in_flight(db: &Connection, path: &Path, rollout: i64) -> rusqlite::Result<bool> {
    let folder = process::folder(path);
    let owners: Vec<[u8; 16]> = db
        .prepare(
            "SELECT p.id FROM calls c JOIN processes p ON p.seq = c.process WHERE c.rollout = ?1 \
             AND NOT EXISTS (SELECT 1 FROM replies r WHERE r.call = c.seq) UNION SELECT p.id FROM runs r \
             JOIN processes p ON p.seq = r.process JOIN rollouts o ON o.seq = r.rollout WHERE o.seq = ?1 AND o.ended_at IS NULL",
        )?
        .query_map([rollout], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    Ok(owners.into_iter().any(|id| process::lives(&folder, ProcessId(Uuid::from_bytes(id)))))
}

/// Deletes a rollout and what is its alone; says how many calls and blobs, and the blobs' bytes.
fn delete(turn: &Transaction<'_>, rollout: i64) -> rusqlite::Result<(usize, u64, u64)> {
    let referred: Vec<i64> = turn
        .prepare("SELECT DISTINCT blob FROM call_blobs WHERE call IN (SELECT seq FROM calls WHERE rollout = ?)")?
        .query_map([rollout], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for table in ["call_blobs", "delivered", "replies"] {
        turn.execute(&format!("DELETE FROM {table} WHERE call IN (SELECT seq FROM calls WHERE rollout = ?)"), [rollout])?;
    }
    turn.execute("DELETE FROM rewards WHERE rollout = ?", [rollout])?;
    let calls = turn.execute("DELETE FROM calls WHERE rollout = ?", [rollout])?;
    turn.execute("DELETE FROM rollouts WHERE seq = ?", [rollout])?;
    let (mut blobs, mut bytes) = (0, 0);
    for blob in referred {
        let size = turn
            .query_row(
                "SELECT length(bytes) FROM blobs WHERE seq = ?1 AND NOT EXISTS (SELECT 1 FROM call_blobs WHERE blob = ?1)",
                [blob],
                |row| row.get::<_, i64>(0),
            )
            .optional()?;
        if let Some(size) = size {
            turn.execute("DELETE FROM blobs WHERE seq = ?", [blob])?;
            (blobs, bytes) = (blobs + 1, bytes + size.cast_unsigned());
        }
    }
    // Numbers above the newest call are given again: processes that began before must still tell theirs.
    let newest: i64 = turn.query_row("SELECT coalesce(max(seq), 0) FROM calls", [], |row| row.get(0))?;
    let moved: Vec<i64> = turn
        .prepare("UPDATE processes SET after_call = ?1 WHERE after_call > ?1 RETURNING seq")?
        .query_map([newest], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for process in moved {
        seal::row(turn, "processes", process)?;
    }
    Ok((calls, blobs, bytes))
}

/// Gives free pages back to the disk: step by step beside others, or by writing the file anew.
fn give_back(db: &Connection, vacuum: bool) -> rusqlite::Result<()> {
    if vacuum {
        db.execute_batch(&format!("PRAGMA auto_vacuum = {INCREMENTAL}; VACUUM;"))?;
    } else if number(db, "auto_vacuum")? == INCREMENTAL {
        let mut left = i64::MAX;
        loop {
            let free = number(db, "freelist_count")?;
            if free == 0 || free >= left {
                break;
            }
            left = free;
            // Each row that is read gives a page back.
            let mut statement = db.prepare(&format!("PRAGMA incremental_vacuum({STEP})"))?;
            let mut rows = statement.query([])?;
            while rows.next()?.is_some() {}
        }
    }
    // A reader may hold the log; then the next checkpoint shortens the file.
    let moved = checkpoint::move_log(db, "TRUNCATE");
    if let Err(error) = moved {
        tracing::info!(%error, "the file gets smaller at the next checkpoint");
    }
    Ok(())
}

fn file_size(db: &Connection) -> rusqlite::Result<u64> {
    Ok((number(db, "page_count")? * number(db, "page_size")?).cast_unsigned())
}

fn number(db: &Connection, pragma: &str) -> rusqlite::Result<i64> {
    db.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0))
}
