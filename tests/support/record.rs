//! What the API says of a call. The one place that knows the names of its fields.

use serde_json::Value;

/// One call's record as the API gives it.
#[derive(Clone, Debug)]
pub struct Record(pub Value);

impl Record {
    fn at(&self, path: &str) -> &Value {
        self.0.pointer(path).unwrap_or_else(|| panic!("the record has no {path}: {}", self.0))
    }

    /// Its id.
    pub fn id(&self) -> &str {
        self.at("/id").as_str().unwrap()
    }

    /// `running`, `done`, `failed`, `cancelled` or `interrupted`.
    pub fn status(&self) -> &str {
        self.at("/status").as_str().unwrap()
    }

    /// `full`, `ids` or `text`.
    pub fn level(&self) -> &str {
        self.at("/capture/level").as_str().unwrap()
    }

    /// The prompt's ids.
    pub fn prompt_ids(&self) -> Vec<u32> {
        serde_json::from_value(self.at("/capture/prompt_ids").clone()).unwrap()
    }

    /// The sampled ids.
    pub fn completion_ids(&self) -> Vec<u32> {
        serde_json::from_value(self.at("/capture/completion_ids").clone()).unwrap()
    }

    /// Their log-probabilities.
    pub fn logprobs(&self) -> Vec<f64> {
        serde_json::from_value(self.at("/capture/logprobs").clone()).unwrap()
    }

    /// The reply's text.
    pub fn text(&self) -> Option<&str> {
        self.0.pointer("/message/content").and_then(Value::as_str)
    }

    /// The reply as a message.
    pub fn message(&self) -> &Value {
        self.at("/message")
    }

    /// Why the reply ended.
    pub fn finish_reason(&self) -> Option<&str> {
        self.at("/finish_reason").as_str()
    }

    /// A sampling setting as it was asked for, and as it was used.
    pub fn sampling(&self, name: &str) -> (&Value, &Value) {
        (&self.at("/sampling/asked")[name], &self.at("/sampling/used")[name])
    }

    /// The limit of tokens as it was asked for, and as it was used.
    pub fn max_tokens(&self) -> (&Value, &Value) {
        (self.at("/max_tokens/asked"), self.at("/max_tokens/used"))
    }

    /// Whether the reply was handed to the client whole; `None` if that is not known yet.
    pub fn delivered(&self) -> Option<bool> {
        self.at("/delivered").as_bool()
    }

    /// The kind of its failure.
    pub fn failure_kind(&self) -> Option<&str> {
        self.0.pointer("/failure/kind").and_then(Value::as_str)
    }
}
