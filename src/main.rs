//! The `gleaner` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    gleaner::cli::main()
}
