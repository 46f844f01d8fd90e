//! The one connection that writes.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use super::checkpoint::{Checkpointer, move_log};
use super::insert::Fault;
use super::process::ProcessLock;
use super::{batch, error, insert, process, sweep};
use crate::call::{CallEnd, CallStart, CallStatus, WeightVersion};
use crate::ids::{CallId, ProcessId, RolloutId};
use crate::store::blob::Packed;
use crate::store::packing::{PackedEnd, Packing};
use crate::store::{Durability, NewRollout, StoreConfig, StoreError, Write, Writer};
use crate::telemetry::now_ms;

/// Numbers kept in memory at most; one that isn't is asked of the index.
const REMEMBERED: usize = 100_000;

/// The store's only writer is taken as long as this lives.
pub(super) struct Taken(pub(super) Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Writes into one SQLite file.
pub(super) struct SqliteWriter {
    db: Connection,
    path: PathBuf,
    packing: Packing,
    process: i64,
    /// How often something was taken out of the store, as it counts that itself: numbers may be used again after it.
    prunes: i64,
    /// Numbers of calls that more is to come of. One that is missing was not kept, or is asked of the index.
    calls: HashMap<CallId, i64>,
    /// Calls of this batch that could not be kept as they were packed.
    failed: HashSet<CallId>,
    rollouts: HashMap<RolloutId, i64>,
    /// The weights that each policy had last, as they are kept.
    versions: HashMap<String, WeightVersion>,
    // Dropped in this order: the lock last but for the flag, when everything is in order.
    checkpointer: Option<Checkpointer>,
    _lock: ProcessLock,
    _taken: Taken,
}

/// A write with its packing done.
enum Ready<'a> {
    Start(&'a CallStart, Packed),
    End(&'a CallEnd, Box<PackedEnd>),
    Other(&'a Write),
}

impl Ready<'_> {
    /// The call whose bodies it has.
    fn call(&self) -> Option<CallId> {
        match self {
            Self::Start(start, _) => Some(start.id),
            Self::End(end, _) => Some(end.start.id),
            Self::Other(_) => None,
        }
    }
}

impl SqliteWriter {
    /// Opens the connection, makes the process known, and ends what dead ones left open.
    pub(super) fn open(path: &Path, config: &StoreConfig, process: ProcessId, taken: Taken) -> Result<Self, StoreError> {
        let failed = |error: rusqlite::Error| error::of_writer(&error, path);
        let folder = process::folder(path);
        let lock = ProcessLock::take(&folder, process).map_err(|error| error::of_io(&error, &folder))?;
        let mut db = connect(path, config).map_err(failed)?;
        let turn = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        sweep::dead(&turn, &folder).and_then(|()| turn.commit()).map_err(failed)?;
        let process = sweep::register(&mut db, process, now_ms()).map_err(failed)?;
        let prunes = prunes(&db).map_err(failed)?;
        let checkpointer = Some(Checkpointer::start(path, connect(path, config).map_err(failed)?)?);
        Ok(Self {
            db,
            path: path.to_owned(),
            packing: Packing::new(),
            process,
            prunes,
            calls: HashMap::new(),
            failed: HashSet::new(),
            rollouts: HashMap::new(),
            versions: HashMap::new(),
            checkpointer,
            _lock: lock,
            _taken: taken,
        })
    }

    /// Writes everything in one transaction, or nothing. Inside: what is bad by itself.
    fn transaction(&mut self, batch: &[Write]) -> Result<Vec<Result<(), StoreError>>, rusqlite::Error> {
        let mut ready: Vec<_> = batch.iter().map(|write| self.ready(write)).collect();
        self.run("BEGIN IMMEDIATE")?;
        let prunes = prunes(&self.db)?;
        if prunes != self.prunes {
            // What is remembered may be gone, and bodies told by it.
            self.prunes = prunes;
            self.forget();
            ready = batch.iter().map(|write| self.ready(write)).collect();
        }
        let mut results = Vec::with_capacity(batch.len());
        for write in &ready {
            let result = match self.write(write) {
                Ok(()) => Ok(()),
                Err(Fault::Unknown(what)) => Err(StoreError::Other(what)),
                // SQLite took back the one statement; the transaction goes on.
                Err(Fault::Sqlite(error)) if is_own_fault(&error) && !self.db.is_autocommit() => {
                    Err(error::of_writer(&error, &self.path))
                }
                Err(Fault::Sqlite(error)) => return Err(error),
            };
            if result.is_err() {
                self.failed.extend(write.call());
            }
            results.push(result);
        }
        self.run("COMMIT")?;
        if !self.failed.is_empty() {
            self.failed.clear();
            self.packing.forget();
        }
        Ok(results)
    }

    /// Does a write's packing.
    fn ready<'a>(&mut self, write: &'a Write) -> Ready<'a> {
        match write {
            Write::CallStart(start) => Ready::Start(start, self.packing.start(start)),
            Write::CallEnd(end) => Ready::End(end, Box::new(self.packing.end(end))),
            other => Ready::Other(other),
        }
    }

    fn run(&self, sql: &str) -> rusqlite::Result<()> {
        self.db.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn write(&mut self, write: &Ready<'_>) -> Result<(), Fault> {
        match write {
            Ready::Start(start, request) if request.base.is_some_and(|base| self.failed.contains(&base)) => {
                let request = self.packing.start_alone(start);
                self.start(start, &request).map(drop)
            }
            Ready::Start(start, request) => self.start(start, request).map(drop),
            Ready::End(end, packed) if packed.bases().any(|base| self.failed.contains(&base)) => {
                let packed = self.packing.end_alone(end);
                self.end(end, &packed)
            }
            Ready::End(end, packed) => self.end(end, packed),
            Ready::Other(Write::Delivered(id)) => self.delivered(*id),
            Ready::Other(Write::NewRollout(new)) => self.rollout(new),
            Ready::Other(Write::Reward(reward)) => insert::reward(&self.db, reward),
            Ready::Other(Write::Finish(finish)) => insert::finish(&self.db, finish),
            Ready::Other(Write::PolicyVersion { policy, version }) => self.version(policy, version),
            Ready::Other(Write::NewBatch(new)) => Ok(batch::new(&self.db, self.process, new)?),
            Ready::Other(Write::BatchStatus(id, status)) => batch::status(&self.db, &self.path, self.process, *id, *status),
            Ready::Other(Write::Barrier) => Ok(()),
            Ready::Other(Write::CallStart(_) | Write::CallEnd(_)) => Err(Fault::Unknown("a call that was not packed".into())),
        }
    }

    fn start(&mut self, start: &CallStart, request: &Packed) -> Result<i64, Fault> {
        let rollout = match self.rollouts.get(&start.rollout_id) {
            Some(seq) => *seq,
            None => insert::rollout_seq(&self.db, start.rollout_id)?,
        };
        let seq = insert::start(&self.db, rollout, self.process, start, &request.bytes)?;
        insert::blobs(&self.db, seq, request)?;
        self.rollouts.insert(start.rollout_id, rollout);
        self.calls.insert(start.id, seq);
        Ok(seq)
    }

    fn end(&mut self, end: &CallEnd, packed: &PackedEnd) -> Result<(), Fault> {
        let known = match self.calls.get(&end.start.id) {
            Some(seq) => Some(*seq),
            None => insert::call_seq(&self.db, end.start.id)?,
        };
        let seq = if let Some(seq) = known {
            seq
        } else {
            // Its start was not kept.
            let request = self.packing.start_alone(&end.start);
            self.start(&end.start, &request)?
        };
        insert::end(&self.db, seq, end, packed)?;
        insert::blobs(&self.db, seq, &packed.upstream)?;
        self.version(&end.start.policy, &end.version)?;
        if end.status != CallStatus::Done {
            self.calls.remove(&end.start.id);
        }
        Ok(())
    }

    fn rollout(&self, new: &NewRollout) -> Result<(), Fault> {
        // Asked first: a rollout whose batch is not there must not be kept.
        let run = new.run.map(|run| Ok::<_, Fault>((batch::seq(&self.db, run.batch)?, run.attempt))).transpose()?;
        let rollout = insert::rollout(&self.db, new)?;
        if let (Some(rollout), Some((batch, attempt))) = (rollout, run) {
            batch::run(&self.db, self.process, rollout, batch, attempt)?;
        }
        Ok(())
    }

    fn version(&mut self, policy: &str, version: &WeightVersion) -> Result<(), Fault> {
        let kept = self.versions.get(policy);
        if version.version.is_none() || kept.is_some_and(|kept| kept == version || kept.seq > version.seq) {
            return Ok(());
        }
        insert::version(&self.db, policy, version)?;
        self.versions.insert(policy.to_owned(), version.clone());
        Ok(())
    }

    fn delivered(&mut self, id: CallId) -> Result<(), Fault> {
        let seq = match self.calls.remove(&id) {
            Some(seq) => seq,
            None => insert::call_seq(&self.db, id)?.ok_or_else(|| Fault::Unknown(format!("there is no call {id}")))?,
        };
        Ok(insert::delivered(&self.db, seq)?)
    }

    /// Takes back what a failed transaction left behind.
    fn roll_back(&mut self) {
        if !self.db.is_autocommit()
            && let Err(error) = self.run("ROLLBACK")
        {
            tracing::error!(%error, "could not take back a transaction of the store");
        }
        self.forget();
        self.failed.clear();
    }

    fn forget(&mut self) {
        self.calls.clear();
        self.rollouts.clear();
        self.versions.clear();
        self.packing.forget();
    }
}

impl Writer for SqliteWriter {
    fn apply(&mut self, batch: &[Write]) -> Vec<Result<(), StoreError>> {
        if self.calls.len().max(self.rollouts.len()) > REMEMBERED {
            self.calls.clear();
            self.rollouts.clear();
        }
        match self.transaction(batch) {
            Ok(results) => {
                if let Some(checkpointer) = &self.checkpointer {
                    checkpointer.committed();
                }
                results
            }
            Err(error) => {
                self.roll_back();
                let error = error::of_writer(&error, &self.path);
                batch.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    fn idle(&mut self) {
        if self.checkpointer.as_ref().is_some_and(Checkpointer::wants_writer)
            && let Err(error) = move_log(&self.db, "PASSIVE")
        {
            tracing::warn!(%error, "could not begin the store's log anew");
        }
    }
}

impl Drop for SqliteWriter {
    fn drop(&mut self) {
        self.checkpointer.take();
        // What fails here, the next process does when it finds this one gone.
        if let Err(error) = sweep::own(&mut self.db, self.process) {
            tracing::warn!(%error, "could not leave the store in order");
        }
        if let Err(error) = move_log(&self.db, "TRUNCATE") {
            tracing::warn!(%error, "could not move the store's log into the database");
        }
    }
}

/// How often something was taken out of the store.
pub(super) fn prunes(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

pub(super) fn connect(path: &Path, config: &StoreConfig) -> rusqlite::Result<Connection> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(Duration::from_secs(config.busy_timeout_s))?;
    db.set_prepared_statement_cache_capacity(32);
    let synchronous = match config.durability {
        Durability::Process => "NORMAL",
        Durability::Power => "FULL",
    };
    // A log that a burst made large gives its room back when it begins anew.
    db.execute_batch(&format!(
        "PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0; PRAGMA journal_size_limit = 67108864; \
         PRAGMA cache_size = -2048; PRAGMA temp_store = MEMORY;"
    ))?;
    Ok(db)
}

/// Tells whether the fault is in what was written, so that the rest of a batch can go on.
fn is_own_fault(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
    match error.sqlite_error_code() {
        Some(code) => matches!(code, ConstraintViolation | TooBig | TypeMismatch),
        None => matches!(error, rusqlite::Error::ToSqlConversionFailure(_)),
    }
}
