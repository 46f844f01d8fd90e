//! The forms in which models write tool calls, as far as we read them ourselves.

use super::coder::Coder;
use super::json::{self, Json, Step};
use super::marker::{self, Found};
use super::{Arguments, Called, Why};

/// How a family of models writes its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::policy) enum Form {
    /// `<tool_call>{"name": .., "arguments": ..}</tool_call>`: Hermes, Qwen.
    Hermes,
    /// `<tool_call><function=..><parameter=..>..</parameter></function></tool_call>`: Qwen3-Coder, Nemotron.
    Coder,
    /// `[TOOL_CALLS][{"name": .., "arguments": ..}, ..]` or `[TOOL_CALLS]name[ARGS]{..}`.
    Mistral,
    /// `<|python_tag|>{"name": .., "parameters": ..}; ..`, or the same without the tag as the whole of an answer.
    Llama,
    /// A JSON object, or a list of them, as the whole of an answer.
    Json,
    /// Read by somebody else when the reply has ended: all text from the first marker on, or an answer that begins with that byte.
    Kept { markers: &'static [&'static str], bare: Option<u8> },
}

impl Form {
    /// What calls begin with.
    pub(super) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &["<tool_call>"],
            // Models that forget the outer marker are understood by all servers.
            Self::Coder => &["<tool_call>", "<function="],
            Self::Mistral => &["[TOOL_CALLS]"],
            Self::Llama => &["<|python_tag|>"],
            Self::Json => &[],
            Self::Kept { markers, .. } => markers,
        }
    }

    /// Whether an answer that begins with this byte may be a call.
    pub(super) fn begins_bare(self, byte: u8) -> bool {
        match self {
            Self::Llama => byte == b'{',
            Self::Json => byte == b'{' || byte == b'[',
            Self::Kept { bare, .. } => bare == Some(byte),
            Self::Hermes | Self::Coder | Self::Mistral => false,
        }
    }

    /// A reader of what follows a marker; without one, of an answer that is a call by itself. `None`: it is kept.
    pub(super) fn candidate(self, marker: Option<&str>) -> Option<Candidate> {
        Some(match self {
            Self::Hermes => Candidate::Object(Object::new(marker.is_some(), After::Close("</tool_call>"))),
            Self::Coder => Candidate::Coder(Coder::new(marker)),
            Self::Mistral => Candidate::Mistral(Mistral::default()),
            Self::Llama => Candidate::Object(Object::new(marker.is_some(), After::Next(b';'))),
            Self::Json => Candidate::Object(Object::new(false, After::Nothing)),
            Self::Kept { .. } => return None,
        })
    }
}

/// What was found of a call.
#[derive(Debug)]
pub(super) enum Progress {
    More,
    /// These, which end at that byte.
    Calls(Vec<Called>, usize),
    /// There is none; the text up to this byte is text.
    Never(usize, Why),
}

/// Text that may be a call, while it comes. Each byte is looked at once.
#[derive(Debug)]
pub(super) enum Candidate {
    Object(Object),
    Mistral(Mistral),
    Coder(Coder),
}

impl Candidate {
    /// Reads on in `text`, which is all that has come after the marker; `ended`: nothing more will.
    pub(super) fn read(&mut self, text: &str, ended: bool) -> Progress {
        let progress = match self {
            Self::Object(object) => object.read(text, ended),
            Self::Mistral(mistral) => mistral.read(text),
            Self::Coder(coder) => coder.read(text, ended),
        };
        match progress {
            Progress::More if ended => Progress::Never(text.len(), Why::Cut),
            progress => progress,
        }
    }
}

/// What stands after a JSON value.
#[derive(Clone, Copy, Debug)]
enum After {
    Nothing,
    /// This marker; a reply that ends before it is whole all the same.
    Close(&'static str),
    /// Another value, if this byte comes first.
    Next(u8),
}

/// JSON values of which each is a call or a list of them.
#[derive(Debug)]
pub(super) struct Object {
    json: Json,
    begun: usize,
    at: usize,
    /// How far what follows the value has been looked at, once that has ended.
    looked: Option<usize>,
    called: Vec<Called>,
    marked: bool,
    after: After,
}

impl Object {
    fn new(marked: bool, after: After) -> Self {
        Self { json: Json::default(), begun: 0, at: 0, looked: None, called: Vec::new(), marked, after }
    }

    fn read(&mut self, text: &str, ended: bool) -> Progress {
        loop {
            let looked = match self.looked.map_or_else(|| self.value(text), |looked| Ok(Some(looked))) {
                Ok(Some(looked)) => looked,
                Ok(None) => return Progress::More,
                Err(why) => return Progress::Never(self.at, why),
            };
            let end = marker::skip_space(text, looked);
            self.looked = Some(end);
            let rest = &text[end..];
            match self.after {
                After::Nothing => return self.calls(self.at),
                After::Close(close) => match marker::begins(rest, &[close]) {
                    Found::At(..) => return self.calls(end + close.len()),
                    Found::Maybe(_) if ended => return self.calls(text.len()),
                    Found::Maybe(_) => return Progress::More,
                    Found::No => return Progress::Never(end, Why::Form),
                },
                After::Next(_) if rest.is_empty() && !ended => return Progress::More,
                After::Next(byte) if rest.as_bytes().first() == Some(&byte) => {
                    self.json = Json::default();
                    self.at = end + 1;
                    self.looked = None;
                }
                After::Next(_) => return self.calls(self.at),
            }
        }
    }

    /// Reads on in a value; gives its end.
    fn value(&mut self, text: &str) -> Result<Option<usize>, Why> {
        if self.json.is_new() {
            self.at = marker::skip_space(text, self.at);
            self.begun = self.at;
            // Forms that end with a marker or a byte of their own know no lists.
            if !matches!(self.after, After::Nothing) && text[self.at..].starts_with('[') {
                return Err(Why::Form);
            }
        }
        while let Some(byte) = text.as_bytes().get(self.at) {
            match self.json.push(*byte) {
                Step::More => self.at += 1,
                Step::Never(why) => return Err(why),
                Step::Done => {
                    self.at += 1;
                    self.called.extend(json::calls(&text[self.begun..self.at], self.marked)?);
                    return Ok(Some(self.at));
                }
            }
        }
        Ok(None)
    }

    fn calls(&mut self, end: usize) -> Progress {
        Progress::Calls(std::mem::take(&mut self.called), end)
    }
}

/// A list of calls, or a call's name before its arguments.
#[derive(Debug, Default)]
pub(super) struct Mistral {
    json: Json,
    /// The name before the arguments, and where those begin.
    named: Option<(String, usize)>,
    at: usize,
}

impl Mistral {
    /// Stands between name and arguments, in newer models.
    const ARGUMENTS: &str = "[ARGS]";
    /// Before it they may give the call an id, which nobody needs: ours go to the client.
    const ID: &str = "[CALL_ID]";
    const LONGEST_NAME: usize = 256;

    fn read(&mut self, text: &str) -> Progress {
        if self.json.is_new() {
            match self.head(text) {
                Ok(true) => {}
                Ok(false) => return Progress::More,
                Err(at) => return Progress::Never(at, Why::Form),
            }
        }
        while let Some(byte) = text.as_bytes().get(self.at) {
            match self.json.push(*byte) {
                Step::More => self.at += 1,
                Step::Never(why) => return Progress::Never(self.at, why),
                Step::Done => {
                    self.at += 1;
                    return match self.called(text) {
                        Ok(called) => Progress::Calls(called, self.at),
                        Err(why) => Progress::Never(self.at, why),
                    };
                }
            }
        }
        Progress::More
    }

    /// Reads what stands before the JSON; tells whether that is there. The error is where it went wrong.
    fn head(&mut self, text: &str) -> Result<bool, usize> {
        self.at = marker::skip_space(text, self.at);
        let begun = self.at;
        let rest = &text[begun..];
        let limit = rest.len().min(Self::LONGEST_NAME);
        let bracket = rest.bytes().take(limit).position(|byte| byte == b'[' || byte == b'{');
        let Some(bracket) = bracket else {
            return if limit < Self::LONGEST_NAME { Ok(false) } else { Err(begun) };
        };
        if bracket == 0 {
            return Ok(true);
        }
        let name = rest[..bracket].trim_ascii_end();
        if name.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(begun + bracket);
        }
        let mut tail = &rest[bracket..];
        if let Some(id) = tail.strip_prefix(Self::ID) {
            let end = id.bytes().take(Self::LONGEST_NAME).position(|byte| byte == b'[' || byte == b'{');
            match end {
                Some(end) => tail = &id[end..],
                None if id.len() < Self::LONGEST_NAME => return Ok(false),
                None => return Err(begun + bracket),
            }
        }
        let arguments = match tail.strip_prefix(Self::ARGUMENTS) {
            Some(arguments) => arguments,
            None if Self::ARGUMENTS.starts_with(tail) || Self::ID.starts_with(tail) => return Ok(false),
            None => tail,
        };
        let at = marker::skip_space(text, text.len() - arguments.len());
        match text.as_bytes().get(at) {
            None if text.len() - begun < super::LONGEST_SPACE => Ok(false),
            None => Err(begun),
            Some(b'{') => {
                self.named = Some((name.to_owned(), at));
                self.at = at;
                Ok(true)
            }
            Some(_) => Err(at),
        }
    }

    fn called(&mut self, text: &str) -> Result<Vec<Called>, Why> {
        let Some((name, begun)) = self.named.take() else { return json::calls(text[..self.at].trim_ascii_start(), true) };
        let arguments = &text[begun..self.at];
        serde_json::from_str::<&serde_json::value::RawValue>(arguments).map_err(|_| Why::NotJson)?;
        Ok(vec![Called { name, arguments: Arguments::Json(arguments.to_owned()) }])
    }
}
