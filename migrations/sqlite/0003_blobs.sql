-- Images and other large base64 of requests, decoded, kept once; bodies refer to them by hash as `store/blob.rs` says.
CREATE TABLE blobs (
    seq   INTEGER PRIMARY KEY,
    -- SHA-256 of the bytes.
    hash  BLOB NOT NULL UNIQUE,
    bytes BLOB NOT NULL
);

-- Which calls' bodies refer to which, so that what nobody refers to can be found without unpacking bodies.
CREATE TABLE call_blobs (
    call INTEGER NOT NULL,
    blob INTEGER NOT NULL,
    PRIMARY KEY (call, blob)
) WITHOUT ROWID;
CREATE INDEX call_blobs_by_blob ON call_blobs (blob);

-- The images that the policy was sent as data, in their order: 32 bytes of hash each. Images of one size are the same tokens,
-- whatever they show, so that ids alone don't tell which call goes on from which.
ALTER TABLE replies ADD COLUMN images BLOB;
