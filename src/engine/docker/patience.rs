//! How long the engine may take, and when it is asked again.

use std::time::Duration;

use bollard::errors::Error;
use tokio::time::{sleep, timeout};

use super::{failed, stuck};
use crate::engine::EngineError;

/// For what an engine does at once when it is idle: on a loaded machine it takes its time.
pub(super) const SHORT: Duration = Duration::from_mins(2);
/// For what moves files: whole images, whole file systems.
pub(super) const LONG: Duration = Duration::from_mins(30);
/// For what comes by itself, and is only dearer if it does not.
pub(super) const MOMENT: Duration = Duration::from_secs(1);
/// Pauses before an engine is asked again: long enough for one that is being restarted, short enough for who waits.
const PAUSES: [Duration; 4] =
    [Duration::from_millis(100), Duration::from_millis(400), Duration::from_millis(1_200), Duration::from_millis(2_400)];

/// One call, bounded in time. Never repeated: for what makes or starts something, of which nobody knows whether it was done.
pub(super) async fn within<T>(
    time: Duration,
    doing: impl Fn() -> String,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, EngineError> {
    match timeout(time, call).await {
        Ok(done) => done.map_err(failed(doing())),
        Err(_) => Err(stuck(doing(), time)),
    }
}

/// A call that may be made twice (it looks, or removes): made again where the engine was not there or was in trouble.
pub(super) async fn patiently<T, C: Future<Output = Result<T, Error>>>(call: impl FnMut() -> C) -> Result<T, Error> {
    again(&PAUSES, SHORT, call).await
}

async fn again<T, C>(pauses: &[Duration], time: Duration, mut call: impl FnMut() -> C) -> Result<T, Error>
where
    C: Future<Output = Result<T, Error>>,
{
    let mut pauses = pauses.iter();
    loop {
        let done = timeout(time, call()).await.unwrap_or(Err(Error::RequestTimeoutError));
        let (Err(error), Some(pause)) = (&done, pauses.next()) else { return done };
        if !is_transient(error) {
            return done;
        }
        sleep(*pause).await;
    }
}

/// Whether the engine may answer otherwise in a moment: it was not there, or had trouble of its own.
fn is_transient(error: &Error) -> bool {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            *status_code >= 500 || (*status_code == 409 && message.contains("already in progress"))
        }
        Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. }
        | Error::IOError { .. }
        | Error::SocketNotFoundError(_) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn status(status_code: u16, message: &str) -> Error {
        Error::DockerResponseServerError { status_code, message: message.to_owned() }
    }

    #[tokio::test]
    async fn trouble_of_the_engine_is_waited_out_and_an_answer_is_not_doubted() {
        for (errors, tries) in [
            (vec![], 1),
            (vec![status(500, "layers are locked"), status(409, "removal of container x is already in progress")], 3),
            (vec![std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()], 2),
        ] {
            let (left, made) = (Cell::new(errors), Cell::new(0));
            let done = again(&[Duration::ZERO; 4], SHORT, || async {
                made.set(made.get() + 1);
                let mut errors = left.take();
                let error = errors.pop();
                left.set(errors);
                error.map_or(Ok(7), Err)
            });
            assert_eq!((done.await.unwrap(), made.get()), (7, tries));
        }
        for (error, tries) in [(404, 1), (409, 1), (500, 5)] {
            let made = Cell::new(0);
            let done = again(&[Duration::ZERO; 4], SHORT, || async {
                made.set(made.get() + 1);
                Err::<(), _>(status(error, "no"))
            });
            assert_eq!((done.await.is_err(), made.get()), (true, tries), "{error}");
        }
    }

    #[tokio::test]
    async fn nothing_hangs_for_ever() {
        let moment = Duration::from_millis(1);
        let asked = again(&[], moment, std::future::pending::<Result<(), Error>>);
        assert!(matches!(asked.await, Err(Error::RequestTimeoutError)));
        let done = within(moment, || "start sandbox x".to_owned(), std::future::pending::<Result<(), Error>>()).await;
        assert_eq!(done.unwrap_err().to_string(), "start sandbox x: the engine did not answer within 0 s");
    }
}
