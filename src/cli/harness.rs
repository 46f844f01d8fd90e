//! `gleaner harness`: which harnesses there are, and their payloads.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::check;
use super::progress::Watcher;
use super::terminal::{Paint, print, table};
use crate::config::Config;
use crate::engine::{Engine, EngineError};
use crate::harness::spec::{BuildPlace, SpecError};
use crate::harness::{Builder, Catalog, Harness, Progress};

/// Shows harnesses and builds their payloads.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// A folder of harnesses that adds to the built-in ones or replaces them by name
    #[arg(long, value_name = "DIR", env = "GLEANER_HARNESSES", global = true)]
    harnesses: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Lists the harnesses
    List,
    /// Builds a harness's payload, if it is not there; `run` does so by itself
    Build {
        /// The harness, or `all`
        name: String,
    },
    /// Checks harnesses against a scripted policy, in containers without network
    Check(check::Args),
}

impl Args {
    /// Whether the command needs a container engine.
    pub(super) fn engine(&self) -> Need {
        match self.command {
            Command::List => Need::No,
            Command::Build { .. } => Need::Perhaps,
            Command::Check(_) => Need::Yes,
        }
    }
}

/// Whether a command needs a container engine.
pub(super) enum Need {
    No,
    /// Some payloads are built in containers.
    Perhaps,
    Yes,
}

/// Where payloads and our helper are kept: `gleaner` in the user's cache folder.
///
/// # Errors
/// If neither `XDG_CACHE_HOME` nor `HOME` says where that is.
pub(super) fn cache_folder() -> anyhow::Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")));
    cache
        .map(|cache| cache.join("gleaner"))
        .ok_or_else(|| anyhow::anyhow!("there is no cache folder; set HOME or XDG_CACHE_HOME"))
}

/// Makes sure of the image that a harness's payload is built in, if it must be built and in a container.
///
/// # Errors
/// If the image can't be had.
pub(super) async fn ensure_builder_image(harness: &Harness, engine: &dyn Engine, base: &str, cache: &Path) -> anyhow::Result<()> {
    let builder = Builder { cache, image: base, progress: &|_| {}, cancel: &CancellationToken::new() };
    if harness.spec.payload.place == BuildPlace::Container && !builder.folder(harness)?.is_dir() {
        engine.ensure(harness.spec.payload.image.as_deref().unwrap_or(base)).await?;
    }
    Ok(())
}

/// Runs the command; `engine` is there if [`Args::engine`] says so.
///
/// # Errors
/// If a harness is wrong or unknown, or its payload can't be built.
pub(super) async fn run(
    args: &Args,
    engine: Option<&dyn Engine>,
    config: &Config,
    cancel: &CancellationToken,
) -> anyhow::Result<ExitCode> {
    let base = &config.engine.base_image;
    if let Command::Check(check) = &args.command {
        let engine = engine.ok_or_else(|| no_engine("check harnesses"))?;
        let harnesses = args.harnesses.as_deref();
        return check::run(check, &check::Surroundings { config, engine, harnesses, json: args.json, cancel }).await;
    }
    let catalog = Catalog::load(args.harnesses.as_deref())?;
    let cache = cache_folder()?;
    match &args.command {
        Command::Check(_) => {}
        Command::List => print(&listed(&catalog, &cache, args.json)?)?,
        Command::Build { name } => {
            let all = name == "all";
            let chosen: Vec<&Harness> = if all { catalog.all().collect() } else { vec![catalog.get(name)?] };
            let mut failed = Vec::new();
            for harness in chosen {
                let name = &harness.spec.name;
                match build(harness, engine, base, &cache, cancel).await {
                    Ok(folder) if args.json => print(&format!("{}\n", json!({"name": name, "payload": folder})))?,
                    Ok(folder) => print(&format!("{name} is in {}\n", folder.display()))?,
                    Err(error) if all && !cancel.is_cancelled() => failed.push(format!("{name}: {error:#}")),
                    Err(error) => return Err(error),
                }
            }
            anyhow::ensure!(failed.is_empty(), "{}", failed.join("\n"));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn no_engine(doing: impl Into<String>) -> EngineError {
    EngineError::Failed { doing: doing.into(), why: "there is no container engine".to_owned() }
}

/// The folder of a harness's payload, built if it is not there.
async fn build(
    harness: &Harness,
    engine: Option<&dyn Engine>,
    base: &str,
    cache: &Path,
    cancel: &CancellationToken,
) -> anyhow::Result<PathBuf> {
    let name = &harness.spec.name;
    if harness.spec.payload.place == BuildPlace::Container {
        let engine = engine.ok_or_else(|| no_engine(format!("build {name}")))?;
        ensure_builder_image(harness, engine, base, cache).await?;
    }
    let watcher = Watcher::new(std::sync::Arc::new(|_| 0));
    let tell = |line: &str| watcher.tell(Progress::Building { harness: name.clone(), line: line.to_owned() });
    let built = Builder { cache, image: base, progress: &tell, cancel }.ready(harness).await;
    watcher.done();
    Ok(built?)
}

fn listed(catalog: &Catalog, cache: &Path, json: bool) -> Result<String, SpecError> {
    let builder = Builder { cache, image: "", progress: &|_| {}, cancel: &CancellationToken::new() };
    let mut rows = Vec::new();
    let mut objects = Vec::new();
    for harness in catalog.all() {
        let spec = &harness.spec;
        let folder = builder.folder(harness)?;
        let bytes = folder.is_dir().then(|| size(&folder));
        let variants: Vec<&str> = spec.variants.keys().map(String::as_str).collect();
        let wires: Vec<&str> = spec.wires().collect();
        objects.push(json!({
            "name": spec.name, "version": spec.version, "wires": wires, "variants": variants, "built": bytes.is_some(), "bytes": bytes,
            "origin": harness.origin, "description": spec.description,
        }));
        let variants = if variants.is_empty() { "-".to_owned() } else { variants.join(", ") };
        let built = bytes.map_or_else(|| "no".to_owned(), |bytes| format!("{} MB", bytes.div_ceil(1_000_000)));
        let row = [&spec.name, &spec.version, &wires.join(", "), &variants, &built, &spec.description];
        rows.push(row.map(Clone::clone).to_vec());
    }
    if json {
        return Ok(format!("{}\n", json!({ "harnesses": objects })));
    }
    Ok(table(&["name", "version", "wires", "variants", "built", "description"], &rows, Paint::of_stdout()))
}

/// The bytes of a folder's files; what can't be read counts nothing.
fn size(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(about) if about.is_dir() => size(&entry.path()),
            Ok(about) => about.len(),
            Err(_) => 0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_there_is() {
        let cache = tempfile::tempdir().unwrap();
        let catalog = Catalog::load(None).unwrap();
        let list: serde_json::Value = serde_json::from_str(&listed(&catalog, cache.path(), true).unwrap()).unwrap();
        let rows = list["harnesses"].as_array().unwrap();
        let mini = rows.iter().find(|row| row["name"] == "mini-swe-agent").unwrap();
        let told = json!({"wires": mini["wires"], "built": mini["built"], "variants": mini["variants"]});
        assert_eq!(told, json!({"wires": ["chat", "messages", "responses"], "built": false, "variants": ["text"]}));
        let codex = catalog.get("codex").unwrap();
        let builder = Builder { cache: cache.path(), image: "", progress: &|_| {}, cancel: &CancellationToken::new() };
        let folder = builder.folder(codex).unwrap().join("bin");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("codex"), vec![0; 1_000_001]).unwrap();
        let text = listed(&catalog, cache.path(), false).unwrap();
        let codex = text.lines().find(|line| line.starts_with("codex ")).unwrap();
        assert!(codex.contains(" responses ") && codex.contains(" 2 MB "), "{text}");
    }
}
