//! Where requests are posted.

/// Where a request was posted, below the base URL: some wires say there what others say in the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Without a wire's base: `/chat/completions`.
    pub path: &'a str,
    /// What follows the question mark; empty if there is none.
    pub query: &'a str,
}

impl<'a> Target<'a> {
    /// Takes a path and its query apart.
    #[must_use]
    pub fn read(target: &'a str) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        Self { path, query }
    }

    /// A field of the query as it stands there, undecoded.
    #[must_use]
    pub fn field(self, name: &str) -> Option<&'a str> {
        self.query.split('&').filter_map(|pair| pair.split_once('=')).find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// Undoes percent-encoding; what is none stays as it is. The bytes need not be text.
#[must_use]
pub fn percent_decoded(path: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        out.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_path_and_the_fields_of_its_query() {
        let target = Target::read("/models/m:streamGenerateContent?alt=sse&x");
        assert_eq!(target, Target { path: "/models/m:streamGenerateContent", query: "alt=sse&x" });
        assert_eq!((target.field("alt"), target.field("x"), target.field("al")), (Some("sse"), None, None));
        assert_eq!(Target::read("/responses"), Target { path: "/responses", query: "" });
    }

    #[test]
    fn only_whole_escapes_are_undone() {
        for (path, plain) in
            [("a%2Fb%c3%A9", &b"a/b\xc3\xa9"[..]), ("%ff%", b"\xff%"), ("%+f%4", b"%+f%4"), ("%%41%zz", b"%A%zz")]
        {
            assert_eq!(percent_decoded(path), plain, "{path}");
        }
    }
}
