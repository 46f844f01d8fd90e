//! `gleaner show`: one rollout, its calls, and what became of them.

mod batch;
mod branches;
mod calls;
mod diff;
mod evidence;
mod facts;
mod tokens;
mod words;

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use uuid::Uuid;

use super::terminal::{Paint, harmless, print};
use crate::call::{CallRecord, RawKind};
use crate::http::api::{CallView, RolloutView, whole};
use crate::ids::{BatchId, RolloutId};
use crate::policy::Texts;
use crate::store::{Artifact, Rollout, RolloutFilter, Store, StoreError};
use crate::trajectory::{Built, Drift};
use words::Words;

pub(super) use branches::Branch;

/// Shows one rollout: how it ended and why, what its run left, its calls, why calls were left out, its samples, and why they are
/// several. Or one batch: how far it is, what it came to by harness, and what its rollouts do now. Works while a server or a runner
/// works on the same store.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The rollout's or batch's id, or the beginning of one if only one begins so
    id: String,
    /// Of a batch: show it again and again until it has ended, with which rollout is on which turn
    #[arg(long, conflicts_with_all = ["tokens", "calls", "json", "diff", "artifact"])]
    watch: bool,
    /// Also draw the samples' tokens by mask, with log-probabilities (shades on a terminal), and where samples part
    #[arg(long)]
    tokens: bool,
    /// Also print what each call's request added to the conversation, and the reply
    #[arg(long)]
    calls: bool,
    /// With --tokens and --diff: what ids read as, by this tokenizer.json or the one in this folder; without it, what servers named
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Print only where the prompts of two calls part, with what stands around it: their ids, or the beginnings of them
    #[arg(long, num_args = 2, value_names = ["CALL", "CALL"], conflicts_with_all = ["tokens", "calls", "json"])]
    diff: Vec<String>,
    /// Print one of the files that its run left, byte for byte unless standard output is a terminal
    #[arg(long, value_name = "NAME", conflicts_with_all = ["tokens", "calls", "json", "diff"])]
    artifact: Option<String>,
    /// Print one JSON object, `{"rollout", "artifacts", "calls", "samples", "left_out", "branches"}`, with everything
    #[arg(long)]
    json: bool,
}

/// Why the rollout became more samples than one.
///
/// # Errors
/// If its calls can't be read.
pub(super) async fn branches_of(
    store: &dyn Store,
    rollout: &Rollout,
    records: &[CallRecord],
    built: &Built,
) -> anyhow::Result<Vec<Branch>> {
    Ok(branches::of(&built.samples, &views(store, rollout, records, built).await?))
}

/// Runs the command. `trained` says of a policy's name whether it is trained.
pub(super) async fn run(
    args: Args,
    store: &dyn Store,
    trained: &(dyn Fn(&str) -> bool + Sync),
    drift: Drift,
) -> anyhow::Result<ExitCode> {
    let artifacts = store.artifacts().root();
    let rollout = match find(store, &args.id).await? {
        Found::Rollout(rollout) => rollout,
        Found::Batch(id) if args.watch => return batch::watch(store, id, artifacts).await.map(|()| ExitCode::SUCCESS),
        Found::Batch(id) => return batch::show(store, id, artifacts, args.json).await.map(|()| ExitCode::SUCCESS),
    };
    ensure!(!args.watch, "--watch is for batches; {} is a rollout", rollout.id);
    if let Some(name) = &args.artifact {
        artifact(store, &rollout, name)?;
        return Ok(ExitCode::SUCCESS);
    }
    let records = store.calls(rollout.id).await?;
    let words = Words::new(args.tokenizer.as_deref().map(Texts::open).transpose()?);
    if let [one, two] = args.diff.as_slice() {
        print(&parting(store, &rollout, &records, (one, two), words).await?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let built = crate::export::build(store, &rollout, trained, drift).await?;
    let text = if args.json {
        json(store, &rollout, &records, &built).await?
    } else {
        rendered(store, &args, &rollout, records, &built, words).await?
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

async fn rendered(
    store: &dyn Store,
    args: &Args,
    rollout: &Rollout,
    records: Vec<CallRecord>,
    built: &Built,
    mut words: Words,
) -> anyhow::Result<String> {
    let paint = Paint::of_stdout();
    let mut out = facts::rollout(rollout, built, paint);
    out.push_str(&evidence::rendered(rollout, paint));
    let (files, folder) = (left(store, rollout)?, store.artifacts().folder(rollout.id));
    out.push_str(&evidence::artifacts(&files, &folder, paint));
    out.push('\n');
    out.push_str(&facts::calls(&records, built, paint));
    out.push('\n');
    out.push_str(&facts::samples(&built.samples, paint));
    let views = if args.calls || built.samples.len() > 1 { views(store, rollout, &records, built).await? } else { Vec::new() };
    out.push_str(&branches::rendered(&branches::of(&built.samples, &views), paint));
    if args.tokens {
        learn(&mut words, store, &records).await?;
        out.push_str(&tokens::forest(built, &words, paint));
    }
    if args.calls {
        out.push('\n');
        out.push_str(&calls::conversation(&views, paint));
    }
    Ok(out)
}

async fn json(store: &dyn Store, rollout: &Rollout, records: &[CallRecord], built: &Built) -> anyhow::Result<String> {
    let calls = views(store, rollout, records, built).await?;
    let view = RolloutView::new(rollout, Some(built.drift));
    let branches = branches::of(&built.samples, &calls);
    let all = serde_json::json!({"rollout": view, "artifacts": left(store, rollout)?, "calls": calls, "samples": built.samples, "left_out": built.left_out,
        "branches": branches});
    Ok(format!("{all}\n"))
}

/// The files that its run left.
fn left(store: &dyn Store, rollout: &Rollout) -> anyhow::Result<Vec<Artifact>> {
    let folder = store.artifacts().folder(rollout.id);
    store.artifacts().list(rollout.id).with_context(|| format!("reading the files in {}", folder.display()))
}

/// Prints one of the files that its run left.
fn artifact(store: &dyn Store, rollout: &Rollout, name: &str) -> anyhow::Result<()> {
    let reading = || format!("reading the artifact {name} of rollout {}", rollout.id);
    let file = store.artifacts().open(rollout.id, name).with_context(reading)?;
    let Some(mut file) = file else {
        bail!("rollout {} has no artifact {name}; gleaner show {} lists them", rollout.id, rollout.id);
    };
    if std::io::stdout().is_terminal() {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(reading)?;
        return Ok(print(&harmless(&String::from_utf8_lossy(&bytes)))?);
    }
    let mut out = std::io::stdout().lock();
    match std::io::copy(&mut file, &mut out).and_then(|_| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).with_context(reading),
        _ => Ok(()),
    }
}

async fn views(store: &dyn Store, rollout: &Rollout, records: &[CallRecord], built: &Built) -> anyhow::Result<Vec<CallView>> {
    let mut views = Vec::with_capacity(records.len());
    for (record, (_, class)) in records.iter().zip(&built.classes) {
        views.push(whole(store, record.clone(), rollout).await?.classed(*class));
    }
    Ok(views)
}

/// Where the prompts of two calls part.
async fn parting(
    store: &dyn Store,
    rollout: &Rollout,
    records: &[CallRecord],
    (one, two): (&str, &str),
    mut words: Words,
) -> anyhow::Result<String> {
    learn(&mut words, store, records).await?;
    let (one, two) = (call(records, one)?, call(records, two)?);
    let views = (whole(store, one.clone(), rollout).await?, whole(store, two.clone(), rollout).await?);
    Ok(diff::rendered((one, two), (&views.0, &views.1), &words, Paint::of_stdout()))
}

/// Reads what servers called the tokens that they sampled.
async fn learn(words: &mut Words, store: &dyn Store, records: &[CallRecord]) -> anyhow::Result<()> {
    for record in records {
        let response = store.raw(record.id, RawKind::Response).await?.unwrap_or_default();
        words.learn(&response, &record.capture.completion_ids);
    }
    Ok(())
}

/// The one call whose id begins so.
fn call<'a>(records: &'a [CallRecord], text: &str) -> anyhow::Result<&'a CallRecord> {
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    let mut found = records.iter().filter(|record| record.id.0.simple().to_string().starts_with(&digits));
    match (found.next(), found.next()) {
        (Some(record), None) => Ok(record),
        (None, _) => bail!("the rollout has no call whose id begins with {text}; gleaner show without --diff lists them"),
        (Some(_), Some(_)) => bail!("more than one call's id begins with {text}; give more of it"),
    }
}

/// What an id names.
enum Found {
    Rollout(Box<Rollout>),
    Batch(BatchId),
}

/// The batch that `text` is the id of, or the beginning of whose id it is, whatever rollouts begin so too.
pub(super) async fn batch_of(store: &dyn Store, text: &str) -> anyhow::Result<BatchId> {
    if let Some(digits) = digits(text) {
        let mut all = store.batches(None, 0).await?.into_iter().map(|batch| batch.id).filter(|id| begins(id.0, &digits));
        match (all.next(), all.next()) {
            (Some(id), None) => return Ok(id),
            (Some(_), Some(_)) => bail!("more than one id of a batch begins with {text}; give more of it"),
            (None, _) => {}
        }
    }
    match find(store, text).await? {
        Found::Batch(id) => Ok(id),
        Found::Rollout(rollout) => {
            let batch = rollout.run.map(|run| format!("; it is of batch {}", run.batch)).unwrap_or_default();
            bail!("{} is a rollout and no batch{batch}", rollout.id)
        }
    }
}

/// The hexadecimal digits of an id or of its beginning; `None` of what can be neither.
fn digits(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    let is_id = !digits.is_empty() && digits.len() <= 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_id.then_some(digits)
}

/// The rollout or batch that `text` is the id of, or the beginning of whose id it is.
async fn find(store: &dyn Store, text: &str) -> anyhow::Result<Found> {
    if let Ok(id) = text.parse::<RolloutId>() {
        return match (store.rollout(id).await?, store.batch(BatchId(id.0)).await?) {
            (Some(rollout), _) => Ok(Found::Rollout(Box::new(rollout))),
            (None, Some(batch)) => Ok(Found::Batch(batch.id)),
            (None, None) => bail!("there is no rollout or batch {id} in {}", store.describe()),
        };
    }
    let digits = digits(text).with_context(|| format!("{text} is no id of a rollout or batch; gleaner list gives them"))?;
    let rollouts = beginning(store, &digits).await?.into_iter().map(|rollout| Found::Rollout(Box::new(rollout)));
    let batches = store.batches(None, 0).await?.into_iter().map(|batch| batch.id).filter(|id| begins(id.0, &digits));
    let mut found = rollouts.chain(batches.map(Found::Batch));
    match (found.next(), found.next()) {
        (Some(found), None) => Ok(found),
        (None, _) => bail!("no id of a rollout or batch begins with {text} in {}; gleaner list gives them", store.describe()),
        (Some(_), Some(_)) => bail!("more than one id of a rollout or batch begins with {text}; give more of it"),
    }
}

/// The first rollouts whose ids begin with these hexadecimal digits; a second one is enough to know that it is not the only one.
async fn beginning(store: &dyn Store, digits: &str) -> Result<Vec<Rollout>, StoreError> {
    const PAGE: u32 = 1000;
    let mut filter = RolloutFilter { limit: PAGE, ..RolloutFilter::default() };
    let mut found = Vec::new();
    loop {
        let page = store.rollouts(&filter).await?;
        let last = page.len() < PAGE as usize;
        filter.after = page.last().map(|rollout| rollout.id);
        found.extend(page.into_iter().filter(|rollout| begins(rollout.id.0, digits)));
        if last || found.len() > 1 {
            return Ok(found);
        }
    }
}

fn begins(id: Uuid, digits: &str) -> bool {
    id.simple().to_string().starts_with(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_id_is_without_hyphens() {
        let id = "019a0000-1234-7000-8000-000000000000".parse().unwrap();
        assert_eq!(["019a", "019a00001234", "019b", "9a"].map(|digits| begins(id, digits)), [true, true, false, false]);
    }
}
