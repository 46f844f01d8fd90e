//! Reads token ids and log-probabilities, which are most of a reply's bytes, out of JSON that has been found valid (a
//! `RawValue`). serde takes 170 instructions for an id and 2,400 for a log-probability's entry; this takes a fifth of that.

use super::chunk::LogprobEntry;

/// Reads a list of token ids; `None` if it is anything else.
pub(super) fn ids(list: &str) -> Option<Vec<u32>> {
    let inner = list.strip_prefix('[')?.strip_suffix(']')?;
    let mut ids = Vec::with_capacity(inner.len() / 5 + 1);
    let mut id: Option<u32> = None;
    for byte in inner.bytes() {
        match byte {
            b'0'..=b'9' => id = Some(id.unwrap_or(0).checked_mul(10)?.checked_add(u32::from(byte - b'0'))?),
            b',' => ids.push(id.take()?),
            b' ' | b'\t' | b'\n' | b'\r' => {}
            _ => return None,
        }
    }
    ids.extend(id);
    Some(ids)
}

/// Reads the entries of a choice's `logprobs`, in their order; one that is no object is empty. `None` if there is no list of them.
pub(super) fn logprobs(object: &str) -> Option<Vec<LogprobEntry>> {
    let mut cursor = Cursor { bytes: object.as_bytes(), at: 0 };
    let mut entries = None;
    cursor.object(|name, cursor| {
        if name != b"content" || cursor.peek() != Some(b'[') {
            return cursor.skip();
        }
        let list = entries.insert(Vec::with_capacity(object.len() / 96 + 1));
        cursor.list(|cursor| {
            let mut entry = LogprobEntry::default();
            if cursor.peek() == Some(b'{') {
                cursor.object(|name, cursor| match name {
                    b"logprob" => entry.logprob = cursor.number().parse().ok(),
                    b"id" => entry.id = cursor.number().parse().ok(),
                    _ => cursor.skip(),
                });
            } else {
                cursor.skip();
            }
            list.push(entry);
        });
    });
    entries
}

/// A place in valid JSON. In anything else it would read nonsense, but never beyond the end nor for ever.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(*byte);
            }
            self.at += 1;
        }
        None
    }

    /// Goes past a byte if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        let taken = self.peek() == Some(byte);
        self.at += usize::from(taken);
        taken
    }

    /// Walks an object's fields; `field` goes past each value.
    fn object(&mut self, mut field: impl FnMut(&[u8], &mut Self)) {
        if !self.take(b'{') {
            return;
        }
        while self.peek() == Some(b'"') {
            let name = self.string();
            self.take(b':');
            field(name, self);
            self.take(b',');
        }
        self.take(b'}');
    }

    /// Walks a list's elements; `element` goes past each.
    fn list(&mut self, mut element: impl FnMut(&mut Self)) {
        if !self.take(b'[') {
            return;
        }
        while let Some(next) = self.peek() {
            if next == b']' {
                break;
            }
            let before = self.at;
            element(self);
            self.take(b',');
            if self.at == before {
                break;
            }
        }
        self.take(b']');
    }

    /// The text of a number, as it stands; empty if something else comes, which is gone past.
    fn number(&mut self) -> &'a str {
        if !matches!(self.peek(), Some(b'-' | b'0'..=b'9')) {
            self.skip();
            return "";
        }
        let start = self.at;
        while matches!(self.bytes.get(self.at), Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')) {
            self.at += 1;
        }
        std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default()
    }

    /// What stands between the quotes of a string, escapes and all.
    fn string(&mut self) -> &'a [u8] {
        let start = self.at + 1;
        let mut at = start;
        loop {
            match self.bytes.get(at) {
                Some(b'"') => break,
                Some(b'\\') => at += 2,
                Some(_) => at += 1,
                None => {
                    at = self.bytes.len();
                    break;
                }
            }
        }
        self.at = (at + 1).min(self.bytes.len());
        self.bytes.get(start..at).unwrap_or_default()
    }

    /// Goes past a value.
    fn skip(&mut self) {
        let mut depth = 0_usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => drop(self.string()),
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                    continue;
                }
                // The end of what surrounds the value.
                b'}' | b']' if depth == 0 => return,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' if depth > 0 => {
                    self.at += 1;
                    continue;
                }
                b',' | b':' => return,
                _ => {
                    while !matches!(self.bytes.get(self.at), None | Some(b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r')) {
                        self.at += 1;
                    }
                }
            }
            if depth == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn ids_are_whole_numbers_that_fit() {
        assert_eq!(ids("[]"), Some(vec![]));
        assert_eq!(ids("[ 1,2 ,\n4294967295 ]"), Some(vec![1, 2, u32::MAX]));
        for none in ["[4294967296]", "[-1]", "[1.5]", "[\"1\"]", "[null]", "null", "{}", "[[1]]", "[1e3]"] {
            assert_eq!(ids(none), None, "{none}");
        }
    }

    #[test]
    fn what_is_not_a_list_of_entries_is_none() {
        for none in ["{}", "[]", "{\"content\":null}", "\"content\"", "{\"refusal\":[{\"logprob\":1}]}"] {
            assert!(logprobs(none).is_none(), "{none}");
        }
        let empty = LogprobEntry::default();
        assert_eq!(logprobs("{\"content\":[null, 3, {\"logprob\":\"x\"}]}"), Some(vec![empty; 3]));
    }

    /// Any JSON, with what we look for in the wrong places too.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<u32>().prop_map(Value::from),
            prop_oneof!["[a-z\"\\\\\n{}\\[\\],:é😀]{0,8}", Just("logprob".to_owned())].prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::hash_map("logprob|id|content|[a\"\\\\]{1,3}", inner, 0..3)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn entries_are_what_serde_reads(
            entries in proptest::collection::vec((any::<f64>(), proptest::option::of(any::<u32>()), value(), value()), 0..5),
            before in value(),
            pretty in any::<bool>(),
        ) {
            let made: Vec<Value> = entries.iter().map(|(logprob, id, a, b)| {
                json!({"token": a, "logprob": logprob, "id": id, "bytes": [1, 2], "top_logprobs": b})
            }).collect();
            let object = json!({"a": before, "content": made, "refusal": null});
            let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
            let expected: Vec<LogprobEntry> = entries.iter().map(|(logprob, id, ..)| {
                // JSON has no word for these.
                LogprobEntry { logprob: logprob.is_finite().then_some(*logprob), id: *id }
            }).collect();
            prop_assert_eq!(logprobs(&text), Some(expected));
        }

        #[test]
        fn nonsense_ends(text in "[\\[\\]{}\",:\\\\0-9a-e ]{0,60}") {
            let _ = (logprobs(&text), ids(&text));
        }
    }
}
