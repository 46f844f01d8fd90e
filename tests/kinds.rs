//! `tests/kinds.md` lists kinds of faults with the tests that hold them off; what it names must be there.

#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::HashSet;
use std::path::Path;

/// The functions of all Rust files below `folder`, and the golden cases.
fn names(folder: &Path, found: &mut HashSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let ending = entry.extension().and_then(|ending| ending.to_str());
        match ending {
            None if entry.is_dir() => names(&entry, found),
            Some("json") => _ = found.insert(entry.file_stem().unwrap().to_str().unwrap().to_owned()),
            Some("rs") => {
                let text = std::fs::read_to_string(&entry).unwrap();
                let functions = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
                found.extend(functions.map(str::to_owned));
            }
            _ => {}
        }
    }
}

#[test]
fn every_kind_has_the_tests_that_it_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = HashSet::new();
    for folder in ["src", "tests"] {
        names(&root.join(folder), &mut found);
    }
    let text = std::fs::read_to_string(root.join("tests/kinds.md")).unwrap();
    let kinds = text.split("## What does not apply").next().unwrap();
    let rows: Vec<&str> = kinds.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| kind")).collect();
    assert!(rows.len() > 70, "{} kinds: the table is not read as it is written", rows.len());
    for row in rows {
        let tests: Vec<&str> = row.rsplit('|').nth(1).unwrap().split('`').skip(1).step_by(2).collect();
        assert!(!tests.is_empty(), "no test in {row}");
        for test in tests {
            assert!(found.contains(test), "there is no {test}, named in {row}");
        }
    }
}
