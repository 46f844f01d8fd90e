-- What a call's headers said of its place among the rollout's conversations: JSON of a list of `call::Mark`. NULL: nothing.
ALTER TABLE calls ADD COLUMN marks TEXT;
