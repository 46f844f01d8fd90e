-- Which weights each policy had last, so that the count of versions goes on when a process ends.
CREATE TABLE policies (
    name    TEXT PRIMARY KEY,
    version TEXT,
    seq     INTEGER NOT NULL,
    source  INTEGER
) WITHOUT ROWID;
