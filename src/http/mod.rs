//! The HTTP server: routes, who may call them, and errors in the form of whom they answer.

pub mod api;
mod archive;
mod auth;
mod body;
mod compress;
mod config;
mod edge;
mod endpoint;
mod family;
mod health;
mod linger;
mod model;
mod models;
pub mod problem;
mod serve;

pub use api::Batches;
pub use auth::{AdminKey, AuthConfig, ClientKeys};
pub use config::ServerConfig;
pub use endpoint::SocketEndpoint;
pub use serve::{Http, ServeError, end, serve};
