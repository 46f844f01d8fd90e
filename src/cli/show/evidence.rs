//! Why a rollout ended as it did, and what it left, in words.

use std::fmt::Write as _;

use serde_json::{Map, Value};

use super::super::terminal::{Paint, duration, harmless, table};
use crate::store::{Artifact, Rollout};

/// The evidence, most telling first. What is not known here is shown as it is.
pub(super) fn rendered(rollout: &Rollout, paint: Paint) -> String {
    let Some(Value::Object(evidence)) = &rollout.evidence else { return String::new() };
    let mut left = evidence.clone();
    let mut take = |name: &str| left.remove(name).filter(|value| !value.is_null());
    let told: Vec<(&str, String)> = [
        ("error", take("error").map(|value| plain(&value))),
        ("exit", take("exit").map(|value| exit(&value))),
        ("memory", take("out_of_memory").filter(|out| *out == Value::Bool(true)).map(|_| "ran out".to_owned())),
        ("says", means(take("means"), take("detail").as_ref())),
        ("result", take("result").map(|value| plain(&value))),
        ("verify", take("verify").map(|value| verify(&value))),
        ("last", take("last_lines").map(|value| plain(&value))),
        ("harness", version(take("harness_version"), take("variant"), take("wire"))),
        ("image", image(take("image"), take("image_id"))),
        ("time", take("timeout_s").map(|seconds| format!("{seconds} s at most"))),
    ]
    .into_iter()
    .filter_map(|(name, told)| Some((name, told.filter(|told| !told.is_empty())?)))
    .collect();
    // The files themselves are listed below.
    left.remove("artifacts");
    let mut out = format!("\n{}\n", paint.bold("evidence"));
    for (name, told) in told {
        write(&mut out, name, &told);
    }
    for (name, value) in left.iter().filter(|(_, value)| !value.is_null()) {
        write(&mut out, name, &plain(value));
    }
    out
}

/// The files that its run left.
pub(super) fn artifacts(artifacts: &[Artifact], folder: &std::path::Path, paint: Paint) -> String {
    if artifacts.is_empty() {
        return String::new();
    }
    let row = |artifact: &Artifact| vec![harmless(&artifact.name).replace('\n', "\\n"), artifact.bytes.to_string()];
    let rows = table(&["artifact", "bytes"], &artifacts.iter().map(row).collect::<Vec<_>>(), paint);
    format!("\n{rows}in {}; --artifact NAME prints one\n", folder.display())
}

/// A fact beside its name, or below it if it has several lines.
fn write(out: &mut String, name: &str, told: &str) {
    let told = harmless(told);
    // Writing to a string can't fail.
    let _ = if told.contains('\n') {
        writeln!(out, "  {name}\n    {}", told.trim_end().replace('\n', "\n    "))
    } else {
        writeln!(out, "  {name:<9} {told}")
    };
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// `exit code 1 after 3.2 s, at its deadline`.
fn exit(exit: &Value) -> String {
    let how = match (exit["signal"].as_i64(), exit["code"].as_i64()) {
        (Some(signal), _) => format!("ended by signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => return exit.to_string(),
    };
    let after = exit["ms"].as_i64().map(|ms| format!(" after {}", duration(ms))).unwrap_or_default();
    let bound = match exit["capped"].as_str() {
        Some(cap) => format!(", at its cap of {cap}"),
        None if exit["timed_out"] == true => ", at its deadline".to_owned(),
        None => String::new(),
    };
    format!("{how}{after}{bound}")
}

/// What the harness's result means, and what stands there.
fn means(means: Option<Value>, detail: Option<&Value>) -> Option<String> {
    let means = plain(&means?).replace('_', " ");
    let detail = detail.and_then(Value::as_object).map(pairs).unwrap_or_default();
    Some(if detail.is_empty() { means } else { format!("{means} ({detail})") })
}

fn pairs(fields: &Map<String, Value>) -> String {
    fields.iter().map(|(name, value)| format!("{name} = {}", plain(value))).collect::<Vec<_>>().join(", ")
}

/// `exit code 1` and what it printed last, then whatever else there is.
fn verify(verify: &Value) -> String {
    let Some(fields) = verify.as_object() else { return plain(verify) };
    let mut left = fields.clone();
    let code = left.remove("exit_code").map(|code| format!("exit code {code}")).unwrap_or_default();
    let late = if left.remove("timed_out") == Some(Value::Bool(true)) { ", past its time" } else { "" };
    let printed = left.remove("output").map(|output| plain(&output)).unwrap_or_default();
    left.retain(|_, value| !value.is_null());
    let rest = if left.is_empty() { String::new() } else { format!(" ({})", pairs(&left)) };
    let all = format!("{code}{late}{rest}\n{printed}");
    all.trim().to_owned()
}

fn version(version: Option<Value>, variant: Option<Value>, wire: Option<Value>) -> Option<String> {
    let variant = variant.map(|variant| format!(", variant {}", plain(&variant))).unwrap_or_default();
    let wire = wire.map(|wire| format!(", wire {}", plain(&wire))).unwrap_or_default();
    Some(format!("version {}{variant}{wire}", plain(&version?)))
}

fn image(name: Option<Value>, id: Option<Value>) -> Option<String> {
    let id = id.map(|id| format!(" ({})", plain(&id))).unwrap_or_default();
    Some(format!("{}{id}", plain(&name?)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn exits_are_told_by_what_ended_them() {
        for (value, told) in [
            (json!({"code": 1, "signal": null, "timed_out": false, "ms": 3_200}), "exit code 1 after 3.2 s"),
            (
                json!({"code": null, "signal": 9, "timed_out": true, "ms": 3_200}),
                "ended by signal 9 after 3.2 s, at its deadline",
            ),
            (
                json!({"code": null, "signal": 15, "timed_out": false, "capped": "calls"}),
                "ended by signal 15, at its cap of calls",
            ),
        ] {
            assert_eq!(exit(&value), told);
        }
    }

    #[test]
    fn what_a_verifier_printed_stands_below() {
        let value = json!({"exit_code": 2, "timed_out": false, "output": "one\ntwo", "applied": true});
        assert_eq!(verify(&value), "exit code 2 (applied = true)\none\ntwo");
        assert_eq!(verify(&json!({"exit_code": 137, "timed_out": true, "output": ""})), "exit code 137, past its time");
    }

    #[test]
    fn lines_of_text_are_indented_and_steer_no_terminal() {
        let mut out = String::new();
        write(&mut out, "last", "a\u{1b}[2J\nb\n");
        write(&mut out, "result", "none");
        assert_eq!(out, "  last\n    a\\u{1b}[2J\n    b\n  result    none\n");
    }
}
