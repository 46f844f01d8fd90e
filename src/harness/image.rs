//! The images that tasks run in: named, or built of a task's folder, once for each content.

use std::path::Path;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::task::{User, pack, read_tree};
use super::{Order, Progress, Stage, TaskImage, lock};
use crate::engine::{EngineError, ImageFacts};

/// The repository of images that are built of tasks' folders; the tag is made of the content.
const REPOSITORY: &str = "gleaner-task";

/// The image of an order, with what is to be known of it; built if its task is a folder to build and it was not yet.
///
/// # Errors
/// If it can't be had or built.
pub(super) async fn ready(stage: &Stage<'_>, order: &Order) -> anyhow::Result<(String, ImageFacts)> {
    let name = match (&order.image, &order.task.image) {
        (None, TaskImage::Built(folder)) => return built(stage, order, folder).await,
        _ => order.image_or(&stage.image).to_owned(),
    };
    let facts = stage.engine.ensure(&name).await?;
    Ok((name, facts))
}

async fn built(stage: &Stage<'_>, order: &Order, folder: &Path) -> anyhow::Result<(String, ImageFacts)> {
    let context = context(folder).map_err(|error| anyhow::anyhow!("reading {}: {error}", folder.display()))?;
    let name = format!("{REPOSITORY}:{}", tag(&context));
    if let Some(facts) = stage.engine.image(&name).await? {
        return Ok((name, facts));
    }
    let of = format!("the image of task {}", order.task.id);
    let tell = |line: &str| (stage.progress)(Progress::Building { harness: of.clone(), line: line.to_owned() });
    let locks = stage.cache.join("images");
    std::fs::create_dir_all(&locks)?;
    let _lock = lock::lock(&locks.join(format!("{}.lock", tag(&context))), &tell, &stage.cancel).await?;
    if let Some(facts) = stage.engine.image(&name).await? {
        return Ok((name, facts));
    }
    let building = stage.engine.build(&name, context, &tell);
    let Some(done) = stage.cancel.run_until_cancelled(building).await else { anyhow::bail!("building {of} was cancelled") };
    done.map_err(|error| anyhow::Error::from(error).context(format!("building {of} from {}", folder.display())))?;
    let facts = stage.engine.image(&name).await?.ok_or_else(|| EngineError::NoImage(name.clone()))?;
    Ok((name, facts))
}

/// A folder as an engine builds of it. The same files give the same bytes, whenever and by whomever they were made.
fn context(folder: &Path) -> std::io::Result<Bytes> {
    let mut files = read_tree(folder)?;
    for file in files.values_mut() {
        file.mode = if file.mode & 0o111 == 0 { 0o644 } else { 0o755 };
    }
    pack(files.iter().map(|(path, file)| (&**path, file)), [], User::ROOT).map(Bytes::from)
}

fn tag(context: &[u8]) -> String {
    use std::fmt::Write as _;
    let hash = Sha256::digest(context);
    hash.iter().take(10).fold(String::new(), |mut tag, byte| {
        let _ = write!(tag, "{byte:02x}");
        tag
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_its_content_alone() {
        let make = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("a")).unwrap();
            std::fs::write(folder.path().join("a/b"), text).unwrap();
            std::fs::write(folder.path().join("Dockerfile"), "FROM scratch\n").unwrap();
            tag(&context(folder.path()).unwrap())
        };
        assert_eq!(make("x"), make("x"));
        assert_ne!(make("x"), make("y"));
        assert_eq!(make("x").len(), 20);
    }
}
