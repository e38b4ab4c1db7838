//! Requests and answers.

use serde::{Deserialize, Serialize};

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "lowercase")]
pub enum Request {
    /// Who is connected.
    Sessions,
    /// What has been done.
    Stats,
}

/// What the server says to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// The answer.
    Ok(serde_json::Value),
    /// Why there is none, in one sentence.
    Error(String),
}
