//! Tool calls one after the other, however their pieces come: official clients take a call as whole when the next one begins.

use crate::call::{Text, ToolKind, ToolStart};

/// The tool calls of a reply, as far as they have come.
#[derive(Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
    /// How many of them have begun at the client; pieces of the last of these flow, those of later ones wait.
    begun: usize,
}

#[derive(Default)]
struct Call {
    start: Option<ToolStart>,
    arguments: Arguments,
    /// What has come of the arguments and was not written yet.
    held: Vec<u8>,
}

impl Call {
    /// Whether nothing more of it is to come, as far as can be told.
    fn is_whole(&self) -> bool {
        match &self.start {
            // Policies give a custom tool's input in one piece.
            Some(ToolStart { kind: ToolKind::Custom, .. }) => self.arguments.any,
            _ => self.arguments.whole,
        }
    }
}

/// What may be written now.
pub(super) enum Piece<'a> {
    Start(u32, &'a ToolStart),
    /// A piece of the arguments, as it is escaped in a string.
    Arguments(u32, ToolKind, &'a [u8]),
}

impl Calls {
    /// Takes the begin of a call.
    pub(super) fn start(&mut self, index: u32, tool: &ToolStart, write: &mut dyn FnMut(Piece<'_>)) {
        self.call(index).start = Some(tool.clone());
        self.go_on(write);
    }

    /// Takes a piece of a call's arguments.
    pub(super) fn arguments(&mut self, index: u32, fragment: &Text, write: &mut dyn FnMut(Piece<'_>)) {
        let begun = self.begun > index as usize;
        let call = self.call(index);
        call.arguments.push(fragment.inner());
        match (&call.start, begun) {
            (Some(start), true) => write(Piece::Arguments(index, start.kind, fragment.inner())),
            _ => call.held.extend_from_slice(fragment.inner()),
        }
        if call.is_whole() {
            self.go_on(write);
        }
    }

    /// Writes all that waits, at the reply's end. A function that was given nothing is given an empty object.
    pub(super) fn finish(&mut self, write: &mut dyn FnMut(Piece<'_>)) {
        for at in self.begun.saturating_sub(1)..self.calls.len() {
            if at >= self.begun {
                self.begin(at, write);
            }
            let call = &self.calls[at];
            if let Some(ToolStart { kind: ToolKind::Function, .. }) = &call.start
                && !call.arguments.any
            {
                write(Piece::Arguments(number(at), ToolKind::Function, b"{}"));
            }
        }
        self.begun = self.calls.len();
    }

    /// Begins the calls that waited for one before them to be whole.
    fn go_on(&mut self, write: &mut dyn FnMut(Piece<'_>)) {
        while self.calls.get(self.begun).is_some_and(|next| next.start.is_some())
            && self.begun.checked_sub(1).is_none_or(|last| self.calls[last].is_whole())
        {
            self.begin(self.begun, write);
            self.begun += 1;
        }
    }

    fn begin(&mut self, at: usize, write: &mut dyn FnMut(Piece<'_>)) {
        let call = &mut self.calls[at];
        let Some(start) = &call.start else { return };
        write(Piece::Start(number(at), start));
        let held = std::mem::take(&mut call.held);
        if !held.is_empty() {
            write(Piece::Arguments(number(at), start.kind, &held));
        }
    }

    fn call(&mut self, index: u32) -> &mut Call {
        // Decoders number calls without gaps, so an index can't outgrow the events that came.
        let at = index as usize;
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, Call::default);
        }
        &mut self.calls[at]
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// How far the arguments of a call have come: they are whole when their outermost value has closed.
#[derive(Default)]
struct Arguments {
    depth: usize,
    in_string: bool,
    escaped: bool,
    any: bool,
    whole: bool,
}

impl Arguments {
    /// Takes a piece of them, as it is escaped in a string.
    fn push(&mut self, inner: &[u8]) {
        self.any |= !inner.is_empty();
        let mut rest = inner;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            let mut byte = *byte;
            if byte == b'\\' {
                let Some((kind, after)) = rest.split_first() else { return };
                rest = after;
                byte = match kind {
                    b'"' | b'\\' | b'/' => *kind,
                    b'u' => {
                        let hex = rest.get(..4).and_then(|hex| std::str::from_utf8(hex).ok());
                        rest = rest.get(4..).unwrap_or_default();
                        hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(b'?')
                    }
                    _ => b' ',
                };
            }
            self.byte(byte);
        }
    }

    fn byte(&mut self, byte: u8) {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = self.in_string,
            b'"' => {
                self.in_string = !self.in_string;
                self.whole |= !self.in_string && self.depth == 0;
            }
            _ if self.in_string => {}
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.whole |= self.depth == 0;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tool(name: &str, kind: ToolKind) -> ToolStart {
        ToolStart { id: name.into(), kind, namespace: None, name: name.into() }
    }

    type Run<'a> = dyn FnMut(&mut dyn FnMut(Piece<'_>)) + 'a;

    /// What is written after each step: `+a` begins a call, `0:x` gives it arguments.
    fn written(steps: &[(u32, &str)]) -> Vec<String> {
        written_pieces(steps).iter().map(|pieces| pieces.join(" ")).collect()
    }

    fn written_pieces(steps: &[(u32, &str)]) -> Vec<Vec<String>> {
        let mut calls = Calls::default();
        let mut all = Vec::new();
        let mut said = |run: &mut Run<'_>| {
            let mut now = Vec::new();
            run(&mut |piece| {
                now.push(match piece {
                    Piece::Start(index, tool) => format!("+{index}{}", tool.name.decode()),
                    Piece::Arguments(index, _, inner) => format!("{index}:{}", Text::from_inner(inner).decode()),
                });
            });
            all.push(now);
        };
        for (index, step) in steps {
            match step.strip_prefix('+') {
                Some(name) => {
                    let kind = if name == "custom" { ToolKind::Custom } else { ToolKind::Function };
                    said(&mut |write| calls.start(*index, &tool(name, kind), write));
                }
                None => said(&mut |write| calls.arguments(*index, &Text::new(step), write)),
            }
        }
        said(&mut |write| calls.finish(write));
        all
    }

    #[test]
    fn calls_one_after_the_other_are_not_held_back() {
        let steps = [(0, "+a"), (0, "{\"x\":\"}\\\"\""), (0, "}"), (1, "+b"), (1, "{}"), (2, "+c"), (2, "[1, "), (2, "{}]")];
        let expected = ["+0a", "0:{\"x\":\"}\\\"\"", "0:}", "+1b", "1:{}", "+2c", "2:[1, ", "2:{}]", ""];
        assert_eq!(written(&steps), expected);
    }

    #[test]
    fn a_call_waits_until_the_one_before_it_is_whole() {
        let steps = [(0, "+a"), (1, "+b"), (0, "{\"x\":"), (1, "{\"y\""), (0, "1}"), (1, ":2}"), (2, "+c"), (0, " ")];
        let expected = ["+0a", "", "0:{\"x\":", "", "0:1} +1b 1:{\"y\"", "1::2}", "+2c", "0: ", "2:{}"];
        assert_eq!(written(&steps), expected);
    }

    #[test]
    fn what_never_becomes_whole_waits_for_the_end() {
        let steps = [(0, "+a"), (0, "{\"x"), (1, "+b"), (2, "+c"), (2, "{}")];
        assert_eq!(written(&steps), ["+0a", "0:{\"x", "", "", "", "+1b 1:{} +2c 2:{}"]);
        let nothing = [(0, "+a"), (1, "+b"), (1, "{}")];
        assert_eq!(written(&nothing), ["+0a", "", "", "0:{} +1b 1:{}"]);
        let custom = [(0, "+custom"), (1, "+b"), (1, "{}"), (0, "*** raw")];
        assert_eq!(written(&custom), ["+0custom", "", "", "0:*** raw +1b 1:{}", ""]);
        assert_eq!(written(&[(1, "+b"), (1, "{}"), (0, "+a"), (0, "{}")]), ["", "", "+0a", "0:{} +1b 1:{}", ""]);
    }

    proptest! {
        #[test]
        fn calls_never_mix_and_lose_nothing(
            arguments in proptest::collection::vec("\\{\"[a{}\\[\\]:, é]{0,4}\": (\"[a}{\\]é]{0,5}\"|\\[1, \\{\\}\\]|-2)\\}", 1..5),
            picks in proptest::collection::vec((0..5_usize, 1..5_usize), 0..60),
        ) {
            let mut left: Vec<std::str::Chars<'_>> = arguments.iter().map(|text| text.chars()).collect();
            let mut begun = 0;
            let mut steps: Vec<(u32, String)> = Vec::new();
            let all = (0..arguments.len()).map(|at| (at, usize::MAX));
            for (at, length) in picks.into_iter().chain(all) {
                let at = at % arguments.len();
                while begun <= at {
                    steps.push((number(begun), "+x".to_owned()));
                    begun += 1;
                }
                let piece: String = left[at].by_ref().take(length).collect();
                if !piece.is_empty() {
                    steps.push((number(at), piece));
                }
            }
            let steps: Vec<(u32, &str)> = steps.iter().map(|(at, step)| (*at, step.as_str())).collect();
            let pieces: Vec<String> = written_pieces(&steps).into_iter().flatten().collect();
            let mut seen = vec![String::new(); arguments.len()];
            let mut last = 0;
            for piece in &pieces {
                if let Some(start) = piece.strip_prefix('+') {
                    last = start.strip_suffix('x').unwrap().parse().unwrap();
                    continue;
                }
                let (at, text) = piece.split_once(':').unwrap();
                prop_assert_eq!(at.parse::<usize>().unwrap(), last, "calls mix in {:?}", pieces);
                seen[last] += text;
            }
            prop_assert_eq!(seen, arguments);
        }
    }
}
