//! SQLite: one file, nothing to start.
//!
//! Two drivers, one library. Reads go through sqlx, from a pool, on whatever task asks. Writes go through rusqlite, on the
//! recorder's own thread: an async driver hands every statement to a thread of its own and back, which at one insert a row
//! costs more than the insert (measured: 145 us of CPU a call against 87, facts of the design). Both link the same SQLite.
//!
//! What a call costs, and what was done about it: prepared statements; one transaction a batch; integers in place of ids
//! wherever a row names another; inserts only, never an update of a large row; compression before the transaction, with one
//! context; no checkpoint inside a commit (see [`checkpoint`]).

mod batch;
mod call;
mod check;
mod checkpoint;
mod code;
mod error;
mod insert;
mod process;
mod prompt;
mod prune;
mod raw;
mod rollout;
mod seal;
mod sweep;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use sqlx::{ConnectOptions, Connection};

use super::{
    Artifacts, Batch, BatchBrief, Checked, Prune, Pruned, Rollout, RolloutFilter, Store, StoreConfig, StoreError, Writer,
};
use crate::call::{CallRecord, ImageHash, RawKind, WeightVersion};
use crate::ids::{BatchId, CallId, ProcessId, RolloutId, RolloutKey};

static MIGRATIONS: Migrator = sqlx::migrate!("migrations/sqlite");

/// Reading is short; more connections than this would wait for processors, not for SQLite.
const READERS: u32 = 4;

/// A store in one SQLite file.
pub(super) struct SqliteStore {
    path: PathBuf,
    config: StoreConfig,
    artifacts: Artifacts,
    process: ProcessId,
    reads: SqlitePool,
    rests: raw::Rests,
    unsealed: Unsealed,
    writer_taken: Arc<AtomicBool>,
}

/// Rows up to these numbers are from before rows had sums.
#[derive(Clone, Copy, Debug, Default, sqlx::FromRow)]
struct Unsealed {
    rollouts: i64,
    calls: i64,
    processes: i64,
}

/// The form that stores of this version have: the number of their last migration.
pub(super) fn version() -> i64 {
    MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or_default()
}

impl SqliteStore {
    /// Opens the file at `path`, made and migrated as needed.
    pub(super) async fn open(path: &Path, config: &StoreConfig, process: ProcessId) -> Result<Self, StoreError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder).map_err(|error| error::of_io(&error, folder))?;
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .busy_timeout(Duration::from_secs(config.busy_timeout_s))
            .disable_statement_logging();
        // Pages that were freed can be given back without writing the file anew; only a new file learns this here.
        let creating = options.clone().create_if_missing(true).auto_vacuum(SqliteAutoVacuum::Incremental);
        migrate(path, creating.journal_mode(SqliteJournalMode::Wal)).await?;
        let reads = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_with(options.pragma("query_only", "true"))
            .await
            .map_err(|error| error::of_reader(&error, path))?;
        let unsealed = sqlx::query_as("SELECT rollouts, calls, processes FROM unsealed").fetch_one(&reads).await;
        let unsealed = unsealed.map_err(|error| error::of_reader(&error, path))?;
        let (rests, writer_taken) = (raw::Rests::default(), Arc::default());
        let (path, config, artifacts) = (path.to_owned(), config.clone(), Artifacts::new(path.with_file_name("artifacts")));
        Ok(Self { path, config, artifacts, process, reads, rests, unsealed, writer_taken })
    }

    fn failed(&self, error: &sqlx::Error) -> StoreError {
        error::of_reader(error, &self.path)
    }

    fn broken(&self, what: &str) -> StoreError {
        StoreError::Other(format!(
            "{}: {what} can't be read back; it was damaged, or written by something else",
            self.path.display()
        ))
    }
}

/// Brings the store to this version's form. Two processes that open a new store at once take turns.
async fn migrate(path: &Path, options: SqliteConnectOptions) -> Result<(), StoreError> {
    let failed = |error: &sqlx::Error| error::of_reader(error, path);
    let mut connection = options.connect().await.map_err(|error| failed(&error))?;
    let newest = version();
    let applied: Result<Vec<i64>, _> =
        sqlx::query_scalar("SELECT version FROM _sqlx_migrations WHERE success").fetch_all(&mut connection).await;
    // A store without the table is new: any error comes back from the migration itself.
    let applied = applied.unwrap_or_default();
    if applied.iter().any(|version| *version > newest) {
        return Err(StoreError::Newer(path.display().to_string()));
    }
    // One may be missing before the last: they are numbered by who begins first, and not by who ends first.
    if MIGRATIONS.iter().any(|migration| !applied.contains(&migration.version)) {
        let _turn = turn(path).await?;
        MIGRATIONS.run_direct(None, &mut connection, false).await.map_err(|error| match error {
            MigrateError::VersionMissing(_) | MigrateError::VersionTooNew(..) => StoreError::Newer(path.display().to_string()),
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => failed(&error),
            error => StoreError::Other(format!("{}: {error}", path.display())),
        })?;
    }
    connection.close().await.map_err(|error| failed(&error))
}

/// Waits for the right to migrate, which ends when the file is dropped.
async fn turn(path: &Path) -> Result<File, StoreError> {
    let folder = process::folder(path);
    let failed = |error: std::io::Error| error::of_io(&error, &folder);
    std::fs::create_dir_all(&folder).map_err(failed)?;
    let file = File::create(folder.join("migration")).map_err(failed)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn writer(&self) -> Result<Box<dyn Writer>, StoreError> {
        if self.writer_taken.swap(true, Ordering::AcqRel) {
            return Err(StoreError::Other(format!("{}: the writer is taken already", self.path.display())));
        }
        let taken = writer::Taken(Arc::clone(&self.writer_taken));
        Ok(Box::new(writer::SqliteWriter::open(&self.path, &self.config, self.process, taken)?))
    }

    fn describe(&self) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn artifacts(&self) -> &Artifacts {
        &self.artifacts
    }

    async fn rollout(&self, id: RolloutId) -> Result<Option<Rollout>, StoreError> {
        let mut query = rollout::query("id = ");
        query.push_bind(id.0.as_bytes().to_vec());
        self.one_rollout(query).await
    }

    async fn rollout_by_key(&self, key: &RolloutKey) -> Result<Option<Rollout>, StoreError> {
        let mut query = rollout::query("key = ");
        query.push_bind(key.expose().to_owned());
        self.one_rollout(query).await
    }

    async fn rollout_by_idempotency_key(&self, key: &str) -> Result<Option<Rollout>, StoreError> {
        let mut query = rollout::query("idempotency_key = ");
        query.push_bind(key.to_owned());
        self.one_rollout(query).await
    }

    async fn rollout_by_conversation(&self, conversation: &str) -> Result<Option<Rollout>, StoreError> {
        let mut query = rollout::query("ended_at IS NULL AND conversation = ");
        query.push_bind(conversation.to_owned()).push(" ORDER BY seq DESC LIMIT 1");
        self.one_rollout(query).await
    }

    async fn rollouts(&self, filter: &RolloutFilter) -> Result<Vec<Rollout>, StoreError> {
        self.read_rollouts(rollout::filtered(filter)).await
    }

    async fn batch(&self, id: BatchId) -> Result<Option<Batch>, StoreError> {
        self.read_batch(id).await
    }

    async fn batches(&self, after: Option<BatchId>, limit: u32) -> Result<Vec<BatchBrief>, StoreError> {
        self.page_of_batches(after, limit).await
    }

    async fn ended(&self, batch: BatchId) -> Result<u64, StoreError> {
        self.ended_of_batch(batch).await
    }

    async fn call(&self, id: CallId) -> Result<Option<CallRecord>, StoreError> {
        self.call_of(id).await
    }

    async fn calls(&self, rollout: RolloutId) -> Result<Vec<CallRecord>, StoreError> {
        self.calls_of(rollout).await
    }

    async fn raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError> {
        self.read_raw(call, kind).await
    }

    async fn weight_versions(&self) -> Result<BTreeMap<String, WeightVersion>, StoreError> {
        self.read_versions().await
    }

    async fn image(&self, hash: ImageHash) -> Result<Option<Bytes>, StoreError> {
        self.read_blob(hash).await
    }

    async fn check(&self) -> Result<Checked, StoreError> {
        Ok(self.check_all().await)
    }

    fn prune(&self, rollouts: &[RolloutId], how: Prune) -> Result<Pruned, StoreError> {
        prune::prune(&self.path, &self.config, &self.artifacts, rollouts, how)
    }
}
