//! JSON as a JavaScript or Python client reads it: strings are UTF-16, so that half a character is a value like any other and
//! halves that came apart join. Shares no code with what is tested.

/// One value.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    /// As it is written.
    Number(String),
    String(Units),
    List(Vec<Json>),
    Object(Vec<(Units, Json)>),
}

/// A string's UTF-16.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Units(pub Vec<u16>);

impl std::fmt::Debug for Units {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf16_lossy(&self.0))
    }
}

impl From<&str> for Units {
    fn from(text: &str) -> Self {
        Self(text.encode_utf16().collect())
    }
}

impl Units {
    pub fn push(&mut self, more: &Self) {
        self.0.extend_from_slice(&more.0);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The text, half characters as U+FFFD.
    pub fn lossy(&self) -> String {
        String::from_utf16_lossy(&self.0)
    }
}

/// What a missing field is.
static NULL: Json = Json::Null;

impl Json {
    /// The field of this name; null if there is none.
    pub fn get(&self, name: &str) -> &Json {
        let Json::Object(fields) = self else { return &NULL };
        let name = Units::from(name);
        fields.iter().find(|(known, _)| *known == name).map_or(&NULL, |(_, value)| value)
    }

    /// The value at the end of these names.
    pub fn at(&self, names: &[&str]) -> &Json {
        names.iter().fold(self, |value, name| value.get(name))
    }

    pub fn has(&self, name: &str) -> bool {
        matches!(self, Json::Object(fields) if fields.iter().any(|(known, _)| *known == Units::from(name)))
    }

    pub fn items(&self) -> &[Json] {
        if let Json::List(items) = self { items } else { &[] }
    }

    /// A string; nothing for null.
    pub fn text(&self) -> Units {
        match self {
            Json::String(text) => text.clone(),
            Json::Null => Units::default(),
            other => panic!("not a string: {other:?}"),
        }
    }

    pub fn plain(&self) -> String {
        self.text().lossy()
    }

    pub fn number(&self) -> Option<u64> {
        match self {
            Json::Number(number) => Some(number.parse().unwrap_or_else(|_| panic!("not a count: {number}"))),
            Json::Null => None,
            other => panic!("not a number: {other:?}"),
        }
    }
}

/// Reads a whole document.
pub fn read(bytes: &[u8]) -> Result<Json, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let mut reader = Reader { text, at: 0 };
    let value = reader.value(0)?;
    reader.space();
    if reader.at == text.len() { Ok(value) } else { Err(reader.wrong("nothing more")) }
}

/// Reads what one of ours wrote, where no name comes twice.
pub fn ours(bytes: &[u8]) -> Json {
    let value = read(bytes).unwrap_or_else(|error| panic!("{error} in {}", String::from_utf8_lossy(bytes)));
    if let Some(name) = twice(&value) {
        panic!("the name {name:?} comes twice in {}", String::from_utf8_lossy(bytes));
    }
    value
}

/// A name that comes twice in an object; what a model wrote (a tool's input, arguments) may be as it likes.
fn twice(value: &Json) -> Option<&Units> {
    match value {
        Json::List(items) => items.iter().find_map(twice),
        Json::Object(fields) => {
            let mut known = std::collections::HashSet::new();
            let own = |name: &Units| ["input", "args"].into_iter().any(|own| *name == Units::from(own));
            fields.iter().find_map(|(name, value)| match known.insert(name) {
                false => Some(name),
                true if own(name) => None,
                true => twice(value),
            })
        }
        _ => None,
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn wrong(&self, wanted: &str) -> String {
        format!("expected {wanted} at byte {}", self.at)
    }

    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    fn eat(&mut self, word: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > 4000 {
            return Err(self.wrong("less depth"));
        }
        self.space();
        match self.peek() {
            b'n' if self.eat("null") => Ok(Json::Null),
            b't' if self.eat("true") => Ok(Json::Bool(true)),
            b'f' if self.eat("false") => Ok(Json::Bool(false)),
            b'"' => self.string().map(Json::String),
            b'[' => self.list(depth),
            b'{' => self.object(depth),
            b'-' | b'0'..=b'9' => self.number(),
            _ => Err(self.wrong("a value")),
        }
    }

    fn list(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.eat("]") {
            return Ok(Json::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat("]") {
                return Ok(Json::List(items));
            }
            if !self.eat(",") {
                return Err(self.wrong("a comma or the list's end"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut fields = Vec::new();
        self.space();
        if self.eat("}") {
            return Ok(Json::Object(fields));
        }
        loop {
            self.space();
            if self.peek() != b'"' {
                return Err(self.wrong("a name"));
            }
            let name = self.string()?;
            self.space();
            if !self.eat(":") {
                return Err(self.wrong("a colon"));
            }
            fields.push((name, self.value(depth + 1)?));
            self.space();
            if self.eat("}") {
                return Ok(Json::Object(fields));
            }
            if !self.eat(",") {
                return Err(self.wrong("a comma or the object's end"));
            }
        }
    }

    fn number(&mut self) -> Result<Json, String> {
        let start = self.at;
        self.eat("-");
        if !self.eat("0") {
            self.digits()?;
        }
        if self.eat(".") {
            self.digits()?;
        }
        if self.eat("e") || self.eat("E") {
            let _ = self.eat("+") || self.eat("-");
            self.digits()?;
        }
        Ok(Json::Number(self.text[start..self.at].to_owned()))
    }

    fn digits(&mut self) -> Result<(), String> {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == start { Err(self.wrong("a digit")) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<Units, String> {
        self.at += 1;
        let mut units = Vec::new();
        loop {
            let Some(c) = self.text[self.at..].chars().next() else { return Err(self.wrong("the string's end")) };
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(Units(units)),
                '\\' => units.push(self.escape()?),
                c if c < ' ' => return Err(self.wrong("no control character")),
                c => units.extend_from_slice(c.encode_utf16(&mut [0; 2])),
            }
        }
    }

    fn escape(&mut self) -> Result<u16, String> {
        let escape = self.peek();
        self.at += 1;
        Ok(match escape {
            b'"' | b'\\' | b'/' => u16::from(escape),
            b'b' => 8,
            b'f' => 12,
            b'n' => 10,
            b'r' => 13,
            b't' => 9,
            b'u' => {
                let hex = self.text.get(self.at..self.at + 4).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
                let unit = hex.and_then(|hex| u16::from_str_radix(hex, 16).ok()).ok_or_else(|| self.wrong("four hex digits"))?;
                self.at += 4;
                unit
            }
            _ => return Err(self.wrong("an escape")),
        })
    }
}
