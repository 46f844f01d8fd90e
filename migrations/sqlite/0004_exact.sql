-- How Gleaner itself made the prompt, and which weights sampled which of the reply's tokens: JSON of `call::Rendered` and of a list of
-- `call::Run`. NULL: it did not, and all are of the reply's version.
ALTER TABLE replies ADD COLUMN rendered TEXT;
ALTER TABLE replies ADD COLUMN runs TEXT;
