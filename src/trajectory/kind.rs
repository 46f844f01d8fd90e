//! What a call is to its rollout: of its main conversation, of a sub-agent, or beside them.

use serde::{Deserialize, Serialize};

use super::Turn;
use super::abandoned::Abandoned;
use super::conversation::{Threads, role, text};
use super::tree::Tree;
use crate::call::Mark;

/// What is told of a call beside its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    pub kind: Kind,
    /// How it came that its reply was not gone on from although the harness went on.
    pub abandoned: Option<Abandoned>,
}

/// What a call, or a sample, is to its rollout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Of the conversation that the rollout is about.
    #[default]
    Main,
    /// Beside it: a title, a summary for people.
    Side,
    /// Of a conversation that the main one began, and goes on after.
    Subagent,
    /// What was said so far, made short: a conversation begins anew from its reply.
    Compaction,
}

impl Kind {
    /// The kind's name, as samples and the API give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Main => "main",
            Self::Side => "side",
            Self::Subagent => "subagent",
            Self::Compaction => "compaction",
        }
    }
}

/// A shorter line of a reply could stand anywhere by chance.
const QUOTE: usize = 12;

/// The calls of one conversation.
struct Conversation {
    first: usize,
    last: usize,
    /// A reply of it was gone on from.
    went_on: bool,
    tools: bool,
    /// What it is about.
    opening: Option<u64>,
}

/// Tells each turn's kind: as its harness said, else by how the conversations lie to each other. `continued` says which replies a
/// later call goes on from.
pub(super) fn of(turns: &[Turn], tree: &Tree<'_>, threads: &Threads, continued: &[bool]) -> Vec<Kind> {
    let (of, conversations) = conversations(turns, tree, threads);
    let with_tools = turns.iter().any(|turn| !turn.tools.is_empty());
    let beside: Vec<Kind> = conversations.iter().map(|conversation| beside(conversation, &conversations, with_tools)).collect();
    // The conversation that begins anew next after each turn.
    let mut anew = None;
    let mut next = vec![None; turns.len()];
    for turn in (0..turns.len()).rev() {
        next[turn] = anew;
        if conversations[of[turn]].first == turn && beside[of[turn]] == Kind::Main {
            anew = Some(turn);
        }
    }
    let kind = |turn: usize| {
        let by_itself = || {
            let after = threads.parents[turn].filter(|_| !continued[turn])?;
            let anew = &turns[next[turn]?];
            let bare = turns[turn].tools.is_empty() && !turns[after].tools.is_empty();
            (bare || quotes(anew, &turns[turn])).then_some(Kind::Compaction)
        };
        said(&turns[turn]).or_else(by_itself).unwrap_or(beside[of[turn]])
    };
    (0..turns.len()).map(kind).collect()
}

/// What the harness itself said.
fn said(turn: &Turn) -> Option<Kind> {
    let marks = &turn.record.marks;
    let value = |name: &str| marks.iter().find(|mark| mark.name == name).map(|mark| mark.value.as_str());
    let request_kind = value(Mark::REQUEST_KIND);
    if request_kind == Some("compaction") || value("x-openai-subagent") == Some("compact") {
        return Some(Kind::Compaction);
    }
    if marks.iter().any(|mark| mark.name != Mark::FOREIGN && mark.name != Mark::REQUEST_KIND) {
        return Some(Kind::Subagent);
    }
    request_kind.filter(|kind| *kind != "turn").map(|_| Kind::Side)
}

/// Which conversation each turn is of, and the conversations in the order in which they began.
fn conversations(turns: &[Turn], tree: &Tree<'_>, threads: &Threads) -> (Vec<usize>, Vec<Conversation>) {
    let mut of = Vec::with_capacity(turns.len());
    let mut all: Vec<Conversation> = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        // One that asks the same again is of the same conversation.
        let after = threads.parents[index].or(tree.parent(index));
        let before = after.or(threads.again[index]);
        let place = before.map_or(all.len(), |before| of[before]);
        if place == all.len() {
            all.push(Conversation { first: index, last: index, went_on: false, tools: false, opening: threads.openings[index] });
        }
        let conversation = &mut all[place];
        conversation.last = index;
        conversation.went_on |= after.is_some();
        conversation.tools |= !turn.tools.is_empty();
        of.push(place);
    }
    (of, all)
}

/// What a conversation is by its place among the others.
fn beside(conversation: &Conversation, others: &[Conversation], with_tools: bool) -> Kind {
    // What can't be read as text can't be told apart.
    if conversation.opening.is_none() {
        return Kind::Main;
    }
    if with_tools && !conversation.tools && !conversation.went_on {
        return Kind::Side;
    }
    let around = |other: &Conversation| {
        other.first < conversation.first
            && other.last > conversation.first
            && other.tools
            && other.opening != conversation.opening
    };
    if others.iter().take_while(|other| other.first < conversation.first).any(around) { Kind::Subagent } else { Kind::Main }
}

/// Whether a conversation begins with what an earlier reply said: its longest line stands in a message that is not the model's.
fn quotes(anew: &Turn, earlier: &Turn) -> bool {
    let Some(reply) = earlier.record.message.as_ref().map(text) else { return false };
    let Some(line) = reply.lines().map(str::trim).max_by_key(|line| line.len()).filter(|line| line.len() >= QUOTE) else {
        return false;
    };
    anew.messages.iter().any(|message| role(message) != "assistant" && text(message).contains(line))
}
