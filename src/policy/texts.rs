//! What ids read as, by a tokenizer's file: for people who look at tokens.

use std::path::Path;

/// A tokenizer that only reads.
pub struct Texts {
    #[cfg(feature = "exact")]
    tokenizer: std::sync::Arc<dyn llm_tokenizer::traits::Tokenizer>,
}

#[cfg(feature = "exact")]
impl Texts {
    /// Opens a `tokenizer.json`, or the one in a folder.
    ///
    /// # Errors
    /// If it is not there, or no tokenizer.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        use anyhow::Context as _;
        let file = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        let name = file.to_str().with_context(|| format!("{} is not UTF-8", file.display()))?;
        let tokenizer = llm_tokenizer::create_tokenizer_from_file(name)
            .with_context(|| format!("reading the tokenizer {}", file.display()))?;
        Ok(Self { tokenizer })
    }

    /// What ids read as together; `None` if one is not the tokenizer's.
    #[must_use]
    pub fn read(&self, ids: &[u32]) -> Option<String> {
        self.tokenizer.decode(ids, false).ok()
    }
}

#[cfg(not(feature = "exact"))]
impl Texts {
    /// Says that this build has no tokenizers.
    ///
    /// # Errors
    /// Always.
    pub fn open(_path: &Path) -> anyhow::Result<Self> {
        anyhow::bail!("this gleaner was built without the feature `exact` and reads no tokenizer")
    }

    /// Nothing.
    #[must_use]
    pub fn read(&self, _ids: &[u32]) -> Option<String> {
        None
    }
}
