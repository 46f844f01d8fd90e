//! Which harnesses there are: folders embedded in the binary, and those of `--harnesses DIR`, which add or replace.

use std::collections::BTreeMap;
use std::path::Path;

use include_dir::{Dir, include_dir};

use super::baseline::Baseline;
use super::spec::{Spec, SpecError, nearest};
use crate::wire;

static EMBEDDED: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/harnesses");

/// A harness: what its `harness.toml` says, and the files of its folder.
#[derive(Clone, Debug)]
pub struct Harness {
    pub spec: Spec,
    /// The folder's files by their path in it.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Where it comes from, for people.
    pub origin: String,
    /// It is no harness but what tries a task itself.
    pub baseline: Option<Baseline>,
}

/// All harnesses by name.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    harnesses: BTreeMap<String, Harness>,
    /// Those that are no harnesses, found by name and not listed.
    baselines: Vec<Harness>,
    /// Scripts beside the folders that several builds use.
    shared: BTreeMap<String, Vec<u8>>,
}

impl Catalog {
    /// The embedded harnesses, and those in the folders of `extra`.
    ///
    /// # Errors
    /// If a folder can't be read or a harness's description is wrong.
    pub fn load(extra: Option<&Path>) -> Result<Self, SpecError> {
        let baselines = Baseline::ALL.into_iter().map(Baseline::harness).collect::<Result<_, _>>()?;
        let mut catalog = Self { baselines, ..Self::default() };
        catalog.shared.extend(EMBEDDED.files().map(|file| (file.path().display().to_string(), file.contents().to_vec())));
        for folder in EMBEDDED.dirs() {
            let mut files = BTreeMap::new();
            collect(folder, folder.path(), &mut files);
            catalog.add(&folder.path().display().to_string(), "embedded", files)?;
        }
        if let Some(extra) = extra {
            catalog.add_folders(extra)?;
        }
        Ok(catalog)
    }

    /// Every harness, by name.
    pub fn all(&self) -> impl Iterator<Item = &Harness> {
        self.harnesses.values()
    }

    /// The harness of `name`.
    ///
    /// # Errors
    /// If there is none; the nearest name is in the error.
    pub fn get(&self, name: &str) -> Result<&Harness, SpecError> {
        let baseline = || self.baselines.iter().find(|baseline| baseline.spec.name == name);
        self.harnesses.get(name).or_else(baseline).ok_or_else(|| SpecError::Unknown {
            name: name.to_owned(),
            near: nearest(name, self.harnesses.keys().map(String::as_str)),
            known: self.harnesses.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }

    fn add_folders(&mut self, extra: &Path) -> Result<(), SpecError> {
        let unreadable = |path: &Path, error: std::io::Error| SpecError::Unreadable {
            file: path.display().to_string(),
            why: error.to_string(),
        };
        if !extra.is_dir() {
            return Err(SpecError::NoFolder(extra.display().to_string()));
        }
        // The folder of one harness may be named as well as a folder of such.
        if extra.join("harness.toml").is_file() {
            let files = read_folder(extra).map_err(|error| unreadable(extra, error))?;
            return self.add(&extra.display().to_string(), &extra.display().to_string(), files);
        }
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(extra).map_err(|error| unreadable(extra, error))? {
            let path = entry.map_err(|error| unreadable(extra, error))?.path();
            if path.extension().is_some_and(|ending| ending == "sh") {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                self.shared.insert(name, std::fs::read(&path).map_err(|error| unreadable(&path, error))?);
            }
            paths.push(path);
        }
        for path in paths {
            if path.join("harness.toml").is_file() {
                let files = read_folder(&path).map_err(|error| unreadable(&path, error))?;
                self.add(&path.display().to_string(), &path.display().to_string(), files)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, folder: &str, origin: &str, mut files: BTreeMap<String, Vec<u8>>) -> Result<(), SpecError> {
        let file = format!("{folder}/harness.toml");
        let unreadable = |why: &str| SpecError::Unreadable { file: file.clone(), why: why.to_owned() };
        let text = files.get("harness.toml").ok_or_else(|| unreadable("is missing"))?;
        let text = std::str::from_utf8(text).map_err(|_| unreadable("is not UTF-8"))?;
        let spec = Spec::parse(&file, text)?;
        let served = || wire::ALL.iter().map(|wire| wire.name());
        if let Some(name) = spec.wires().find(|name| !served().any(|served| served == *name)) {
            let near = nearest(name, served()).map(|near| format!(" (did you mean {near}?)")).unwrap_or_default();
            return Err(unreadable(&format!("speaks the wire {name}, which is not served{near}")));
        }
        for name in &spec.payload.uses {
            if let (false, Some(script)) = (files.contains_key(name), self.shared.get(name)) {
                files.insert(name.clone(), script.clone());
            }
        }
        let sources = spec.files.iter().chain(spec.changes().flat_map(|change| &change.files));
        for named in sources.filter_map(|file| file.source.as_ref()).chain([&spec.payload.build]).chain(&spec.payload.uses) {
            if !files.contains_key(named) {
                return Err(unreadable(&format!("names the file {named}, which is not there")));
            }
        }
        self.harnesses.insert(spec.name.clone(), Harness { spec, files, baseline: None, origin: origin.to_owned() });
        Ok(())
    }
}

fn collect(folder: &Dir<'_>, root: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
    for file in folder.files() {
        let path = file.path().strip_prefix(root).unwrap_or(file.path());
        files.insert(path.display().to_string(), file.contents().to_vec());
    }
    for folder in folder.dirs() {
        collect(folder, root, files);
    }
}

fn read_folder(root: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                files.insert(name, std::fs::read(&path)?);
            }
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::super::choice::Choice;
    use super::super::outcome::matches_pattern;
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = Catalog::load(Some(Path::new("/no/such"))).unwrap_err().to_string();
        assert_eq!(error, "there is no folder /no/such; it was named to have harnesses (--harnesses, GLEANER_HARNESSES)");
    }

    #[test]
    fn embedded_harnesses_are_well_formed() {
        let catalog = Catalog::load(None).unwrap();
        let names: Vec<_> = catalog.all().map(|harness| harness.spec.name.as_str()).collect();
        let expected = [
            "claude-code",
            "codex",
            "gemini-cli",
            "hermes",
            "mini-swe-agent",
            "openclaw",
            "opencode",
            "qwen-code",
            "react",
            "zeroclaw",
        ];
        assert_eq!(names, expected);
        for harness in catalog.all() {
            for wire in harness.spec.wires() {
                harness.spec.clone().with(&Choice { wire: Some(wire), ..Choice::default() }).unwrap();
            }
            for variant in harness.spec.variants.keys() {
                harness.spec.clone().with(&Choice { variant: Some(variant), ..Choice::default() }).unwrap();
            }
        }
    }

    /// A request's header of each harness on each wire, as it came in runs.
    fn seen<'a>(harness: &'a str, wire: &str) -> (&'static str, &'a str) {
        match (harness, wire) {
            ("claude-code", _) => ("user-agent", "claude-cli/2.1.332 (external, sdk-cli)"),
            ("codex", _) => ("user-agent", "codex_exec/0.171.0 (Debian 12.0.0; x86_64) unknown (codex_exec; 0.171.0)"),
            ("gemini-cli", _) => ("user-agent", "GeminiCLI-tui/0.61.0/gleaner-policy (linux; x64; terminal)"),
            ("opencode", _) => ("user-agent", "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"),
            ("qwen-code", "messages") => ("user-agent", "claude-cli/0.24.4 (external, cli)"),
            ("qwen-code", _) => ("user-agent", "QwenCode/0.24.4 (linux; x64)"),
            ("react", _) => ("user-agent", "gleaner-react/1"),
            ("zeroclaw", "messages") => ("x-api-key", "glr_9008aa4ef6ee4ef287610e5c0b6d5348"),
            (name, _) => ("x-harness", name),
        }
    }

    /// Beside those, what an agent's own scripts send.
    #[test]
    fn calls_are_signed_on_every_wire() {
        for harness in Catalog::load(None).unwrap().all() {
            for wire in harness.spec.wires() {
                let spec = harness.spec.clone().with(&Choice { wire: Some(wire), ..Choice::default() }).unwrap();
                let (header, value) = seen(&spec.name, wire);
                let pattern = spec.signature.get(header).unwrap_or_else(|| panic!("{} on {wire} is not signed", spec.name));
                assert!(matches_pattern(pattern, value), "{} on {wire}: {value}", spec.name);
                for other in ["curl/7.88.1", "Python-urllib/3.11", "python-requests/2.32", "OpenAI/Python 3.57.0", "node", ""] {
                    assert!(!matches_pattern(pattern, other), "{} on {wire}: {other}", spec.name);
                }
            }
        }
    }

    #[test]
    fn an_unknown_name_tells_the_nearest() {
        let error = Catalog::load(None).unwrap().get("codx").unwrap_err().to_string();
        assert!(error.starts_with("there is no harness codx (did you mean codex?); there are: claude-code, codex, "), "{error}");
    }

    #[test]
    fn a_wire_that_is_not_served_is_refused() {
        let text = "name = \"own\"\nversion = \"1\"\ndescription = \"\"\nwire = \"mesages\"\n[payload]\nbuild = \"b.sh\"\nwhere = \"host\"\n\
                    [run]\ncommand = [\"x\"]\n";
        let files = [("harness.toml", text), ("b.sh", "")].map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()));
        let error = Catalog::default().add("own", "here", files.into()).unwrap_err().to_string();
        assert_eq!(error, "own/harness.toml: speaks the wire mesages, which is not served (did you mean messages?)");
    }

    #[test]
    fn a_folder_adds_and_replaces() {
        let root = tempfile::tempdir().unwrap();
        for (folder, name) in [("one", "own"), ("two", "codex")] {
            let folder = root.path().join(folder);
            std::fs::create_dir(&folder).unwrap();
            let text = format!(
                "name = \"{name}\"\nversion = \"9\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"b.sh\"\nwhere = \"host\"\n\
                 [run]\ncommand = [\"x\"]\n"
            );
            std::fs::write(folder.join("harness.toml"), text).unwrap();
            std::fs::write(folder.join("b.sh"), "").unwrap();
        }
        let catalog = Catalog::load(Some(root.path())).unwrap();
        assert_eq!(catalog.get("own").unwrap().spec.version, "9");
        assert_eq!(catalog.get("codex").unwrap().spec.version, "9");
        assert_eq!(catalog.all().count(), Catalog::load(None).unwrap().all().count() + 1);
    }
}
