//! Calls as Qwen3-Coder writes them: a function's name and its parameters in tags, values as plain text.

use super::form::Progress;
use super::marker::{self, Found};
use super::{Arguments, Called, Why};

const FUNCTION: &str = "<function=";
const FUNCTION_END: &str = "</function>";
const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const CLOSE: &str = "</tool_call>";
const LONGEST_NAME: usize = 256;

/// What is being read.
#[derive(Clone, Copy, Debug)]
enum At {
    /// The function's tag, after the outer marker.
    Open,
    Name,
    /// The next parameter, or the function's end.
    Between,
    Key,
    /// A value that began here. What stands after a parameter's end, if one was found, is looked at from the second place on.
    Value(usize, Option<(usize, usize)>),
    /// The outer marker's end.
    Close(usize),
}

/// One call, as far as it has come.
#[derive(Debug)]
pub(super) struct Coder {
    at: usize,
    doing: At,
    /// The outer marker was there; then its end must be.
    wrapped: bool,
    name: String,
    fields: Vec<(String, String)>,
}

impl Coder {
    pub(super) fn new(marker: Option<&str>) -> Self {
        let wrapped = marker != Some(FUNCTION);
        let doing = if wrapped { At::Open } else { At::Name };
        Self { at: 0, doing, wrapped, name: String::new(), fields: Vec::new() }
    }

    /// What follows the outer marker where it is meant as one: vLLM takes a marker inside of reasoning for a call only then.
    pub(super) fn is_meant(after_marker: &str) -> Found {
        let space = marker::skip_space(after_marker, 0);
        if space > super::LONGEST_SPACE { Found::No } else { marker::begins(&after_marker[space..], &[FUNCTION]) }
    }

    pub(super) fn read(&mut self, text: &str, ended: bool) -> Progress {
        loop {
            let done = match self.doing {
                At::Open => self.tag(text, &[FUNCTION]).map(|tag| tag.map(|_| At::Name)),
                At::Name => self.word(text).map(|word| {
                    word.map(|name| {
                        self.name = name;
                        At::Between
                    })
                }),
                At::Between => self
                    .tag(text, &[PARAMETER, FUNCTION_END])
                    .map(|tag| tag.map(|tag| if tag == PARAMETER { At::Key } else { At::Close(self.at) })),
                At::Key => self.word(text).map(|word| {
                    word.map(|key| {
                        self.fields.push((key, String::new()));
                        At::Value(self.at, None)
                    })
                }),
                At::Value(begun, end) => Ok(self.value(text, begun, end)),
                At::Close(end) => return self.close(text, end, ended),
            };
            match done {
                Ok(Some(next)) => self.doing = next,
                Ok(None) => return Progress::More,
                Err(why) => return Progress::Never(self.at, why),
            }
        }
    }

    /// Goes past white space and one of `tags`.
    fn tag(&mut self, text: &str, tags: &[&'static str]) -> Result<Option<&'static str>, Why> {
        self.at = marker::skip_space(text, self.at);
        match marker::begins(&text[self.at..], tags) {
            Found::At(_, tag) => {
                self.at += tag.len();
                Ok(Some(tag))
            }
            Found::Maybe(_) => Ok(None),
            Found::No => Err(Why::Form),
        }
    }

    /// Goes past a name and the `>` after it.
    fn word(&mut self, text: &str) -> Result<Option<String>, Why> {
        let rest = &text[self.at..];
        let stop = rest.bytes().take(LONGEST_NAME).position(|byte| matches!(byte, b'>' | b'<' | b'\n'));
        match stop {
            Some(end) if rest.as_bytes()[end] == b'>' && !rest[..end].trim().is_empty() => {
                self.at += end + 1;
                Ok(Some(rest[..end].trim().to_owned()))
            }
            None if rest.len() < LONGEST_NAME => Ok(None),
            _ => Err(Why::Form),
        }
    }

    /// Goes past a value. It ends with the first end of a parameter that something of a call follows: a value may be text about such tags.
    fn value(&mut self, text: &str, begun: usize, mut end: Option<(usize, usize)>) -> Option<At> {
        loop {
            let Some((ends, look)) = end else {
                let Some(found) = marker::find_from(text, self.at, PARAMETER_END) else {
                    // What may be the beginning of the tag is looked at again.
                    self.at = self.at.max((text.len() + 1).saturating_sub(PARAMETER_END.len()));
                    self.doing = At::Value(begun, None);
                    return None;
                };
                self.at = found + PARAMETER_END.len();
                end = Some((found, self.at));
                continue;
            };
            let look = marker::skip_space(text, look);
            match begins_at(text, look) {
                Found::At(..) => {
                    if let Some((_, value)) = self.fields.last_mut() {
                        trim(&text[begun..ends]).clone_into(value);
                    }
                    self.at = look;
                    return Some(At::Between);
                }
                Found::Maybe(_) => {
                    self.doing = At::Value(begun, Some((ends, look)));
                    return None;
                }
                Found::No => end = None,
            }
        }
    }

    fn close(&mut self, text: &str, end: usize, ended: bool) -> Progress {
        self.at = marker::skip_space(text, self.at);
        let closed = match marker::begins(&text[self.at..], &[CLOSE]) {
            Found::At(..) => self.at + CLOSE.len(),
            Found::Maybe(_) if ended => text.len(),
            Found::Maybe(_) => return Progress::More,
            Found::No if self.wrapped => return Progress::Never(self.at, Why::Form),
            Found::No => end,
        };
        let arguments = Arguments::Fields(std::mem::take(&mut self.fields));
        Progress::Calls(vec![Called { name: std::mem::take(&mut self.name), arguments }], closed)
    }
}

fn begins_at(text: &str, at: usize) -> Found {
    marker::begins(&text[at..], &[PARAMETER, FUNCTION_END])
}

/// A value without the line breaks that the template puts around it.
fn trim(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
