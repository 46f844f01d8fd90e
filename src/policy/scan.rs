//! A reader of JSON for replies, where serde's was the largest cost of a call: 390 thousand instructions for a body of 14 KB, most
//! of them for token ids and log-probabilities, against a quarter of that here. It goes once over the bytes, forward only.
//!
//! What it accepts is JSON, but for a comma before an end, numbers that are looked at only if they are read, and what stands
//! inside values that nobody wants: there only brackets and strings must be in order.

/// How deep values may nest.
const DEEPEST: usize = 128;

/// What a byte may mean, so that a loop over most of them is one look-up a byte.
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "it counts to 255")]
        let it = byte as u8;
        classes[byte] = match it {
            b'"' => QUOTE,
            b'{' | b'[' | b'}' | b']' => BRACKET,
            b'\\' => ESCAPE,
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E' => PLAIN,
            0..b' ' => CONTROL,
            _ => 0,
        };
        byte += 1;
    }
    classes
};
const QUOTE: u8 = 1;
const BRACKET: u8 = 2;
const ESCAPE: u8 = 4;
const PLAIN: u8 = 8;
const CONTROL: u8 = 16;

/// The first place from `at` on whose byte is of one of these classes; the end if there is none.
#[inline]
fn find(bytes: &[u8], at: usize, classes: u8) -> usize {
    let rest = bytes.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| CLASSES[usize::from(*byte)] & classes != 0).unwrap_or(rest.len())
}

/// A place in a JSON text. Every function gives `None` where the text is no JSON; then nothing more is to be read.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    /// Whether nothing but white space is left.
    pub(super) fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    /// The next byte that is not white space.
    pub(super) fn peek(&mut self) -> Option<u8> {
        let bytes = self.text.as_bytes();
        loop {
            let byte = *bytes.get(self.at)?;
            if byte > b' ' {
                return Some(byte);
            }
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Reads an object; `field` is given each name, as it is spelt, and must read the value.
    pub(super) fn object(&mut self, mut field: impl FnMut(&'a str, &mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'{')?;
        loop {
            match self.peek()? {
                b'"' => {
                    let name = self.string()?;
                    self.expect(b':')?;
                    field(name, self)?;
                }
                b'}' => break,
                _ => return None,
            }
            self.comma(b'}')?;
        }
        self.expect(b'}')
    }

    /// Reads a list; `element` must read each value.
    pub(super) fn list(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.expect(b'[')?;
        while self.peek()? != b']' {
            element(self)?;
            self.comma(b']')?;
        }
        self.expect(b']')
    }

    /// Goes past a value that nobody wants.
    pub(super) fn skip(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        match self.peek()? {
            b'"' => return self.string().map(drop),
            b'{' | b'[' => {}
            _ => return self.plain().map(drop),
        }
        // Whether each open value is an object, the innermost as the lowest bit.
        let (mut objects, mut depth) = (0_u128, 0_usize);
        loop {
            self.at = find(bytes, self.at, QUOTE | BRACKET);
            match *bytes.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                byte @ (b'{' | b'[') => {
                    if depth == DEEPEST {
                        return None;
                    }
                    objects = (objects << 1) | u128::from(byte == b'{');
                    depth += 1;
                }
                byte => {
                    if (objects & 1 == 1) != (byte == b'}') {
                        return None;
                    }
                    objects >>= 1;
                    depth -= 1;
                }
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Reads any value, and gives its text.
    pub(super) fn value(&mut self) -> Option<&'a str> {
        self.peek()?;
        let start = self.at;
        // Whether each open value is an object, the innermost last.
        let mut open = [false; DEEPEST];
        let mut depth = 0;
        loop {
            match self.peek()? {
                b'"' => drop(self.string()?),
                byte @ (b'{' | b'[') => {
                    *open.get_mut(depth)? = byte == b'{';
                    self.at += 1;
                    if !self.closes(byte == b'{')? {
                        depth += 1;
                        continue;
                    }
                }
                _ => {
                    let text = self.plain()?;
                    let letters = text.bytes().any(|byte| byte.is_ascii_lowercase() && byte != b'e');
                    if letters && !matches!(text, "true" | "false" | "null") {
                        return None;
                    }
                }
            }
            // A value has ended, and with it perhaps what surrounds it.
            loop {
                if depth == 0 {
                    return self.text.get(start..self.at);
                }
                let object = open[depth - 1];
                match self.peek()? {
                    b',' => {
                        self.at += 1;
                        if object {
                            self.name()?;
                        }
                        break;
                    }
                    b'}' if object => {}
                    b']' if !object => {}
                    _ => return None,
                }
                self.at += 1;
                depth -= 1;
            }
        }
    }

    /// Reads any value; `None` inside for null.
    pub(super) fn value_or_null(&mut self) -> Option<Option<&'a str>> {
        self.value().map(|value| (value != "null").then_some(value))
    }

    /// Reads a number and gives it; whatever else comes is read and is none.
    pub(super) fn number<T: std::str::FromStr>(&mut self) -> Option<Option<T>> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.plain().map(|number| number.parse().ok()),
            _ => self.skip().map(|()| None),
        }
    }

    /// Reads a list of token ids; none if it is anything else.
    pub(super) fn ids(&mut self) -> Option<Option<Vec<u32>>> {
        if self.peek()? == b'['
            && let Some((ids, end)) = ids_at(self.text.as_bytes(), self.at + 1)
        {
            self.at = end;
            return Some(Some(ids));
        }
        self.value().map(|_| None)
    }

    /// Reads a string and gives what stands between its quotes, as it is spelt.
    fn string(&mut self) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let mut at = start;
        loop {
            at = find(bytes, at, QUOTE | ESCAPE | CONTROL);
            match *bytes.get(at)? {
                b'"' => break,
                b'\\' => {
                    at += match bytes.get(at + 1)? {
                        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => 2,
                        b'u' if bytes.get(at + 2..at + 6)?.iter().all(u8::is_ascii_hexdigit) => 6,
                        _ => return None,
                    };
                }
                _ => return None,
            }
        }
        self.at = at + 1;
        self.text.get(start..at)
    }

    /// Reads a number or a word.
    fn plain(&mut self) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        while bytes.get(self.at).is_some_and(|byte| CLASSES[usize::from(*byte)] & PLAIN != 0) {
            self.at += 1;
        }
        let text = self.text.get(start..self.at)?;
        match text.as_bytes().first()? {
            b'-' | b'0'..=b'9' => Some(text),
            _ => matches!(text, "true" | "false" | "null").then_some(text),
        }
    }

    /// Reads a field's name and colon.
    fn name(&mut self) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        self.string()?;
        self.expect(b':')
    }

    /// After an opening bracket: whether it closes at once; else an object's first name is read.
    fn closes(&mut self, object: bool) -> Option<bool> {
        let closes = self.peek()? == if object { b'}' } else { b']' };
        if closes {
            self.at += 1;
        } else if object {
            self.name()?;
        }
        Some(closes)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Reads a comma, unless the end comes.
    fn comma(&mut self, end: u8) -> Option<()> {
        match self.peek()? {
            b',' => {
                self.at += 1;
                Some(())
            }
            byte => (byte == end).then_some(()),
        }
    }
}

/// The ids from behind a list's opening bracket to its end, and where that is. `None` if there is anything else in it.
fn ids_at(bytes: &[u8], mut at: usize) -> Option<(Vec<u32>, usize)> {
    let past_space = |mut at: usize| {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = bytes.get(at) {
            at += 1;
        }
        at
    };
    let mut ids = Vec::new();
    loop {
        at = past_space(at);
        let first = at;
        let mut id = 0_u64;
        while let Some(byte) = bytes.get(at) {
            let digit = byte.wrapping_sub(b'0');
            if digit > 9 {
                break;
            }
            id = id.wrapping_mul(10).wrapping_add(u64::from(digit));
            at += 1;
        }
        if at == first {
            return (ids.is_empty() && bytes.get(at) == Some(&b']')).then_some((ids, at + 1));
        }
        // Ten digits hold every id, and can't overflow.
        if at - first > 10 {
            return None;
        }
        ids.push(u32::try_from(id).ok()?);
        at = past_space(at);
        match bytes.get(at)? {
            b',' => at += 1,
            b']' => return Some((ids, at + 1)),
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn ids(text: &str) -> Option<Option<Vec<u32>>> {
        let mut reader = Reader::new(text);
        let ids = reader.ids();
        assert!(ids.is_none() || reader.is_at_end(), "{text}");
        ids
    }

    #[test]
    fn ids_are_whole_numbers_that_fit() {
        assert_eq!(ids("[]"), Some(Some(vec![])));
        assert_eq!(ids("[ 1,2 ,\n4294967295 ]"), Some(Some(vec![1, 2, u32::MAX])));
        for none in
            ["[4294967296]", "[99999999999999999999999]", "[-1]", "[1.5]", "[\"1\"]", "[null]", "null", "{}", "[[1]]", "[1e3]"]
        {
            assert_eq!(ids(none), Some(None), "{none}");
        }
        for broken in ["[1", "[1 2]", "[1,]", "[,1]", "[1}", ""] {
            assert_eq!(ids(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_is_no_json_is_not_read() {
        for broken in [
            "",
            "{",
            "}",
            "[",
            "[1",
            "[1}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1]",
            "{1:2}",
            "\"a",
            "\"\\x\"",
            "\"\\u12g4\"",
            "\"\n\"",
            "tru",
            "nul",
            "1a",
            "[1 2]",
            "{\"a\":1 \"b\":2}",
            "{,}",
            "\\",
        ] {
            let mut reader = Reader::new(broken);
            assert!(reader.value().is_none() || !reader.is_at_end(), "{broken}");
        }
        assert!(Reader::new(&"[".repeat(100_000)).value().is_none());
        let deep = format!("{}{}", "[".repeat(DEEPEST), "]".repeat(DEEPEST));
        assert_eq!(Reader::new(&deep).value(), Some(&*deep));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[a-z\"\\\\\n{}\\[\\],:é😀]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::hash_map("[a\"\\\\é]{0,3}", inner, 0..4).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_is_read_to_its_end(value in value(), pretty in any::<bool>(), after in "[,}\\]]?[ ]?") {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let followed = format!(" {text}{after}");
            prop_assert_eq!(Reader::new(&followed).value(), Some(&*text));
        }

        #[test]
        fn fields_and_elements_are_serdes(values in proptest::collection::vec(value(), 0..5)) {
            let object: serde_json::Map<String, Value> = values.iter().enumerate().map(|(at, value)| (format!("f{at}"), value.clone())).collect();
            let text = serde_json::to_string(&object).unwrap();
            let mut read = serde_json::Map::new();
            let mut reader = Reader::new(&text);
            reader.object(|name, reader| {
                read.insert(name.to_owned(), serde_json::from_str(reader.value()?).ok()?);
                Some(())
            }).unwrap();
            prop_assert!(reader.is_at_end());
            prop_assert_eq!(read, object);
            let text = serde_json::to_string(&values).unwrap();
            let mut read = Vec::new();
            Reader::new(&text).list(|reader| {
                read.push(serde_json::from_str::<Value>(reader.value()?).ok()?);
                Some(())
            }).unwrap();
            prop_assert_eq!(read, values);
        }

        #[test]
        fn numbers_are_what_serde_reads(number in any::<f64>().prop_filter("JSON has no word for it", |number| number.is_finite())) {
            let text = serde_json::to_string(&number).unwrap();
            prop_assert_eq!(Reader::new(&text).number::<f64>(), Some(Some(number)));
        }

        #[test]
        fn what_serde_refuses_is_refused(text in "[\\[\\]{}\",:\\\\0-9a-e ]{0,40}") {
            let mut reader = Reader::new(&text);
            let read = reader.value().is_some() && reader.is_at_end();
            let known = serde_json::from_str::<Value>(&text).is_ok();
            // Numbers are looked at only when they are read.
            let sloppy = text.bytes().any(|byte| byte.is_ascii_digit());
            prop_assert!(read == known || (read && sloppy), "{text}");
        }
    }
}
