//! The configuration in force.

use serde::{Deserialize, Serialize};

/// The configuration in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Configuration {
    /// Its file; for the embedded default, where one would be.
    pub file: String,
    /// There is no such file: the embedded default is served.
    pub embedded: bool,
    /// The file as it was read, but for secrets.
    pub text: String,
    /// The same as a table of the keys of docs/configuration.md, as far as they are written there. Its form is that of
    /// the file and not of this API.
    pub config: serde_json::Map<String, serde_json::Value>,
    /// The data directory in use.
    pub data: String,
    /// The control socket in use.
    pub socket: String,
}
