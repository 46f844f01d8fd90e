//! Plain processes of this machine, for laptops and tests: **no isolation**. A harness runs as the user who runs Gleaner, sees that
//! user's files and network, and could do to Gleaner what the user can. It has a folder, an environment and a port of its own, and
//! all that it starts ends with it; that is order, not safety.

mod files;
mod folder;
mod log;
mod spawn;

use std::collections::HashMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{
    Engine, EngineConfig, EngineError, ExecResult, ExecSpec, Finding, ImageFacts, IsAlive, Network, Places, SandboxEnd,
    SandboxId, SandboxSpec, Tell,
};
use folder::Folder;
use spawn::Init;

/// Runs sandboxes as processes of this user.
pub struct Process {
    /// Our own program, which alone can end processes that don't want to.
    helper: PathBuf,
    /// The one name of an image that is accepted, and means nothing.
    image: String,
    owner: String,
    is_alive: IsAlive,
    /// Who runs Gleaner, and so everything here.
    user: (u32, u32),
    /// Where sandboxes have their folders.
    root: PathBuf,
    sandboxes: Mutex<HashMap<String, Sandbox>>,
    tasks: TaskTracker,
    /// Looks at every process at the same time.
    looks: Semaphore,
}

/// A sandbox, from its first to its last moment.
struct Sandbox {
    folder: Arc<Folder>,
    /// The model's port, until its init has it.
    listener: Option<TcpListener>,
    spec: Option<Arc<SandboxSpec>>,
    init: Option<Arc<Init>>,
    /// Commands that are not our own program's have run beside the init, and may have left something.
    visited: bool,
}

impl Process {
    /// What it is, for everybody who may not know.
    pub const WARNING: &str = "harnesses run as plain processes WITHOUT ISOLATION, as this user: they can read and change this user's files, \
        reach the network, and nothing bounds their processors, memory, processes and disk";

    /// An engine whose sandboxes belong to `owner` and lie in the folder for temporary files; `helper` is our own program on this
    /// machine. Those of owners that `is_alive` denies are what [`Engine::sweep`] removes.
    ///
    /// # Errors
    /// If the system does not say who runs this process (not Linux).
    pub fn new(config: &EngineConfig, helper: PathBuf, owner: &str, is_alive: IsAlive) -> Result<Self, EngineError> {
        let user = folder::user().map_err(failed("look at /proc/self".to_owned()))?;
        Ok(Self {
            helper,
            image: config.base_image.clone(),
            owner: owner.to_owned(),
            is_alive,
            user,
            root: std::env::temp_dir(),
            sandboxes: Mutex::default(),
            tasks: TaskTracker::new(),
            looks: Semaphore::new(2),
        })
    }

    fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Sandbox>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What of a sandbox is asked for; an error if there is none of this name, or it has not got so far.
    fn of<T>(&self, name: &str, what: impl FnOnce(&mut Sandbox) -> Option<T>) -> Result<T, EngineError> {
        let found = self.sandboxes().get_mut(name).and_then(what);
        found.ok_or_else(|| refused(format!("use sandbox {name}"), "there is none, or it was not created and started in order"))
    }

    fn is_own(&self, user: &str) -> bool {
        user == format!("{}:{}", self.user.0, self.user.1)
    }

    /// Refuses what only a container can have.
    fn check(&self, spec: &SandboxSpec, folder: &Folder) -> Result<(), EngineError> {
        let why = if spec.image != self.image {
            format!("it is of image {}, and there are no images here", spec.image)
        } else if spec.network != Network::None {
            "it has a network of its own kind".to_owned()
        } else if !self.is_own(&spec.user) {
            format!("it runs as user {}, and everything here runs as {}:{}", spec.user, self.user.0, self.user.1)
        } else if !folder.holds(Path::new(&spec.workdir)) {
            format!("its working folder {} is not in the folder that it has, {}", spec.workdir, folder.path.display())
        } else {
            return Ok(());
        };
        Err(refused(format!("create sandbox {}", spec.name), &format!("{why}; use Docker (--engine docker)")))
    }
}

#[async_trait]
impl Engine for Process {
    fn describe(&self) -> String {
        format!("processes of user {} on this machine, WITHOUT ISOLATION", self.user.0)
    }

    fn isolates(&self) -> bool {
        false
    }

    async fn isolation(&self) -> Result<Option<String>, EngineError> {
        Ok(None)
    }

    async fn ready(&self) -> Result<(), EngineError> {
        tracing::warn!("{}", Self::WARNING);
        Ok(())
    }

    async fn look(&self) -> Vec<Finding> {
        let advice = "for tasks or models that you do not trust, and for images, use Docker (--engine docker)";
        vec![Finding::warning("engine", Self::WARNING, advice)]
    }

    async fn ensure(&self, name: &str) -> Result<ImageFacts, EngineError> {
        self.image(name).await?.ok_or_else(|| EngineError::NoImage(name.to_owned()))
    }

    async fn image(&self, name: &str) -> Result<Option<ImageFacts>, EngineError> {
        if name == self.image {
            return Ok(Some(ImageFacts { id: "none: processes of this machine".to_owned(), ..ImageFacts::default() }));
        }
        Err(refused(format!("run in image {name}"), "the process engine has no images; use Docker (--engine docker)"))
    }

    async fn build(&self, name: &str, _context: Bytes, _tell: Tell<'_>) -> Result<(), EngineError> {
        Err(refused(format!("build image {name}"), "the process engine has no images; use Docker (--engine docker)"))
    }

    async fn snapshot(&self, sandbox: &SandboxId) -> Result<String, EngineError> {
        let doing = format!("keep sandbox {} as an image", sandbox.0);
        Err(refused(doing, "the process engine has no images; use Docker (--engine docker)"))
    }

    async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        Err(refused(format!("remove image {name}"), "the process engine has no images"))
    }

    async fn places(&self, name: &str) -> Result<Places, EngineError> {
        let folder = Folder::make(&self.root, &self.owner)
            .map_err(failed(format!("make a folder for sandbox {name} in {}", self.root.display())))?;
        let bound = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (address, listener) = bound.map_err(failed(format!("listen for sandbox {name}")))?;
        let within = |name: &str| folder.path.join(name).display().to_string();
        let places = Places {
            home: within(folder::HOME),
            temp: within(folder::TEMP),
            workdir: within(folder::WORK),
            listen: address.to_string(),
            bind: "fd:0".to_owned(),
            user: self.user,
        };
        let sandbox = Sandbox { folder: Arc::new(folder), listener: Some(listener), spec: None, init: None, visited: false };
        self.sandboxes().insert(name.to_owned(), sandbox);
        Ok(places)
    }

    fn inside(&self, host: &Path, _usual: &str) -> String {
        host.display().to_string()
    }

    async fn create(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        let folder = self.of(&spec.name, |sandbox| sandbox.spec.is_none().then(|| Arc::clone(&sandbox.folder)))?;
        self.check(spec, &folder)?;
        self.of(&spec.name, |sandbox| {
            sandbox.spec = Some(Arc::new(spec.clone()));
            Some(())
        })?;
        Ok(SandboxId(spec.name.clone()))
    }

    async fn start(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        self.of(&sandbox.0, |sandbox| {
            let (listener, spec) = (sandbox.listener.take()?, sandbox.spec.clone()?);
            Some(Init::start(&self.tasks, &self.helper, &sandbox.folder, &spec, listener).map(|init| sandbox.init = Some(init)))
        })?
        .map_err(failed(format!("start sandbox {}", sandbox.0)))
    }

    async fn exec(&self, sandbox: &SandboxId, command: &ExecSpec) -> Result<ExecResult, EngineError> {
        let own = command.command.first().is_some_and(|program| Path::new(program) == self.helper);
        let (folder, spec) = self.of(&sandbox.0, |one| {
            one.visited |= !own;
            Some((Arc::clone(&one.folder), one.spec.clone()?))
        })?;
        let doing = || format!("run {} in sandbox {}", command.command.first().map_or("nothing", String::as_str), sandbox.0);
        if let Some(user) = command.user.as_ref().filter(|user| !self.is_own(user)) {
            return Err(refused(doing(), &format!("it is to run as user {user}; use Docker (--engine docker)")));
        }
        spawn::exec(&self.helper, &folder, &spec, command).await.map_err(failed(doing()))
    }

    async fn copy_in(&self, sandbox: &SandboxId, folder: &str, tar: Bytes) -> Result<(), EngineError> {
        let own = self.of(&sandbox.0, |one| Some(Arc::clone(&one.folder)))?;
        let target = PathBuf::from(folder);
        let failed = failed(format!("copy files into {folder} of sandbox {}", sandbox.0));
        blocking(move || files::unpack(&own, &target, &tar)).await.map_err(failed)
    }

    async fn copy_out(&self, sandbox: &SandboxId, path: &str) -> Result<Bytes, EngineError> {
        let own = self.of(&sandbox.0, |one| Some(Arc::clone(&one.folder)))?;
        let source = PathBuf::from(path);
        let failed = failed(format!("copy {path} out of sandbox {}", sandbox.0));
        blocking(move || files::pack(&own, &source)).await.map_err(failed)
    }

    async fn copy_out_to(&self, sandbox: &SandboxId, path: &str, file: &Path, limit: u64) -> Result<u64, EngineError> {
        let tar = self.copy_out(sandbox, path).await?;
        let doing = format!("copy {path} out of sandbox {} to {}", sandbox.0, file.display());
        let length = tar.len() as u64;
        let target = file.to_owned();
        let kept = tar.slice(..tar.len().min(usize::try_from(limit).unwrap_or(usize::MAX)));
        blocking(move || std::fs::write(target, kept)).await.map_err(failed(doing.clone()))?;
        if length > limit {
            return Err(refused(doing, &format!("it has more than {limit} bytes")));
        }
        Ok(length)
    }

    async fn disk_used(&self, _sandbox: &SandboxId) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }

    async fn logs(&self, sandbox: &SandboxId) -> Result<(Bytes, Bytes), EngineError> {
        let init = self.of(&sandbox.0, |one| one.init.clone())?;
        let failed = failed(format!("read the logs of sandbox {}", sandbox.0));
        blocking(move || Ok((init.stdout.read()?, init.stderr.read()?))).await.map_err(failed)
    }

    async fn ended(&self, sandbox: &SandboxId) -> Result<Option<SandboxEnd>, EngineError> {
        let init = self.of(&sandbox.0, |one| Some(one.init.clone()))?;
        let code = init.and_then(|init| init.exit_code());
        Ok(code.map(|exit_code| SandboxEnd { exit_code, out_of_memory: false }))
    }

    async fn remove(&self, sandbox: &SandboxId) -> Result<(), EngineError> {
        let found = self.of(&sandbox.0, |one| Some((Arc::clone(&one.folder), one.init.clone(), one.visited)));
        let Ok((folder, init, visited)) = found else { return Ok(()) };
        let failed = |error| EngineError::Failed { doing: format!("remove sandbox {}", sandbox.0), why: format!("{error}") };
        let cleared = match &init {
            Some(init) => init.ended_well().await,
            None => true,
        };
        // To look at every process of the machine is dear, and only what is not below the init must be looked for.
        if !cleared || visited {
            let _permit = self.looks.acquire().await.ok();
            let init = init.filter(|init| init.exit_code().is_none()).map(|init| init.pid);
            spawn::kill(&self.helper, &folder.mark(), init).await.map_err(failed)?;
        }
        blocking(move || folder.remove()).await.map_err(failed)?;
        self.sandboxes().remove(&sandbox.0);
        Ok(())
    }

    async fn sweep(&self) -> Result<usize, EngineError> {
        let (root, owner, is_alive) = (self.root.clone(), self.owner.clone(), Arc::clone(&self.is_alive));
        let left = blocking(move || Ok(Folder::left_in(&root, &|process| process == owner || is_alive(process)))).await;
        let mut removed = 0;
        for folder in left.map_err(failed("look for what dead processes left".to_owned()))? {
            let path = folder.path.clone();
            let gone = spawn::kill(&self.helper, &folder.mark(), None).await;
            match if gone.is_ok() { blocking(move || folder.remove()).await } else { gone } {
                Ok(()) => removed += 1,
                // Somebody else's run may be at it too; what stays is found again.
                Err(error) => tracing::warn!(folder = %path.display(), %error, "could not remove a sandbox that was left"),
            }
        }
        Ok(removed)
    }
}

impl Drop for Process {
    /// Sandboxes that were made and never removed; what runs in them ends with its line to us.
    fn drop(&mut self) {
        for (_, sandbox) in self.sandboxes().drain() {
            let _ = sandbox.folder.remove();
        }
    }
}

/// Does what may wait for the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> std::io::Result<T> + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)?
}

/// What was being done when the system refused.
fn failed(doing: String) -> impl FnOnce(std::io::Error) -> EngineError {
    move |error| EngineError::Failed { doing, why: error.to_string() }
}

fn refused(doing: String, why: &str) -> EngineError {
    EngineError::Failed { doing, why: why.to_owned() }
}
