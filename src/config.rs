//! The config file: each module owns its section, this file only composes.
