-- Where a call was posted, and its place among the calls of one request. Calls of before were posted where their wire says.
ALTER TABLE calls ADD COLUMN target TEXT NOT NULL DEFAULT '';
ALTER TABLE calls ADD COLUMN choice INTEGER NOT NULL DEFAULT 0;
