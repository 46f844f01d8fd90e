//! Lets the harness go and waits for its end, within the terms of its rollout.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Driver, GRACE, Outcome, READY, disk};
use crate::harness::run::{Cap, Event, Exit};

impl Driver<'_> {
    pub(super) async fn wait(&mut self) -> Outcome<Event> {
        match self.exited().await {
            Ok(exit) => {
                self.artifacts.note("exit", json!(exit));
                self.artifacts.note("out_of_memory", exit.out_of_memory);
                self.exit = Some(exit);
                Ok(Event::Exited(exit))
            }
            Err(error) => {
                self.keep_output().await;
                self.died(&error).await
            }
        }
    }

    /// What to make of a sandbox whose init is gone or stuck. One that used up its memory did so by itself, and would again.
    async fn died(&mut self, error: &anyhow::Error) -> Outcome<Event> {
        let Some(sandbox) = &self.sandbox else { anyhow::bail!("{error:#}") };
        // Docker takes a moment to notice.
        for _ in 0..20 {
            if let Some(end) = self.stage.engine.ended(sandbox).await? {
                let code = end.exit_code;
                if end.out_of_memory {
                    self.artifacts.note("out_of_memory", true);
                    let why = format!("the sandbox's memory was used up, which ended all of it (exit code {code})");
                    return Ok(Event::Broke(why));
                }
                anyhow::bail!("the sandbox ended with exit code {code} while the harness ran");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("{error:#}")
    }

    /// Waits for the harness's end, and ends it when it asks for more than its terms allow. Its time stands still while its policy is
    /// paused.
    async fn exited(&mut self) -> Outcome<Exit> {
        let (Some(control), Some(sandbox)) = (&mut self.control, &self.sandbox) else {
            anyhow::bail!("there is no line to the sandbox's init")
        };
        let (endpoint, id) = (self.stage.endpoint, self.new.id);
        control.go().await?;
        // The init keeps the deadline; this is for one that can't.
        let mut backstop = Backstop::new(Instant::now(), self.prepared.timeout + GRACE + READY);
        let (mut capped, mut held): (Option<Cap>, bool) = (None, false);
        let overfull = disk::overfull(self.stage.engine, sandbox, self.prepared.limits.disk_bytes);
        tokio::pin!(overfull);
        loop {
            tokio::select! {
                biased;
                // Before the end: the harness may have ended because of it.
                cap = endpoint.capped(id), if capped.is_none() => {
                    capped = Some(cap);
                    control.stop().await?;
                    backstop = Backstop::new(Instant::now(), GRACE + READY);
                }
                used = &mut overfull, if capped.is_none() => {
                    capped = Some(Cap::Disk);
                    self.artifacts.note("disk_bytes", used);
                    control.stop().await?;
                    backstop = Backstop::new(Instant::now(), GRACE + READY);
                }
                exit = control.exited() => {
                    let exit = exit.map_err(|error| anyhow::Error::from(error).context("waiting for the harness's end"))?;
                    return Ok(Exit { capped, ..exit });
                }
                paused = endpoint.paused(id, held), if capped.is_none() => {
                    held = paused;
                    control.hold(held).await?;
                    backstop.hold(held, Instant::now());
                }
                () = backstop.over() => anyhow::bail!("the sandbox's init did not end the harness at its deadline"),
            }
        }
    }
}

/// A time that can stand still.
struct Backstop {
    left: Duration,
    /// Since when it runs; `None` while it stands still.
    since: Option<Instant>,
}

impl Backstop {
    fn new(now: Instant, left: Duration) -> Self {
        Self { left, since: Some(now) }
    }

    fn hold(&mut self, hold: bool, now: Instant) {
        if let Some(since) = self.since.take() {
            self.left = self.left.saturating_sub(now - since);
        }
        self.since = (!hold).then_some(now);
    }

    /// When it is over; `None` while it stands still.
    fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + self.left)
    }

    /// Waits until it is over.
    async fn over(&self) {
        match self.due() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_stands_still_goes_on_where_it_stood() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut backstop = Backstop::new(begun, Duration::from_secs(10));
        assert_eq!(backstop.due(), Some(at(10)));
        backstop.hold(true, at(4));
        assert_eq!(backstop.due(), None);
        backstop.hold(false, at(1_000));
        assert_eq!(backstop.due(), Some(at(1_006)));
        // Said twice, it is no other.
        backstop.hold(false, at(1_001));
        assert_eq!(backstop.due(), Some(at(1_006)));
        backstop.hold(true, at(2_000));
        backstop.hold(false, at(3_000));
        assert_eq!(backstop.due(), Some(at(3_000)));
    }
}
