//! What runs rollouts and keeps them: engine, default image, payloads, store.

use std::fs;
use std::path::Path;

use tokio_util::sync::CancellationToken;

use crate::cli::engine;
use crate::cli::harness::cache_folder;
use crate::cli::terminal::counted;
use crate::config::Config;
use crate::engine::{Engine, EngineKind, Finding, base_image};
use crate::harness::{Builder, Catalog, helper, isolation};
use crate::ids::ProcessId;
use crate::store;

/// The engine with its default image, and the harnesses.
pub(super) async fn look(config: &Config, harnesses: Option<&Path>) -> Vec<Finding> {
    let cache = match cache_folder() {
        Ok(cache) => cache,
        Err(error) => return vec![Finding::fault("cache", format!("{error:#}"), "set HOME")],
    };
    let mut findings = match engine::connect(&config.engine, &cache).await {
        Ok(engine) => of_engine(config, engine.as_ref(), &cache).await,
        Err(error) => {
            let advice = "start Docker, or name where it listens (DOCKER_HOST); without isolation: --engine process";
            vec![Finding::fault("engine", format!("{error:#}"), advice)]
        }
    };
    findings.push(payloads(&cache, harnesses));
    findings
}

async fn of_engine(config: &Config, engine: &dyn Engine, cache: &Path) -> Vec<Finding> {
    let mut findings = engine.look().await;
    if engine.isolates() {
        findings.push(isolation(engine, cache).await);
    }
    if config.engine.kind == EngineKind::Docker {
        let name = &config.engine.base_image;
        findings.push(match engine.image(name).await {
            Ok(Some(_)) => Finding::ok("default image", format!("{name} is there")),
            Ok(None) if name == base_image::DEFAULT => {
                Finding::ok("default image", format!("{name} will be made by the first run, in half a minute"))
            }
            Ok(None) => Finding::warning(
                "default image",
                format!("the engine has no {name}"),
                "the first run tries to pull it; import or build it",
            ),
            Err(error) => Finding::fault("default image", error.to_string(), "look at the engine's own log"),
        });
    }
    findings
}

/// Whether it was seen that sandboxes hold.
async fn isolation(engine: &dyn Engine, cache: &Path) -> Finding {
    const NAME: &str = "isolation";
    let helper = match helper::install(cache) {
        Ok(helper) => helper,
        Err(error) => {
            return Finding::fault(NAME, format!("our program for sandboxes: {error}"), "mend the cache folder's permissions");
        }
    };
    match engine.isolation().await {
        Ok(Some(engine)) => match isolation::passed(cache, &engine, &helper) {
            Some(age) => Finding::ok(NAME, format!("tested {} ago: nothing got out", counted(age.as_secs() / 60, "minute"))),
            None => Finding::ok(NAME, "the next run tests it first, and refuses to go on if anything gets out"),
        },
        Ok(None) => Finding::warning(NAME, "the test is switched off", "self_test = true under [engine]"),
        Err(error) => Finding::fault(NAME, error.to_string(), "look at the engine's own log"),
    }
}

/// Which harnesses are ready to run.
fn payloads(cache: &Path, harnesses: Option<&Path>) -> Finding {
    const NAME: &str = "payloads";
    let catalog = match Catalog::load(harnesses) {
        Ok(catalog) => catalog,
        Err(error) => return Finding::fault(NAME, error.to_string(), "mend the harness's folder"),
    };
    let builder = Builder { cache, image: "", progress: &|_| {}, cancel: &CancellationToken::new() };
    let is_built = |harness| builder.folder(harness).is_ok_and(|folder| folder.is_dir());
    let (built, others): (Vec<_>, Vec<_>) = catalog.all().partition(|harness| is_built(harness));
    let list = |harnesses: &[&crate::harness::Harness]| {
        let names: Vec<&str> = harnesses.iter().map(|harness| harness.spec.name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let seen = format!("built: {}; by their first run, or by `gleaner harness build`: {}", list(&built), list(&others));
    Finding::ok(NAME, seen)
}

/// The store. One that is not there yet is not made.
pub(super) async fn store(config: &Config) -> Finding {
    const NAME: &str = "store";
    let advice = "name another with --database, or mend the folder's permissions";
    let file = match store::file(&config.store) {
        Ok(file) => file,
        Err(error) => return Finding::fault(NAME, error.to_string(), advice),
    };
    if !file.exists() {
        let folder = file.ancestors().skip(1).find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
        return match tempfile_in(folder) {
            Ok(()) => Finding::ok(NAME, format!("{} is not there yet; the first run makes it", file.display())),
            Err(error) => Finding::fault(NAME, format!("{} can't be made: {error}", file.display()), advice),
        };
    }
    let opened = store::open(&config.store.location(), &config.store, ProcessId::generate()).await;
    // The writer is what only one that can write gets.
    match opened.and_then(|store| store.writer().map(|_| store.describe())) {
        Ok(described) => {
            let size = fs::metadata(&file).map(|facts| facts.len() >> 10).unwrap_or_default();
            Finding::ok(NAME, format!("{described}, version {}, {size} KiB", store::version()))
        }
        Err(error) => Finding::fault(NAME, format!("{}: {error}", file.display()), advice),
    }
}

/// Whether files can be made in a folder.
fn tempfile_in(folder: &Path) -> std::io::Result<()> {
    let path = folder.join(format!(".gleaner-{}", ProcessId::generate()));
    fs::File::create_new(&path)?;
    fs::remove_file(&path)
}
