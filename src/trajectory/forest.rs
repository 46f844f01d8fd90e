//! The forest by token prefix: a radix tree over whole sequences (prompt and reply), so that each prompt is compared once with
//! what it extends, however many calls there are.

use std::collections::HashMap;

/// The token sequences of one policy's calls, added in the order in which the calls began.
#[derive(Debug)]
pub(super) struct Forest<'a> {
    segments: Vec<Segment<'a>>,
    added: HashMap<usize, Place>,
}

/// A run of tokens that is not parted by any branch.
#[derive(Debug, Default)]
struct Segment<'a> {
    parent: usize,
    /// The run, in up to two pieces: a prompt's end and its reply's begin may lie in one segment.
    tokens: Tokens<'a>,
    /// Tokens from the root to this segment's end.
    depth: usize,
    children: HashMap<u32, usize>,
    /// Turns whose whole sequence ends here, in the order of adding.
    ends: Vec<usize>,
}

/// Where a turn stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The turn that it goes on from.
    pub parent: Option<usize>,
    segment: usize,
}

/// A sequence in two pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Tokens<'a>(&'a [u32], &'a [u32]);

impl<'a> Tokens<'a> {
    fn len(self) -> usize {
        self.0.len() + self.1.len()
    }

    fn first(self) -> Option<u32> {
        self.0.first().or_else(|| self.1.first()).copied()
    }

    fn split(self, at: usize) -> (Self, Self) {
        if at <= self.0.len() {
            let (left, right) = self.0.split_at(at);
            (Self(left, &[]), Self(right, self.1))
        } else {
            let (left, right) = self.1.split_at(at - self.0.len());
            (Self(self.0, left), Self(&[], right))
        }
    }

    /// How many tokens two sequences share from their start.
    fn common(self, other: Self) -> usize {
        let mut shared = 0;
        let (mut a, mut b) = (self, other);
        loop {
            let (x, y) = (a.head(), b.head());
            let len = x.len().min(y.len());
            if len == 0 {
                return shared;
            }
            // Prompts of one conversation lie in one place.
            let same = if x.as_ptr() == y.as_ptr() || x[..len] == y[..len] {
                len
            } else {
                x.iter().zip(y).take_while(|(x, y)| x == y).count()
            };
            shared += same;
            if same < len {
                return shared;
            }
            (a, b) = (a.split(len).1, b.split(len).1);
        }
    }

    fn head(self) -> &'a [u32] {
        if self.0.is_empty() { self.1 } else { self.0 }
    }
}

impl<'a> Forest<'a> {
    pub(super) fn new() -> Self {
        Self { segments: vec![Segment::default()], added: HashMap::new() }
    }

    /// Adds a turn. `after` is a turn whose whole sequence its prompt is known to begin with, from where it is looked for. `prefer`
    /// picks among turns whose sequences are the same to the last token, which one it goes on from.
    pub(super) fn add(
        &mut self,
        turn: usize,
        after: Option<usize>,
        (prompt, reply): (&'a [u32], &'a [u32]),
        prefer: &dyn Fn(&[usize]) -> Option<usize>,
    ) {
        let (mut at, mut parent) = (0, None);
        if let Some(place) = after.and_then(|after| self.added.get(&after)) {
            (at, parent) = (place.segment, prefer(&self.segments[place.segment].ends).or(place.parent));
        }
        let mut rest = Tokens(prompt, reply).split(self.segments[at].depth).1;
        while let Some(child) = rest.first().and_then(|first| self.segments[at].children.get(&first).copied()) {
            let run = self.segments[child].tokens;
            let shared = run.common(rest);
            at = if shared < run.len() { self.split(child, shared) } else { child };
            rest = rest.split(shared).1;
            if self.segments[at].depth <= prompt.len() && !self.segments[at].ends.is_empty() {
                parent = prefer(&self.segments[at].ends).or(parent);
            }
            if shared < run.len() {
                break;
            }
        }
        if let Some(first) = rest.first() {
            let next = self.segments.len();
            let depth = self.segments[at].depth + rest.len();
            self.segments.push(Segment { parent: at, tokens: rest, depth, ..Segment::default() });
            self.segments[at].children.insert(first, next);
            at = next;
        }
        self.segments[at].ends.push(turn);
        self.added.insert(turn, Place { parent, segment: at });
    }

    /// The turn that this one goes on from.
    pub(super) fn parent(&self, turn: usize) -> Option<usize> {
        self.added.get(&turn).and_then(|place| place.parent)
    }

    /// How many tokens the whole sequences of two turns share from their start.
    pub(super) fn shared(&self, a: usize, b: usize) -> usize {
        let (Some(a), Some(b)) = (self.added.get(&a), self.added.get(&b)) else { return 0 };
        let (mut a, mut b) = (a.segment, b.segment);
        while a != b {
            if self.segments[a].depth >= self.segments[b].depth {
                a = self.segments[a].parent;
            } else {
                b = self.segments[b].parent;
            }
        }
        self.segments[a].depth
    }

    /// The segments from a turn's end up to the root, each with its depth in tokens.
    pub(super) fn path(&self, turn: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let start = self.added.get(&turn).map_or(0, |place| place.segment);
        std::iter::successors((start != 0).then_some(start), |at| {
            let parent = self.segments[*at].parent;
            (parent != 0).then_some(parent)
        })
        .map(|at| (at, self.segments[at].depth))
    }

    /// Parts a segment after `at` tokens; gives the upper part.
    fn split(&mut self, child: usize, at: usize) -> usize {
        let upper = self.segments.len();
        let (head, tail) = self.segments[child].tokens.split(at);
        let parent = self.segments[child].parent;
        let depth = self.segments[parent].depth + at;
        let mut segment = Segment { parent, tokens: head, depth, ..Segment::default() };
        if let Some(first) = tail.first() {
            segment.children.insert(first, child);
        }
        self.segments.push(segment);
        if let Some(first) = head.first() {
            self.segments[parent].children.insert(first, upper);
        }
        let below = &mut self.segments[child];
        below.parent = upper;
        below.tokens = tail;
        upper
    }
}
