//! Prompts' ids read back: each is the beginning of another call's sequence, and a tail.

use std::collections::HashMap;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row, Sqlite};

use super::SqliteStore;
use super::call::wrong;
use crate::call::CallRecord;
use crate::ids::CallId;
use crate::store::{StoreError, pack};

/// A prompt's ids as they are kept.
pub(super) struct Prompt {
    /// The call whose sequence they begin with, and how far. `None` once they are whole.
    base: Option<(CallId, usize)>,
    /// Those that follow.
    tail: Vec<u32>,
    /// The checksum of all; those of before have none.
    sum: Option<i64>,
}

/// Chains are never longer; one that is, goes in circles.
const MOST: i64 = 1024;

/// A call and those that its ids are told by, in order.
const CHAIN: &str = "WITH RECURSIVE chain (step, call, base) AS ( \
     SELECT 0, r.call, r.prompt_base FROM calls c JOIN replies r ON r.call = c.seq WHERE c.id = ?1 UNION ALL \
     SELECT step + 1, r.call, r.prompt_base FROM chain JOIN calls c ON c.id = chain.base JOIN replies r ON r.call = c.seq \
     WHERE step < ?2) \
     SELECT r.prompt_base, r.prompt_ids, r.prompt_sum, r.completion_ids FROM chain JOIN replies r ON r.call = chain.call ORDER BY step DESC";

impl Prompt {
    /// What a row has of it.
    pub(super) fn read(row: &SqliteRow) -> Result<Self, sqlx::Error> {
        let broken = || wrong("prompt_ids");
        let bytes = row.try_get::<Option<&[u8]>, _>("prompt_ids")?.unwrap_or_default();
        let sum = row.try_get("prompt_sum")?;
        let Some(base) = row.try_get::<Option<&[u8]>, _>("prompt_base")? else {
            return Ok(Self { base: None, tail: pack::unpack_ids(bytes).ok_or_else(broken)?, sum });
        };
        let base = CallId(uuid::Uuid::from_slice(base).map_err(|_| broken())?);
        let (shared, tail) = pack::unpack_tail(bytes).ok_or_else(broken)?;
        Ok(Self { base: Some((base, shared)), tail, sum })
    }

    /// Puts what it shares with its base's `sequence` before the tail. `None` if the sequence is too short.
    fn put(&mut self, shared: usize, prompt: &[u32], completion: &[u32]) -> Option<()> {
        let mut ids = Vec::with_capacity(shared + self.tail.len());
        let of_prompt = shared.min(prompt.len());
        ids.extend_from_slice(&prompt[..of_prompt]);
        ids.extend_from_slice(completion.get(..shared - of_prompt)?);
        ids.append(&mut self.tail);
        (self.tail, self.base) = (ids, None);
        Some(())
    }

    /// Whether the ids, which are whole, are those that were written.
    fn holds(&self) -> bool {
        self.sum.is_none_or(|sum| sum == i64::from(pack::ids_sum(&self.tail)))
    }
}

impl SqliteStore {
    /// Puts the prompts' ids into their records, in time linear in all of them.
    pub(super) async fn put_prompts(&self, records: &mut [CallRecord], prompts: &mut [Prompt]) -> Result<(), StoreError> {
        let at: HashMap<CallId, usize> = records.iter().enumerate().map(|(at, record)| (record.id, at)).collect();
        for first in 0..records.len() {
            // What it is told by, down to one that is whole.
            let mut chain = vec![first];
            while let Some((base, _)) = chain.last().and_then(|last| prompts[*last].base)
                && let Some(next) = at.get(&base)
                && prompts[*next].base.is_some()
                && chain.len() <= records.len()
            {
                chain.push(*next);
            }
            for index in chain.into_iter().rev() {
                let Some((base, shared)) = prompts[index].base else { continue };
                let whole = at.get(&base).filter(|base| prompts[**base].base.is_none());
                let put = if let Some(base) = whole {
                    // One that is whole is not the one that is told by it.
                    let Ok([prompt, told_by]) = prompts.get_disjoint_mut([index, *base]) else { continue };
                    prompt.put(shared, &told_by.tail, &records[*base].capture.completion_ids)
                } else {
                    let sequence = self.sequence(base).await?.ok_or_else(|| self.lost(&records[index], base))?;
                    prompts[index].put(shared, &sequence, &[])
                };
                put.ok_or_else(|| self.lost(&records[index], base))?;
            }
        }
        for (record, prompt) in records.iter_mut().zip(prompts) {
            if !prompt.holds() {
                return Err(self.broken(&format!("call {} (its prompt's ids are not those that were written)", record.id)));
            }
            record.capture.prompt_ids = std::mem::take(&mut prompt.tail);
        }
        Ok(())
    }

    /// A call's whole sequence of ids, prompt and reply; `None` if it, or what it is told by, is not there.
    async fn sequence(&self, call: CallId) -> Result<Option<Vec<u32>>, StoreError> {
        let query = sqlx::query::<Sqlite>(CHAIN).bind(call.0.as_bytes().to_vec()).bind(MOST);
        let rows = query.fetch_all(&self.reads).await.map_err(|error| self.failed(&error))?;
        let mut sequence: Option<Vec<u32>> = None;
        for row in rows {
            let read = || Ok((Prompt::read(&row)?, row.try_get::<Option<&[u8]>, _>("completion_ids")?.unwrap_or_default()));
            let (mut prompt, completion) = read().map_err(|error: sqlx::Error| match error {
                sqlx::Error::Decode(what) => self.broken(&format!("the ids that call {call} is told by ({what})")),
                error => self.failed(&error),
            })?;
            let Some(completion) = pack::unpack_ids(completion) else { return Ok(None) };
            sequence = match (prompt.base, sequence) {
                (None, _) => Some([prompt.tail, completion].concat()),
                (Some((_, shared)), Some(mut base)) if shared <= base.len() => {
                    base.truncate(shared);
                    base.append(&mut prompt.tail);
                    base.extend(completion);
                    Some(base)
                }
                (Some(_), _) => return Ok(None),
            };
        }
        Ok(sequence)
    }

    fn lost(&self, record: &CallRecord, base: CallId) -> StoreError {
        self.broken(&format!("call {} (its prompt's ids are told by call {base}, whose can't be read)", record.id))
    }
}
