//! The reading of a reply's text, as far as it is ours: reasoning, text and calls, in whatever pieces it comes.
//!
//! Each byte is looked at once, and nothing depends on how the text is cut. What is said is what the model wrote: all text outside
//! of markers comes out once, in order, to the letter. Only the white space right after a call is a part of the form, and left out unless
//! text follows it.
//!
//! A call is told when it is whole. Until then it may turn out to be none (no JSON, cut off by the length limit), and then it is text;
//! had its beginning been told, clients would be left with half a call, which some execute.

mod coder;
mod form;
pub(super) mod json;
mod marker;
mod schema;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use uuid::Uuid;

use crate::call::{Call, Event, Text};
use crate::policy::names::Names;
use crate::policy::tools::Tools;
use coder::Coder;
use form::{Candidate, Progress};
use marker::{Found, begins, find, skip_space};
use schema::Schemas;

pub(in crate::policy) use form::Form;

/// The most bytes of text that are kept back as one call.
const LARGEST: usize = 8 << 20;
/// The same of text that somebody else reads, whose work may grow faster.
const LARGEST_KEPT: usize = 1 << 20;
/// The most white space that is kept back for what may follow it.
const LONGEST_SPACE: usize = 256;

/// The markers around a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) struct Thinking {
    pub start: &'static str,
    pub end: &'static str,
}

/// A call as the model wrote it.
#[derive(Debug, PartialEq)]
struct Called {
    name: String,
    arguments: Arguments,
}

#[derive(Debug, PartialEq)]
enum Arguments {
    /// To the letter.
    Json(String),
    /// Names and plain values, which the tool's schema gives types to.
    Fields(Vec<(String, String)>),
}

/// Why what looked like a call stayed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Why {
    Cut,
    NotJson,
    NoCall,
    Form,
    TooLarge,
}

impl Why {
    const ALL: [Self; 5] = [Self::Cut, Self::NotJson, Self::NoCall, Self::Form, Self::TooLarge];

    fn text(self) -> &'static str {
        match self {
            Self::Cut => "cut off before its end",
            Self::NotJson => "not JSON",
            Self::NoCall => "without a tool's name and arguments",
            Self::Form => "not of the form that this model's calls have",
            Self::TooLarge => "larger or deeper than is read",
        }
    }
}

/// What is being read.
#[derive(Debug)]
enum State {
    /// The beginning, where reasoning may begin; `opened`: the prompt has begun it.
    Opening {
        opened: bool,
    },
    Reasoning,
    /// Reasoning, if its end still comes; else a call in it has ended it. Looked through up to the given place.
    Doubtful {
        looked: usize,
    },
    Text(Lead),
    /// What may be a call, behind so many bytes of white space and marker.
    Candidate {
        candidate: Candidate,
        body: usize,
        marked: bool,
    },
    /// What somebody else reads at the end.
    Kept,
}

/// What came just before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lead {
    /// Nothing of the answer: an answer that is a call by itself begins here.
    Nothing,
    /// A call, after which white space is not text.
    Call,
    Text,
}

/// Reads one reply.
#[derive(Debug)]
pub(in crate::policy) struct Reader {
    thinking: Option<Thinking>,
    /// `None`: nothing is a call.
    form: Option<Form>,
    state: State,
    /// What has come and is not told yet.
    buffer: String,
    call: Arc<Call>,
    tools: Tools,
    schemas: Option<Schemas>,
    /// How often there was which reason that a call stayed text.
    unread: [u32; Why::ALL.len()],
}

impl Reader {
    /// A reader of the reply to `call`. `opened`: the prompt ends inside of reasoning.
    pub(in crate::policy) fn new(
        call: &Arc<Call>,
        names: Names,
        thinking: Option<Thinking>,
        form: Option<Form>,
        opened: bool,
    ) -> Self {
        let state = if thinking.is_some() { State::Opening { opened } } else { State::Text(Lead::Nothing) };
        let tools = Tools::new(call, names);
        Self {
            thinking,
            form,
            state,
            buffer: String::new(),
            call: call.clone(),
            tools,
            schemas: None,
            unread: [0; Why::ALL.len()],
        }
    }

    /// Takes the next text and gives the events that it completes.
    pub(in crate::policy) fn push(&mut self, text: &str, events: &mut Vec<Event>) {
        self.buffer.push_str(text);
        self.run(false, events);
    }

    /// Takes the end. Gives the text from a marker on that somebody else reads.
    pub(in crate::policy) fn finish(&mut self, events: &mut Vec<Event>) -> Option<String> {
        self.run(true, events);
        matches!(self.state, State::Kept).then(|| std::mem::take(&mut self.buffer)).filter(|kept| !kept.is_empty())
    }

    /// Whether a tool was called.
    pub(in crate::policy) fn called(&self) -> bool {
        !self.tools.is_empty()
    }

    /// What stayed text, for people.
    pub(in crate::policy) fn notes(&mut self) -> Vec<String> {
        let counts = std::mem::take(&mut self.unread);
        let told = Why::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
        told.map(|(why, count)| match count {
            1 => format!("a tool call in the reply stayed text: {}", why.text()),
            _ => format!("{count} tool calls in the reply stayed text: {}", why.text()),
        })
        .collect()
    }

    /// The names by which tools are offered.
    pub(in crate::policy) fn names(&self) -> &Names {
        self.tools.names()
    }

    /// Counts what stayed text.
    pub(in crate::policy) fn unread(&mut self, why: Why) {
        self.unread[why as usize] += 1;
    }

    /// Tells a call.
    pub(in crate::policy) fn tell(&mut self, name: &str, arguments: &str, events: &mut Vec<Event>) {
        let id = format!("call_{:.24}", Uuid::new_v4().simple().to_string());
        self.tools.call(Text::new(&id), Text::new(name), &Text::new(arguments), events);
    }

    fn run(&mut self, ended: bool, events: &mut Vec<Event>) {
        let mut at = 0;
        while let Some(next) = self.step(at, ended, events) {
            at = next;
        }
        if at > 0 {
            marker::looked(self.buffer.len() - at);
            self.buffer.drain(..at);
        }
    }

    /// Reads on from `at`, up to which all is told. Gives the place from which on nothing is; `None`: more must come.
    fn step(&mut self, at: usize, ended: bool, events: &mut Vec<Event>) -> Option<usize> {
        let rest = &self.buffer[at..];
        if rest.is_empty() {
            return None;
        }
        match &mut self.state {
            State::Opening { opened } => {
                let (opened, space) = (*opened, skip_space(rest, 0));
                let start = self.thinking.map_or("", |thinking| thinking.start);
                let lane = if opened { reasoning } else { text };
                let found = if space > LONGEST_SPACE { Found::No } else { begins(&rest[space..], &[start]) };
                match found {
                    Found::Maybe(_) if !ended => return None,
                    Found::At(..) => {
                        lane(&rest[..space], events);
                        self.state = State::Reasoning;
                        return Some(at + space + start.len());
                    }
                    _ => self.state = if opened { State::Reasoning } else { State::Text(Lead::Nothing) },
                }
                Some(at)
            }
            State::Reasoning => self.reason(at, ended, events),
            State::Doubtful { looked } => {
                let looked = *looked;
                self.doubt(at, looked, ended, events)
            }
            State::Text(lead) => {
                let lead = *lead;
                self.answer(at, lead, ended, events)
            }
            State::Candidate { .. } => self.candidate(at, ended, events),
            State::Kept if rest.len() > LARGEST_KEPT => {
                self.form = None;
                self.stays(at, self.buffer.len(), Why::TooLarge, true, events);
                Some(self.buffer.len())
            }
            State::Kept => None,
        }
    }

    fn reason(&mut self, at: usize, ended: bool, events: &mut Vec<Event>) -> Option<usize> {
        let rest = &self.buffer[at..];
        let Thinking { end, .. } = self.thinking?;
        let markers = [end, "<tool_call>"];
        let markers = if self.form == Some(Form::Coder) { &markers[..] } else { &markers[..1] };
        match find(rest, markers) {
            Found::At(found, marker) if marker == end => {
                reasoning(&rest[..found], events);
                self.state = State::Text(Lead::Nothing);
                Some(at + found + end.len())
            }
            // Models of this form at times call a tool without ending their reasoning.
            Found::At(found, marker) => match Coder::is_meant(&rest[found + marker.len()..]) {
                Found::At(..) => {
                    reasoning(&rest[..found], events);
                    self.state = State::Doubtful { looked: 0 };
                    Some(at + found)
                }
                Found::Maybe(_) if !ended => {
                    reasoning(&rest[..found], events);
                    // Nothing else is told before it is clear.
                    (found > 0).then_some(at + found)
                }
                _ => {
                    reasoning(&rest[..found + marker.len()], events);
                    Some(at + found + marker.len())
                }
            },
            Found::Maybe(found) if !ended => {
                reasoning(&rest[..found], events);
                (found > 0).then_some(at + found)
            }
            Found::Maybe(_) | Found::No => {
                reasoning(rest, events);
                Some(self.buffer.len())
            }
        }
    }

    fn doubt(&mut self, at: usize, looked: usize, ended: bool, events: &mut Vec<Event>) -> Option<usize> {
        let rest = &self.buffer[at..];
        let Thinking { end, .. } = self.thinking?;
        let seen = rest.floor_char_boundary(LARGEST);
        let looked = match find(&rest[looked..seen], &[end]) {
            Found::At(found, _) => {
                reasoning(&rest[..looked + found], events);
                self.state = State::Text(Lead::Nothing);
                return Some(at + looked + found + end.len());
            }
            Found::Maybe(found) => looked + found,
            Found::No => seen,
        };
        if seen < rest.len() {
            reasoning(&rest[..seen], events);
            self.state = State::Reasoning;
            return Some(at + seen);
        }
        self.state = if ended { State::Text(Lead::Nothing) } else { State::Doubtful { looked } };
        ended.then_some(at)
    }

    fn answer(&mut self, at: usize, lead: Lead, ended: bool, events: &mut Vec<Event>) -> Option<usize> {
        let rest = &self.buffer[at..];
        let Some(form) = self.form else {
            text(rest, events);
            return Some(self.buffer.len());
        };
        // White space that is kept back for what follows it.
        let space = if lead == Lead::Text { 0 } else { skip_space(rest, 0) };
        let space = if space > LONGEST_SPACE { 0 } else { space };
        if space == rest.len() {
            if ended && lead == Lead::Nothing {
                text(rest, events);
            }
            return ended.then_some(self.buffer.len());
        }
        if lead == Lead::Nothing && form.begins_bare(rest.as_bytes()[space]) {
            return self.begin(at, form, None, space);
        }
        match find(&rest[space..], form.markers()) {
            Found::At(found, marker) => {
                let begun = if found == 0 && lead == Lead::Call { 0 } else { space + found };
                text(&rest[..begun], events);
                let body = space + found - begun + marker.len();
                self.begin(at + begun, form, Some(marker), body)
            }
            Found::Maybe(0) if !ended && lead == Lead::Call => None,
            Found::Maybe(found) if !ended => {
                text(&rest[..space + found], events);
                if space + found > 0 {
                    self.state = State::Text(Lead::Text);
                }
                (space + found > 0).then_some(at + space + found)
            }
            Found::Maybe(_) | Found::No => {
                text(rest, events);
                self.state = State::Text(Lead::Text);
                Some(self.buffer.len())
            }
        }
    }

    /// Begins a candidate that stands at `at` and whose marker ends `body` bytes later.
    fn begin(&mut self, at: usize, form: Form, marker: Option<&str>, body: usize) -> Option<usize> {
        self.state = match form.candidate(marker) {
            Some(candidate) => State::Candidate { candidate, body, marked: marker.is_some() },
            None => State::Kept,
        };
        Some(at)
    }

    fn candidate(&mut self, at: usize, ended: bool, events: &mut Vec<Event>) -> Option<usize> {
        let State::Candidate { candidate, body, marked } = &mut self.state else { return Some(at) };
        let (begun, marked) = (at + *body, *marked);
        let text_after = &self.buffer[begun..];
        let seen = text_after.floor_char_boundary(LARGEST);
        match candidate.read(&text_after[..seen], ended && seen == text_after.len()) {
            Progress::More if seen == text_after.len() => None,
            Progress::More => {
                self.stays(at, begun + seen, Why::TooLarge, marked, events);
                Some(begun + seen)
            }
            Progress::Never(used, why) => {
                self.stays(at, begun + used, why, marked, events);
                Some(begun + used)
            }
            Progress::Calls(calls, used) => {
                for called in calls {
                    let arguments = self.write(&called);
                    self.tell(&called.name, &arguments, events);
                }
                self.state = State::Text(Lead::Call);
                Some(begun + used)
            }
        }
    }

    /// What looked like a call is text.
    fn stays(&mut self, from: usize, to: usize, why: Why, marked: bool, events: &mut Vec<Event>) {
        text(&self.buffer[from..to], events);
        // An answer in JSON is no call that failed.
        if marked {
            self.unread(why);
        }
        self.state = State::Text(Lead::Text);
    }

    fn write(&mut self, called: &Called) -> String {
        match &called.arguments {
            Arguments::Json(json) => json.clone(),
            Arguments::Fields(fields) => {
                let schemas = self.schemas.get_or_insert_with(|| Schemas::of(&self.call, self.tools.names()));
                schemas.write(&called.name, fields)
            }
        }
    }
}

fn text(piece: &str, events: &mut Vec<Event>) {
    if !piece.is_empty() {
        events.push(Event::Text(Text::new(piece)));
    }
}

fn reasoning(piece: &str, events: &mut Vec<Event>) {
    if !piece.is_empty() {
        events.push(Event::Reasoning(Text::new(piece)));
    }
}
