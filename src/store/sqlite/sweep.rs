//! Ends what dead processes left open.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior, params};
use uuid::Uuid;

use super::{insert, process, seal};
use crate::ids::ProcessId;

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

/// Ends the open calls of all processes that are dead, as interrupted.
pub(super) fn dead(db: &mut Connection, database: &Path) -> rusqlite::Result<()> {
    let folder = process::folder(database);
    let turn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let listed = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?));
    let all: Vec<_> =
        turn.prepare("SELECT seq, id FROM processes WHERE crashed = 0")?.query_map([], listed)?.collect::<Result<_, _>>()?;
    let dead: Vec<_> = all
        .into_iter()
        .map(|(seq, id)| (seq, ProcessId(Uuid::from_bytes(id))))
        .filter(|(_, id)| !process::lives(&folder, *id))
        .collect();
    for (seq, _) in &dead {
        let open = interrupt(&turn, *seq)?;
        turn.execute("UPDATE processes SET crashed = 1 WHERE seq = ?", [seq])?;
        seal::row(&turn, "processes", *seq)?;
        tracing::warn!(
            calls.interrupted = open,
            "a gleaner process died without ending; its open calls are marked as interrupted"
        );
    }
    turn.commit()?;
    for (_, id) in dead {
        process::forget(&folder, id);
    }
    Ok(())
}

/// Ends the open calls of this process, and forgets it: it ends in order.
pub(super) fn own(db: &mut Connection, seq: i64) -> rusqlite::Result<()> {
    let turn = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    interrupt(&turn, seq)?;
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
