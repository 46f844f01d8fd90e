//! Servers' generate endpoints: ids in, ids out.
