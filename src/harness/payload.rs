//! Payloads: the folders that sandboxes mount to have a harness. Built once per recipe and pin, kept in the cache.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use super::catalog::Harness;
use super::digest::Digest;
use super::lock;
use super::spec::{BuildPlace, Spec, SpecError};
use super::template::packages;

/// Where a payload is mounted, and where its build finds it.
pub const PAYLOAD: &str = "/opt/harness";

/// Where a container's build finds the harness's own folder.
const RECIPE: &str = "/opt/recipe";
const CERTIFICATES: &str = "/opt/ca-certificates.crt";
/// Lines of each of a failed build's outputs that its error shows.
const SHOWN_LINES: usize = 20;

/// Why there is no payload.
#[derive(Debug, thiserror::Error)]
pub enum PayloadError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("building the payload of {harness}: {doing}: {why}")]
    Io { harness: String, doing: String, why: std::io::Error },
    #[error("building the payload of {harness}: there is no docker command; install it: apt-get install docker.io")]
    NoDocker { harness: String },
    #[error("building the payload of {harness} failed ({status}); its last lines:\n{lines}")]
    Failed { harness: String, status: String, lines: String },
    #[error("building the payload of {harness} was cancelled")]
    Cancelled { harness: String },
}

/// A place for payloads, and what their builds need.
pub struct Builder<'a> {
    /// The cache's folder; payloads are in `payloads/` of it.
    pub cache: &'a Path,
    /// The image to build in where a harness names none.
    pub image: &'a str,
    /// Called with each line that a build prints.
    pub progress: &'a (dyn Fn(&str) + Send + Sync),
    pub cancel: &'a CancellationToken,
}

impl Builder<'_> {
    /// Where a harness's payload is or will be. Another recipe or pin is another folder.
    ///
    /// # Errors
    /// If the harness's packages can't be told.
    pub fn folder(&self, harness: &Harness) -> Result<PathBuf, SpecError> {
        let name = format!("{}-{:016x}", harness.spec.name, recipe_hash(harness)?);
        Ok(self.cache.join("payloads").join(name))
    }

    /// The folder of a harness's payload, built if it is not there. Of several processes one builds and the others wait.
    ///
    /// # Errors
    /// If it can't be built.
    pub async fn ready(&self, harness: &Harness) -> Result<PathBuf, PayloadError> {
        let folder = self.folder(harness)?;
        if folder.is_dir() {
            return Ok(folder);
        }
        let name = &harness.spec.name;
        let failed = |doing: String| move |why| PayloadError::Io { harness: name.clone(), doing, why };
        let payloads = self.cache.join("payloads");
        std::fs::create_dir_all(&payloads).map_err(failed(format!("make {}", payloads.display())))?;
        let lock_file = folder.with_extension("lock");
        let _lock =
            lock::lock(&lock_file, self.progress, self.cancel).await.map_err(failed(format!("lock {}", lock_file.display())))?;
        if folder.is_dir() {
            return Ok(folder);
        }
        // Under the lock nobody else works here: what is there was left by a process that died.
        let partial = folder.with_extension("partial");
        if partial.exists() {
            std::fs::remove_dir_all(&partial).map_err(failed(format!("remove {}", partial.display())))?;
        }
        let built = self.build(harness, &partial).await;
        if built.is_ok() {
            std::fs::rename(partial.join("out"), &folder).map_err(failed(format!("keep {}", folder.display())))?;
        }
        if let Err(error) = std::fs::remove_dir_all(&partial) {
            tracing::warn!(folder = %partial.display(), %error, "could not remove the remains of a build");
        }
        built.map(|()| folder)
    }

    async fn build(&self, harness: &Harness, partial: &Path) -> Result<(), PayloadError> {
        let spec = &harness.spec;
        let failed = |doing: &str| {
            let doing = doing.to_owned();
            move |why| PayloadError::Io { harness: spec.name.clone(), doing, why }
        };
        let [recipe, out, work] = ["recipe", "out", "work"].map(|name| partial.join(name));
        for folder in [&recipe, &out, &work] {
            std::fs::create_dir_all(folder).map_err(failed("make its folders"))?;
        }
        for (path, content) in &harness.files {
            let path = recipe.join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&recipe)).map_err(failed("write its recipe"))?;
            std::fs::write(&path, content).map_err(failed("write its recipe"))?;
        }
        let packages = packages(spec)?.join(" ");
        let container = format!("gleaner-build-{}-{}", spec.name, std::process::id());
        let mut command = match spec.payload.place {
            BuildPlace::Host => on_host(spec, &recipe, &out, &work),
            BuildPlace::Container => self.in_container(spec, &recipe, &out, &container).map_err(failed("look at its folder"))?,
        };
        command.env("PACKAGES", packages);
        // A group of its own, so that what the script started can be ended with it.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        let ended = match command.spawn() {
            Err(error) => Err(error),
            Ok(mut child) => {
                let group = child.id();
                tokio::select! {
                    ended = self.watch(&mut child) => ended,
                    () = self.cancel.cancelled() => {
                        let end = match (spec.payload.place, group) {
                            (BuildPlace::Container, _) => format!("docker rm --force {container}"),
                            (BuildPlace::Host, Some(group)) => format!("kill -TERM -{group}"),
                            (BuildPlace::Host, None) => "true".to_owned(),
                        };
                        Command::new("sh").args(["-c", &end]).output().await.map_err(failed("end it"))?;
                        return Err(PayloadError::Cancelled { harness: spec.name.clone() });
                    }
                }
            }
        };
        match ended {
            Ok((status, _)) if status.success() => Ok(()),
            Ok((status, lines)) => {
                Err(PayloadError::Failed { harness: spec.name.clone(), status: status.to_string(), lines: lines.join("\n") })
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && spec.payload.place == BuildPlace::Container => {
                Err(PayloadError::NoDocker { harness: spec.name.clone() })
            }
            Err(why) => Err(failed("start it")(why)),
        }
    }

    /// The build in a container on the engine's default network: package managers must reach their registries.
    fn in_container(&self, spec: &Spec, recipe: &Path, out: &Path, container: &str) -> std::io::Result<Command> {
        use std::os::unix::fs::MetadataExt as _;
        let owner = std::fs::metadata(out)?;
        // What root made in the container must be the cache's owner's to move and remove.
        let script = format!(
            "sh {RECIPE}/{}; code=$?; chown -R {}:{} {PAYLOAD}; exit $code",
            spec.payload.build,
            owner.uid(),
            owner.gid()
        );
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "--pull", "never", "--name", container, "--label", "gleaner=build"]);
        command.arg("--volume").arg(format!("{}:{PAYLOAD}", out.display()));
        command.arg("--volume").arg(format!("{}:{RECIPE}:ro", recipe.display()));
        if let Some(certificates) = host_certificates() {
            command.arg("--volume").arg(format!("{}:{CERTIFICATES}:ro", certificates.display()));
            for name in ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"] {
                command.arg("--env").arg(format!("{name}={CERTIFICATES}"));
            }
        }
        command.arg("--env").arg(format!("OUT={PAYLOAD}")).args(["--env", "PACKAGES", "--user", "0:0"]);
        command.arg(spec.payload.image.as_deref().unwrap_or(self.image)).args(["sh", "-c", &script]);
        Ok(command)
    }

    /// Waits for a build's end, tells its lines, and gives the last of them: those of its standard output, then those of its
    /// standard error. Each has its own, so that what went wrong is not pushed out by what goes on.
    async fn watch(&self, child: &mut Child) -> std::io::Result<(std::process::ExitStatus, Vec<String>)> {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let (status, mut last, errors) = tokio::join!(child.wait(), lines(stdout, self.progress), lines(stderr, self.progress));
        last.extend(errors);
        Ok((status?, last.into()))
    }
}

fn on_host(spec: &Spec, recipe: &Path, out: &Path, work: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(recipe.join(&spec.payload.build)).current_dir(work).env("OUT", out);
    command
}

/// Hands on what a process prints, line by line, and gives the last lines; bytes that are no UTF-8 are replaced.
async fn lines(from: Option<impl AsyncRead + Unpin>, tell: &(impl Fn(&str) + Sync + ?Sized)) -> VecDeque<String> {
    let mut last = VecDeque::with_capacity(SHOWN_LINES);
    let Some(from) = from else { return last };
    let mut reader = BufReader::new(from).split(b'\n');
    while let Ok(Some(line)) = reader.next_segment().await {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        tell(&line);
        if last.len() == SHOWN_LINES {
            last.pop_front();
        }
        last.push_back(line);
    }
    last
}

/// The host's own certificates: behind some networks the registries are not to be trusted without them.
fn host_certificates() -> Option<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    named.into_iter().chain(["/etc/ssl/certs/ca-certificates.crt".into()]).find(|path| path.is_file())
}

/// Tells recipes apart: the files that a build may look at, the pins, and the machine's kind.
fn recipe_hash(harness: &Harness) -> Result<u64, SpecError> {
    let payload = &harness.spec.payload;
    let mut sum = Digest::default();
    sum.part(std::env::consts::ARCH.as_bytes()).part(format!("{:?}", payload.place).as_bytes());
    sum.part(payload.image.as_deref().unwrap_or_default().as_bytes()).part(harness.spec.version.as_bytes());
    for package in packages(&harness.spec)? {
        sum.part(package.as_bytes());
    }
    let scripts: Vec<&String> = [&payload.build].into_iter().chain(&payload.uses).collect();
    for script in scripts.iter().filter_map(|script| harness.files.get(*script)) {
        sum.part(script);
    }
    // Beside the scripts: all but what a run alone reads.
    let run_files = harness.spec.files.iter().chain(harness.spec.changes().flat_map(|change| &change.files));
    let of_runs: Vec<&String> = run_files.filter_map(|file| file.source.as_ref()).collect();
    let is_else = |name: &String| name != "harness.toml" && !scripts.contains(&name) && !of_runs.contains(&name);
    for (_, bytes) in harness.files.iter().filter(|(name, _)| is_else(name)) {
        sum.part(bytes);
    }
    Ok(sum.get())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn harness(version: &str, build: &str) -> Harness {
        let text = format!(
            "name = \"own\"\nversion = \"{version}\"\ndescription = \"\"\nwire = \"chat\"\n[payload]\nbuild = \"build.sh\"\n\
             where = \"host\"\npackages = [\"own=={{{{version}}}}\"]\n[run]\ncommand = [\"x\"]\n"
        );
        let files = BTreeMap::from([("build.sh".to_owned(), build.as_bytes().to_vec())]);
        Harness { spec: Spec::parse("own", &text).unwrap(), files, origin: String::new(), baseline: None }
    }

    async fn ready(cache: &Path, harness: &Harness) -> Result<PathBuf, PayloadError> {
        let cancel = CancellationToken::new();
        Builder { cache, image: "none", progress: &|_| {}, cancel: &cancel }.ready(harness).await
    }

    #[tokio::test]
    async fn a_payload_is_built_once_per_pin() {
        let cache = tempfile::tempdir().unwrap();
        let count = cache.path().join("count");
        let build = format!("echo built >> {}\necho $PACKAGES > $OUT/packages\n", count.display());
        let one = ready(cache.path(), &harness("1", &build)).await.unwrap();
        assert_eq!(ready(cache.path(), &harness("1", &build)).await.unwrap(), one);
        let two = ready(cache.path(), &harness("2", &build)).await.unwrap();
        assert_eq!(std::fs::read_to_string(one.join("packages")).unwrap(), "own==1\n");
        assert_eq!(std::fs::read_to_string(two.join("packages")).unwrap(), "own==2\n");
        assert_eq!(std::fs::read_to_string(count).unwrap(), "built\nbuilt\n");
    }

    #[tokio::test]
    async fn a_file_that_the_build_may_copy_is_part_of_the_recipe() {
        let cache = tempfile::tempdir().unwrap();
        let mut one = harness("1", "cp \"$(dirname \"$0\")/agent.py\" \"$OUT/\"\n");
        let mut folders = Vec::new();
        for (name, text) in [("agent.py", "one"), ("agent.py", "two"), ("harness.toml", "other")] {
            one.files.insert(name.to_owned(), text.as_bytes().to_vec());
            folders.push(ready(cache.path(), &one).await.unwrap());
        }
        assert_eq!(folders[1], folders[2], "what is no part of the recipe makes no other payload");
        let copied = |folder: &Path| std::fs::read_to_string(folder.join("agent.py")).unwrap();
        assert_eq!((copied(&folders[0]), copied(&folders[1])), ("one".to_owned(), "two".to_owned()));
    }

    #[tokio::test]
    async fn of_several_at_once_one_builds() {
        let cache = tempfile::tempdir().unwrap();
        let count = cache.path().join("count");
        let harness = harness("1", &format!("echo built >> {}\n", count.display()));
        let all = futures::future::join_all((0..4).map(|_| ready(cache.path(), &harness))).await;
        assert!(all.iter().all(|built| built.as_ref().unwrap() == all[0].as_ref().unwrap()));
        assert_eq!(std::fs::read_to_string(count).unwrap(), "built\n");
    }

    #[tokio::test]
    async fn a_failed_build_shows_its_last_lines_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let build = "echo it broke >&2\nfor i in $(seq 30); do echo line $i; done\nexit 3\n";
        let error = ready(cache.path(), &harness("1", build)).await.unwrap_err().to_string();
        assert!(error.starts_with("building the payload of own failed (exit status: 3); its last lines:\n"), "{error}");
        assert!(
            error.contains("\nline 11\n") && !error.contains("\nline 10\n"),
            "the last lines of its standard output: {error}"
        );
        assert!(
            error.ends_with("\nline 30\nit broke"),
            "what it printed on its standard error is behind them, however early: {error}"
        );
        let left: Vec<_> = std::fs::read_dir(cache.path().join("payloads")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.iter().all(|path| path.extension().is_some_and(|ending| ending == "lock")), "{left:?}");
    }

    #[tokio::test]
    async fn cancelling_ends_a_build() {
        let cache = tempfile::tempdir().unwrap();
        let cancel = CancellationToken::new();
        let progress = |_: &str| cancel.cancel();
        let builder = Builder { cache: cache.path(), image: "none", progress: &progress, cancel: &cancel };
        let error = builder.ready(&harness("1", "echo begun\nsleep 1000\n")).await.unwrap_err();
        assert!(matches!(error, PayloadError::Cancelled { .. }), "{error}");
    }
}
