//! A model's files: a folder as models are published in, or a GGUF file.

use std::fs;
use std::io::BufReader;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::{ModelError, ggml, gguf, hash};
use crate::policy::config::PolicyConfig;

/// What a tokenizer and a template are made of.
pub(super) struct Parts {
    /// A `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    pub tokenizer_hash: String,
    /// Tokens that stand beside it: id, name, and whether they are control tokens.
    pub added: Vec<(u32, String, bool)>,
    pub template: Option<String>,
    /// Control tokens' names as templates know them (`bos_token` ...).
    pub names: Map<String, Json>,
    /// What every prompt begins with, even if the template doesn't write it.
    pub begins: Option<String>,
    /// Ids that end a reply.
    pub ends: Vec<u32>,
    /// How many ids the model has, where that is said.
    pub vocabulary: Option<u32>,
}

impl Parts {
    /// Reads what the config names.
    pub(super) fn read(config: &PolicyConfig, place: &Path) -> Result<Self, ModelError> {
        let mut parts = if place.is_dir() { folder(place)? } else { file(place)? };
        if let Some(path) = &config.chat_template {
            let template = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
            parts.template = Some(if path.extension().is_some_and(|extension| extension == "json") {
                named(&parse(path, template.as_bytes())?).ok_or_else(|| unreadable(path, &"it holds no chat_template"))?
            } else {
                template
            });
        }
        Ok(parts)
    }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> ModelError {
    ModelError::Unreadable(format!("{}: {why}", path.display()))
}

fn file(path: &Path) -> Result<Parts, ModelError> {
    let opened = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    let metadata = gguf::read(BufReader::new(opened), "tokenizer.").map_err(|error| unreadable(path, &error))?;
    ggml::parts(&metadata).map_err(|error| unreadable(path, &error))
}

fn folder(folder: &Path) -> Result<Parts, ModelError> {
    let path = folder.join("tokenizer.json");
    let tokenizer = fs::read(&path).map_err(|error| {
        unreadable(&path, &format!("{error}: a policy's tokenizer is a folder with tokenizer.json, or a GGUF file"))
    })?;
    let config = optional(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let map = optional(&folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let model = optional(&folder.join("config.json"))?.unwrap_or_default();
    let generation = optional(&folder.join("generation_config.json"))?.unwrap_or_default();
    let names = names(&[&map, &config]);
    let mut ends: Vec<u32> = [&generation, &model].into_iter().flat_map(|file| ids(file.get("eos_token_id"))).collect();
    ends.sort_unstable();
    ends.dedup();
    let added = added(&folder.join("tokenizer_config.json"), &config)?;
    let mut hashed = vec![tokenizer.as_slice()];
    let beside = serde_json::to_vec(&added).unwrap_or_default();
    if !added.is_empty() {
        hashed.push(&beside);
    }
    Ok(Parts {
        tokenizer_hash: hash(&hashed),
        added,
        template: template(folder, &config)?,
        names,
        begins: None,
        ends,
        vocabulary: model.get("vocab_size").and_then(Json::as_u64).and_then(|size| u32::try_from(size).ok()),
        tokenizer,
    })
}

/// The template, where the newest convention has it first.
fn template(folder: &Path, config: &Json) -> Result<Option<String>, ModelError> {
    let path = folder.join("chat_template.jinja");
    match fs::read_to_string(&path) {
        Ok(template) => return Ok(Some(template)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(unreadable(&path, &error)),
    }
    let path = folder.join("chat_template.json");
    if let Some(json) = optional(&path)? {
        return named(&json).map(Some).ok_or_else(|| unreadable(&path, &"it holds no chat_template"));
    }
    Ok(named(config))
}

/// The template that a JSON file holds: itself, its `chat_template`, or the one called `default` of several.
fn named(json: &Json) -> Option<String> {
    match json.get("chat_template").unwrap_or(json) {
        Json::String(template) => Some(template.clone()),
        Json::Array(several) => several
            .iter()
            .find(|one| one.get("name").and_then(Json::as_str) == Some("default"))
            .and_then(|one| one.get("template")?.as_str())
            .map(str::to_owned),
        _ => None,
    }
}

/// `..._token`: a name, or an object with its `content`; later files win.
fn names(files: &[&Json]) -> Map<String, Json> {
    let fields = files.iter().filter_map(|file| file.as_object()).flatten();
    fields
        .filter(|(key, _)| key.ends_with("_token") && !key.starts_with("add_"))
        .filter_map(|(key, value)| {
            let name = value.as_str().or_else(|| value.get("content")?.as_str())?;
            Some((key.clone(), Json::String(name.to_owned())))
        })
        .collect()
}

/// `added_tokens_decoder`, in the order of ids.
fn added(path: &Path, config: &Json) -> Result<Vec<(u32, String, bool)>, ModelError> {
    let Some(tokens) = config.get("added_tokens_decoder").and_then(Json::as_object) else { return Ok(Vec::new()) };
    let mut added = Vec::with_capacity(tokens.len());
    for (id, token) in tokens {
        let content = token.get("content").and_then(Json::as_str);
        let (Ok(id), Some(content)) = (id.parse(), content) else {
            return Err(unreadable(path, &format!("its added token {id:?} has no id or no content")));
        };
        added.push((id, content.to_owned(), token.get("special").and_then(Json::as_bool).unwrap_or(false)));
    }
    added.sort();
    Ok(added)
}

fn ids(value: Option<&Json>) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Json::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A JSON file that may be missing.
fn optional(path: &Path) -> Result<Option<Json>, ModelError> {
    match fs::read(path) {
        Ok(bytes) => parse(path, &bytes).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Json, ModelError> {
    serde_json::from_slice(bytes).map_err(|error| unreadable(path, &error))
}
