//! Raw bodies read back, through those that they are told by.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

use super::SqliteStore;
use crate::call::{ImageHash, RawKind};
use crate::ids::CallId;
use crate::store::body::Base;
use crate::store::{StoreError, blob, body};

/// Bodies that were read last are kept in so many bytes: a rollout's calls are mostly read one after the other.
const KEPT: usize = 32 << 20;
/// Chains are never longer; one that is, goes in circles.
const LONGEST: usize = 64;

/// Bodies that were read last, without their blobs.
#[derive(Default)]
pub(super) struct Rests(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    rests: HashMap<(CallId, u8), Bytes>,
    order: VecDeque<(CallId, u8)>,
    bytes: usize,
}

impl Rests {
    fn get(&self, (call, kind): Part) -> Option<Bytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).rests.get(&(call, kind as u8)).cloned()
    }

    fn keep(&self, (call, kind): Part, rest: Bytes) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (key, size) = ((call, kind as u8), rest.len());
        if size > KEPT / 4 || kept.rests.insert(key, rest).is_some() {
            return;
        }
        kept.order.push_back(key);
        kept.bytes += size;
        while kept.bytes > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.bytes -= kept.rests.remove(&oldest).map_or(0, |rest| rest.len());
        }
    }
}

/// A body of a call.
pub(super) type Part = (CallId, RawKind);

impl SqliteStore {
    pub(super) async fn read_raw(&self, call: CallId, kind: RawKind) -> Result<Option<Bytes>, StoreError> {
        let part = (call, kind);
        let Some(packed) = self.packed(part).await? else { return Ok(None) };
        let opened = blob::open(&packed).ok_or_else(|| self.damaged(part, part))?;
        let rest = match self.rests.get(part) {
            Some(rest) => rest,
            None => self.rest(part, packed.clone()).await?,
        };
        let mut blobs = HashMap::new();
        for hash in opened.hashes() {
            if let Entry::Vacant(place) = blobs.entry(hash)
                && let Some(bytes) = self.read_blob(hash).await?
            {
                place.insert(bytes);
            }
        }
        opened.close(rest, &blobs).ok_or_else(|| self.damaged(part, part)).map(Some)
    }

    /// What is left of a body without its blobs.
    async fn rest(&self, wanted: Part, packed: Vec<u8>) -> Result<Bytes, StoreError> {
        let mut chain = vec![(wanted, packed)];
        let mut rest = loop {
            let Some(((call, kind), packed)) = chain.last() else { break Bytes::new() };
            let part = (*call, *kind);
            let base = blob::open(packed).and_then(|opened| opened.base()).ok_or_else(|| self.damaged(wanted, part))?;
            let next = match base {
                None => break Bytes::new(),
                Some(Base::Blob(hash)) => {
                    let blob = self.read_blob(hash).await?;
                    break blob.ok_or_else(|| self.damaged(wanted, part))?;
                }
                Some(Base::Own) => (part.0, RawKind::Request),
                Some(Base::Call(other)) => (other, part.1),
            };
            if let Some(rest) = self.rests.get(next) {
                break rest;
            }
            let packed = self.packed(next).await?.filter(|_| chain.len() < LONGEST).ok_or_else(|| self.damaged(wanted, next))?;
            chain.push((next, packed));
        };
        for (part, packed) in chain.into_iter().rev() {
            let opened = blob::open(&packed).ok_or_else(|| self.damaged(wanted, part))?;
            let unpacked = opened.rest(&rest).ok_or_else(|| self.damaged(wanted, part))?;
            rest = unpacked.into();
            self.rests.keep(part, rest.clone());
        }
        Ok(rest)
    }

    /// A body as it is kept; `None` if there is no such call.
    pub(super) async fn packed(&self, (call, kind): Part) -> Result<Option<Vec<u8>>, StoreError> {
        let sql = match kind {
            RawKind::Request => "SELECT request FROM calls WHERE id = ?",
            RawKind::Upstream => "SELECT r.upstream FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
            RawKind::Response => "SELECT r.response FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
            RawKind::Prompt => "SELECT r.prompt FROM calls c LEFT JOIN replies r ON r.call = c.seq WHERE c.id = ?",
        };
        let query = sqlx::query_scalar(sql).bind(call.0.as_bytes().to_vec());
        let packed: Option<Option<Vec<u8>>> = query.fetch_optional(&self.reads).await.map_err(|error| self.failed(&error))?;
        Ok(packed.map(Option::unwrap_or_default))
    }

    pub(super) async fn read_blob(&self, hash: ImageHash) -> Result<Option<Bytes>, StoreError> {
        let query = sqlx::query_as("SELECT bytes, packed, sum FROM blobs WHERE hash = ?").bind(hash.as_bytes().to_vec());
        let row = query.fetch_optional(&self.reads).await.map_err(|error| self.failed(&error))?;
        let Some((bytes, packed, sum)): Option<(Vec<u8>, bool, Option<i64>)> = row else { return Ok(None) };
        let bytes = sum.is_none_or(|sum| sum == i64::from(crc32fast::hash(&bytes))).then_some(bytes);
        let bytes = if packed { bytes.and_then(|bytes| body::unpack(&bytes, &[])) } else { bytes };
        bytes.map(|bytes| Some(bytes.into())).ok_or_else(|| self.broken(&format!("the blob {hash}")))
    }

    /// The error for a body that can't be read because of `cause`.
    fn damaged(&self, (call, kind): Part, (of, of_kind): Part) -> StoreError {
        let name = |kind| format!("{kind:?}").to_lowercase();
        let what = format!("the {} of call {call}", name(kind));
        if (call, kind) == (of, of_kind) {
            return self.broken(&what);
        }
        self.broken(&format!("{what} (it is told by the {} of call {of})", name(of_kind)))
    }
}
