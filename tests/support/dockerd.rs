//! A Docker engine of a test's own, which it may kill. Needs `dockerd`, and root.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// On a loaded machine its start takes its time.
const LONG: Duration = Duration::from_mins(1);

/// A dockerd in a folder and a network of its own: without a bridge it would remove the machine's.
pub struct Dockerd {
    folder: PathBuf,
    process: Child,
}

impl Dockerd {
    /// Starts one; in the folder of one that has ended it has what that had.
    pub fn start(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        let log = std::fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let process = Command::new("unshare")
            .args(["--net", "dockerd", "--data-root", &path("data"), "--exec-root", &path("exec"), "--pidfile", &path("pid")])
            .args(["--host", &format!("unix://{}", path("docker.sock")), "--bridge=none", "--iptables=false", "--ip-masq=false"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("this test needs dockerd, and root");
        Self { folder: folder.to_owned(), process }
    }

    /// Where it listens.
    pub fn host(&self) -> String {
        format!("unix://{}", self.folder.join("docker.sock").display())
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Docker's client, asking this one.
    pub fn client(&self, words: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("docker");
        command.args(["--host", &self.host()]).args(words);
        command
    }

    /// Waits until it answers.
    pub async fn answers(&self) {
        let answered = async {
            while !self.client(&["version"]).output().await.unwrap().status.success() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LONG, answered).await.unwrap_or_else(|_| panic!("it does not answer: {}", self.log()));
    }

    /// Gives it an image of the machine's engine.
    pub async fn take_image(&self, name: &str) {
        let file = self.folder.join("image.tar").display().to_string();
        let saved = tokio::process::Command::new("docker").args(["save", "--output", &file, name]).output().await.unwrap();
        assert!(saved.status.success(), "this test needs the image {name}: {}", String::from_utf8_lossy(&saved.stderr));
        let loaded = self.client(&["load", "--input", &file]).output().await.unwrap();
        assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stderr));
        std::fs::remove_file(file).unwrap();
    }

    /// The names of its containers.
    pub async fn containers(&self) -> Vec<String> {
        let listed = self.client(&["ps", "--all", "--format", "{{.Names}}"]).output().await.unwrap();
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Ends it by a signal, and waits for its end.
    pub fn end(&mut self, signal: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        self.process.wait().unwrap();
        // Its containerd dies with it. Where nobody reaps orphans, the next one would take that for alive.
        let number = self.folder.join("exec/containerd/containerd.pid");
        let Ok(pid) = std::fs::read_to_string(&number) else { return };
        while std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::fs::remove_file(number).unwrap();
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            // By TERM it ends its containerd too.
            let _ = Command::new("kill").arg(self.process.id().to_string()).status();
            let _ = self.process.wait();
        }
        // It mounts its folder on itself, and one that was killed leaves that: the folder could not be removed.
        let _ = Command::new("umount").args(["--recursive", "--lazy", "--quiet"]).arg(self.folder.join("data")).status();
    }
}
