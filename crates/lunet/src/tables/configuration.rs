//! `lunet config show`

use serde::Deserialize;
use serde_json::Value;

use crate::control::Configuration;

/// The text of the configuration, as a file that could be served.
///
/// # Errors
/// The answer is not what this version of lunet expects.
pub fn configuration(answer: &Value) -> serde_json::Result<String> {
    Configuration::deserialize(answer).map(|shown| shown.text)
}
