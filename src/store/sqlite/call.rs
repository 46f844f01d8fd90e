//! Calls read back.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};
use uuid::Uuid;

use super::{SqliteStore, code, process};
use crate::call::{CallRecord, CallStatus, Capture, FinishReason, ImageHash, Raw, RawKind, Sampling, Usage, WeightVersion};
use crate::ids::{CallId, ProcessId, RolloutId};
use crate::store::{StoreError, blob, body, pack};

/// The query for the calls that fit `condition`, which goes on with a value. Bodies are left where they are.
pub(super) fn query(condition: &str) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(
        "SELECT c.id, o.id AS rollout_id, c.started_at, c.wire, c.target, c.choice, c.policy, c.model, c.stream, p.id AS process_id, p.crashed, \
         d.call AS delivered, r.status, r.ended_at, r.version, r.version_seq, r.version_source, r.first_event_at, r.finish, \
         r.prompt_tokens, r.completion_tokens, r.cached_tokens, r.reasoning_tokens, r.capture_level, r.logprob_kind, \
         r.constrained, r.max_tokens_asked, r.max_tokens_used, r.capture_reason, r.failure, r.sampling_asked, r.sampling_used, \
         r.notes, r.images, r.completion_ids, r.logprobs, r.prompt_ids, r.message, r.rendered, r.runs \
         FROM calls c JOIN rollouts o ON o.seq = c.rollout LEFT JOIN replies r ON r.call = c.seq \
         LEFT JOIN delivered d ON d.call = c.seq LEFT JOIN processes p ON p.seq = c.process WHERE ",
    );
    query.push(condition);
    query
}

impl SqliteStore {
    pub(super) async fn read_calls(&self, mut query: QueryBuilder<Sqlite>) -> Result<Vec<CallRecord>, StoreError> {
        let rows = query.build().fetch_all(&self.reads).await.map_err(|error| self.failed(&error))?;
        let mut living = HashMap::new();
        rows.iter()
            .map(|row| {
                let process: Option<Uuid> = blob_id(row, "process_id").ok();
                let lives = |process| process::lives(&process::folder(&self.path), ProcessId(process));
                let lives = process.is_some_and(|process| *living.entry(process).or_insert_with(|| lives(process)));
                record(row, lives).map_err(|error| match error {
                    sqlx::Error::Decode(what) => self.broken(&format!("a call ({what})")),
                    error => self.failed(&error),
                })
            })
            .collect()
    }

    pub(super) async fn read_raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError> {
        let sql = match kind {
            RawKind::Request => "SELECT request, NULL FROM calls WHERE id = ?",
            RawKind::Upstream => "SELECT c.request, r.upstream FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
            RawKind::Response => "SELECT NULL, r.response FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
            RawKind::Prompt => "SELECT NULL, r.prompt FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
        };
        let row = sqlx::query_as(sql)
            .bind(call.0.as_bytes().to_vec())
            .fetch_optional(&self.reads)
            .await
            .map_err(|error| self.failed(&error))?;
        let Some((request, other)): Option<Columns> = row else { return Ok(None) };
        let broken = || self.broken(&format!("the {kind:?} of call {call}"));
        let request = blob::open(&request.unwrap_or_default(), &[]).ok_or_else(broken)?;
        let opened = match kind {
            RawKind::Request => request,
            _ => blob::open(&other.unwrap_or_default(), &request.rest).ok_or_else(broken)?,
        };
        let mut blobs = HashMap::new();
        for hash in opened.hashes() {
            if let Entry::Vacant(place) = blobs.entry(hash)
                && let Some(bytes) = self.read_blob(hash).await?
            {
                place.insert(bytes);
            }
        }
        Ok(Some(opened.close(&blobs).ok_or_else(broken)?.into()))
    }

    pub(super) async fn read_versions(&self) -> Result<BTreeMap<String, WeightVersion>, StoreError> {
        let query = sqlx::query("SELECT name, version, seq AS version_seq, source AS version_source FROM policies");
        let rows = query.fetch_all(&self.reads).await.map_err(|error| self.failed(&error))?;
        let read = |row: &SqliteRow| Ok((row.try_get("name")?, version(row)?));
        rows.iter().map(read).collect::<Result<_, sqlx::Error>>().map_err(|error| self.failed(&error))
    }

    pub(super) async fn read_blob(&self, hash: ImageHash) -> Result<Option<Vec<u8>>, StoreError> {
        let query = sqlx::query_scalar("SELECT bytes FROM blobs WHERE hash = ?").bind(hash.as_bytes().to_vec());
        query.fetch_optional(&self.reads).await.map_err(|error| self.failed(&error))
    }
}

/// The request, and the body that was asked for.
type Columns = (Option<Vec<u8>>, Option<Vec<u8>>);

/// What a column holds is not what it should.
pub(super) fn wrong(what: &'static str) -> sqlx::Error {
    sqlx::Error::Decode(what.into())
}

/// The id in a column of 16 bytes.
pub(super) fn blob_id(row: &SqliteRow, column: &str) -> Result<Uuid, sqlx::Error> {
    Uuid::from_slice(row.try_get(column)?).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// The value in a column of JSON text.
pub(super) fn json<T: DeserializeOwned>(row: &SqliteRow, column: &str) -> Result<Option<T>, sqlx::Error> {
    let text: Option<&str> = row.try_get(column)?;
    text.map(serde_json::from_str).transpose().map_err(|error| sqlx::Error::Decode(error.into()))
}

fn record(row: &SqliteRow, lives: bool) -> Result<CallRecord, sqlx::Error> {
    let ended = row.try_get::<Option<i64>, _>("status")?;
    let delivered: Option<i64> = row.try_get("delivered")?;
    let process: Option<i64> = row.try_get("crashed")?;
    let mut call = CallRecord {
        images: Vec::new(),
        id: CallId(blob_id(row, "id")?),
        rollout_id: RolloutId(blob_id(row, "rollout_id")?),
        started_at: row.try_get("started_at")?,
        wire: row.try_get("wire")?,
        target: row.try_get("target")?,
        choice: row.try_get("choice")?,
        policy: row.try_get("policy")?,
        model: row.try_get("model")?,
        stream: row.try_get::<i64, _>("stream")? != 0,
        status: if lives { CallStatus::Running } else { CallStatus::Interrupted },
        delivered: match (delivered, process) {
            (Some(_), _) => Some(true),
            // Its process ended in order: it would have said so.
            (None, None) => Some(false),
            // The note may be on its way, or have been lost with the process.
            (None, Some(_)) => None,
        },
        ended_at: row.try_get("ended_at")?,
        first_event_at: row.try_get("first_event_at")?,
        failure: json(row, "failure")?,
        message: None,
        finish: row.try_get::<Option<&str>, _>("finish")?.map(FinishReason::parse),
        usage: None,
        capture: Capture::default(),
        sampling_asked: json(row, "sampling_asked")?.unwrap_or_default(),
        sampling_used: Sampling::default(),
        max_tokens_asked: row.try_get::<Option<i64>, _>("max_tokens_asked")?.map(i64::cast_unsigned),
        max_tokens_used: row.try_get::<Option<i64>, _>("max_tokens_used")?.map(i64::cast_unsigned),
        version: WeightVersion::default(),
        notes: json(row, "notes")?.unwrap_or_default(),
    };
    call.sampling_used = json(row, "sampling_used")?.unwrap_or_else(|| call.sampling_asked.clone());
    if let Some(status) = ended {
        call.status = code::value(code::STATUSES, status).ok_or_else(|| wrong("status"))?;
        call.message = message(row)?;
        call.usage = usage(row)?;
        call.capture = capture(row)?;
        call.version = version(row)?;
        call.images = images(row)?;
    }
    Ok(call)
}

fn message(row: &SqliteRow) -> Result<Option<Raw>, sqlx::Error> {
    let Some(packed) = row.try_get::<Option<&[u8]>, _>("message")? else { return Ok(None) };
    let json = body::unpack(packed, &[]).ok_or_else(|| wrong("message"))?;
    serde_json::from_slice(&json).map(Some).map_err(|error| sqlx::Error::Decode(error.into()))
}

fn usage(row: &SqliteRow) -> Result<Option<Usage>, sqlx::Error> {
    let Some(prompt) = row.try_get::<Option<i64>, _>("prompt_tokens")? else { return Ok(None) };
    let count = |column| row.try_get::<i64, _>(column).map(i64::cast_unsigned);
    Ok(Some(Usage {
        prompt_tokens: prompt.cast_unsigned(),
        completion_tokens: count("completion_tokens")?,
        cached_tokens: count("cached_tokens")?,
        reasoning_tokens: count("reasoning_tokens")?,
    }))
}

fn capture(row: &SqliteRow) -> Result<Capture, sqlx::Error> {
    let bytes = |column| row.try_get::<Option<&[u8]>, _>(column).map(Option::unwrap_or_default);
    Ok(Capture {
        level: code::value(code::LEVELS, row.try_get("capture_level")?).ok_or_else(|| wrong("capture_level"))?,
        reason: row.try_get("capture_reason")?,
        prompt_ids: pack::unpack_ids(bytes("prompt_ids")?).ok_or_else(|| wrong("prompt_ids"))?,
        completion_ids: pack::unpack_ids(bytes("completion_ids")?).ok_or_else(|| wrong("completion_ids"))?,
        logprobs: pack::unpack_floats(bytes("logprobs")?).ok_or_else(|| wrong("logprobs"))?,
        logprob_kind: code::value(code::LOGPROB_KINDS, row.try_get("logprob_kind")?).ok_or_else(|| wrong("logprob_kind"))?,
        constrained: row.try_get::<i64, _>("constrained")? != 0,
        runs: json(row, "runs")?.unwrap_or_default(),
        rendered: json(row, "rendered")?,
    })
}

fn images(row: &SqliteRow) -> Result<Vec<ImageHash>, sqlx::Error> {
    let bytes = row.try_get::<Option<&[u8]>, _>("images")?.unwrap_or_default();
    let hashes = bytes.chunks(32).map(ImageHash::from_bytes);
    hashes.collect::<Option<_>>().ok_or_else(|| wrong("images"))
}

fn version(row: &SqliteRow) -> Result<WeightVersion, sqlx::Error> {
    let source: Option<i64> = row.try_get("version_source")?;
    Ok(WeightVersion {
        version: row.try_get("version")?,
        seq: row.try_get("version_seq")?,
        source: source.map(|source| code::value(code::SOURCES, source).ok_or_else(|| wrong("version_source"))).transpose()?,
    })
}
