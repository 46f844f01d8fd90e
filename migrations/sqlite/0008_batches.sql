-- Rollouts that were ordered together, and by whom they are run. A batch whose `status` is `running` is one only while `process` lives.
CREATE TABLE batches (
    seq        INTEGER PRIMARY KEY,
    id         BLOB    NOT NULL UNIQUE,
    created_at INTEGER NOT NULL,
    -- JSON, as the runner wrote it down.
    plan       TEXT    NOT NULL,
    rollouts   INTEGER NOT NULL,
    -- The process that runs it, or ran it last; `processes` has no row any more of one that ended in order.
    process    INTEGER NOT NULL,
    status     TEXT    NOT NULL,
    sum        INTEGER NOT NULL DEFAULT 0
);

-- What a rollout that Gleaner runs itself is run for, and by which process. A table of its own, so that the sums of rollouts from
-- before stay what they are.
CREATE TABLE runs (
    rollout INTEGER PRIMARY KEY,
    batch   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    process INTEGER NOT NULL,
    sum     INTEGER NOT NULL
);
CREATE INDEX runs_by_batch ON runs (batch);
CREATE INDEX runs_by_process ON runs (process);
