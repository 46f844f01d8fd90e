//! The host's side of the talk with a sandbox's init: `ready`, `write`, `wrote`, `failed`, `go`, `started`, `exited`, `stop`, `hold`, `pass`, `mark`,
//! a line each.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

use super::run::Exit;

/// Waits for the one connection of a sandbox's init.
#[derive(Debug)]
pub struct ControlListener {
    listener: UnixListener,
    path: PathBuf,
}

/// The connection. While it is open, the sandbox stays.
#[derive(Debug)]
pub struct Control {
    lines: Lines<BufReader<OwnedReadHalf>>,
    writer: OwnedWriteHalf,
}

impl ControlListener {
    /// Listens at `path`, for any user: the sandbox's is none of the host's.
    ///
    /// # Errors
    /// If the socket can't be made.
    pub fn bind(path: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777))?;
        Ok(Self { listener, path: path.to_owned() })
    }

    /// Takes the first connection and waits until the init is ready. The socket is gone then: the harness, which starts later,
    /// can't speak for the init.
    ///
    /// # Errors
    /// If the connection ends or says something else.
    pub async fn ready(&self) -> std::io::Result<Control> {
        let (stream, _) = self.listener.accept().await?;
        std::fs::remove_file(&self.path)?;
        let mut control = Control::new(stream);
        match control.next().await? {
            Message::Ready => Ok(control),
            other => Err(unexpected(&other)),
        }
    }
}

impl Control {
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { lines: BufReader::new(reader).lines(), writer }
    }

    /// Has the init write a file as the harness's user, before the harness starts. `mode` is octal.
    ///
    /// # Errors
    /// If the init is gone, or could not write it.
    pub async fn write(&mut self, path: &str, mode: &str, content: &[u8]) -> std::io::Result<()> {
        if path.contains('\n') {
            return Err(std::io::Error::other(format!("a path with a line's end in it: {path:?}")));
        }
        self.writer.write_all(format!("write {mode} {} {path}\n", content.len()).as_bytes()).await?;
        self.writer.write_all(content).await?;
        match self.next().await? {
            Message::Wrote => Ok(()),
            Message::Failed(why) => Err(std::io::Error::other(why)),
            other => Err(unexpected(&other)),
        }
    }

    /// Lets the harness go.
    ///
    /// # Errors
    /// If the init is gone.
    pub async fn go(&mut self) -> std::io::Result<()> {
        self.writer.write_all(b"go\n").await
    }

    /// Ends the harness: TERM, after the grace KILL to everything, as at its deadline.
    ///
    /// # Errors
    /// If the init is gone.
    pub async fn stop(&mut self) -> std::io::Result<()> {
        self.writer.write_all(b"stop\n").await
    }

    /// Lets the harness's time stand still, or go on.
    ///
    /// # Errors
    /// If the init is gone.
    pub async fn hold(&mut self, hold: bool) -> std::io::Result<()> {
        self.writer.write_all(if hold { b"hold\n" } else { b"pass\n" }).await
    }

    /// Waits for the harness's end. May be broken off and called again.
    ///
    /// # Errors
    /// If the init is gone, or could not start the harness.
    pub async fn exited(&mut self) -> std::io::Result<Exit> {
        loop {
            match self.next().await? {
                Message::Started => {}
                Message::Exited(exit) => return Ok(exit),
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Has the init write `word` and a line's end on both outputs, behind all that the harness has printed.
    ///
    /// # Errors
    /// If the init is gone.
    pub async fn mark(&mut self, word: &str) -> std::io::Result<()> {
        self.writer.write_all(format!("mark {word}\n").as_bytes()).await
    }

    async fn next(&mut self) -> std::io::Result<Message> {
        match self.lines.next_line().await? {
            Some(line) => Ok(parse(&line)),
            None => Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the sandbox's init is gone")),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Message {
    Ready,
    Wrote,
    Failed(String),
    Started,
    /// Somebody other than the host wants the sandbox to end.
    Terminated,
    Exited(Exit),
    Other(String),
}

fn unexpected(message: &Message) -> std::io::Error {
    let said = match message {
        Message::Terminated => return std::io::Error::other("the engine stopped the sandbox"),
        Message::Other(line) => line.clone(),
        other => format!("{other:?}"),
    };
    std::io::Error::other(format!("the sandbox's init said: {said}"))
}

fn parse(line: &str) -> Message {
    if let Some(why) = line.strip_prefix("failed ") {
        return Message::Failed(why.to_owned());
    }
    let mut words = line.split(' ');
    match words.next() {
        Some("ready") => Message::Ready,
        Some("wrote") => Message::Wrote,
        Some("terminated") => Message::Terminated,
        Some("started") => Message::Started,
        Some("exited") => exit(words).map_or_else(|| Message::Other(line.to_owned()), Message::Exited),
        _ => Message::Other(line.to_owned()),
    }
}

/// `code=N signal=N timed_out=0|1 [oom=1] ms=N`; of code and signal the one that is not there is `-` or left out.
fn exit<'a>(words: impl Iterator<Item = &'a str>) -> Option<Exit> {
    let mut exit = Exit::default();
    for word in words {
        let (name, value) = word.split_once('=')?;
        match name {
            "code" => exit.code = value.parse().ok(),
            "signal" => exit.signal = value.parse().ok(),
            "timed_out" => exit.timed_out = value == "1",
            "oom" => exit.out_of_memory = value == "1",
            "ms" => exit.ms = value.parse().ok()?,
            _ => {}
        }
    }
    // A signal of 0 is none; a code beside a signal says nothing of its own.
    exit.signal = exit.signal.filter(|signal| *signal > 0);
    exit.code = exit.code.filter(|code| *code >= 0 && exit.signal.is_none());
    Some(exit)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn lines_of_the_init_are_understood() {
        let well = Exit { code: Some(3), ms: 12, ..Exit::default() };
        assert_eq!(parse("exited code=3 signal=0 timed_out=0 ms=12"), Message::Exited(well));
        // As a shell would say it, the code of a signal is 128 and more; it is no code of the harness's own.
        let killed = Exit { signal: Some(9), timed_out: true, ms: 7, ..Exit::default() };
        assert_eq!(parse("exited code=137 signal=9 timed_out=1 ms=7"), Message::Exited(killed));
        let full = Exit { timed_out: false, out_of_memory: true, ..killed };
        assert_eq!(parse("exited code=137 signal=9 timed_out=0 oom=1 ms=7"), Message::Exited(full));
        assert_eq!((parse("ready"), parse("started 7")), (Message::Ready, Message::Started));
        assert_eq!((parse("wrote"), parse("failed /a: no room")), (Message::Wrote, Message::Failed("/a: no room".to_owned())));
        assert_eq!(parse("exited soon"), Message::Other("exited soon".to_owned()));
    }

    #[tokio::test]
    async fn the_first_connection_is_the_only_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = ControlListener::bind(&path).unwrap();
        let mut init = UnixStream::connect(&path).await.unwrap();
        init.write_all(b"ready\nstarted 7\nexited code=0 signal=0 timed_out=0 ms=1\n").await.unwrap();
        let mut control = listener.ready().await.unwrap();
        assert!(!path.exists());
        control.go().await.unwrap();
        assert_eq!(control.exited().await.unwrap(), Exit { code: Some(0), ms: 1, ..Exit::default() });
        control.mark("7f").await.unwrap();
        let mut heard = [0; 11];
        init.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"go\nmark 7f\n");
        drop(init);
        assert_eq!(control.exited().await.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    }
}
