//! Keeps the layers: no import runs upwards or between siblings, and every outside crate has one home.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_push_string, clippy::format_collect, reason = "tests")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The modules from the lowest up; those of one row don't see each other.
const LAYERS: [&[&str]; 11] = [
    &["ids", "telemetry"],
    &["call"],
    &["wire", "trajectory"],
    &["policy", "store", "engine"],
    &["record"],
    &["export", "harness"],
    &["proxy"],
    &["http"],
    &["config"],
    &["cli"],
    &["main", "lib"],
];

/// Outside crates with one home. What is not named (serde, bytes, http, futures, tokio, tracing, thiserror ...) is vocabulary.
const HOMES: [(&str, &[&str]); 23] = [
    ("axum", &["http"]),
    ("hyper", &["http"]),
    ("hyper_util", &["http"]),
    ("tower", &["http"]),
    // Policies are asked by it, and a running server by our own commands.
    ("reqwest", &["policy", "cli"]),
    ("sqlx", &["store"]),
    ("rusqlite", &["store"]),
    ("zstd_safe", &["store"]),
    ("crc32fast", &["store"]),
    ("rustix", &["store"]),
    // Images are told by their bytes; what must come back is sealed in it.
    ("base64", &["call", "wire"]),
    ("sha2", &["call", "policy", "harness"]),
    ("bollard", &["engine"]),
    ("clap", &["cli"]),
    ("indicatif", &["cli"]),
    ("minijinja", &["harness", "policy"]),
    ("minijinja_contrib", &["policy"]),
    ("include_dir", &["harness"]),
    ("llm_tokenizer", &["policy"]),
    ("tokenizers", &["policy"]),
    ("tool_parser", &["policy"]),
    ("reasoning_parser", &["policy"]),
    ("parquet", &["export"]),
];

/// zstd is the store's; the server undoes a request's content coding with it too.
const ZSTD: &[&str] = &["store", "http"];

/// Pure modules know no clock, no async, no random ids.
const PURE: [&str; 3] = ["call", "wire", "trajectory"];
const IMPURE: [&str; 5] = ["tokio", "tokio_util", "async_trait", "SystemTime", "Instant::now"];

#[test]
fn no_import_runs_upwards_or_between_siblings() {
    let mut faults = String::new();
    for file in sources() {
        for (line, path) in file.paths() {
            let segments: Vec<&str> = path.split("::").collect();
            let target = match segments[0] {
                "crate" | "gleaner" => segments.get(1).copied(),
                "super" => file.climb(&segments),
                _ => None,
            };
            let Some(target) = target.filter(|target| *target != file.module) else { continue };
            let (Some(from), Some(to)) = (layer(&file.module), layer(target)) else { continue };
            if to >= from {
                writeln!(faults, "{}:{line}: {} may not know {target} ({path})", file.path.display(), file.module).unwrap();
            }
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn every_outside_crate_stays_at_home() {
    let mut faults = String::new();
    for file in sources() {
        for (line, path) in file.paths() {
            let first = path.split("::").next().unwrap_or_default();
            let homes =
                if first == "zstd" { Some(ZSTD) } else { HOMES.iter().find(|(name, _)| *name == first).map(|(_, homes)| *homes) };
            if homes.is_some_and(|homes| !homes.contains(&file.module.as_str())) {
                writeln!(faults, "{}:{line}: {first} is at home in {homes:?} only ({path})", file.path.display()).unwrap();
            }
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn pure_modules_stay_pure() {
    let mut faults = String::new();
    for file in sources().into_iter().filter(|file| PURE.contains(&file.module.as_str())) {
        for (line, path) in file.paths() {
            if IMPURE.iter().any(|name| path.starts_with(name) || path.ends_with(name) || path.contains(&format!("::{name}"))) {
                writeln!(faults, "{}:{line}: {} is pure and may not use {path}", file.path.display(), file.module).unwrap();
            }
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

#[test]
fn every_module_has_its_layer_and_no_file_is_too_long() {
    let mut faults = String::new();
    for file in sources() {
        if layer(&file.module).is_none() {
            writeln!(faults, "{}: {} has no layer: give it one here and in ARCHITECTURE.md", file.path.display(), file.module)
                .unwrap();
        }
        let name = file.path.file_stem().unwrap().to_string_lossy().into_owned();
        if ["utils", "util", "helpers", "common", "types", "misc"].contains(&name.as_str()) {
            writeln!(faults, "{}: split by idea, not into {name}", file.path.display()).unwrap();
        }
        if file.lines > 500 {
            writeln!(faults, "{}: {} lines, the bound is 500", file.path.display(), file.lines).unwrap();
        }
    }
    assert!(faults.is_empty(), "\n{faults}");
}

/// The scanner must find what it is there for: each of these breaks a rule.
#[test]
fn the_scanner_sees_every_form() {
    let source = "use crate::{call::Call, http::api};\nfn f() { crate::cli::main(); let _ = axum::Router::new(); }\n\
                  // crate::main is only named here\nuse super::super::proxy::App;\nuse std::{fs, sync::{Arc, Mutex}};\n";
    let file = Source::parse(PathBuf::from("src/policy/stub.rs"), source);
    let paths: BTreeSet<String> = file.paths().into_iter().map(|(_, path)| path).collect();
    for path in ["crate::call::Call", "crate::http::api", "crate::cli::main", "axum::Router::new", "std::sync::Mutex"] {
        assert!(paths.contains(path), "{path} is not in {paths:?}");
    }
    assert!(!paths.iter().any(|path| path.contains("main is")));
    assert_eq!(file.climb(&["super", "super", "proxy", "App"]), Some("proxy"));
    assert_eq!(file.climb(&["super", "config"]), Some("policy"));
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

/// One source file, without its comments and strings, and without its own tests.
struct Source {
    path: PathBuf,
    /// Its module directly below the crate.
    module: String,
    /// The modules from the crate down to this file, itself included.
    place: Vec<String>,
    lines: usize,
    code: String,
}

fn sources() -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // The container's helper is a program of its own.
                if !path.ends_with("src/harness/init") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                found.push(Source::parse(path.strip_prefix(root).unwrap().to_owned(), &text));
            }
        }
    }
    assert!(found.len() > 20, "the sources are not where they should be");
    found
}

impl Source {
    fn parse(path: PathBuf, text: &str) -> Self {
        let mut place: Vec<String> =
            path.components().skip(1).map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        let last = place.pop().unwrap();
        let stem = last.trim_end_matches(".rs");
        if stem != "mod" {
            place.push(stem.to_owned());
        }
        Self { module: place[0].clone(), place, lines: text.lines().count(), code: bare(text), path }
    }

    /// All paths with their lines, lists in braces written out.
    fn paths(&self) -> Vec<(usize, String)> {
        let mut found = Vec::new();
        let bytes = self.code.as_bytes();
        let (mut at, mut line) = (0, 1);
        while at < bytes.len() {
            let rest = &self.code[at..];
            let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            if word == 0 {
                line += usize::from(bytes[at] == b'\n');
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
            let starts_path = rest[word..].starts_with("::") && !self.code[..at].ends_with("::");
            let length = if starts_path { expand(rest, "", &mut |path| found.push((line, path))) } else { word };
            line += rest[..length].matches('\n').count();
            at += length;
        }
        found
    }

    /// The top module that a path of `super`s leads to.
    fn climb(&self, segments: &[&str]) -> Option<&str> {
        let ups = segments.iter().take_while(|segment| **segment == "super").count();
        match self.place.len().checked_sub(ups)? {
            0 => LAYERS.iter().flat_map(|row| row.iter()).copied().find(|name| Some(name) == segments.get(ups).as_ref().copied()),
            _ => Some(&self.module),
        }
    }
}

/// Reads one path, gives every path that it stands for, and says how long it is in the source.
fn expand(text: &str, prefix: &str, give: &mut impl FnMut(String)) -> usize {
    let mut at = 0;
    let mut path = prefix.to_owned();
    loop {
        let rest = &text[at..];
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '*').unwrap_or(rest.len());
        path.push_str(&rest[..word]);
        at += word;
        if !text[at..].starts_with("::") {
            give(path);
            return at;
        }
        at += 2;
        path.push_str("::");
        if text[at..].starts_with('{') {
            at += 1;
            loop {
                at += text[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(text.len() - at);
                if text[at..].starts_with('}') || at >= text.len() {
                    return (at + 1).min(text.len());
                }
                let length = expand(&text[at..], &path, give);
                at += length.max(1);
                // `as name` does not change what is imported.
                at += text[at..].find([',', '}', '{']).unwrap_or(text.len() - at);
            }
        }
        if text[at..].starts_with('<') {
            give(path.trim_end_matches(':').to_owned());
            return at;
        }
    }
}

/// The code without comments, strings and the tests at the file's end; line breaks stay.
fn bare(text: &str) -> String {
    let text = text.find("#[cfg(test)]\nmod ").map_or(text, |at| &text[..at]);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skip = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |at| at + 2)
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |at| at + 5)
        } else if rest.starts_with("'\"'") || rest.starts_with("b'\"'") {
            rest.find("\"'").unwrap_or(0) + 2
        } else if next == '"' {
            string_length(rest)
        } else {
            out.push(next);
            rest = &rest[next.len_utf8()..];
            continue;
        };
        out.extend(rest[..skip].chars().filter(|c| *c == '\n'));
        rest = &rest[skip..];
    }
    out
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}
