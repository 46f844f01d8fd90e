//! What a check prints.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use super::judge::Verdict;
use crate::cli::list::name_of;
use crate::cli::terminal::{Paint, harmless, table};
use crate::harness::Report;

/// A harness that was checked.
pub(super) struct Checked {
    /// `HARNESS[:VARIANT] on WIRE`.
    pub label: String,
    /// The harness's own version.
    pub version: String,
    /// Of its run, if there was one.
    pub report: Option<Report>,
    pub verdict: Verdict,
}

impl Checked {
    fn harness_and_wire(&self) -> (&str, &str) {
        self.label.split_once(" on ").unwrap_or((&self.label, "-"))
    }
}

/// One JSON object; `kept` is the folder of what is left.
pub(super) fn json(checked: &[Checked], kept: Option<&Path>) -> String {
    let one = |checked: &Checked| {
        let (harness, wire) = checked.harness_and_wire();
        let (report, verdict) = (checked.report.as_ref(), &checked.verdict);
        json!({
            "harness": harness, "version": checked.version, "wire": wire, "calls": verdict.calls, "samples": verdict.samples,
            "ms": report.map(|report| report.ms), "ok": verdict.faults.is_empty(), "faults": verdict.faults,
            "notes": verdict.notes, "rollout": report.map(|report| report.id.to_string()),
            "outcome": report.map(|report| name_of(&report.outcome)),
            "artifacts": kept.and(report).map(|report| &report.artifacts),
        })
    };
    format!("{}\n", json!({"checks": checked.iter().map(one).collect::<Vec<_>>(), "kept": kept}))
}

/// A table, and below it what is wrong with which, what is worth knowing, and where to look.
pub(super) fn text(checked: &[Checked], kept: Option<&Path>, paint: Paint) -> String {
    let row = |checked: &Checked| {
        let (harness, wire) = checked.harness_and_wire();
        let verdict = &checked.verdict;
        let seconds =
            checked.report.as_ref().map_or("-".to_owned(), |report| format!("{}.{}", report.ms / 1000, report.ms % 1000 / 100));
        let result = if verdict.faults.is_empty() { "ok" } else { "wrong" };
        let (calls, samples) = (verdict.calls.to_string(), verdict.samples.to_string());
        [harness, &checked.version, wire, &calls, &samples, &seconds, result].map(str::to_owned).to_vec()
    };
    let head = ["harness", "version", "wire", "calls", "samples", "seconds", "result"];
    let mut out = table(&head, &checked.iter().map(row).collect::<Vec<_>>(), paint);
    for checked in checked {
        for fault in &checked.verdict.faults {
            let _ = write!(out, "\n{}: {}\n", checked.label, harmless(fault));
        }
        if let (Some(report), Some(folder), false) = (&checked.report, kept, checked.verdict.faults.is_empty()) {
            let (artifacts, database) = (report.artifacts.display(), folder.join("gleaner.db"));
            let show = format!("gleaner show {} --database {}", report.id, database.display());
            let _ = writeln!(out, "  what it printed is in {artifacts}; its calls: {show}");
        }
    }
    // What is so of many is said once.
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for (note, label) in
        checked.iter().flat_map(|checked| checked.verdict.notes.iter().map(|note| (note, checked.label.as_str())))
    {
        match notes.iter_mut().find(|(said, _)| *said == note.as_str()) {
            Some((_, labels)) => labels.push(label),
            None => notes.push((note.as_str(), vec![label])),
        }
    }
    for (note, labels) in notes {
        let _ = write!(out, "\n{}\n", paint.dim(&format!("{}: {}", labels.join(", "), harmless(note))));
    }
    if let Some(folder) = kept {
        let _ = write!(out, "\nthe store and what the harnesses printed are in {}\n", folder.display());
    }
    out
}
