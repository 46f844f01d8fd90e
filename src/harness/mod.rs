//! Runs unmodified harnesses in sandboxes.
