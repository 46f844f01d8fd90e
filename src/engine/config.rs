//! The `[engine]` section.

use serde::{Deserialize, Deserializer, Serialize};

use super::Limits;

/// The kinds of engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// Docker: containers without network.
    #[default]
    Docker,
    /// Plain processes of this user, without isolation.
    Process,
}

/// Which engine runs sandboxes, and what each may use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    pub kind: EngineKind,
    /// Where Docker listens, `unix:///...`; without it `DOCKER_HOST`, else Docker's usual socket.
    pub docker_host: Option<String>,
    /// Processors of each sandbox, fractions allowed.
    pub cpus: f64,
    /// Memory of each sandbox, swap included: bytes, or `"512m"`, `"2g"`.
    #[serde(deserialize_with = "memory")]
    pub memory: u64,
    /// Processes and threads of each sandbox.
    pub pids: u32,
    /// Of its own files, each sandbox: bytes, or `"10g"`. Memory file systems (`/tmp` and HOME) are bounded by its memory.
    #[serde(deserialize_with = "memory")]
    pub disk: u64,
    /// Before the first run on an engine, and once a day, a harness tries to get out of a sandbox; nothing is run if it can.
    pub self_test: bool,
    /// Sandboxes that are started at the same time; the engine itself does them one by one.
    pub parallel_starts: usize,
    /// The image of tasks that name none, made if it is missing; Python payloads are built in it too.
    pub base_image: String,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            kind: EngineKind::default(),
            docker_host: None,
            cpus: 2.0,
            memory: 2 << 30,
            pids: 512,
            disk: 16 << 30,
            self_test: true,
            parallel_starts: 4,
            base_image: super::base_image::DEFAULT.to_owned(),
        }
    }
}

impl EngineConfig {
    /// What a sandbox may use if its task says nothing else.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits { cpus: self.cpus, memory_bytes: self.memory, pids: self.pids, disk_bytes: Some(self.disk) }
    }
}

fn memory<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Amount {
        Bytes(u64),
        Text(String),
    }
    let amount = match Amount::deserialize(deserializer)? {
        Amount::Bytes(bytes) => Some(bytes),
        Amount::Text(text) => parse_memory(&text),
    };
    // Docker refuses less than 6 MiB; said here it names the option.
    amount.filter(|bytes| *bytes >= 6 << 20).ok_or_else(|| {
        serde::de::Error::custom("it must be at least 6 MiB: a number of bytes, or one with k, m or g, as in \"2g\"")
    })
}

/// An amount of bytes as people write it: `512m`, `2g`, `2GiB`; without a unit it is none.
#[must_use]
pub fn parse_memory(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let text = text.strip_suffix("ib").or_else(|| text.strip_suffix('b')).unwrap_or(&text);
    let (number, shift) = match text.chars().last()? {
        'k' => (&text[..text.len() - 1], 10),
        'm' => (&text[..text.len() - 1], 20),
        'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number.trim().parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bytes_or_has_a_unit() {
        let read = |text: &str| serde_json::from_str::<EngineConfig>(text).map(|config| config.memory).map_err(|_| ());
        assert_eq!(read(r#"{"memory": 1073741824}"#), Ok(1 << 30));
        assert_eq!(read(r#"{"memory": "512m"}"#), Ok(512 << 20));
        assert_eq!(read(r#"{"memory": "2GiB"}"#), Ok(2 << 30));
        assert_eq!(read(r#"{"memory": "3 g"}"#), Ok(3 << 30));
        assert_eq!(read("{}"), Ok(2 << 30));
        for wrong in ["\"\"", "\"g\"", "\"2t\"", "\"-1g\"", "\"99999999999g\"", "1024", "1.5"] {
            assert_eq!(read(&format!("{{\"memory\": {wrong}}}")), Err(()), "{wrong}");
        }
    }

    #[test]
    fn unknown_keys_are_refused() {
        let error = serde_json::from_str::<EngineConfig>(r#"{"memroy": "2g"}"#).unwrap_err();
        assert!(error.to_string().contains("memroy"), "{error}");
    }
}
