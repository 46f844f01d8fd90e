//! A real model's tokenizer and chat template, from its folder: Hugging Face's tokenizer, and the template in minijinja as a server that
//! follows transformers renders it. Nothing of Gleaner's is used.

use std::path::Path;

use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

/// Ends a reply of the models whose folders are read here.
pub const END: &str = "<|im_end|>";

pub struct Real {
    tokenizer: Tokenizer,
    template: String,
}

impl Real {
    /// Reads a folder with `tokenizer.json` and `tokenizer_config.json`.
    pub fn read(folder: &Path) -> Self {
        let help = "scripts/setup tokenizers makes it";
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))
            .unwrap_or_else(|error| panic!("{}: {error}; {help}", folder.display()));
        let config = std::fs::read_to_string(folder.join("tokenizer_config.json")).unwrap();
        let config: Value = serde_json::from_str(&config).unwrap();
        Self { tokenizer, template: config["chat_template"].as_str().unwrap().to_owned() }
    }

    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode_fast(text, false).unwrap().get_ids().to_vec()
    }

    pub fn decode(&self, ids: &[u32]) -> String {
        self.tokenizer.decode(ids, false).unwrap()
    }

    pub fn end(&self) -> u32 {
        self.tokenizer.token_to_id(END).unwrap()
    }

    /// Words of a text are cut in two where `odd` says so: the same bytes, as tokens that no encoding gives.
    pub fn pieces(&self, text: &str, mut odd: impl FnMut(&str) -> bool) -> Vec<u32> {
        let mut ids = Vec::new();
        for id in self.encode(text) {
            let word = self.decode(&[id]);
            let letters = word.trim_start();
            if letters.len() < 4 || !letters.bytes().all(|byte| byte.is_ascii_lowercase()) || !odd(&word) {
                ids.push(id);
                continue;
            }
            let (head, tail) = word.split_at(word.len() - 2);
            ids.extend(self.encode(head));
            ids.extend(self.encode(tail));
        }
        ids
    }

    pub fn render(&self, request: &Value) -> Result<String, String> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_filter("tojson", |value: minijinja::Value| {
            let value =
                serde_json::to_value(&value).map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
            Ok(super::vocabulary::python(&value))
        });
        environment.add_template("chat", &self.template).unwrap();
        let messages: Vec<Value> = request["messages"].as_array().unwrap().iter().map(known).collect();
        let mut variables = json!({"messages": messages, "add_generation_prompt": request["add_generation_prompt"] != false});
        if let Some(tools) = request["tools"].as_array() {
            variables["tools"] = json!(tools);
        }
        let others = request["chat_template_kwargs"].as_object().cloned().unwrap_or_default();
        variables.as_object_mut().unwrap().extend(others);
        environment.get_template("chat").unwrap().render(variables).map_err(|error| error.to_string())
    }
}

/// A message as vLLM hands it to a template: content as text, none as an empty one; arguments as objects; reasoning by its older name.
fn known(message: &Value) -> Value {
    let mut known: Map<String, Value> = message.as_object().unwrap().clone();
    known.insert("content".to_owned(), super::vocabulary::content(&message["content"]).into());
    if let Some(reasoning) = known.get("reasoning").filter(|reasoning| !reasoning.is_null()).cloned() {
        known.insert("reasoning_content".to_owned(), reasoning);
    }
    for call in known.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
        let arguments = &mut call["function"]["arguments"];
        if let Some(text) = arguments.as_str() {
            *arguments = serde_json::from_str(text).unwrap();
        }
    }
    Value::Object(known)
}
