//! Base64 as clients write it, told apart so that the same text can be written again.

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};

/// How bytes were written. Text and bytes have each other in exactly one way in each form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base64Form {
    /// With `-` and `_` in place of `+` and `/`.
    url_safe: bool,
    padded: bool,
    /// In a JSON string, each `/` written as `\/`.
    escaped: bool,
}

impl Base64Form {
    /// Reads the inside of a JSON string. `None` if it is not base64 from end to end, in one form.
    #[must_use]
    pub fn read(text: &[u8]) -> Option<(Self, Vec<u8>)> {
        let escaped = memchr::memchr(b'\\', text).is_some();
        let unescaped;
        let plain = if escaped {
            unescaped = unescape(text)?;
            &unescaped
        } else {
            text
        };
        let url_safe = memchr::memchr2(b'-', b'_', plain).is_some();
        let padded = plain.len().is_multiple_of(4);
        let form = Self { url_safe, padded, escaped };
        form.engine().decode(plain).ok().map(|bytes| (form, bytes))
    }

    /// Writes bytes as they were read.
    pub fn write(self, bytes: &[u8], out: &mut Vec<u8>) {
        let text = self.engine().encode(bytes);
        if !self.escaped {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        for byte in text.bytes() {
            if byte == b'/' {
                out.push(b'\\');
            }
            out.push(byte);
        }
    }

    /// The form as one byte.
    #[must_use]
    pub fn code(self) -> u8 {
        u8::from(self.url_safe) | u8::from(self.padded) << 1 | u8::from(self.escaped) << 2
    }

    /// The form of this code.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        (code < 8).then_some(Self { url_safe: code & 1 != 0, padded: code & 2 != 0, escaped: code & 4 != 0 })
    }

    fn engine(self) -> &'static GeneralPurpose {
        match (self.url_safe, self.padded) {
            (false, true) => &STANDARD,
            (false, false) => &STANDARD_NO_PAD,
            (true, true) => &URL_SAFE,
            (true, false) => &URL_SAFE_NO_PAD,
        }
    }
}

/// Takes the backslashes out; `None` if they are not exactly those before each slash.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    let mut escaped = false;
    for &byte in text {
        match (escaped, byte) {
            (false, b'\\') => escaped = true,
            (true, b'/') => {
                plain.push(byte);
                escaped = false;
            }
            (true, _) | (false, b'/') => return None,
            (false, byte) => plain.push(byte),
        }
    }
    (!escaped).then_some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn forms_are_told_apart() {
        for (text, read) in [
            ("+/8=", Some((0b010, vec![0xfb, 0xff]))),
            ("+/8", Some((0b000, vec![0xfb, 0xff]))),
            ("-_8=", Some((0b011, vec![0xfb, 0xff]))),
            ("-_8", Some((0b001, vec![0xfb, 0xff]))),
            (r"+\/8=", Some((0b110, vec![0xfb, 0xff]))),
            ("", Some((0b010, vec![]))),
            // Bits that nobody reads are set, two alphabets, line breaks, one escape of two.
            ("+/9=", None),
            ("+_8=", None),
            (r"+/8=\n", None),
            (r"\//8=", None),
            ("a", None),
            ("=", None),
        ] {
            let got = Base64Form::read(text.as_bytes()).map(|(form, bytes)| (form.code(), bytes));
            assert_eq!(got, read, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_again(text in "[A-Za-z0-9+/=_-]{0,40}|([A-Za-z0-9+]|\\\\/){0,40}={0,2}") {
            if let Some((form, bytes)) = Base64Form::read(text.as_bytes()) {
                let mut again = Vec::new();
                Base64Form::of_code(form.code()).unwrap().write(&bytes, &mut again);
                prop_assert_eq!(String::from_utf8(again).unwrap(), text);
            }
        }
    }
}
