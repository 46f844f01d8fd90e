//! Text to ids and back, as the model's own tokenizer has it.

use std::borrow::Cow;
use std::collections::HashSet;

use llm_tokenizer::{Decoder, Encoder, HuggingFaceTokenizer};
use tokenizers::{AddedToken, Tokenizer as Hf};

use super::ModelError;
use super::detokenizer::Decoding;
use super::folder::Parts;

/// Tokens by these names end a reply, even if the model's files don't say so.
const ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|return|>",
    "<|call|>",
    "</s>",
];

/// Marks a control token's name that somebody typed. It is no character, so that nobody should type it; one that is typed stands twice.
const MARK: char = '\u{FDD0}';

/// A tokenizer that is read whole.
pub(super) struct Tokenizer {
    /// Finds control tokens in text; the fast one.
    fast: HuggingFaceTokenizer,
    /// Finds none, where typed ones are to stay text.
    plain: Option<Hf>,
    /// The control tokens.
    controls: Vec<Control>,
    decoding: Decoding,
    control: HashSet<u32>,
    ends: HashSet<u32>,
    /// `<0x00>` to `<0xFF>`, where the tokenizer has such.
    bytes: HashSet<u32>,
    /// The ids that are tokens: there may be gaps between them.
    known: Vec<bool>,
    vocabulary: u32,
}

struct Control {
    id: u32,
    name: String,
    /// It takes the blanks before it, or behind it, too.
    lstrip: bool,
    rstrip: bool,
}

impl Tokenizer {
    /// Makes the tokenizer; `split` where typed names of control tokens are to stay text.
    pub(super) fn new(parts: &Parts, split: bool) -> Result<Self, ModelError> {
        let unreadable = |what: String| ModelError::Unreadable(format!("the tokenizer can't be read: {what}"));
        let mut tokenizer = Hf::from_bytes(&parts.tokenizer).map_err(|error| unreadable(error.to_string()))?;
        // Some are published with the lengths that they were trained with.
        tokenizer.with_truncation(None).map_err(|error| unreadable(error.to_string()))?;
        tokenizer.with_padding(None);
        for (id, name, special) in &parts.added {
            if tokenizer.token_to_id(name) == Some(*id) {
                continue;
            }
            let token = AddedToken::from(name.clone(), *special).normalized(!special);
            tokenizer.add_tokens([token]).map_err(|error| unreadable(error.to_string()))?;
            if let Some(other) = tokenizer.token_to_id(name).filter(|other| other != id) {
                return Err(unreadable(format!(
                    "tokenizer_config.json says that {name:?} is {id}, tokenizer.json makes it {other}"
                )));
            }
        }
        let mut known = Vec::new();
        for id in tokenizer.get_vocab(true).into_values() {
            if id as usize >= known.len() {
                known.resize(id as usize + 1, false);
            }
            known[id as usize] = true;
        }
        let ids = u32::try_from(known.len()).map_err(|_| unreadable("it has too many tokens".to_owned()))?;
        let mut controls: Vec<Control> = Vec::new();
        for (id, token) in tokenizer.get_added_tokens_decoder() {
            if token.special {
                controls.push(Control { id, name: token.content, lstrip: token.lstrip, rstrip: token.rstrip });
            }
        }
        // Of two that begin alike, the longer one is meant.
        controls.sort_by(|a, b| b.name.len().cmp(&a.name.len()).then(a.id.cmp(&b.id)));
        let control: HashSet<u32> = controls.iter().map(|control| control.id).collect();
        let mut ends: HashSet<u32> = parts.ends.iter().copied().collect();
        let eos = parts.names.get("eos_token").and_then(|name| name.as_str());
        ends.extend(eos.and_then(|name| tokenizer.token_to_id(name)));
        ends.extend(controls.iter().filter(|control| ENDS.contains(&control.name.as_str())).map(|control| control.id));
        let bytes = (0..=u8::MAX).filter_map(|byte| tokenizer.token_to_id(&format!("<0x{byte:02X}>"))).collect();
        let decoding = Decoding::of(&tokenizer, ids);
        let plain = split.then(|| {
            let mut plain = tokenizer.clone();
            plain.set_encode_special_tokens(true);
            plain
        });
        let vocabulary = parts.vocabulary.unwrap_or(0).max(ids);
        let fast = HuggingFaceTokenizer::from_tokenizer(tokenizer);
        let tokenizer = Self { fast, plain, controls, decoding, control, ends, bytes, known, vocabulary };
        tokenizer.check_pieces()?;
        Ok(tokenizer)
    }

    /// The ids of a text in which every name of a control token is meant.
    pub(super) fn encode(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        self.encode_by(text, false)
    }

    /// The same with what every text begins with: `begins`, else what the tokenizer's own files say.
    pub(super) fn encode_begun(&self, begins: Option<&str>, text: &str) -> Result<Vec<u32>, ModelError> {
        match begins {
            Some(begins) => Ok([self.encode(begins)?, self.encode(text)?].concat()),
            None => self.encode_by(text, true),
        }
    }

    fn encode_by(&self, text: &str, begun: bool) -> Result<Vec<u32>, ModelError> {
        match self.fast.encode(text, begun) {
            Ok(llm_tokenizer::Encoding::Plain(ids)) => Ok(ids),
            Ok(encoding) => Ok(encoding.token_ids().to_vec()),
            Err(error) => Err(ModelError::Refused(format!("the tokenizer can't encode: {error}"))),
        }
    }

    /// The ids of a text in which names with a mark are text.
    pub(super) fn encode_guarded(&self, text: &str) -> Result<Vec<u32>, ModelError> {
        if !text.contains(MARK) {
            return self.encode(text);
        }
        let mut ids = Vec::new();
        let mut rest = text;
        while let Some((at, control)) = self.find(rest) {
            let before = if control.lstrip { rest[..at].trim_end() } else { &rest[..at] };
            self.encode_plain(before, &mut ids)?;
            ids.push(control.id);
            rest = &rest[at + control.name.len()..];
            if control.rstrip {
                rest = rest.trim_start();
            }
        }
        self.encode_plain(rest, &mut ids)?;
        Ok(ids)
    }

    fn encode_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), ModelError> {
        let Some(plain) = &self.plain else {
            return Err(ModelError::Refused("special_text = \"text\" is not set".to_owned()));
        };
        let encoding = plain.encode_fast(unmark(text).as_ref(), false);
        let encoding = encoding.map_err(|error| ModelError::Refused(format!("the tokenizer can't encode: {error}")))?;
        ids.extend_from_slice(encoding.get_ids());
        Ok(())
    }

    /// The first control token that a text names.
    fn find(&self, text: &str) -> Option<(usize, &Control)> {
        text.char_indices().find_map(|(at, _)| Some((at, self.named_at(&text[at..])?)))
    }

    fn named_at(&self, text: &str) -> Option<&Control> {
        self.controls.iter().find(|control| text.starts_with(control.name.as_str()))
    }

    /// Marks names of control tokens.
    pub(super) fn guard<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.plain.is_none() || !text.contains(MARK) && self.find(text).is_none() {
            return Cow::Borrowed(text);
        }
        let mut guarded = String::with_capacity(text.len() + 16);
        for (at, c) in text.char_indices() {
            guarded.push(c);
            // Every name is marked behind its first letter: those that overlap, too.
            if c == MARK || self.named_at(&text[at..]).is_some() {
                guarded.push(MARK);
            }
        }
        Cow::Owned(guarded)
    }

    /// Whether what follows a control token is encoded as if it stood alone: [`Self::encode_guarded`] builds on it.
    fn check_pieces(&self) -> Result<(), ModelError> {
        let (Some(_), Some(control)) = (&self.plain, self.controls.first()) else { return Ok(()) };
        for text in ["a b", " a", "\n\na"] {
            let whole = self.encode(&format!("{}{text}", control.name))?;
            let mut pieces = vec![control.id];
            self.encode_plain(if control.rstrip { text.trim_start() } else { text }, &mut pieces)?;
            if whole != pieces {
                return Err(ModelError::Unreadable(
                    "this tokenizer reads text behind a control token differently than alone: use special_text = \"control\""
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn decode(&self, ids: &[u32]) -> String {
        self.fast.decode(ids, false).unwrap_or_default()
    }

    pub(super) fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    pub(super) fn ends(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    pub(super) fn is_control(&self, id: u32) -> bool {
        self.control.contains(&id)
    }

    pub(super) fn knows(&self, id: u32) -> bool {
        self.known.get(id as usize).copied().unwrap_or(false)
    }

    pub(super) fn is_byte(&self, id: u32) -> bool {
        self.bytes.contains(&id)
    }

    pub(super) fn vocabulary(&self) -> u32 {
        self.vocabulary
    }
}

/// The text that was marked.
fn unmark(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != MARK {
            plain.push(c);
        } else if chars.next_if_eq(&MARK).is_some() {
            plain.push(MARK);
        }
    }
    Cow::Owned(plain)
}
