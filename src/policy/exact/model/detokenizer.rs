//! Sampled ids to text, a piece at a time.

use std::sync::Arc;

use tokenizers::{DecoderWrapper, Tokenizer as Hf};

use super::tokenizer::Tokenizer;

/// Sampled ids to text, a piece at a time: over a whole reply exactly what decoding all of its ids at once gives. Control tokens that end a
/// reply are not text; others (`<tool_call>`, `<think>`) are, since parsers need them. So are ids that the tokenizer doesn't know: they read as nothing.
pub(in crate::policy::exact) struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    /// Byte-level: the bytes of a character that is not whole yet.
    bytes: Vec<u8>,
    /// Others: the ids that the last text came from, which the next one's depends on, and those that have no text yet.
    context: Vec<u32>,
    pending: Vec<u32>,
}

/// How ids become text.
pub(super) enum Decoding {
    /// Each id is some bytes, whatever stands beside it.
    Bytes(ByteTable),
    /// Only the tokenizer knows.
    Whole,
}

/// The bytes of each id.
pub(super) struct ByteTable {
    /// Those of id `i` are `bytes[offsets[i]..offsets[i + 1]]`.
    offsets: Vec<usize>,
    bytes: Vec<u8>,
}

impl Decoding {
    pub(super) fn of(tokenizer: &Hf, ids: u32) -> Self {
        if !matches!(tokenizer.get_decoder(), Some(DecoderWrapper::ByteLevel(_))) {
            return Self::Whole;
        }
        let alphabet = alphabet();
        let mut table = ByteTable { offsets: vec![0], bytes: Vec::new() };
        for id in 0..ids {
            if let Some(token) = tokenizer.id_to_token(id) {
                let byte = |c: char| alphabet.get(c as usize).copied().flatten();
                match token.chars().map(byte).collect::<Option<Vec<u8>>>() {
                    Some(bytes) => table.bytes.extend(bytes),
                    // Tokens that were added are named by their own text.
                    None => table.bytes.extend_from_slice(token.as_bytes()),
                }
            }
            table.offsets.push(table.bytes.len());
        }
        Self::Bytes(table)
    }
}

impl ByteTable {
    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        match (self.offsets.get(id), self.offsets.get(id + 1)) {
            (Some(start), Some(end)) => &self.bytes[*start..*end],
            _ => &[],
        }
    }
}

/// GPT-2's letters for bytes, the other way: the byte of each character that stands for one.
fn alphabet() -> Vec<Option<u8>> {
    let mut alphabet = vec![None; 0x144];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let letter = if printable { usize::from(byte) } else { next };
        next += usize::from(!printable);
        alphabet[letter] = Some(byte);
    }
    alphabet
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, bytes: Vec::new(), context: Vec::new(), pending: Vec::new() }
    }

    /// The text that is complete with this id; empty while a character is not.
    pub(in crate::policy::exact) fn push(&mut self, id: u32) -> String {
        if self.tokenizer.ends(id) || !self.tokenizer.knows(id) {
            return String::new();
        }
        let tokenizer = Arc::clone(&self.tokenizer);
        match tokenizer.decoding() {
            Decoding::Bytes(table) => self.push_bytes(table.get(id)),
            Decoding::Whole => {
                // A run of byte tokens reads as one thing, once it is known to have ended.
                let waits = tokenizer.is_byte(id);
                let run_ends = !waits && self.pending.last().is_some_and(|last| tokenizer.is_byte(*last));
                let before = if run_ends { self.take(true) } else { String::new() };
                self.pending.push(id);
                // An incomplete character is a few ids long; what is longer is looked at ever more seldom.
                let look = self.pending.len() <= 8 || self.pending.len().is_power_of_two();
                if waits || !look { before } else { before + &self.take(false) }
            }
        }
    }

    /// What was held back: half a character reads as U+FFFD.
    pub(in crate::policy::exact) fn finish(&mut self) -> String {
        if !self.bytes.is_empty() {
            self.bytes.clear();
            return char::REPLACEMENT_CHARACTER.to_string();
        }
        self.take(true)
    }

    fn push_bytes(&mut self, bytes: &[u8]) -> String {
        if self.bytes.is_empty()
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return text.to_owned();
        }
        self.bytes.extend_from_slice(bytes);
        let mut text = String::new();
        let mut done = 0;
        for chunk in self.bytes.utf8_chunks() {
            text.push_str(chunk.valid());
            done += chunk.valid().len();
            let invalid = chunk.invalid();
            let at_end = done + invalid.len() == self.bytes.len();
            let may_go_on = at_end && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if !invalid.is_empty() && !may_go_on {
                text.push(char::REPLACEMENT_CHARACTER);
                done += invalid.len();
            }
        }
        self.bytes.drain(..done);
        text
    }

    /// The text of the pending ids behind those before them, if it is complete or must be.
    fn take(&mut self, whole: bool) -> String {
        if self.pending.is_empty() {
            return String::new();
        }
        let mut ids = self.context.clone();
        ids.extend_from_slice(&self.pending);
        let before = self.tokenizer.decode(&self.context);
        let text = self.tokenizer.decode(&ids);
        if text.ends_with(char::REPLACEMENT_CHARACTER) && !whole {
            return String::new();
        }
        self.context = std::mem::take(&mut self.pending);
        text.strip_prefix(before.as_str()).unwrap_or_default().to_owned()
    }
}
