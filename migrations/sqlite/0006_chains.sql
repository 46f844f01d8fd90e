-- Bodies are told by others' (`store/body.rs`), a prompt's ids by the sequence of the call `prompt_base`: how many they share, then
-- the tail, as varints. Without a base they are all there.
ALTER TABLE replies ADD COLUMN prompt_base BLOB;

-- CRC-32: of the ids themselves; of a row's other columns, in the order of `store/sqlite/seal.rs`. Bodies carry their own.
ALTER TABLE replies ADD COLUMN prompt_sum INTEGER;
ALTER TABLE replies ADD COLUMN sum INTEGER;
ALTER TABLE calls ADD COLUMN sum INTEGER;
ALTER TABLE rollouts ADD COLUMN sum INTEGER;
ALTER TABLE rewards ADD COLUMN sum INTEGER;
ALTER TABLE delivered ADD COLUMN sum INTEGER;
ALTER TABLE processes ADD COLUMN sum INTEGER;

-- Of the bytes as they are kept: the hash, which is of what they were, is too slow to be taken at each reading.
ALTER TABLE blobs ADD COLUMN sum INTEGER;
-- 1: the bytes are packed as `store/body.rs` says.
ALTER TABLE blobs ADD COLUMN packed INTEGER NOT NULL DEFAULT 0;

-- Rows up to these numbers are from before there were sums.
CREATE TABLE unsealed (rollouts INTEGER NOT NULL, calls INTEGER NOT NULL, processes INTEGER NOT NULL);
INSERT INTO unsealed SELECT (SELECT coalesce(max(seq), 0) FROM rollouts), (SELECT coalesce(max(seq), 0) FROM calls),
    (SELECT coalesce(max(seq), 0) FROM processes);
