//! What a harness itself calls its conversation, where it says so.

/// The headers in which harnesses name their conversation, as real ones were seen to do; the surest first.
const HEADERS: [&str; 4] = ["x-claude-code-session-id", "session-id", "x-session-id", "x-session-affinity"];

/// The name of the conversation that a call without a rollout belongs to: the harness's own id for it, else the day's
/// (`now_ms` is Unix time in milliseconds).
pub fn conversation_of<'a>(header: impl Fn(&str) -> Option<&'a str>, now_ms: i64) -> String {
    let named = HEADERS.iter().find_map(|name| header(name)).filter(|id| !id.is_empty() && id.len() <= 200);
    named.map_or_else(|| format!("default-{}", date(now_ms)), ToOwned::to_owned)
}

fn date(now_ms: i64) -> String {
    let day = time::OffsetDateTime::from_unix_timestamp(now_ms / 1000).map_or(time::Date::MIN, time::OffsetDateTime::date);
    format!("{:04}-{:02}-{:02}", day.year(), u8::from(day.month()), day.day())
}

#[cfg(test)]
mod tests {
    use super::conversation_of;

    #[test]
    fn a_harness_that_names_its_conversation_is_believed() {
        let header = |name: &str| (name == "session-id").then_some("0199-abc");
        assert_eq!(conversation_of(header, 0), "0199-abc");
    }

    #[test]
    fn others_share_the_days() {
        assert_eq!(conversation_of(|_| None, 1_796_083_200_000), "default-2026-12-01");
    }
}
