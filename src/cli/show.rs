//! `gleaner show`: one rollout, its calls, and what became of them.

mod branches;
mod calls;
mod facts;
mod tokens;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};

use super::terminal::{Paint, print};
use crate::call::{CallRecord, RawKind};
use crate::http::api::{CallView, RolloutView, whole};
use crate::ids::{CallId, RolloutId};
use crate::store::{Rollout, RolloutFilter, Store, StoreError};
use crate::trajectory::{Built, Drift};

/// Shows one rollout: how it ended, its calls, why calls were left out, its samples, and why they are
/// several. Works while a server runs on the same
/// store.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The rollout's id, or the beginning of one if only one begins so
    id: String,
    /// Also print the samples' token ids: sampled ones (mask 1) green, others dim
    #[arg(long)]
    tokens: bool,
    /// Also print what each call's request added to the conversation, and the reply
    #[arg(long)]
    calls: bool,
    /// Print one JSON object, `{"rollout", "calls", "samples", "left_out", "branches"}`, with everything
    #[arg(long)]
    json: bool,
}

/// Runs the command. `trained` says of a policy's name whether it is trained.
pub(super) async fn run(
    args: Args,
    store: &dyn Store,
    trained: &(dyn Fn(&str) -> bool + Sync),
    drift: Drift,
) -> anyhow::Result<ExitCode> {
    let rollout = find(store, &args.id).await?;
    let records = store.calls(rollout.id).await?;
    let built = crate::export::build(store, &rollout, trained, drift).await?;
    let text = if args.json {
        json(store, &rollout, &records, &built).await?
    } else {
        rendered(store, &args, &rollout, records, &built).await?
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
) -> anyhow::Result<String> {
    let paint = Paint::of_stdout();
    let mut out = facts::rollout(rollout, built, paint);
    out.push('\n');
    out.push_str(&facts::calls(&records, built, paint));
    out.push('\n');
    out.push_str(&facts::samples(&built.samples, paint));
    let views = if args.calls || built.samples.len() > 1 { views(store, rollout, &records).await? } else { Vec::new() };
    out.push_str(&branches::rendered(&branches::of(&built.samples, &views), paint));
    if args.tokens {
        let mut strings = BTreeMap::new();
        for record in &records {
            let response = store.raw(record.id, RawKind::Response).await?.unwrap_or_default();
            strings.insert(record.id, tokens::strings(&response));
        }
        let replies: BTreeMap<CallId, &CallRecord> = records.iter().map(|record| (record.id, record)).collect();
        for sample in &built.samples {
            out.push('\n');
            out.push_str(&tokens::sample(sample, &strings, &replies, paint));
        }
    }
    if args.calls {
        out.push('\n');
        out.push_str(&calls::conversation(&views, paint));
    }
    Ok(out)
}

async fn json(store: &dyn Store, rollout: &Rollout, records: &[CallRecord], built: &Built) -> anyhow::Result<String> {
    let calls = views(store, rollout, records).await?;
    let view = RolloutView::new(rollout, Some(built.drift));
    let branches = branches::of(&built.samples, &calls);
    let all = serde_json::json!({"rollout": view, "calls": calls, "samples": built.samples, "left_out": built.left_out,
        "branches": branches});
    Ok(format!("{all}\n"))
}

async fn views(store: &dyn Store, rollout: &Rollout, records: &[CallRecord]) -> anyhow::Result<Vec<CallView>> {
    let mut views = Vec::with_capacity(records.len());
    for record in records {
        views.push(whole(store, record.clone(), rollout).await?);
    }
    Ok(views)
}

/// The rollout that `text` is the id of, or the beginning of whose id it is.
async fn find(store: &dyn Store, text: &str) -> anyhow::Result<Rollout> {
    if let Ok(id) = text.parse::<RolloutId>() {
        return store.rollout(id).await?.with_context(|| format!("there is no rollout {id} in {}", store.describe()));
    }
    let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    let whole_id = !digits.is_empty() && digits.len() <= 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    ensure!(whole_id, "{text} is no rollout's id; gleaner list gives them");
    let mut found = beginning(store, &digits).await?;
    match found.len() {
        0 => bail!("no rollout's id begins with {text} in {}; gleaner list gives them", store.describe()),
        1 => Ok(found.remove(0)),
        _ => bail!("more than one rollout's id begins with {text}; give more of it"),
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
        found.extend(page.into_iter().filter(|rollout| begins(rollout.id, digits)));
        if last || found.len() > 1 {
            return Ok(found);
        }
    }
}

fn begins(id: RolloutId, digits: &str) -> bool {
    id.0.simple().to_string().starts_with(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_id_is_without_hyphens() {
        let id: RolloutId = "019a0000-1234-7000-8000-000000000000".parse().unwrap();
        assert_eq!(["019a", "019a00001234", "019b", "9a"].map(|digits| begins(id, digits)), [true, true, false, false]);
    }
}
