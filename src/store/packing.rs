//! What the writer's thread does with a call before its transaction: cuts blobs out, finds what bodies are told by, packs.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::blob::{self, Blob, Cut, Packed};
use super::body::{Base, Packer};
use super::chain::{Before, Chains, Link};
use super::delta::Delta;
use super::pack;
use crate::call::{CallEnd, CallStart, ImageHash, RawKind};
use crate::ids::{CallId, RolloutId};

/// A body shorter than this is not told by another: it costs less than looking.
const SMALL: usize = 512;
/// Parts of requests that are this large are kept once for all rollouts.
const LARGE: usize = 16 << 10;
/// Openings that are remembered, and their bytes together.
const OPENINGS: usize = 8;
const OPENINGS_BYTES: usize = 8 << 20;
/// What is known of calls that have not ended is forgotten when there are so many.
const REMEMBERED: usize = 100_000;

/// Packs calls, one process's in the order in which they are written.
pub(super) struct Packing {
    packer: Packer,
    chains: Chains,
    openings: VecDeque<Opening>,
    /// Calls that have not ended.
    begun: HashMap<CallId, Begun>,
}

/// How a conversation began, kept as a blob: rollouts of one harness share its system prompt and tools.
struct Opening {
    blob: Blob,
    rest: Bytes,
}

#[derive(Default)]
struct Begun {
    cut: Option<Cut>,
    before: Option<Before>,
}

/// A reply's parts as they go into the row.
pub(super) struct PackedEnd {
    pub upstream: Packed,
    pub response: Packed,
    pub prompt: Packed,
    pub message: Vec<u8>,
    pub prompt_ids: PackedIds,
    pub completion_ids: Vec<u8>,
    pub logprobs: Vec<u8>,
}

/// A prompt's ids as they are kept: `bytes` are how many of the base's sequence they begin with and those that follow, or all.
pub(super) struct PackedIds {
    pub base: Option<CallId>,
    pub bytes: Vec<u8>,
    pub sum: Option<u32>,
}

impl PackedEnd {
    /// The calls without which it can't be read.
    pub(super) fn bases(&self) -> impl Iterator<Item = CallId> {
        [self.upstream.base, self.response.base, self.prompt.base, self.prompt_ids.base].into_iter().flatten()
    }
}

impl Packing {
    pub(super) fn new() -> Self {
        Self { packer: Packer::new(), chains: Chains::default(), openings: VecDeque::new(), begun: HashMap::new() }
    }

    /// Forgets what earlier calls had: some of it may not be in the store.
    pub(super) fn forget(&mut self) {
        self.chains.forget();
        self.openings.clear();
    }

    /// Packs a request.
    pub(super) fn start(&mut self, start: &CallStart) -> Packed {
        if self.begun.len() > REMEMBERED {
            self.begun.clear();
        }
        let (rollout, request) = (start.rollout_id, &start.request);
        let (cut, mut blobs) = blob::cut(request, request, None);
        let rest = rest_of(request, cut.as_ref());
        let before = self.chains.before(rollout, &rest);
        let link = before.and_then(|before| self.chains.link(rollout, Some(before.call), RawKind::Request, rest.len()));
        let told = link.as_ref().and_then(|link| told_by(&rest, link).map(|delta| self.packer.pack_delta(&delta, link.base)));
        let (packed, link, opening) = match (told, before) {
            (Some(packed), _) => (packed, link, None),
            (None, _) if rest.len() >= LARGE => {
                let (packed, opening) = self.open(&rest, before.is_none());
                (packed, None, opening)
            }
            (None, Some(_)) => (self.packer.pack_small(&rest), None, None),
            (None, None) => (self.packer.pack(&rest), None, None),
        };
        self.chains.keep(rollout, start.id, RawKind::Request, rest, link.as_ref());
        let hash = opening.as_ref().map(|opening| opening.hash);
        blobs.extend(opening);
        let mut packed = blob::finish(request, cut.as_ref(), blobs, &packed);
        packed.hashes.extend(hash);
        packed.base = call_of(link.as_ref());
        if cut.is_some() || before.is_some() {
            self.begun.insert(start.id, Begun { cut, before });
        }
        packed
    }

    /// Packs what came of a call.
    pub(super) fn end(&mut self, end: &CallEnd) -> PackedEnd {
        let (rollout, call) = (end.start.rollout_id, end.start.id);
        let request = &end.start.request;
        let begun = self.begun.remove(&call);
        // Not kept where nothing was cut out, or the start was not kept.
        let Begun { cut, before } = begun.unwrap_or_else(|| Begun { cut: blob::cut(request, request, None).0, before: None });
        // One that gave nothing is not what the next goes on from.
        let done = before.filter(|before| before.whole && !end.raw.response.is_empty()).map(|before| before.call);
        let before = before.map(|before| before.call);
        let upstream = self.upstream(end, cut.as_ref(), before);
        let response = self.reply(rollout, call, before, RawKind::Response, &end.raw.response);
        let prompt = self.reply(rollout, call, before, RawKind::Prompt, &end.raw.prompt);
        let capture = &end.capture;
        let after = capture.rendered.as_ref().and_then(|rendered| rendered.after).or(before);
        let shared = self.chains.ids(rollout, after, &capture.prompt_ids);
        let prompt_ids = ids(&capture.prompt_ids, shared.as_ref().map(|shared| (shared.call, shared.count)));
        self.chains.keep_ids(rollout, call, done, shared.as_ref(), (&capture.prompt_ids, &capture.completion_ids));
        PackedEnd { upstream, response, prompt, prompt_ids, ..self.rest_of_end(end) }
    }

    /// Packs a request so that it can be read whatever becomes of others.
    pub(super) fn start_alone(&mut self, start: &CallStart) -> Packed {
        let (cut, blobs) = blob::cut(&start.request, &start.request, None);
        let rest = self.packer.pack(&rest_of(&start.request, cut.as_ref()));
        blob::finish(&start.request, cut.as_ref(), blobs, &rest)
    }

    /// Packs what came of a call so that it can be read whatever becomes of others.
    pub(super) fn end_alone(&mut self, end: &CallEnd) -> PackedEnd {
        let request = &end.start.request;
        let request_cut = blob::cut(request, request, None).0;
        let (cut, blobs) = blob::cut(&end.raw.upstream, request, request_cut.as_ref());
        let delta = Delta::of(&rest_of(&end.raw.upstream, cut.as_ref()), &rest_of(request, request_cut.as_ref()));
        let upstream = blob::finish(&end.raw.upstream, cut.as_ref(), blobs, &self.packer.pack_delta(&delta, Base::Own));
        let mut alone = |body: &Bytes| blob::finish(body, None, Vec::new(), &self.packer.pack(body));
        let (response, prompt) = (alone(&end.raw.response), alone(&end.raw.prompt));
        PackedEnd { upstream, response, prompt, prompt_ids: ids(&end.capture.prompt_ids, None), ..self.rest_of_end(end) }
    }

    /// What is told by nothing else.
    fn rest_of_end(&mut self, end: &CallEnd) -> PackedEnd {
        PackedEnd {
            upstream: Packed::default(),
            response: Packed::default(),
            prompt: Packed::default(),
            message: end.message.as_ref().map_or_else(Vec::new, |message| self.packer.pack(message.as_bytes())),
            prompt_ids: PackedIds { base: None, bytes: Vec::new(), sum: None },
            completion_ids: pack::ids(&end.capture.completion_ids),
            logprobs: pack::floats(&end.capture.logprobs),
        }
    }

    /// Packs a large request that no other of its rollout tells: by the opening of another rollout, or as one of its own.
    fn open(&mut self, rest: &Bytes, is_first: bool) -> (Vec<u8>, Option<Blob>) {
        let told = self.openings.iter().enumerate().filter_map(|(at, opening)| {
            let delta = Delta::of(rest, &opening.rest);
            (delta.copied >= LARGE / 2).then_some((at, delta))
        });
        if let Some((at, delta)) = told.max_by_key(|(_, delta)| delta.copied) {
            let Some(opening) = self.openings.remove(at) else { return (self.packer.pack_small(rest), None) };
            let (blob, packed) = (opening.blob.clone(), self.packer.pack_delta(&delta, Base::Blob(opening.blob.hash)));
            self.openings.push_back(opening);
            return (packed, Some(blob));
        }
        if !is_first {
            return (self.packer.pack_small(rest), None);
        }
        let blob = Blob { hash: ImageHash::of(rest), bytes: self.packer.pack_small(rest).into(), packed: true };
        let packed = self.packer.pack_delta(&Delta::of(rest, rest), Base::Blob(blob.hash));
        self.openings.push_back(Opening { blob: blob.clone(), rest: rest.clone() });
        while self.openings.len() > OPENINGS
            || self.openings.iter().map(|opening| opening.rest.len()).sum::<usize>() > OPENINGS_BYTES
        {
            self.openings.pop_front();
        }
        (packed, Some(blob))
    }

    /// Packs what went up: by the call's own request, of which it is mostly a copy, or where it is not, by what went up before.
    fn upstream(&mut self, end: &CallEnd, request_cut: Option<&Cut>, before: Option<CallId>) -> Packed {
        let (rollout, call) = (end.start.rollout_id, end.start.id);
        let (body, request) = (&end.raw.upstream, &end.start.request);
        if body.is_empty() {
            return Packed::default();
        }
        let (cut, blobs) = blob::cut(body, request, request_cut);
        let rest = rest_of(body, cut.as_ref());
        let earlier = self.chains.link(rollout, before, RawKind::Upstream, rest.len());
        let told = earlier.as_ref().and_then(|link| Some((told_by(&rest, link)?, link)));
        let (packed, base) = if let Some((delta, link)) = told {
            (self.packer.pack_delta(&delta, link.base), call_of(Some(link)))
        } else {
            let delta = Delta::of(&rest, &rest_of(request, request_cut));
            let is_copy = delta.literals.len() <= SMALL.max(rest.len() / 16);
            let packed = self.packer.pack_delta(&delta, Base::Own);
            if is_copy {
                return blob::finish(body, cut.as_ref(), blobs, &packed);
            }
            (packed, None)
        };
        self.chains.keep(rollout, call, RawKind::Upstream, rest, earlier.as_ref().filter(|_| base.is_some()));
        Packed { base, ..blob::finish(body, cut.as_ref(), blobs, &packed) }
    }

    /// Packs what a server said, which may repeat the prompt.
    fn reply(&mut self, rollout: RolloutId, call: CallId, before: Option<CallId>, kind: RawKind, body: &Bytes) -> Packed {
        if body.len() < SMALL {
            return blob::finish(body, None, Vec::new(), &self.packer.pack(body));
        }
        let link = self.chains.link(rollout, before, kind, body.len());
        let told = link.as_ref().and_then(|link| Some((told_by(body, link)?, link)));
        let (packed, after) = match told {
            Some((delta, link)) => (self.packer.pack_delta(&delta, link.base), Some(link)),
            // A key frame of its chain: done once for many.
            None if before.is_some() && body.len() >= LARGE => (self.packer.pack_small(body), None),
            None => (self.packer.pack(body), None),
        };
        self.chains.keep(rollout, call, kind, body.clone(), after);
        Packed { base: call_of(after), ..blob::finish(body, None, Vec::new(), &packed) }
    }
}

/// What is new in a body beside a link's, where that pays.
fn told_by(rest: &Bytes, link: &Link) -> Option<Delta> {
    if rest.len() < SMALL {
        return None;
    }
    let delta = Delta::of(rest, &link.rest);
    (delta.copied >= rest.len() / 4).then_some(delta)
}

fn call_of(link: Option<&Link>) -> Option<CallId> {
    link.and_then(|link| match link.base {
        Base::Call(call) => Some(call),
        Base::Own | Base::Blob(_) => None,
    })
}

fn rest_of(body: &Bytes, cut: Option<&Cut>) -> Bytes {
    cut.map_or_else(|| body.clone(), |cut| cut.rest.clone())
}

fn ids(prompt: &[u32], shared: Option<(CallId, usize)>) -> PackedIds {
    let sum = (!prompt.is_empty()).then(|| pack::ids_sum(prompt));
    match shared {
        None => PackedIds { base: None, bytes: pack::ids(prompt), sum },
        Some((call, count)) => {
            let mut bytes = Vec::with_capacity(8 + (prompt.len() - count) * 3);
            pack::varint(&mut bytes, count as u64);
            pack::append_ids(&mut bytes, &prompt[count..]);
            PackedIds { base: Some(call), bytes, sum }
        }
    }
}
