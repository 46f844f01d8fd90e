//! What the commands print: aligned tables, a little colour, and text of models and harnesses made harmless.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

/// Colours text, where standard output is a terminal and `NO_COLOR` is not set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Paint(bool);

impl Paint {
    /// Looks at standard output and the environment.
    pub(super) fn of_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self(io::stdout().is_terminal() && !refused)
    }

    /// No colour.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self(false)
    }

    /// Colour, wherever it goes.
    #[cfg(test)]
    pub(super) fn always() -> Self {
        Self(true)
    }

    pub(super) fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(super) fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub(super) fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    /// Whether there is any colour.
    pub(super) fn is_on(self) -> bool {
        self.0
    }

    /// Text that has this probability, from 0 to 1: green where it was likely, through yellow to red where it was not.
    pub(super) fn shade(self, text: &str, probability: f64) -> String {
        let code = match probability {
            p if p >= 0.9 => "38;5;28",
            p if p >= 0.5 => "38;5;71",
            p if p >= 0.2 => "38;5;143",
            p if p >= 0.05 => "38;5;172",
            _ => "38;5;160",
        };
        self.wrap(code, text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Writes text to standard output. A reader that went away (`| head`) is no error.
pub(super) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Shows text that a model or harness wrote: its lines stay, other control characters are spelt out, so that it can't steer
/// the terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() && c != '\n' && c != '\t' {
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
        out
    })
}

/// Writes rows under a head, each column as wide as its widest cell, two spaces between.
pub(super) fn table(head: &[&str], rows: &[Vec<String>], paint: Paint) -> String {
    let widths: Vec<usize> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.max().unwrap_or(0).max(head[column].chars().count())
        })
        .collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut out = paint.bold(&line(&mut head.iter().copied()));
    out.push('\n');
    for row in rows {
        out.push_str(&line(&mut row.iter().map(String::as_str)));
        out.push('\n');
    }
    out
}

/// A number of things: `1 call`, `2 calls`.
pub(super) fn counted(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// Writes a span of milliseconds for people.
pub(super) fn duration(ms: i64) -> String {
    let ms = ms.max(0);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        60_000..3_600_000 => format!("{} min {:02} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {:02} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".to_owned(), "é".to_owned(), "x".to_owned()], vec!["bcd".to_owned(), "é".to_owned(), String::new()]];
        assert_eq!(table(&["id", "n", "m"], &rows, Paint::none()), "id   n  m\na    é  x\nbcd  é\n");
    }

    #[test]
    fn text_can_not_steer_the_terminal() {
        assert_eq!(harmless("a\tb\n\x1b[31mred\u{7}\u{9b}é"), "a\tb\n\\u{1b}[31mred\\u{7}\\u{9b}é");
    }

    #[test]
    fn colour_is_on_or_off() {
        assert_eq!((Paint::none().green("x"), Paint::always().green("x")), ("x".to_owned(), "\x1b[32mx\x1b[0m".to_owned()));
    }

    #[test]
    fn durations_are_readable() {
        let texts = [-5, 7, 1_250, 61_000, 7_260_000].map(duration);
        assert_eq!(texts, ["0 ms", "7 ms", "1.2 s", "1 min 01 s", "2 h 01 min"]);
    }
}
