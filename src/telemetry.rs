//! Logs and metrics of the process, and its clock.

use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

/// The time now: Unix time in milliseconds.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Sends logs to standard error, as `GLEANER_LOG` says (as `RUST_LOG` does elsewhere); without it, what people want to know.
pub fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("GLEANER_LOG").unwrap_or_else(|_| EnvFilter::new("warn,gleaner=info"));
    let terminal = std::io::stderr().is_terminal();
    // A second call, as tests make, keeps the first one's.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(terminal).try_init();
}

/// Starts to count; gives what renders the counts for Prometheus.
///
/// # Errors
/// If metrics are counted already.
pub fn metrics() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new().install_recorder()
}
