//! Data sets from recorded rollouts, one file a format.
