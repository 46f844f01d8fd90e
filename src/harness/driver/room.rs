//! The sandbox that a verifier runs in: the harness's own, a copy of it, or a fresh one of the task's image. Those of our making have no
//! socket, nothing of the harness's and no key, and are gone with the rollout.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;

use super::command::Command;
use super::prepare::mount;
use super::{Driver, Outcome, READY, name, said};
use crate::engine::{ExecSpec, Network, Powers, SandboxId, SandboxSpec};
use crate::harness::task::{Place, TaskFile, User, Verifier, pack};

/// Where a fresh sandbox has the harness's patch and the task's test patch.
pub(super) const PATCH: &str = "/gleaner/patch.diff";
pub(super) const TEST_PATCH: &str = "/gleaner/tests.diff";
/// What a verifier's sandbox may be needed for beside the verifier.
const MARGIN: Duration = Duration::from_mins(15);

/// Where a verifier runs, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Room {
    pub sandbox: SandboxId,
    pub user: User,
    /// For the evidence.
    pub place: &'static str,
}

/// What lies in a sandbox before it starts: a tar archive for `/`.
type Luggage = Bytes;

impl Driver<'_> {
    /// The sandbox for a verifier, made if it must be. Not to be broken off: what it makes is removed at the rollout's end, if it is
    /// known then.
    ///
    /// # Errors
    /// If the engine can't make one.
    pub(super) async fn room(&mut self, verifier: &Verifier, timeout: Duration) -> Outcome<Room> {
        let Some(sandbox) = self.sandbox.clone() else { anyhow::bail!("there is no sandbox") };
        let user = verifier.user.unwrap_or(self.user);
        let alike = !verifier.network && self.network == Network::None && user == self.user;
        match verifier.place {
            Place::After if alike => Ok(Room { sandbox, user, place: "own" }),
            Place::After | Place::Copy => {
                let luggage = self.temporary(&sandbox).await?;
                let image = self.stage.engine.snapshot(&sandbox).await?;
                self.snapshot = Some(image.clone());
                let sandbox = self.fresh(image, verifier, user, timeout, luggage).await?;
                Ok(Room { sandbox, user, place: "copy" })
            }
            Place::Patched => {
                let file = |content: &[u8]| TaskFile { content: content.to_vec(), mode: 0o644 };
                let patch = file(self.patch.as_deref().unwrap_or_default());
                let tests = file(verifier.tests.patch.as_deref().unwrap_or_default().as_bytes());
                let luggage = pack([(PATCH, &patch), (TEST_PATCH, &tests)], [], User::ROOT)?.into();
                let image = self.prepared.facts.pinned(&self.prepared.image).to_owned();
                let sandbox = self.fresh(image, verifier, user, timeout, luggage).await?;
                Ok(Room { sandbox, user, place: "patched" })
            }
        }
    }

    /// What lies in the folder for files of a moment, which is in memory and so in no copy of the sandbox.
    async fn temporary(&mut self, sandbox: &SandboxId) -> Outcome<Luggage> {
        let limit = self.stage.config.artifact_limit_bytes;
        let bytes = limit.to_string();
        let words = [&*self.helper, "pack", &bytes, &bytes, &self.places.temp].map(str::to_owned).to_vec();
        // Headers and padding come on top.
        let result = self
            .stage
            .engine
            .exec(sandbox, &ExecSpec { output_limit: 2 * limit + (32 << 20), ..self.exec(words, READY) })
            .await?;
        if result.exit_code != 0 {
            anyhow::bail!("packing {} for the verifier: {}", self.places.temp, said(&result));
        }
        if !result.stderr.is_empty() {
            self.artifacts.note("not_copied", crate::harness::artifacts::tail(&result.stderr));
        }
        Ok(result.stdout)
    }

    async fn fresh(
        &mut self,
        image: String,
        verifier: &Verifier,
        user: User,
        timeout: Duration,
        luggage: Luggage,
    ) -> Outcome<SandboxId> {
        let task = &self.prepared.order.task;
        let home = if user == User::ROOT { "/root" } else { &self.places.home };
        // A copy's image has the harness's environment: its key goes.
        let hidden = self.launch.env.iter().filter(|(name, _)| !task.env.contains_key(name));
        let hidden = hidden.map(|(name, _)| {
            let of_image = self.prepared.facts.env.iter().find(|(other, _)| other == name);
            (name.clone(), of_image.map(|(_, value)| value.clone()).unwrap_or_default())
        });
        let mut env: Vec<(String, String)> = hidden.collect();
        env.extend(task.env.clone());
        env.push(("HOME".to_owned(), home.to_owned()));
        let idle = (timeout + MARGIN).as_millis().to_string();
        let spec = SandboxSpec {
            name: format!("{}-verify", name(self.new.id)),
            image,
            command: [&*self.helper, "idle", &idle].map(str::to_owned).to_vec(),
            env,
            workdir: self.workdir.clone(),
            // A copy has it as the harness left it.
            own_workdir: verifier.place == Place::Patched,
            user: format!("{}:{}", user.uid, user.gid),
            mounts: vec![mount(&self.prepared.helper, &self.helper)],
            tmpfs: Vec::new(),
            limits: self.prepared.limits,
            network: if verifier.network { Network::Outside } else { Network::None },
            powers: if user == User::ROOT { Powers::Usual } else { Powers::None },
            labels: vec![("gleaner.rollout".to_owned(), self.new.id.to_string())],
        };
        let sandbox = self.stage.engine.create(&spec).await?;
        self.second = Some(sandbox.clone());
        self.stage.engine.copy_in(&sandbox, "/", luggage).await?;
        self.stage.engine.start(&sandbox).await?;
        Ok(sandbox)
    }

    /// Makes a room ready for a verifier: what a harness left in its places goes, its files come.
    ///
    /// # Errors
    /// If that can't be done, or the engine has no file system of its own for files outside the working folder.
    pub(super) async fn furnish(&self, room: &Room, verifier: &Verifier, rewards: &[String]) -> Outcome<()> {
        let clear: Vec<&str> = verifier.clear.iter().chain(rewards).map(String::as_str).collect();
        if !clear.is_empty() {
            let result = self.help(&room.sandbox, &[&["clear"], &clear[..]].concat(), Some(room.user)).await?;
            if result.exit_code != 0 {
                anyhow::bail!("removing what the harness left in the verifier's places: {}", said(&result));
            }
        }
        let folders: Vec<&str> =
            rewards.iter().filter_map(|path| Path::new(path).parent()?.to_str()).filter(|folder| folder.len() > 1).collect();
        let folders =
            folders.into_iter().filter(|folder| !self.workdir.starts_with(folder) && !folder.starts_with(&self.workdir));
        self.bring(&room.sandbox, &verifier.files, folders, room.user).await
    }

    /// Puts files, by their path, and folders into a sandbox.
    pub(super) async fn bring(
        &self,
        sandbox: &SandboxId,
        files: &std::collections::BTreeMap<String, TaskFile>,
        folders: impl IntoIterator<Item = &str>,
        user: User,
    ) -> Outcome<()> {
        let (absolute, inside): (Vec<_>, Vec<_>) =
            files.iter().map(|(path, file)| (path.as_str(), file)).partition(|(path, _)| path.starts_with('/'));
        let folders: Vec<&str> = folders.into_iter().collect();
        if let Some(outside) =
            absolute.first().map(|(path, _)| *path).or(folders.first().copied()).filter(|_| !self.stage.engine.isolates())
        {
            anyhow::bail!("{outside} can't be put into a sandbox that shares its files with this machine; use --engine docker");
        }
        if !absolute.is_empty() || !folders.is_empty() {
            self.stage.engine.copy_in(sandbox, "/", pack(absolute, folders, user)?.into()).await?;
        }
        if !inside.is_empty() {
            self.stage.engine.copy_in(sandbox, &self.workdir, pack(inside, [], user)?.into()).await?;
        }
        Ok(())
    }

    /// Removes what was made for the verifier.
    pub(super) async fn clear_rooms(&mut self) {
        if let Some(sandbox) = self.second.take()
            && let Err(error) = self.stage.engine.remove(&sandbox).await
        {
            tracing::error!(rollout.id = %self.new.id, %error, "could not remove a verifier's sandbox");
        }
        if let Some(image) = self.snapshot.take()
            && let Err(error) = self.stage.engine.remove_image(&image).await
        {
            tracing::error!(rollout.id = %self.new.id, image, %error, "could not remove a copy of a sandbox");
        }
    }

    /// Runs a verifier in its room.
    pub(super) async fn run_verifier(
        &self,
        room: &Room,
        verifier: &Verifier,
        timeout: Duration,
    ) -> Outcome<crate::engine::ExecResult> {
        let env = verifier.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let workdir = Some(self.workdir.clone());
        let command = Command { words: &verifier.command, env, user: Some(room.user), workdir, timeout, ..Command::default() };
        self.command(&room.sandbox, command).await
    }
}
