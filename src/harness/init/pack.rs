//! `init pack`: files and folders as a tar archive on standard output, whatever tools the image has. Links are packed as links,
//! never followed; what is neither file, folder nor link is left out.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::open;

const BLOCK: usize = 512;
/// Names of this length and more need an entry of their own.
const NAME: usize = 100;
/// More entries than anybody means to keep.
const ENTRIES: usize = 20_000;

/// Packs `paths`, absolute, under their names without the first slash. Of files at most `limit` bytes together and `each` bytes
/// each are packed. What is left out is said on standard error, a line each.
pub fn pack(limit: u64, each: u64, paths: &[PathBuf]) -> io::Result<()> {
    let mut packer = Packer { out: io::BufWriter::new(io::stdout().lock()), left: limit, each, entries: 0 };
    for path in paths {
        packer.add(path)?;
    }
    packer.out.write_all(&[0; 2 * BLOCK])?;
    packer.out.flush()
}

struct Packer<W: Write> {
    out: W,
    left: u64,
    each: u64,
    entries: usize,
}

impl<W: Write> Packer<W> {
    fn add(&mut self, path: &Path) -> io::Result<()> {
        let facts = match fs::symlink_metadata(path) {
            Ok(facts) => facts,
            Err(error) => return self.leave_out(path, &error.to_string()),
        };
        self.entries += 1;
        if self.entries > ENTRIES {
            return if self.entries == ENTRIES + 1 { self.leave_out(path, "and all after it: they are too many") } else { Ok(()) };
        }
        if facts.is_dir() {
            self.folder(path, &facts)
        } else if facts.is_symlink() {
            match fs::read_link(path) {
                Ok(target) => self.header(path, &facts, b'2', 0, target.as_os_str()),
                Err(error) => self.leave_out(path, &error.to_string()),
            }
        } else if facts.is_file() {
            self.file(path)
        } else {
            self.leave_out(path, "it is no file")
        }
    }

    fn folder(&mut self, path: &Path, facts: &Metadata) -> io::Result<()> {
        self.header(path, facts, b'5', 0, OsStr::new(""))?;
        let entries = fs::read_dir(path).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>());
        let mut entries = match entries {
            Ok(entries) => entries,
            Err(error) => return self.leave_out(path, &error.to_string()),
        };
        entries.sort();
        entries.iter().try_for_each(|entry| self.add(entry))
    }

    fn file(&mut self, path: &Path) -> io::Result<()> {
        let opened = open(path, 0).and_then(|file| Ok((file.metadata()?, file)));
        let (facts, file): (Metadata, File) = match opened {
            Ok(opened) if opened.0.is_file() => opened,
            Ok(_) => return self.leave_out(path, "it is no file"),
            Err(error) => return self.leave_out(path, &error.to_string()),
        };
        let size = facts.len();
        if size > self.each || size > self.left {
            return self.leave_out(path, &format!("its {size} bytes are too many"));
        }
        self.left -= size;
        self.header(path, &facts, b'0', size, OsStr::new(""))?;
        // As many bytes as were promised, whatever happens to the file meanwhile.
        let missing = size - io::copy(&mut file.take(size), &mut self.out)?;
        io::copy(&mut io::repeat(0).take(missing + padding(size)), &mut self.out)?;
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, why: &str) -> io::Result<()> {
        let _ = writeln!(io::stderr(), "{}: {why}", path.display());
        Ok(())
    }

    fn header(&mut self, path: &Path, facts: &Metadata, kind: u8, size: u64, link: &OsStr) -> io::Result<()> {
        let name = path.as_os_str().as_bytes();
        let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
        let link = link.as_bytes();
        for (text, kind) in [(name, b'L'), (link, b'K')] {
            if text.len() >= NAME {
                self.out.write_all(&block(b"././@LongLink", 0, (0, 0), text.len() as u64 + 1, 0, kind, b""))?;
                self.out.write_all(text)?;
                io::copy(&mut io::repeat(0).take(1 + padding(text.len() as u64 + 1)), &mut self.out)?;
            }
        }
        let time = facts.mtime().max(0).unsigned_abs();
        self.out.write_all(&block(name, facts.mode() & 0o7777, (facts.uid(), facts.gid()), size, time, kind, link))
    }
}

/// Bytes up to the next block.
fn padding(size: u64) -> u64 {
    (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64
}

/// A header as GNU tar writes it.
fn block(name: &[u8], mode: u32, (uid, gid): (u32, u32), size: u64, time: u64, kind: u8, link: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8], room: usize| {
        let bytes = &bytes[..bytes.len().min(room)];
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, name, NAME - 1);
    put(100, format!("{mode:07o}").as_bytes(), 7);
    put(108, format!("{uid:07o}").as_bytes(), 7);
    put(116, format!("{gid:07o}").as_bytes(), 7);
    put(124, format!("{size:011o}").as_bytes(), 11);
    put(136, format!("{time:011o}").as_bytes(), 11);
    // The sum is taken with blanks in its own place.
    put(148, b"        ", 8);
    put(156, &[kind], 1);
    put(157, link, NAME - 1);
    put(257, b"ustar  ", 8);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
