//! What a sandbox prints, kept in files of bounded size: nobody who prints without end waits, or fills the disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::net::unix::pipe::Receiver;

/// Two such files are there at most: the end of what was printed is kept, so many bytes at least.
const HALF: u64 = 8 << 20;
/// What is taken of a pipe at once: as much as it holds.
const PIECE: usize = 64 << 10;

/// One stream's.
pub(super) struct Log {
    path: PathBuf,
    /// The newer file, once something was printed, and its length. Locked for as long as files are written or read.
    open: Mutex<Option<(File, u64)>>,
}

impl Log {
    /// Will be in the file `path`, and the older half in a file beside it.
    pub fn new(path: PathBuf) -> Arc<Self> {
        Arc::new(Self { path, open: Mutex::default() })
    }

    fn older(&self) -> PathBuf {
        self.path.with_extension("older")
    }

    /// Keeps all that comes. If the disk takes no more, the rest is read and lost, so that the harness goes on.
    pub async fn keep(self: Arc<Self>, pipe: Receiver) {
        loop {
            if pipe.readable().await.is_err() {
                return;
            }
            // Only now: hundreds of quiet sandboxes need no buffers.
            let mut piece = Vec::with_capacity(PIECE);
            match pipe.try_read_buf(&mut piece) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Err(_) => return,
            }
            let log = Arc::clone(&self);
            if let Ok(Err(error)) = tokio::task::spawn_blocking(move || log.write(&piece)).await {
                tracing::debug!(file = %self.path.display(), %error, "what a harness printed is lost");
            }
        }
    }

    fn write(&self, piece: &[u8]) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.as_ref().is_some_and(|(_, length)| length + piece.len() as u64 > HALF) {
            *open = None;
            fs::rename(&self.path, self.older())?;
        }
        if open.is_none() {
            *open = Some((File::create(&self.path)?, 0));
        }
        if let Some((file, length)) = open.as_mut() {
            file.write_all(piece)?;
            *length += piece.len() as u64;
        }
        Ok(())
    }

    /// What is kept. Files that the harness has removed are none.
    pub fn read(&self) -> io::Result<Bytes> {
        let _open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        for path in [self.older(), self.path.clone()] {
            match File::open(path) {
                Ok(mut file) => drop(io::copy(&mut file, &mut all)?),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_no_more_than_twice_the_half() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("stdout"));
        assert_eq!(log.read().unwrap(), Bytes::new());
        let piece: Vec<u8> = (0..PIECE).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
        for _ in 0..400 {
            log.write(&piece).unwrap();
        }
        log.write(b"the end").unwrap();
        let read = log.read().unwrap();
        assert!(read.ends_with(&[&piece[..], b"the end"].concat()));
        assert!((HALF..=2 * HALF).contains(&(read.len() as u64)), "{}", read.len());
        let on_disk: u64 = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        assert_eq!(on_disk, read.len() as u64);
    }
}
