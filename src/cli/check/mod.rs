//! `gleaner harness check`: runs harnesses against the scripted policy, and looks whether what was recorded is fit for training.

mod judge;
mod shown;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use futures::StreamExt as _;
use serde_json::json;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Stop;
use super::assemble;
use super::harness::{cache_folder, ensure_builder_image};
use super::progress::Watcher;
use super::show;
use super::terminal::{Paint, print};
use crate::config::Config;
use crate::engine::Engine;
use crate::harness::spec::SpecError;
use crate::harness::{
    BatchRun, Catalog, Choice, Harness, HarnessChoice, Kept, Ledger, ModelEndpoint, Order, Plan, Report, Stage, Standing, Tasks,
};
use crate::http::{self, SocketEndpoint};
use crate::ids::{BatchId, RolloutId};
use crate::policy::{PolicyConfig, PolicyKind, Scripted};
use crate::proxy::{App, Policies};
use crate::store::Purpose;
use judge::{Ran, Verdict};
use shown::Checked;

/// What each harness is asked: characters that shells, templates and JSON each have a use for.
const PROMPT: &str = "Write in/seed.txt in capitals to made.txt: \"quoted\" & <all>, {{braces}} and $HOME.";
/// What its shell is told to run.
const COMMAND: &str = "tr a-z A-Z < in/seed.txt > made.txt; cat made.txt";
const VERIFY: &str = "grep -qx SEED made.txt";

/// Checks harnesses against a scripted policy, in containers without network: each must make a file with its own shell tool, and be
/// recorded as exactly the tokens that were sampled, one sample a conversation.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The harnesses, each HARNESS or HARNESS:VARIANT; `all` is every one
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// The wire to speak, of those that the harness can, its own choice if it is not given; `all`: one after the other
    #[arg(long, value_name = "WIRE")]
    wire: Option<String>,
    /// The image to run in [default: the config's]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Seconds that one may take; building payloads and images is not counted
    #[arg(long, value_name = "S", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Checks at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    concurrency: u8,
    /// Keep the store and what the harnesses printed also where all is well
    #[arg(long)]
    keep: bool,
}

/// What a check needs of whoever started it.
pub(super) struct Surroundings<'a> {
    pub config: &'a Config,
    pub engine: &'a dyn Engine,
    /// A folder of harnesses beside the built-in ones.
    pub harnesses: Option<&'a Path>,
    pub json: bool,
    pub cancel: &'a CancellationToken,
}

/// One harness, in one of its ways.
struct Cell {
    /// How it is named on the command line, and its wire.
    label: String,
    plan: Plan,
    order: Order,
    policy: Arc<Scripted>,
}

/// Runs the command.
///
/// # Errors
/// If a harness is unknown or its description wrong, or there is no place for a store. What is wrong with a harness is in the
/// exit code and in what is printed.
pub(super) async fn run(args: &Args, surroundings: &Surroundings<'_>) -> anyhow::Result<ExitCode> {
    let catalog = Catalog::load(surroundings.harnesses)?;
    let cells = cells(args, &catalog)?;
    let id = RolloutId::generate().0.simple().to_string();
    // Named unlike the folders of sockets, which are swept.
    let folder = std::env::temp_dir().join(format!("gleaner.check.{id}"));
    std::fs::create_dir(&folder).with_context(|| format!("making the folder {} for the checks' store", folder.display()))?;
    let checked = check_all(args, surroundings, &cells, &folder).await;
    let well = checked.as_ref().is_ok_and(|checked| checked.iter().all(|checked| checked.verdict.faults.is_empty()));
    let kept = (args.keep || !well).then_some(folder.as_path());
    if kept.is_none() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    }
    let checked = checked?;
    print(&if surroundings.json { shown::json(&checked, kept) } else { shown::text(&checked, kept, Paint::of_stdout()) })?;
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What there is to check, in the order of the command line and of the catalogue; what is named twice is there once.
fn cells(args: &Args, catalog: &Catalog) -> anyhow::Result<Vec<Cell>> {
    let mut cells: Vec<Cell> = Vec::new();
    for name in &args.names {
        let harnesses: Vec<&Harness> =
            if name == "all" { catalog.all().collect() } else { vec![catalog.get(name.split(':').next().unwrap_or_default())?] };
        for harness in harnesses {
            let name = if name == "all" { &harness.spec.name } else { name };
            for wire in wires(args, harness, name)? {
                let cell = Cell::new(args, catalog, name, wire)?;
                if cells.iter().all(|other| other.label != cell.label) {
                    cells.push(cell);
                }
            }
        }
    }
    Ok(cells)
}

/// The wires on which a harness is to be checked. Where all harnesses are, those that don't speak the one that is given are passed over.
fn wires(args: &Args, harness: &Harness, name: &str) -> Result<Vec<String>, SpecError> {
    let variant = name.split_once(':').map(|(_, variant)| variant);
    let with = |wire| harness.spec.clone().with(&Choice { variant, wire, set: &[] }).map(|spec| spec.wire);
    Ok(match args.wire.as_deref() {
        None => vec![with(None)?],
        Some("all") => harness.spec.wires().filter_map(|wire| with(Some(wire)).ok()).collect(),
        Some(wire) if args.names.iter().any(|name| name == "all") => with(Some(wire)).into_iter().collect(),
        Some(wire) => vec![with(Some(wire))?],
    })
}

impl Cell {
    fn new(args: &Args, catalog: &Catalog, harness: &str, wire: String) -> anyhow::Result<Self> {
        let label = format!("{harness} on {wire}");
        let task = json!({"id": "check", "prompt": PROMPT, "files": {"in/seed.txt": "seed\n"}, "verify": VERIFY});
        let plan = Plan {
            tasks: Tasks::Inline(vec![task]),
            harnesses: vec![HarnessChoice { harness: harness.to_owned(), wire: Some(wire), set: <_>::default() }],
            samples: 1,
            concurrency: Some(1),
            attempts: Some(1),
            image: args.image.clone(),
            timeout_s: Some(args.timeout),
            max_calls: None,
            max_tokens: None,
            policy: Some(label.clone()),
            purpose: Some(Purpose::Record),
            only: Vec::new(),
        };
        let order = plan.orders(catalog)?.into_iter().next().context("gleaner's own fault: a plan without an order")?;
        let script = Some(order.spec.script(Some(COMMAND)));
        let config = PolicyConfig { kind: PolicyKind::Scripted, script, ..PolicyConfig::default() };
        let policy = Arc::new(Scripted::new(&label, &config)?.remembering());
        Ok(Self { label, plan, order, policy })
    }
}

async fn check_all(args: &Args, surroundings: &Surroundings<'_>, cells: &[Cell], folder: &Path) -> anyhow::Result<Vec<Checked>> {
    let mut config = surroundings.config.clone();
    config.store.url = Some(folder.join("gleaner.db").display().to_string());
    let policies = cells.iter().map(|cell| (Arc::clone(&cell.policy) as _, true)).collect();
    let policies = Policies::new(policies, Vec::new()).context("no harness speaks that wire")?;
    let http = assemble::http_with(&config, policies).await;
    let http = http.map_err(|stop| match stop {
        Stop::Usage(error) | Stop::Failed(error) => error,
    })?;
    let app = Arc::clone(&http.app);
    let endpoint: Arc<dyn ModelEndpoint> = Arc::new(SocketEndpoint::new(http));
    let by = Arc::clone(&endpoint);
    let watcher = Watcher::new(Arc::new(move |rollout| by.turns(rollout)));
    watcher.begin(cells.len() as u64, 0);
    let tell = |progress| watcher.tell(progress);
    let (cache, room) = (cache_folder()?, Arc::new(Semaphore::new(args.concurrency.into())));
    let checking = cells.iter().map(|cell| async {
        // A run that can't be done at all cancels its stage; the other checks have their own.
        let stage = Stage {
            engine: surroundings.engine,
            endpoint: endpoint.as_ref(),
            cache: cache.clone(),
            artifacts: app.store.artifacts().root().to_owned(),
            image: config.engine.base_image.clone(),
            limits: config.engine.limits(),
            config: config.rollout.clone(),
            room: Arc::clone(&room),
            cancel: surroundings.cancel.child_token(),
            progress: &tell,
        };
        check(cell, &stage, surroundings.harnesses, &app).await
    });
    let checked = futures::stream::iter(checking).buffered(args.concurrency.into()).collect().await;
    watcher.done();
    http::end(&app).await;
    Ok(checked)
}

/// Runs one and looks at what came of it.
async fn check(cell: &Cell, stage: &Stage<'_>, harnesses: Option<&Path>, app: &App) -> Checked {
    let (verdict, report) = match ran(cell, stage, harnesses, app).await {
        Ok(report) => (examined(cell, &report, app).await, Some(report)),
        Err(error) => (Err(error), None),
    };
    let verdict = verdict.unwrap_or_else(|error| Verdict::fault(format!("it could not be checked: {error:#}")));
    Checked { label: cell.label.clone(), version: cell.order.spec.version.clone(), report, verdict }
}

async fn ran(cell: &Cell, stage: &Stage<'_>, harnesses: Option<&Path>, app: &App) -> anyhow::Result<Report> {
    stage.engine.ensure(cell.order.image_or(&stage.image)).await?;
    ensure_builder_image(&cell.order.harness, stage.engine, &stage.image, &stage.cache).await?;
    let ledger = Ledger { store: app.store.as_ref(), recorder: &app.recorder };
    let orders = vec![cell.order.clone()];
    let kept = Kept::new(cell.plan.clone(), harnesses, &orders)?;
    let batch = BatchRun::begin(&ledger, BatchId::generate(), &kept, orders).await?;
    batch.run(stage, &ledger).await?;
    let standing = Standing::read(ledger.store, batch.id, &stage.artifacts).await?;
    standing.reports.into_iter().next().context("cancelled")
}

async fn examined(cell: &Cell, report: &Report, app: &App) -> anyhow::Result<Verdict> {
    app.recorder.flush().await?;
    let store = app.store.as_ref();
    let rollout = store.rollout(report.id).await?.context("its rollout is not in the store")?;
    let calls = store.calls(rollout.id).await?;
    let built = crate::export::build(store, &rollout, &|_| true, app.drift).await?;
    let branches = show::branches_of(store, &rollout, &calls, &built).await?;
    let order = &cell.order;
    Ok(judge::judge(&Ran {
        report,
        spec: &order.spec,
        told_window: order.spec.tells_window(&order.harness)?,
        prompt: PROMPT,
        calls: &calls,
        built: &built,
        branches: &branches,
        sampled: &cell.policy.sampled(),
    }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn labels(words: &[&str]) -> Result<Vec<String>, String> {
        let args = Command::try_parse_from([&["check"], words].concat()).map_err(|error| error.to_string())?.args;
        let cells = cells(&args, &Catalog::load(None).unwrap()).map_err(|error| error.to_string())?;
        Ok(cells.into_iter().map(|cell| cell.label).collect())
    }

    #[test]
    fn names_and_wires_say_what_is_checked() {
        let of = |words: &[&str]| labels(words).unwrap();
        assert_eq!(of(&["codex", "mini-swe-agent:text"]), ["codex on responses", "mini-swe-agent:text on chat"]);
        assert_eq!(
            of(&["mini-swe-agent:text", "--wire", "all"]),
            ["mini-swe-agent:text on chat", "mini-swe-agent:text on messages"]
        );
        assert_eq!(of(&["codex", "codex"]).len(), 1, "what is named twice is checked once");
        let all = of(&["all"]);
        assert_eq!(all.len(), Catalog::load(None).unwrap().all().count());
        let messages = of(&["all", "--wire", "messages"]);
        assert!(
            messages.contains(&"claude-code on messages".to_owned()) && !messages.iter().any(|label| label.contains("codex"))
        );
        assert!(labels(&["codex", "--wire", "chat"]).unwrap_err().contains("does not speak the wire chat"));
        assert!(labels(&["codx"]).unwrap_err().contains("did you mean codex?"));
        assert!(labels(&[]).is_err());
    }
}
