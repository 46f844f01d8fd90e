//! The HTTP server: routes, who may call them, and errors in the form of whom they answer.

pub mod api;
pub mod problem;
