//! The command line, one file a subcommand.

mod assemble;
mod audit;
mod batch;
mod check;
mod dispatch;
mod doctor;
mod engine;
mod export;
mod filter;
mod harness;
mod list;
mod progress;
mod readiness;
mod remote;
mod run;
mod runner;
mod scripted;
mod serve;
mod show;
mod store;
mod summary;
mod terminal;

use std::future::Future;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{Signal, SignalKind, signal};

use assemble::{EngineArgs, PolicyArgs, StoreArgs};
use terminal::counted;

/// Records every model call of unmodified agent harnesses as exact training tokens, and runs those harnesses in containers.
#[derive(Parser)]
#[command(name = "gleaner", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the recording proxy (chat completions, completions, Responses, Messages, Gemini) and the API.
    Serve {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        args: serve::Args,
    },
    /// Run a task in a real harness, in a container without network, and record every call.
    Run {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        args: run::Args,
    },
    /// Run many: tasks x harnesses x samples, as many at once as you say; what was broken off is gone on with.
    Batch {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        args: batch::Args,
    },
    /// List rollouts, or batches.
    List {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        args: list::Args,
    },
    /// Show one rollout (its calls, its samples, and why a call gave none) or one batch.
    Show {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        args: show::Args,
    },
    /// Write recorded rollouts as a data set.
    Export {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        args: export::Args,
    },
    /// Hold samples against the raw bytes of their calls and the policy's own forward pass.
    Audit {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        args: audit::Args,
    },
    /// Check that the store is as it was written, or delete rollouts from it.
    Store {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        args: store::Args,
    },
    /// Look at engine, limits, disks, images, store and policies, and say what to fix.
    Doctor {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        policy: PolicyArgs,
        #[command(flatten)]
        engine: EngineArgs,
        #[command(flatten)]
        args: doctor::Args,
    },
    /// List harnesses, build a harness's payload, or check harnesses against a scripted policy.
    Harness {
        #[command(flatten)]
        store: StoreArgs,
        #[command(flatten)]
        args: harness::Args,
    },
}

/// Why a command did not do what it was asked.
#[derive(Debug)]
enum Stop {
    /// Wrong usage or config: exit code 2.
    Usage(anyhow::Error),
    /// It could not be done: exit code 1.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// Fails if records were lost at the end.
fn none_lost(records: usize) -> Result<(), Stop> {
    match records {
        0 => Ok(()),
        lost => Err(Stop::Failed(anyhow::anyhow!("{} could not be stored before the end", counted(lost as u64, "record")))),
    }
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    crate::telemetry::log_to_stderr();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return stopped(&Stop::Failed(error.into())),
    };
    match runtime.block_on(run_command(cli.command)) {
        Ok(code) => code,
        Err(stop) => stopped(&stop),
    }
}

async fn run_command(command: Command) -> Result<ExitCode, Stop> {
    match command {
        Command::Audit { store, policy, args } => audit::run(&store, &policy, args).await,
        Command::Serve { store, policy, engine, args } => serve::run(&store, &policy, &engine, args).await,
        Command::Run { store, policy, engine, args } => runner::run(&store, &policy, &engine, args).await,
        Command::Batch { store, policy, engine, args } => runner::batch(&store, &policy, &engine, args).await,
        Command::Harness { store, args } => runner::harness(&store, args).await,
        Command::Doctor { store, policy, engine, args } => doctor::run(&store, &policy, &engine, &args).await,
        Command::Store { store, args } => {
            let config = store.config()?;
            store::run(args, store.open().await?.as_ref(), &|policy| config.trained(policy)).await
        }
        Command::List { store, args } => {
            args.check().map_err(Stop::Usage)?;
            Ok(list::run(args, store.open().await?).await?)
        }
        Command::Show { store, args } => {
            let config = store.config()?;
            let store = store.open().await?;
            let trained = |policy: &str| config.trained(policy);
            Ok(show::run(args, store.as_ref(), &trained, config.record.drift).await?)
        }
        Command::Export { store, args } => {
            args.check().map_err(Stop::Usage)?;
            let config = store.config()?;
            Ok(export::run(args, store.open().await?.as_ref(), &|policy| config.trained(policy), config.record.drift).await?)
        }
    }
}

fn stopped(stop: &Stop) -> ExitCode {
    let (error, code) = match stop {
        Stop::Usage(error) => (error, 2),
        Stop::Failed(error) => (error, 1),
    };
    // Nothing is left to do if even the error can't be said.
    let _ = writeln!(std::io::stderr(), "gleaner: {error:#}");
    ExitCode::from(code)
}

/// Resolves when the process is asked to end (SIGTERM, SIGINT).
fn asked_to_end() -> std::io::Result<impl Future<Output = ()>> {
    let mut signals = Signals::listen()?;
    Ok(async move { signals.next().await })
}

/// The signals that ask the process to end (SIGTERM, SIGINT), none of which is lost.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    fn listen() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
