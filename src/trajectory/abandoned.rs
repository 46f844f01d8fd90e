//! Replies that were not gone on from, although the harness went on: it asked again, or went on from a part of one that was cut.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::Turn;
use super::conversation::{Threads, calls_tools, role, text};
use super::tree::Tree;
use crate::call::CallStatus;

/// How a reply came to be abandoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Abandoned {
    /// The same was asked again.
    Retry,
    /// The same was asked again with twice the limit of tokens, as Qwen Code does after a reply that was too long.
    DoubledLimit,
    /// The reply was cut, and the next request asks to go on from the part that there was, as Claude Code does.
    Resumed,
    /// The reply was cut in a tool call, which stands in the next request as one that was aborted, as `OpenCode` does.
    PhantomCall,
    /// The reply was cut, and the next request has what was whole of it; what it said may come twice, as with Codex.
    Duplicated,
}

impl Abandoned {
    /// The name, as samples and the API give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::DoubledLimit => "doubled_limit",
            Self::Resumed => "resumed",
            Self::PhantomCall => "phantom_call",
            Self::Duplicated => "duplicated",
        }
    }
}

/// Tells of each turn whether, and how, it was abandoned. `continued` says which replies a later call goes on from.
pub(super) fn of(turns: &[Turn], tree: &Tree<'_>, threads: &Threads, continued: &[bool]) -> Vec<Option<Abandoned>> {
    let mut abandoned = vec![None; turns.len()];
    let mut ask_again = |earlier: &[usize], turn: usize| {
        for earlier in earlier {
            abandoned[*earlier] = (!continued[*earlier]).then(|| again(&turns[*earlier], &turns[turn]));
        }
    };
    let mut waiting: HashMap<_, Vec<usize>> = HashMap::new();
    for turn in (0..turns.len()).filter(|turn| tree.holds(*turn)) {
        let prompt = |turn: usize| &*turns[turn].prompt;
        let asked = waiting.entry((tree.key(turn), tree.parent(turn), prompt(turn).len())).or_default();
        // Those of other prompts of this length wait apart, at the front.
        let same = asked.iter().rposition(|other| prompt(*other) != prompt(turn)).map_or(0, |other| other + 1);
        // Several replies to one request were asked for once.
        if asked[same..].last().is_some_and(|last| turns[*last].record.choice >= turns[turn].record.choice) {
            ask_again(&asked.split_off(same), turn);
        }
        asked.push(turn);
    }
    for (turn, earlier) in threads.again.iter().enumerate() {
        let cut = earlier.filter(|earlier| cut(&turns[*earlier]) && turns[turn].record.choice == turns[*earlier].record.choice);
        if let Some(earlier) = cut {
            ask_again(&[earlier], turn);
        }
    }
    for (turn, within) in threads.within.iter().enumerate() {
        let Some((earlier, asked)) = within.filter(|(earlier, _)| cut(&turns[*earlier])) else { continue };
        if let Some(how) = carried(&turns[turn], asked) {
            abandoned[earlier] = Some(how);
        }
    }
    abandoned
}

/// Whether the client had less than the whole reply.
fn cut(turn: &Turn) -> bool {
    matches!(turn.record.status, CallStatus::Failed | CallStatus::Cancelled | CallStatus::Interrupted)
        || (turn.record.status == CallStatus::Done && turn.record.delivered == Some(false))
}

fn again(earlier: &Turn, turn: &Turn) -> Abandoned {
    let doubled = earlier.record.max_tokens_asked.and_then(|limit| limit.checked_mul(2));
    let grew = doubled.is_some() && doubled == turn.record.max_tokens_asked;
    if grew { Abandoned::DoubledLimit } else { Abandoned::Retry }
}

/// How a request carries a part of a reply that was cut, which would stand after the first `asked` of its messages.
fn carried(turn: &Turn, asked: usize) -> Option<Abandoned> {
    let (part, after) = turn.messages.get(asked..)?.split_first().filter(|(part, _)| role(part) == "assistant")?;
    let says = |wanted: &str, who: &str| {
        let mut said = after.iter().take_while(|message| role(message) != "assistant").filter(|message| role(message) == who);
        said.any(|message| text(message).to_ascii_lowercase().contains(wanted))
    };
    if says("cut off", "user") {
        Some(Abandoned::Resumed)
    } else if calls_tools(part) && says("abort", "tool") {
        Some(Abandoned::PhantomCall)
    } else {
        Some(Abandoned::Duplicated)
    }
}
