//! Rollouts read back, with what their calls add up to.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::call::{blob_id, json, wrong};
use super::{SqliteStore, batch, code};
use crate::ids::{CallId, RolloutId, RolloutKey};
use crate::store::{Rollout, RolloutFilter, RolloutStatus, StoreError};

/// The query for the rollouts that fit `condition`, which goes on with a value.
pub(super) fn query(condition: &str) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT * FROM rollouts WHERE ");
    query.push(condition);
    query
}

/// The query for a page of rollouts, in the order in which they came into the store.
pub(super) fn filtered(filter: &RolloutFilter) -> QueryBuilder<Sqlite> {
    let mut query = query("true");
    match filter.status {
        Some(RolloutStatus::Open) => query.push(" AND ended_at IS NULL"),
        Some(RolloutStatus::Finished) => query.push(" AND ended_at IS NOT NULL"),
        None => &mut query,
    };
    let texts = [
        (" AND group_id = ", filter.group_id.clone()),
        (" AND task_id = ", filter.task_id.clone()),
        (" AND harness = ", filter.harness.clone()),
        (" AND outcome = ", filter.outcome.as_ref().and_then(code::name)),
        (" AND purpose = ", filter.purpose.as_ref().and_then(code::name)),
    ];
    for (condition, text) in texts {
        if let Some(text) = text {
            query.push(condition).push_bind(text);
        }
    }
    if let Some(batch) = filter.batch {
        let of = " AND seq IN (SELECT r.rollout FROM runs r JOIN batches b ON b.seq = r.batch WHERE b.id = ";
        query.push(of).push_bind(batch.0.as_bytes().to_vec()).push(")");
    }
    if let Some(after) = filter.after {
        query.push(" AND seq > (SELECT seq FROM rollouts WHERE id = ").push_bind(after.0.as_bytes().to_vec()).push(")");
    }
    query.push(" ORDER BY seq");
    if filter.limit > 0 {
        query.push(" LIMIT ").push_bind(i64::from(filter.limit));
    }
    query
}

impl SqliteStore {
    pub(super) async fn one_rollout(&self, query: QueryBuilder<Sqlite>) -> Result<Option<Rollout>, StoreError> {
        Ok(self.read_rollouts(query).await?.pop())
    }

    pub(super) async fn read_rollouts(&self, mut query: QueryBuilder<Sqlite>) -> Result<Vec<Rollout>, StoreError> {
        let read = async {
            // One snapshot, so that sums and rewards fit the rollouts.
            let mut snapshot = self.reads.begin().await?;
            let rows = query.build().fetch_all(&mut *snapshot).await?;
            let mut found = rows.iter().map(rollout).collect::<Result<Vec<_>, _>>()?;
            let seqs: Vec<i64> = found.iter().map(|(seq, _)| *seq).collect();
            let at: HashMap<i64, usize> = seqs.iter().enumerate().map(|(at, seq)| (*seq, at)).collect();
            let list = list(&seqs);
            for row in sqlx::query(CALLS).bind(&list).fetch_all(&mut *snapshot).await? {
                if let Some((_, rollout)) = at.get(&row.try_get("rollout")?).and_then(|at| found.get_mut(*at)) {
                    add_calls(rollout, &row)?;
                }
            }
            for row in sqlx::query(batch::RUNS).bind(&list).fetch_all(&mut *snapshot).await? {
                if let Some((_, rollout)) = at.get(&row.try_get("rollout")?).and_then(|at| found.get_mut(*at)) {
                    rollout.run = Some(batch::run_of(&row)?);
                }
            }
            for row in sqlx::query(REWARDS).bind(&list).fetch_all(&mut *snapshot).await? {
                if let Some((_, rollout)) = at.get(&row.try_get("rollout")?).and_then(|at| found.get_mut(*at)) {
                    add_reward(rollout, &row)?;
                }
            }
            Ok(found.into_iter().map(|(_, rollout)| rollout).collect())
        };
        read.await.map_err(|error| match error {
            sqlx::Error::Decode(what) => self.broken(&format!("a rollout ({what})")),
            error => self.failed(&error),
        })
    }
}

const CALLS: &str = "SELECT c.rollout, r.version, count(*) AS calls, max(c.started_at) AS last_call_at, \
     coalesce(sum(r.tokens), 0) AS tokens FROM calls c LEFT JOIN replies r ON r.call = c.seq \
     WHERE c.rollout IN (SELECT value FROM json_each(?)) GROUP BY c.rollout, r.version ORDER BY min(c.started_at), min(c.seq)";

const REWARDS: &str = "SELECT w.rollout, c.id, w.name, w.value FROM rewards w LEFT JOIN calls c ON c.seq = w.call \
     WHERE w.rollout IN (SELECT value FROM json_each(?)) ORDER BY w.rollout, w.call, w.name";

fn list(values: &impl Serialize) -> String {
    serde_json::to_string(values).unwrap_or_default()
}

fn add_calls(rollout: &mut Rollout, row: &SqliteRow) -> Result<(), sqlx::Error> {
    rollout.calls += row.try_get::<i64, _>("calls")?.cast_unsigned();
    rollout.tokens += row.try_get::<i64, _>("tokens")?.cast_unsigned();
    rollout.last_call_at = rollout.last_call_at.max(row.try_get("last_call_at")?);
    rollout.policy_versions.extend(row.try_get::<Option<String>, _>("version")?);
    Ok(())
}

fn add_reward(rollout: &mut Rollout, row: &SqliteRow) -> Result<(), sqlx::Error> {
    let (name, value) = (row.try_get("name")?, row.try_get("value")?);
    match row.try_get::<Option<&[u8]>, _>("id")? {
        Some(_) => rollout.call_rewards.push((CallId(blob_id(row, "id")?), name, value)),
        None => drop(rollout.rewards.insert(name, value)),
    }
    Ok(())
}

fn rollout(row: &SqliteRow) -> Result<(i64, Rollout), sqlx::Error> {
    let count = |column| row.try_get::<Option<i64>, _>(column);
    let size = |column, what| count(column)?.map(|n| u32::try_from(n).map_err(|_| wrong(what))).transpose();
    let outcome = row.try_get::<Option<&str>, _>("outcome")?;
    let ended_at: Option<i64> = row.try_get("ended_at")?;
    let rollout = Rollout {
        id: RolloutId(blob_id(row, "id")?),
        key: RolloutKey::parse(row.try_get("key")?).ok_or_else(|| wrong("key"))?,
        status: if ended_at.is_some() { RolloutStatus::Finished } else { RolloutStatus::Open },
        outcome: outcome.map(|name| code::named(name).ok_or_else(|| wrong("outcome"))).transpose()?,
        index: size("group_index", "group_index")?.unwrap_or_default(),
        created_at: row.try_get("created_at")?,
        ended_at,
        last_call_at: None,
        purpose: code::named(row.try_get("purpose")?).ok_or_else(|| wrong("purpose"))?,
        task_id: row.try_get("task_id")?,
        group_id: row.try_get("group_id")?,
        group_size: size("group_size", "group_size")?,
        harness: row.try_get("harness")?,
        policy: row.try_get("policy")?,
        sampling: json(row, "sampling")?.unwrap_or_default(),
        metadata: json(row, "metadata")?.unwrap_or_default(),
        ttl_s: count("ttl_s")?.map(i64::cast_unsigned),
        no_reward: row.try_get::<i64, _>("no_reward")? != 0,
        run: None,
        rewards: BTreeMap::default(),
        call_rewards: Vec::new(),
        calls: 0,
        tokens: 0,
        evidence: json(row, "evidence")?,
        policy_versions: Vec::new(),
    };
    Ok((row.try_get("seq")?, rollout))
}
