//! Reads rewards out of what a verifier wrote.

use std::collections::BTreeMap;

use serde_json::Value;

use super::run::Rewards;
use crate::store::Rollout;

/// Of a reward file no more is read; nobody's rewards are longer.
pub(super) const LIMIT: usize = 1 << 20;

/// No verifier has more to say; each is kept with its rollout, and comes with every list of rollouts.
const NAMES: usize = 100;
/// The longest name of one, in bytes.
const NAME: usize = 200;

/// The rewards that a file holds: a number, as text or JSON, or a JSON object of numbers by name. Of an object the reward that counts
/// is the one named `reward`; without it the only one, else the mean of all.
///
/// # Errors
/// Says what is wrong with it. Numbers that are none (NaN) or have no end can't be rewards.
pub(super) fn parse(content: &[u8]) -> Result<Rewards, String> {
    if content.len() > LIMIT {
        return Err(format!("it has more than {LIMIT} bytes"));
    }
    let text = std::str::from_utf8(content).map_err(|_| "it is no text".to_owned())?.trim();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    if let Ok(number) = text.parse::<f64>() {
        return finite(number).map(Rewards::of);
    }
    match serde_json::from_str(text).map_err(|error| format!("it is neither a number nor JSON: {error}"))? {
        Value::Object(fields) if fields.len() > NAMES => Err(format!("it names {} rewards, more than {NAMES}", fields.len())),
        Value::Object(fields) => {
            if let Some(name) = fields.keys().find(|name| name.len() > NAME) {
                return Err(format!("it names a reward in {} bytes, more than {NAME}", name.len()));
            }
            let named =
                fields.iter().map(|(name, value)| Ok((name.clone(), number(value).map_err(|why| format!("{name}: {why}"))?)));
            of_named(named.collect::<Result<_, String>>()?)
        }
        value => number(&value).map(Rewards::of),
    }
}

fn of_named(mut named: BTreeMap<String, f64>) -> Result<Rewards, String> {
    #[expect(clippy::cast_precision_loss, reason = "there are few")]
    let mean = || named.values().sum::<f64>() / named.len() as f64;
    let reward = match named.get(Rollout::REWARD) {
        Some(reward) => *reward,
        None if named.is_empty() => return Err("it names no reward".to_owned()),
        None => finite(mean())?,
    };
    named.remove(Rollout::REWARD);
    Ok(Rewards { reward, named })
}

fn number(value: &Value) -> Result<f64, String> {
    match value {
        Value::Number(number) => number.as_f64().ok_or_else(|| format!("{number} is too large")).and_then(finite),
        Value::Bool(flag) => Ok(if *flag { 1.0 } else { 0.0 }),
        _ => Err("it is no number".to_owned()),
    }
}

fn finite(number: f64) -> Result<f64, String> {
    if number.is_finite() { Ok(number) } else { Err(format!("{number} is no reward")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewards(reward: f64, named: &[(&str, f64)]) -> Rewards {
        Rewards { reward, named: named.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect() }
    }

    #[test]
    fn numbers_and_objects_of_numbers_are_rewards() {
        for (text, expected) in [
            ("1\n", rewards(1.0, &[])),
            (" 0.5 ", rewards(0.5, &[])),
            ("-1e0", rewards(-1.0, &[])),
            ("true", rewards(1.0, &[])),
            (r#"{"reward": 0.25, "style": 1}"#, rewards(0.25, &[("style", 1.0)])),
            (r#"{"accuracy": 0.5}"#, rewards(0.5, &[("accuracy", 0.5)])),
            (r#"{"a": 0, "b": 1}"#, rewards(0.5, &[("a", 0.0), ("b", 1.0)])),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_reward_is_said() {
        let wrong = |content: &[u8]| parse(content).unwrap_err();
        for text in ["NaN", "nan", "inf", "-Infinity", "1e999", r#"{"reward": 1e999}"#] {
            let why = wrong(text.as_bytes());
            assert!(why.contains("is no reward") || why.contains("number out of range"), "{text}: {why}");
        }
        assert_eq!(wrong(b" \n"), "it is empty");
        assert_eq!(wrong(b"\xff\xfe"), "it is no text");
        assert_eq!(wrong(b"{}"), "it names no reward");
        assert_eq!(wrong(br#"{"reward": {"value": 1}}"#), "reward: it is no number");
        assert_eq!(wrong(br#"{"reward": "1"}"#), "reward: it is no number");
        assert_eq!(wrong(b"[1]"), "it is no number");
        assert!(wrong(b"well done").starts_with("it is neither a number nor JSON"));
        assert!(wrong("[".repeat(100_000).as_bytes()).contains("recursion limit"));
        let many: Vec<String> = (0..=NAMES).map(|name| format!("\"{name}\": 1")).collect();
        assert_eq!(wrong(format!("{{{}}}", many.join(",")).as_bytes()), "it names 101 rewards, more than 100");
        let long = format!("{{\"{}\": 1}}", "x".repeat(NAME + 1));
        assert_eq!(wrong(long.as_bytes()), "it names a reward in 201 bytes, more than 200");
        assert_eq!(wrong(&vec![b'1'; LIMIT + 1]), "it has more than 1048576 bytes");
    }
}
