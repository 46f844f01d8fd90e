//! What goes wrong: dead processes, bad writes, locks, folders, disks, versions.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::*;
use crate::store::{Reward, RolloutFilter};

pub(super) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

#[tokio::test]
async fn calls_of_a_dead_process_are_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let (store, process) = open(&dir.path().join("live/g.db")).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let (open_call, ended) = (start(rollout.id, process), start(rollout.id, process));
    let end = end(&ended);
    let batch =
        [Write::NewRollout(rollout.clone().into()), Write::CallStart(open_call.clone()), Write::CallEnd(end.clone().into())];
    write_all(&mut *writer, batch);
    let interrupted = [unended(&open_call, CallStatus::Interrupted, None), recorded(&end, None)];
    // The files as a crash leaves them: the same bytes, and nobody's lock.
    copy(&dir.path().join("live"), &dir.path().join("dead"));
    let (dead, other) = open(&dir.path().join("dead/g.db")).await;
    assert_eq!(dead.calls(rollout.id).await.unwrap(), interrupted, "seen by a reader");
    let mut next = dead.writer().unwrap();
    assert_eq!(dead.calls(rollout.id).await.unwrap(), interrupted, "ended by a writer");
    let own = start(rollout.id, other);
    write_all(&mut *next, [Write::CallStart(own.clone())]);
    assert_eq!(dead.call(own.id).await.unwrap().unwrap().status, CallStatus::Running);
    let files: Vec<_> =
        std::fs::read_dir(dir.path().join("dead/g.db-processes")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!files.contains(&process.to_string().into()), "{files:?}");
    // A second process on the living store leaves the first one's calls alone.
    let (second, _) = open(&dir.path().join("live/g.db")).await;
    let _beside = second.writer().unwrap();
    assert_eq!(second.call(open_call.id).await.unwrap().unwrap().status, CallStatus::Running);
    // Ended in order: what was open is interrupted, and the log is in the database.
    drop(writer);
    assert_eq!(second.call(open_call.id).await.unwrap(), Some(unended(&open_call, CallStatus::Interrupted, Some(false))));
}

#[tokio::test]
async fn there_is_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir.path().join("g.db")).await;
    let writer = store.writer().unwrap();
    assert!(matches!(store.writer().err(), Some(StoreError::Other(text)) if text.contains("taken")));
    drop(writer);
    store.writer().unwrap();
}

#[tokio::test]
async fn a_bad_write_fails_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (store, process) = open(&dir.path().join("g.db")).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let (good, stray) = (start(rollout.id, process), start(RolloutId::generate(), process));
    let end = CallEnd { failure: Some(other_failure()), ..end(&good) };
    let nan = Reward { rollout_id: rollout.id, call_id: None, name: "reward".into(), value: f64::NAN };
    let results = writer.apply(&[
        Write::NewRollout(rollout.into()),
        Write::CallStart(good.clone()),
        Write::CallStart(good.clone()),
        Write::CallStart(stray.clone()),
        Write::Reward(nan),
        Write::Delivered(stray.id),
        Write::CallEnd(end.clone().into()),
        Write::CallEnd(end.clone().into()),
    ]);
    let expected = [None, None, Some("UNIQUE"), Some("no rollout"), Some("NOT NULL"), Some("no call"), None, Some("UNIQUE")];
    for (at, (result, part)) in results.iter().zip(expected).enumerate() {
        assert!(part.map_or(result.is_ok(), |part| is_other(result, part)), "{at}: {result:?}");
    }
    assert_eq!(results.len(), expected.len());
    assert_eq!(store.call(good.id).await.unwrap(), Some(recorded(&end, None)));
    assert_eq!(store.call(stray.id).await.unwrap(), None);
}

#[tokio::test]
async fn a_locked_store_is_written_once_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    let call = start(rollout.id, process);
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let batch = [Write::NewRollout(rollout.clone().into()), Write::CallStart(call.clone())];
    let results = writer.apply(&batch);
    assert!(results.iter().all(|result| matches!(result, Err(StoreError::Locked(text)) if text.contains("g.db"))), "{results:?}");
    other.execute_batch("ROLLBACK").unwrap();
    // The lost start comes with its end.
    let end = end(&call);
    write_all(&mut *writer, [Write::NewRollout(rollout.into()), Write::CallEnd(end.clone().into())]);
    assert_eq!(store.call(call.id).await.unwrap(), Some(recorded(&end, None)));
}

#[tokio::test]
async fn a_newer_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    drop(open(&path).await);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', 1, x'00', 1)",
    )
    .unwrap();
    let refused = crate::store::open(path.to_str().unwrap(), &config(), ProcessId::generate()).await;
    assert_eq!(refused.err(), Some(StoreError::Newer(path.display().to_string())));
}

/// Development stores had the seventh migration before the fifth.
#[tokio::test]
async fn a_migration_that_is_missing_before_the_last_is_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    drop(open(&path).await);
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch("ALTER TABLE calls DROP COLUMN marks; DELETE FROM _sqlx_migrations WHERE version = 5").unwrap();
    drop(open(&path).await);
    assert!(db.prepare("SELECT marks FROM calls").is_ok(), "the fifth migration was not run");
}

#[tokio::test]
async fn what_is_no_database_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    std::fs::write(&path, "not a database at all, and longer than a header ".repeat(20)).unwrap();
    let refused = crate::store::open(path.to_str().unwrap(), &config(), ProcessId::generate()).await.err();
    assert!(
        matches!(&refused, Some(StoreError::Other(text)) if text.contains("g.db") && text.contains("not a database")),
        "{refused:?}"
    );
}

/// Runs `test` where the running user can't write, or says why it can't.
fn needs(what: &str, met: bool) -> bool {
    if !met {
        assert!(std::env::var_os("GLEANER_TEST_REAL").is_none(), "this test needs {what}");
        eprintln!("NOT TESTED: this test needs {what}");
    }
    met
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|out| out.stdout == b"0\n")
}

#[tokio::test]
async fn a_folder_that_cant_be_written_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    // Root may write anywhere, but into a file system that is mounted read-only.
    let mounted = is_root().then(|| Mount::new(dir.path(), "ro,size=1m"));
    if mounted.is_none() {
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    }
    for path in [dir.path().join("g.db"), dir.path().join("folder/g.db")] {
        let refused = crate::store::open(path.to_str().unwrap(), &config(), ProcessId::generate()).await.err();
        assert!(
            matches!(&refused, Some(StoreError::ReadOnly(text)) if text.contains(dir.path().to_str().unwrap())),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_full_disk_stops_writes_until_there_is_room() {
    if !needs("root, to mount a small disk", is_root()) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _mount = Mount::new(dir.path(), "size=2m");
    let path = dir.path().join("g.db");
    let (store, process) = open(&path).await;
    let mut writer = store.writer().unwrap();
    let rollout = new_rollout(None);
    write_all(&mut *writer, [Write::NewRollout(rollout.clone().into())]);
    // Bytes that don't compress.
    let noise = || (0..4096).flat_map(|_| uuid::Uuid::new_v4().into_bytes()).collect::<Bytes>();
    let ballast = dir.path().join("ballast");
    std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    while refused.len() < 3 {
        let call = start(rollout.id, process);
        let end = CallEnd { raw: RawParts { response: noise(), ..RawParts::default() }, ..end(&call) };
        let result = writer.apply(&[Write::CallStart(call), Write::CallEnd(end.clone().into())]).pop().unwrap();
        match result {
            Ok(()) => kept.push(end),
            Err(StoreError::Full(text)) => {
                assert!(text.contains("g.db"), "{text}");
                refused.push(end);
            }
            Err(error) => panic!("{error}"),
        }
        assert!(kept.len() < 100, "the disk never fills");
    }
    std::fs::remove_file(&ballast).unwrap();
    write_all(&mut *writer, refused.iter().map(|end| Write::CallEnd(end.clone().into())));
    let expected: Vec<_> = kept.iter().chain(&refused).map(|end| recorded(end, None)).collect();
    assert_eq!(store.calls(rollout.id).await.unwrap(), expected);
}

#[tokio::test]
async fn several_may_open_a_new_store_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("g.db");
    let opened = futures::future::join_all((0..8).map(|_| {
        let path = path.clone();
        async move {
            let config = StoreConfig { busy_timeout_s: 10, ..StoreConfig::default() };
            let one = crate::store::open(path.to_str().unwrap(), &config, ProcessId::generate()).await.unwrap();
            let mut writer = one.writer().unwrap();
            write_all(&mut *writer, [Write::NewRollout(new_rollout(None).into())]);
            one
        }
    }))
    .await;
    assert_eq!(opened[0].rollouts(&RolloutFilter::default()).await.unwrap().len(), 8);
}

/// A tmpfs that goes with the test.
struct Mount(std::path::PathBuf);

impl Mount {
    fn new(at: &Path, options: &str) -> Self {
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status().unwrap();
        assert!(mounted.success());
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
