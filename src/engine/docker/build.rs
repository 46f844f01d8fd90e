//! Builds an image of a folder with a `Dockerfile`.

use std::collections::{HashMap, VecDeque};

use bollard::errors::Error;
use bollard::models::BuildInfo;
use bollard::query_parameters::BuildImageOptionsBuilder;
use bytes::Bytes;
use futures::TryStreamExt;
use tokio::time::timeout;

use super::patience::LONG;
use super::sweep::LABEL;
use super::{reason, stuck};
use crate::engine::{EngineError, Tell};

/// Lines of a failed build that its error shows.
const SHOWN: usize = 20;
/// Of a longer line the beginning is told.
const LINE: usize = 2_000;
/// What the builder puts around standard error.
const COLOURS: [&str; 2] = ["\u{1b}[91m", "\u{1b}[0m"];
/// Bytes of a build's output that are told; the rest is passed over.
const TOLD: usize = 16 << 20;

/// By the classic builder: that one is in every Docker and needs nothing beside it. The image has the label `gleaner` and no
/// owner, so that it stays for the next one who needs it.
pub(super) async fn build(api: &bollard::Docker, name: &str, context: Bytes, tell: Tell<'_>) -> Result<(), EngineError> {
    let labels = HashMap::from([(LABEL, env!("CARGO_PKG_VERSION"))]);
    let options = BuildImageOptionsBuilder::new().t(name).rm(true).forcerm(true).labels(&labels).build();
    let api = api.clone().with_timeout(LONG);
    let mut output = Output::new(tell);
    let running = async {
        let mut pieces = api.build_image(options, None, Some(bollard::body_full(context)));
        while let Some(piece) = pieces.try_next().await? {
            output.take(&piece);
        }
        Ok::<_, Error>(())
    };
    let doing = || format!("build image {name}");
    // Giving up hangs up on the engine, which ends the build.
    match timeout(LONG, running).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(EngineError::Failed { doing: doing(), why: output.blame(&reason(error)) }),
        Err(_) => Err(stuck(doing(), LONG)),
    }
}

/// A build's output, line by line, its end kept.
struct Output<'a> {
    tell: Tell<'a>,
    told: usize,
    line: String,
    last: VecDeque<String>,
    /// The step that runs: `Step 2/3 : RUN make`.
    step: Option<String>,
}

impl<'a> Output<'a> {
    fn new(tell: Tell<'a>) -> Self {
        Self { tell, told: 0, line: String::new(), last: VecDeque::new(), step: None }
    }

    fn take(&mut self, piece: &BuildInfo) {
        for part in piece.stream.as_deref().unwrap_or_default().split_inclusive('\n') {
            if self.line.len() < LINE {
                self.line.push_str(part.get(..LINE).unwrap_or(part));
            }
            if part.ends_with('\n') {
                self.end_line();
            }
        }
        // A pull's progress has an id; its bars are nobody's reading.
        if let (Some(status), None) = (&piece.status, &piece.id) {
            self.line.push_str(status);
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        // What redraws a line ends with its last state.
        let line = line.trim_end().rsplit('\r').next().unwrap_or_default();
        let line = &COLOURS.iter().fold(line.to_owned(), |line, colour| line.replace(colour, ""));
        if line.is_empty() {
            return;
        }
        if line.starts_with("Step ") {
            self.step = Some(line.to_owned());
        }
        if self.told < TOLD {
            self.told += line.len();
            (self.tell)(line);
            if self.told >= TOLD {
                (self.tell)("[gleaner: the build prints more than is shown]");
            }
        }
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    /// Which step failed, why, and the last lines.
    fn blame(&mut self, why: &str) -> String {
        self.end_line();
        let step = self.step.as_ref().map(|step| format!("{step}: ")).unwrap_or_default();
        let lines = self.last.make_contiguous().join("\n");
        if lines.is_empty() { format!("{step}{why}") } else { format!("{step}{why}; its last lines:\n{lines}") }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn piece(stream: &str) -> BuildInfo {
        BuildInfo { stream: Some(stream.to_owned()), ..BuildInfo::default() }
    }

    #[test]
    fn output_is_lines_whatever_its_pieces_are() {
        let told = Mutex::new(Vec::new());
        let tell = |line: &str| told.lock().unwrap().push(line.to_owned());
        let mut output = Output::new(&tell);
        for text in
            ["Step 1/2 : FROM x\n", "Step 2/2 : RUN y", "\n", "10%\r20%\r30%\n\n", "\u{1b}[91mone\n\u{1b}[0mtw", "o\n", "cut"]
        {
            output.take(&piece(text));
        }
        assert_eq!(*told.lock().unwrap(), ["Step 1/2 : FROM x", "Step 2/2 : RUN y", "30%", "one", "two"]);
        let blame = output.blame("it returned 3");
        assert!(blame.starts_with("Step 2/2 : RUN y: it returned 3; its last lines:\nStep 1/2 : FROM x\n"), "{blame}");
        assert!(blame.ends_with("one\ntwo\ncut"), "{blame}");
    }

    #[test]
    fn output_without_end_is_bounded() {
        let told = Mutex::new(0);
        let tell = |line: &str| *told.lock().unwrap() += line.len();
        let mut output = Output::new(&tell);
        let long = piece(&"x".repeat(1 << 20));
        for _ in 0..40 {
            output.take(&long);
        }
        assert!(output.line.len() <= 2 * LINE, "{}", output.line.len());
        let many = piece(&format!("{}\n", "y".repeat(1_000)).repeat(1_000));
        for _ in 0..40 {
            output.take(&many);
        }
        assert!(*told.lock().unwrap() < TOLD + 2 * LINE, "{}", told.lock().unwrap());
        assert_eq!(output.last.len(), SHOWN);
    }
}
