//! Images: what is to be known of one, and two ways to get one.

use std::path::Path;

use bollard::errors::Error;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::{CreateImageOptions, CreateImageOptionsBuilder};
use futures::{Stream, TryStreamExt};
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::patience::{LONG, patiently, within};
use super::{Docker, failed, reason};
use crate::engine::{EngineError, ImageFacts};

pub(super) async fn facts(api: &bollard::Docker, name: &str) -> Result<Option<ImageFacts>, EngineError> {
    let image = match patiently(|| api.inspect_image(name)).await {
        Ok(image) => image,
        Err(Error::DockerResponseServerError { status_code: 404, .. }) => return Ok(None),
        Err(error) => return Err(failed(format!("look at image {name}"))(error)),
    };
    let config = image.config.unwrap_or_default();
    let env = config.env.unwrap_or_default();
    Ok(Some(ImageFacts {
        id: image.id.unwrap_or_default(),
        workdir: config.working_dir.filter(|folder| !folder.is_empty()),
        env: env.iter().filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name.into(), value.into())).collect(),
    }))
}

impl Docker {
    /// Makes the image `name` of a root file system in a tar file, as `docker import` does, with `env` set in it.
    ///
    /// # Errors
    /// If the file can't be read or the engine refuses it.
    pub async fn import(&self, name: &str, tar: &Path, env: &[(&str, &str)]) -> Result<(), EngineError> {
        let doing = format!("import {} as image {name}", tar.display());
        let file = tokio::fs::File::open(tar)
            .await
            .map_err(|error| EngineError::Failed { doing: doing.clone(), why: error.to_string() })?;
        let chunks = futures::stream::try_unfold(file, |mut file| async move {
            let mut chunk = bytes::BytesMut::with_capacity(1 << 18);
            Ok((file.read_buf(&mut chunk).await? > 0).then(|| (chunk.freeze(), file)))
        });
        let (repo, tag) = split(name);
        let mut options = CreateImageOptionsBuilder::new().from_src("-").repo(repo).tag(tag);
        if !env.is_empty() {
            let pairs: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
            options = options.changes(vec![format!("ENV {}", pairs.join(" "))]);
        }
        let api = self.api.clone().with_timeout(LONG);
        let importing = drain(api.create_image(Some(options.build()), Some(bollard::body_try_stream(chunks)), None));
        within(LONG, || doing.clone(), importing).await
    }

    /// Pulls an image from its registry.
    ///
    /// # Errors
    /// If the registry can't be reached or does not have it.
    pub async fn pull(&self, name: &str) -> Result<(), EngineError> {
        let (repo, tag) = split(name);
        let options: CreateImageOptions = CreateImageOptionsBuilder::new().from_image(repo).tag(tag).build();
        let api = self.api.clone().with_timeout(LONG);
        let why = match timeout(LONG, drain(api.create_image(Some(options), None, None))).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => reason(error),
            Err(_) => format!("it took more than {} s", LONG.as_secs()),
        };
        Err(EngineError::NotPulled { image: name.to_owned(), why })
    }
}

async fn drain(progress: impl Stream<Item = Result<CreateImageInfo, Error>>) -> Result<(), Error> {
    progress.try_for_each(|_| async { Ok(()) }).await
}

/// Name and tag; a digest is passed as the tag, as the API wants it.
fn split(name: &str) -> (&str, &str) {
    if let Some((repo, digest)) = name.split_once('@') {
        return (repo, digest);
    }
    match name.rsplit_once(':') {
        // A colon before a slash is a registry's port.
        Some((repo, tag)) if !tag.contains('/') => (repo, tag),
        _ => (name, "latest"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_as_docker_does() {
        let cases = [
            ("a", ("a", "latest")),
            ("a:b", ("a", "b")),
            ("host:5000/a", ("host:5000/a", "latest")),
            ("host:5000/a:b", ("host:5000/a", "b")),
            ("a@sha256:00", ("a", "sha256:00")),
        ];
        for (name, expected) in cases {
            assert_eq!(split(name), expected);
        }
    }
}
