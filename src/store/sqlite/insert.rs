//! The statements that write.

use std::sync::LazyLock;

use rusqlite::types::Null;
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use uuid::Uuid;

use super::{code, seal};
use crate::call::{CallEnd, CallStart, CallStatus, CaptureLevel, LogprobKind, Sampling, WeightVersion};
use crate::ids::{CallId, RolloutId};
use crate::store::blob::Packed;
use crate::store::packing::PackedEnd;
use crate::store::{Finish, NewRollout, Outcome, Reward};

/// A write that can't be done, for reasons of its own.
#[derive(Debug)]
pub(super) enum Fault {
    Sqlite(rusqlite::Error),
    /// It names something that is not in the store.
    Unknown(String),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Nothing takes less room than an empty blob.
fn bytes(bytes: &[u8]) -> Option<&[u8]> {
    (!bytes.is_empty()).then_some(bytes)
}

fn id_bytes(id: &Uuid) -> &[u8] {
    id.as_bytes()
}

fn json(value: &impl serde::Serialize) -> Option<String> {
    serde_json::to_string(value).ok()
}

fn sampling(sampling: &Sampling) -> Option<String> {
    (*sampling != Sampling::default()).then(|| json(sampling)).flatten()
}

/// The number of a row with this id.
fn seq_of(db: &Connection, sql: &str, id: &Uuid) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached(sql)?.query_row([id_bytes(id)], |row| row.get(0)).optional()
}

pub(super) fn call_seq(db: &Connection, id: CallId) -> rusqlite::Result<Option<i64>> {
    seq_of(db, "SELECT seq FROM calls WHERE id = ?", &id.0)
}

pub(super) fn rollout_seq(db: &Connection, id: RolloutId) -> Result<i64, Fault> {
    seq_of(db, "SELECT seq FROM rollouts WHERE id = ?", &id.0)?.ok_or_else(|| Fault::Unknown(format!("there is no rollout {id}")))
}

/// Writes a call's start, and gives its number.
pub(super) fn start(db: &Connection, rollout: i64, process: i64, start: &CallStart, request: &[u8]) -> rusqlite::Result<i64> {
    static INSERT: LazyLock<String> = LazyLock::new(|| seal::insert("calls", seal::CALL, &["request"]));
    let values: [(&str, &dyn ToSql); 11] = [
        ("id", &id_bytes(&start.id.0)),
        ("rollout", &rollout),
        ("process", &process),
        ("started_at", &start.started_at),
        ("wire", &start.wire),
        ("target", &start.target),
        ("choice", &start.choice),
        ("policy", &start.policy),
        ("model", &start.model),
        ("stream", &start.stream),
        ("marks", &(!start.marks.is_empty()).then(|| json(&start.marks)).flatten()),
    ];
    seal::write(db, &INSERT, seal::CALL, &values, &[&bytes(request)])?;
    Ok(db.last_insert_rowid())
}

/// Writes a call's end under the number of its start.
pub(super) fn end(db: &Connection, call: i64, end: &CallEnd, packed: &PackedEnd) -> rusqlite::Result<()> {
    static INSERT: LazyLock<String> = LazyLock::new(|| seal::insert("replies", seal::REPLY, &["upstream", "response", "prompt"]));
    // A count that no reply can have would break the sums over many.
    const MOST: u64 = 1 << 40;
    let counted = end.usage.map_or(end.capture.completion_ids.len() as u64, |usage| usage.completion_tokens);
    let usage = |count: fn(&crate::call::Usage) -> u64| end.usage.as_ref().map(|usage| count(usage).cast_signed());
    let used = if end.sampling_used == end.sampling_asked { None } else { json(&end.sampling_used) };
    let values: [(&str, &dyn ToSql); 32] = [
        ("call", &call),
        ("status", &code::number(code::STATUSES, end.status)),
        ("ended_at", &end.ended_at),
        ("tokens", &counted.min(MOST).cast_signed()),
        ("version", &end.version.version),
        ("version_seq", &end.version.seq),
        ("version_source", &end.version.source.map(|source| code::number(code::SOURCES, source))),
        ("first_event_at", &end.first_event_at),
        ("finish", &end.finish.map(crate::call::FinishReason::name)),
        ("prompt_tokens", &usage(|usage| usage.prompt_tokens)),
        ("completion_tokens", &usage(|usage| usage.completion_tokens)),
        ("cached_tokens", &usage(|usage| usage.cached_tokens)),
        ("reasoning_tokens", &usage(|usage| usage.reasoning_tokens)),
        ("capture_level", &code::number(code::LEVELS, end.capture.level)),
        ("logprob_kind", &code::number(code::LOGPROB_KINDS, end.capture.logprob_kind)),
        ("constrained", &end.capture.constrained),
        ("max_tokens_asked", &end.max_tokens_asked.map(u64::cast_signed)),
        ("max_tokens_used", &end.max_tokens_used.map(u64::cast_signed)),
        ("capture_reason", &end.capture.reason),
        ("failure", &end.failure.as_ref().and_then(json)),
        ("sampling_asked", &sampling(&end.sampling_asked)),
        ("sampling_used", &used),
        ("rendered", &end.capture.rendered.as_ref().and_then(json)),
        ("runs", &(!end.capture.runs.is_empty()).then(|| json(&end.capture.runs)).flatten()),
        ("notes", &(!end.notes.is_empty()).then(|| json(&end.notes)).flatten()),
        ("images", &bytes(&packed.upstream.images)),
        ("completion_ids", &bytes(&packed.completion_ids)),
        ("logprobs", &bytes(&packed.logprobs)),
        ("prompt_ids", &bytes(&packed.prompt_ids.bytes)),
        ("prompt_base", &packed.prompt_ids.base.as_ref().map(|base| id_bytes(&base.0))),
        ("prompt_sum", &packed.prompt_ids.sum),
        ("message", &bytes(&packed.message)),
    ];
    let bodies: [&dyn ToSql; 3] = [&bytes(&packed.upstream.bytes), &bytes(&packed.response.bytes), &bytes(&packed.prompt.bytes)];
    seal::write(db, &INSERT, seal::REPLY, &values, &bodies)
}

/// Ends a call whose process ended without a word of it.
pub(super) fn interrupted(db: &Connection, call: i64) -> rusqlite::Result<()> {
    let values: Vec<(&str, Box<dyn ToSql>)> = seal::REPLY
        .iter()
        .map(|column| {
            let value: Box<dyn ToSql> = match *column {
                "call" => Box::new(call),
                "status" => Box::new(code::number(code::STATUSES, CallStatus::Interrupted)),
                "capture_level" => Box::new(code::number(code::LEVELS, CaptureLevel::default())),
                "logprob_kind" => Box::new(code::number(code::LOGPROB_KINDS, LogprobKind::default())),
                "tokens" | "version_seq" | "constrained" => Box::new(0),
                _ => Box::new(Null),
            };
            (*column, value)
        })
        .collect();
    let values: Vec<(&str, &dyn ToSql)> = values.iter().map(|(column, value)| (*column, value.as_ref())).collect();
    seal::write(db, &seal::insert("replies", seal::REPLY, &[]), seal::REPLY, &values, &[])
}

/// Keeps the blobs of a call's body, unless they are kept already, and notes that the call refers to them.
pub(super) fn blobs(db: &Connection, call: i64, packed: &Packed) -> rusqlite::Result<()> {
    for blob in &packed.blobs {
        // Asked first: what is sent again with every call is large.
        let kept = db.prepare_cached("SELECT 1 FROM blobs WHERE hash = ?")?.exists([blob.hash.as_bytes()])?;
        if !kept {
            db.prepare_cached("INSERT INTO blobs (hash, bytes, packed, sum) VALUES (?, ?, ?, ?)")?.execute(params![
                blob.hash.as_bytes(),
                blob.bytes.as_ref(),
                blob.packed,
                crc32fast::hash(&blob.bytes)
            ])?;
        }
    }
    for hash in &packed.hashes {
        db.prepare_cached("INSERT OR IGNORE INTO call_blobs (call, blob) SELECT ?, seq FROM blobs WHERE hash = ?")?
            .execute(params![call, hash.as_bytes()])?;
    }
    Ok(())
}

/// Notes the weights that a policy has, unless newer ones are known.
pub(super) fn version(db: &Connection, policy: &str, version: &WeightVersion) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO policies (name, version, seq, source) VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET \
         version = excluded.version, seq = excluded.seq, source = excluded.source WHERE excluded.seq >= seq",
    )?
    .execute(params![policy, version.version, version.seq, version.source.map(|source| code::number(code::SOURCES, source))])
    .map(drop)
}

/// Notes that a call's last byte was handed to its client.
pub(super) fn delivered(db: &Connection, call: i64) -> rusqlite::Result<()> {
    let sum = seal::sum(&[&call])?;
    db.prepare_cached("INSERT OR IGNORE INTO delivered (call, sum) VALUES (?, ?)")?.execute([call, sum.into()]).map(drop)
}

/// Writes a rollout, unless its id or idempotency key is there already. Gives the number of the one with its id.
pub(super) fn rollout(db: &Connection, new: &NewRollout) -> rusqlite::Result<Option<i64>> {
    db.prepare_cached(
        "INSERT INTO rollouts (id, key, created_at, purpose, task_id, group_id, group_size, group_index, harness, policy, \
         sampling, metadata, ttl_s, idempotency_key, conversation) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, \
         coalesce(?15, (SELECT count(*) FROM rollouts WHERE group_id = ?6)), ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
         ON CONFLICT (id) DO NOTHING ON CONFLICT (idempotency_key) DO NOTHING",
    )?
    .execute(params![
        id_bytes(&new.id.0),
        new.key.expose(),
        new.created_at,
        code::name(&new.purpose),
        new.task_id,
        new.group_id,
        new.group_size,
        new.harness,
        new.policy,
        sampling(&new.sampling),
        (!new.metadata.is_empty()).then(|| json(&new.metadata)).flatten(),
        new.ttl_s.map(u64::cast_signed),
        new.idempotency_key,
        new.conversation,
        new.index,
    ])?;
    let seq = seq_of(db, "SELECT seq FROM rollouts WHERE id = ?", &new.id.0)?;
    if let Some(seq) = seq {
        seal::row(db, "rollouts", seq)?;
    }
    Ok(seq)
}

/// Writes a reward in the place of one of the same name.
pub(super) fn reward(db: &Connection, reward: &Reward) -> Result<(), Fault> {
    let rollout = rollout_seq(db, reward.rollout_id)?;
    let call = match reward.call_id {
        None => 0,
        Some(id) => db
            .prepare_cached("SELECT seq FROM calls WHERE id = ? AND rollout = ?")?
            .query_row(params![id_bytes(&id.0), rollout], |row| row.get(0))
            .optional()?
            .ok_or_else(|| Fault::Unknown(format!("rollout {} has no call {id}", reward.rollout_id)))?,
    };
    let sum = seal::sum(&[&rollout, &call, &reward.name, &reward.value])?;
    db.prepare_cached("INSERT OR REPLACE INTO rewards (rollout, call, name, value, sum) VALUES (?, ?, ?, ?, ?)")?
        .execute(params![rollout, call, reward.name, reward.value, sum])?;
    Ok(())
}

/// Ends a rollout, if it has not ended.
pub(super) fn finish(db: &Connection, finish: &Finish) -> Result<(), Fault> {
    let rollout = rollout_seq(db, finish.rollout_id)?;
    Ok(ended(db, rollout, finish.at, finish.outcome, finish.no_reward, finish.evidence.as_ref())?)
}

/// Ends the rollout of this number, if it has not ended.
pub(super) fn ended(
    db: &Connection,
    rollout: i64,
    at: i64,
    outcome: Outcome,
    no_reward: bool,
    evidence: Option<&serde_json::Value>,
) -> rusqlite::Result<()> {
    db.prepare_cached(
        "UPDATE rollouts SET ended_at = ?, outcome = ?, no_reward = ?, evidence = ? WHERE seq = ? AND ended_at IS NULL",
    )?
    .execute(params![at, code::name(&outcome), no_reward, evidence.and_then(json), rollout])?;
    seal::row(db, "rollouts", rollout)
}
