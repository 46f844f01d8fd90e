//! Sampled text: any cut gives the same reply, its events are well formed, arguments are JSON, and no text is lost.

use std::sync::Arc;

use crate::call::{Event, Fold, Reply, Text, ToolKind};
use crate::decode::{request, well_formed};
use crate::policy::{self, Sampled};

/// The first byte says how the rest is cut, the second in which form it is read.
pub fn run(data: &[u8]) {
    let [cut, kind, bytes @ ..] = data else { return };
    let text = String::from_utf8_lossy(bytes);
    let form = usize::from(kind & 15) % policy::FORMS;
    let opened = [None, Some(false), Some(true)][usize::from(kind >> 4) % 3];
    let call = Arc::new(request(true));
    let whole = policy::sampled(&call, form, opened, &[&*text]);
    let pieces = policy::sampled(&call, form, opened, &split(&text, *cut));
    well_formed(&whole.events, false);
    well_formed(&pieces.events, false);
    let reply = fold(&whole);
    assert_eq!((&reply, &whole.kept, &whole.notes), (&fold(&pieces), &pieces.kept, &pieces.notes));
    for call in reply.tool_calls.iter().filter(|call| call.kind == ToolKind::Function) {
        let read = serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments.decode());
        assert!(read.is_ok(), "{read:?}: {call:?}");
    }
    if reply.tool_calls.is_empty() {
        let told = [&reply.reasoning, &reply.text].map(|text| length(text.as_ref()));
        let missing = text.len() - told.iter().sum::<usize>() - whole.kept.as_ref().map_or(0, String::len);
        let markers = ["", "<think>", "</think>", "<think></think>"].map(str::len);
        assert!(markers.contains(&missing), "{missing} bytes are missing of {text:?}: {reply:?}");
    }
}

/// The reply without the calls' ids, which are random.
fn fold(sampled: &Sampled) -> Reply {
    let mut fold = Fold::default();
    sampled.events.iter().for_each(|event: &Event| fold.push(event));
    let mut reply = fold.reply();
    reply.tool_calls.iter_mut().for_each(|call| call.id = Text::new(""));
    reply
}

fn length(text: Option<&Text>) -> usize {
    text.map_or(0, |text| text.decode().len())
}

/// Cuts a text every few bytes, between characters.
fn split(text: &str, cut: u8) -> Vec<&str> {
    let step = usize::from(cut % 16) + 1;
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let mut at = step.min(rest.len());
        while !rest.is_char_boundary(at) {
            at += 1;
        }
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces
}
