-- Ids are UUIDv7 as 16 bytes, times are Unix milliseconds. Other tables name a row by its small integer (`seq`), so that a
-- call costs one index of ids and one by rollout, and nothing written once is written again on a call's path.

CREATE TABLE processes (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         BLOB    NOT NULL UNIQUE,
    started_at INTEGER NOT NULL,
    -- The newest call of all when the process began: its own come after, so a sweep needs no index.
    after_call INTEGER NOT NULL,
    -- 1 once it was found dead and its open calls were ended for it. One that ended in order leaves no row.
    crashed    INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE rollouts (
    seq             INTEGER PRIMARY KEY,
    id              BLOB    NOT NULL UNIQUE,
    key             TEXT    NOT NULL UNIQUE,
    created_at      INTEGER NOT NULL,
    purpose         TEXT    NOT NULL,
    task_id         TEXT,
    group_id        TEXT,
    group_size      INTEGER,
    group_index     INTEGER NOT NULL,
    harness         TEXT,
    policy          TEXT,
    sampling        TEXT,
    metadata        TEXT,
    ttl_s           INTEGER,
    idempotency_key TEXT    UNIQUE,
    conversation    TEXT,
    ended_at        INTEGER,
    outcome         TEXT,
    no_reward       INTEGER NOT NULL DEFAULT 0,
    evidence        TEXT
);
CREATE INDEX rollouts_by_group ON rollouts (group_id) WHERE group_id IS NOT NULL;
CREATE INDEX rollouts_by_task ON rollouts (task_id) WHERE task_id IS NOT NULL;
CREATE INDEX rollouts_by_conversation ON rollouts (conversation) WHERE conversation IS NOT NULL AND ended_at IS NULL;

CREATE TABLE rewards (
    rollout INTEGER NOT NULL,
    -- 0: the rollout's own.
    call    INTEGER NOT NULL,
    name    TEXT    NOT NULL,
    value   REAL    NOT NULL,
    PRIMARY KEY (rollout, call, name)
) WITHOUT ROWID;

-- A call as it began. Bodies are packed as `store/body.rs` says, token ids and log-probabilities as `store/pack.rs` says.
CREATE TABLE calls (
    seq        INTEGER PRIMARY KEY,
    id         BLOB    NOT NULL UNIQUE,
    rollout    INTEGER NOT NULL,
    process    INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    wire       TEXT    NOT NULL,
    policy     TEXT    NOT NULL,
    model      TEXT    NOT NULL,
    stream     INTEGER NOT NULL,
    request    BLOB
);
CREATE INDEX calls_by_rollout ON calls (rollout, started_at);

-- A call as it ended, under the `seq` of its start. Small columns first: sums over them read no overflow pages.
CREATE TABLE replies (
    call              INTEGER PRIMARY KEY,
    status            INTEGER NOT NULL,
    -- NULL: nobody knows, its process died.
    ended_at          INTEGER,
    -- Sampled tokens: usage's count, else the number of ids.
    tokens            INTEGER NOT NULL,
    version           TEXT,
    version_seq       INTEGER NOT NULL,
    version_source    INTEGER,
    first_event_at    INTEGER,
    finish            TEXT,
    prompt_tokens     INTEGER,
    completion_tokens INTEGER,
    cached_tokens     INTEGER,
    reasoning_tokens  INTEGER,
    capture_level     INTEGER NOT NULL,
    logprob_kind      INTEGER NOT NULL,
    constrained       INTEGER NOT NULL,
    max_tokens_asked  INTEGER,
    max_tokens_used   INTEGER,
    capture_reason    TEXT,
    failure           TEXT,
    sampling_asked    TEXT,
    -- NULL: as asked.
    sampling_used     TEXT,
    notes             TEXT,
    completion_ids    BLOB,
    logprobs          BLOB,
    prompt_ids        BLOB,
    message           BLOB,
    upstream          BLOB,
    response          BLOB,
    prompt            BLOB
);

-- Calls whose last byte was handed to the client.
CREATE TABLE delivered (call INTEGER PRIMARY KEY);
