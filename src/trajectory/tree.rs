//! The calls of a rollout by whom they go on from: one forest for each policy and model.

use std::collections::{BTreeMap, HashMap};

use super::Turn;
use super::drift::Parting;
use super::forest::Forest;
use super::verdict::{cut, has_ids, whole};
use crate::call::{CallStatus, ImageHash};

/// What calls must have in common to go on from each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key<'a> {
    policy: &'a str,
    model: &'a str,
    /// Hashes of tokenizer and template; empty where the server tokenizes.
    identity: (&'a str, &'a str),
    /// A line of images.
    images: usize,
}

/// Who goes on from whom, by token ids.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    forests: BTreeMap<Key<'a>, Forest<'a>>,
    keys: Vec<Option<Key<'a>>>,
    links: Vec<Option<Link>>,
    children: Vec<Vec<usize>>,
    roots: Vec<usize>,
}

/// Whom a turn goes on from.
#[derive(Clone, Copy, Debug)]
struct Link {
    to: usize,
    /// How many tokens the two share where that is not the whole earlier sequence.
    realigned: Option<usize>,
}

/// A turn on the way to a sample's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub turn: usize,
    /// How many tokens of its sequence are the same at the end; more than it has if all are.
    pub agrees: usize,
}

impl<'a> Tree<'a> {
    /// Adds the calls in the order in which they began. Calls without ids are not in it.
    pub(super) fn grow(turns: &'a [Turn]) -> Self {
        let mut tree = Self {
            forests: BTreeMap::new(),
            keys: vec![None; turns.len()],
            links: vec![None; turns.len()],
            children: vec![Vec::new(); turns.len()],
            roots: Vec::new(),
        };
        // Of replies alike to the last token, the client goes on from the last that it had whole. A call that sampled nothing is
        // nobody's predecessor: whatever has its prompt asks the same again.
        let prefer = |ends: &[usize]| {
            let said = || ends.iter().rev().copied().filter(|end| !turns[*end].record.capture.completion_ids.is_empty());
            let whole =
                |end: &usize| turns[*end].record.status == CallStatus::Done && turns[*end].record.delivered != Some(false);
            said().find(whole).or_else(|| said().next())
        };
        let mut lines = Lines::default();
        let mut latest = HashMap::new();
        for (index, turn) in turns.iter().enumerate().filter(|(_, turn)| has_ids(turn)) {
            let record = &turn.record;
            // A sample never crosses a policy, a model, or what ids mean.
            let rendered = record.capture.rendered.as_ref();
            let identity = rendered.map(|rendered| (rendered.tokenizer_hash.as_str(), rendered.template_hash.as_str()));
            let key = Key {
                policy: &record.policy,
                model: &record.model,
                identity: identity.unwrap_or_default(),
                images: lines.of(&record.images),
            };
            tree.keys[index] = Some(key);
            let forest = tree.forests.entry(key).or_insert_with(Forest::new);
            // Of a conversation's calls each mostly goes on from the one before it, which is found without a way from the root.
            let before = latest.insert((key, turn.prompt.sequence()), index);
            let after = before.filter(|before| begins_with(turn, &turns[*before]));
            forest.add(index, after, (&turn.prompt, &record.capture.completion_ids), &prefer);
            tree.links[index] = forest.parent(index).map(|to| Link { to, realigned: None });
            match forest.parent(index) {
                Some(parent) => tree.children[parent].push(index),
                None => tree.roots.push(index),
            }
        }
        tree
    }

    /// Lets prompts that part from an earlier reply go on from it all the same.
    pub(super) fn realign(&mut self, partings: &[Parting]) {
        for Parting { turn, earlier, at, .. } in partings.iter().copied() {
            let before = match self.links[turn] {
                Some(link) => &mut self.children[link.to],
                None => &mut self.roots,
            };
            before.retain(|other| *other != turn);
            let siblings = &mut self.children[earlier];
            siblings.insert(siblings.partition_point(|other| *other < turn), turn);
            self.links[turn] = Some(Link { to: earlier, realigned: Some(at) });
        }
    }

    fn forest(&self, turn: usize) -> Option<&Forest<'a>> {
        self.keys[turn].and_then(|key| self.forests.get(&key))
    }

    /// The turn that this one goes on from.
    pub(super) fn parent(&self, turn: usize) -> Option<usize> {
        self.links[turn].map(|link| link.to)
    }

    /// Whether this one's prompt begins with the whole sequence of the turn that it goes on from.
    pub(super) fn extends(&self, turn: usize) -> bool {
        self.links[turn].is_some_and(|link| link.realigned.is_none())
    }

    /// The turns from the root to this one.
    pub(super) fn chain(&self, turn: usize) -> Vec<Step> {
        let mut chain: Vec<Step> = std::iter::successors(Some(Step { turn, agrees: usize::MAX }), |step| {
            let link = self.links[step.turn]?;
            Some(Step { turn: link.to, agrees: link.realigned.map_or(step.agrees, |at| at.min(step.agrees)) })
        })
        .collect();
        chain.reverse();
        chain
    }

    /// The turns that go on from this one, in the order in which they began.
    pub(super) fn children(&self, turn: usize) -> &[usize] {
        &self.children[turn]
    }

    /// The turns that go on from none.
    pub(super) fn roots(&self) -> &[usize] {
        &self.roots
    }

    /// How many tokens two turns' whole sequences share; 0 if they can't share any.
    pub(super) fn shared(&self, a: usize, b: usize) -> usize {
        if self.keys[a] != self.keys[b] {
            return 0;
        }
        self.forest(a).map_or(0, |forest| forest.shared(a, b))
    }

    /// Places on a turn's sequence at which others may leave it, from its end up to its start, each with its depth in tokens.
    pub(super) fn path(&self, turn: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.forest(turn).into_iter().flat_map(move |forest| forest.path(turn))
    }

    /// Whether a turn stands in the forest.
    pub(super) fn holds(&self, turn: usize) -> bool {
        self.keys[turn].is_some()
    }

    /// The forest's key, for maps over places of several forests.
    pub(super) fn key(&self, turn: usize) -> Key<'a> {
        self.keys[turn].unwrap_or_default()
    }
}

/// Whether a turn's prompt begins with the whole sequence of another that shares its tokens, and so goes on from it or from one
/// that came after it.
fn begins_with(turn: &Turn, before: &Turn) -> bool {
    let reply = &before.record.capture.completion_ids;
    !reply.is_empty() && turn.prompt.len() >= whole(before) && turn.prompt[before.prompt.len()..].starts_with(reply)
}

/// Conversations by the images in them. What stands for an image is the same ids whatever it shows, so that ids alone would let a
/// call go on from one that saw another image; calls of one line have images that begin alike.
#[derive(Default)]
struct Lines<'a>(Vec<&'a [ImageHash]>);

impl<'a> Lines<'a> {
    /// The line of a call with these images: the first that it goes on with, that goes on from it, or a new one.
    fn of(&mut self, images: &'a [ImageHash]) -> usize {
        let alike = self.0.iter().position(|line| line.starts_with(images) || images.starts_with(line));
        let line = alike.unwrap_or(self.0.len());
        if line == self.0.len() {
            self.0.push(images);
        } else if images.len() > self.0[line].len() {
            self.0[line] = images;
        }
        line
    }
}

/// Which calls' requests must be read as text before [`super::build`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Only those of these turns: the ends of conversations.
    Some(Vec<usize>),
    /// All: something branches or broke off, and only the text tells what it went on from.
    All,
}

/// Says which requests [`super::build`] needs. Most rollouts are one conversation, so that its last request has it all.
#[must_use]
pub fn needs(turns: &[Turn]) -> Needs {
    let tree = Tree::grow(turns);
    let linear = tree.roots.len() <= 1 && tree.children.iter().all(|children| children.len() <= 1);
    let unknown = turns.iter().any(|turn| turn.record.status == CallStatus::Done && turn.record.delivered.is_none());
    let untold = |index: usize| !tree.holds(index) && (unknown || cut(&turns[index].record));
    // What came after a reply that was not had whole tells what became of it.
    let carried = |index: usize| {
        let record = &turns[index].record;
        record.status == CallStatus::Done && record.delivered == Some(false) && !tree.children[index].is_empty()
    };
    if !linear || (0..turns.len()).any(|index| untold(index) || carried(index)) {
        return Needs::All;
    }
    Needs::Some((0..turns.len()).filter(|turn| tree.holds(*turn) && tree.children[*turn].is_empty()).collect())
}
