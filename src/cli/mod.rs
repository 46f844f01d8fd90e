//! The command line, one file a subcommand.

mod export;

use std::process::ExitCode;

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
