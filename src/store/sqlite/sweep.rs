//! Ends what dead processes left open.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};
use uuid::Uuid;

use super::{batch, insert, process, seal};
use crate::ids::ProcessId;
use crate::telemetry::now_ms;

/// Makes `id` known as a process that writes, and gives its number.
pub(super) fn register(db: &mut Connection, id: ProcessId, now: i64) -> rusqlite::Result<i64> {
    let turn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    turn.execute(
        "INSERT INTO processes (id, started_at, after_call) VALUES (?, ?, coalesce((SELECT max(seq) FROM calls), 0))",
        params![id.0.as_bytes().as_slice(), now],
    )?;
    let seq = turn.last_insert_rowid();
    seal::row(&turn, "processes", seq)?;
    turn.commit()?;
    Ok(seq)
}

/// Ends what all dead processes left open: calls as interrupted, rollouts that they ran as infrastructure errors. In the
/// transaction that it is called in; `folder` has the processes' files.
pub(super) fn dead(db: &Connection, folder: &Path) -> rusqlite::Result<()> {
    let listed = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?));
    let all: Vec<_> =
        db.prepare("SELECT seq, id FROM processes WHERE crashed = 0")?.query_map([], listed)?.collect::<Result<_, _>>()?;
    let dead = all.into_iter().map(|(seq, id)| (seq, ProcessId(Uuid::from_bytes(id))));
    for (seq, id) in dead.filter(|(_, id)| !process::lives(folder, *id)) {
        let calls = interrupt(db, seq)?;
        let rollouts = batch::end_runs(db, seq, now_ms(), "the gleaner process that ran it died")?;
        db.execute("UPDATE processes SET crashed = 1 WHERE seq = ?", [seq])?;
        seal::row(db, "processes", seq)?;
        tracing::warn!(
            process = %id,
            calls.interrupted = calls,
            rollouts.ended = rollouts,
            "a gleaner process died without ending; its open calls are marked as interrupted, the rollouts that it ran as infra_error"
        );
        process::forget(folder, id);
    }
    Ok(())
}

/// Ends what this process left open, and forgets it: it ends in order.
pub(super) fn own(db: &mut Connection, seq: i64) -> rusqlite::Result<()> {
    let turn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    interrupt(&turn, seq)?;
    batch::end_runs(&turn, seq, now_ms(), "the gleaner process that ran it ended before it")?;
    turn.execute("DELETE FROM processes WHERE seq = ?", [seq])?;
    turn.commit()
}

fn interrupt(db: &Connection, process: i64) -> rusqlite::Result<usize> {
    let open: Vec<i64> = db
        .prepare(
            "SELECT c.seq FROM calls c, processes p WHERE p.seq = ?1 AND c.seq > p.after_call AND c.process = p.seq \
             AND NOT EXISTS (SELECT 1 FROM replies r WHERE r.call = c.seq)",
        )?
        .query_map([process], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for call in &open {
        insert::interrupted(db, *call)?;
    }
    Ok(open.len())
}
