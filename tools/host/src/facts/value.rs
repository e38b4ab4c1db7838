//! A value of the kernel's.

use serde::{Deserialize, Serialize};

/// A value as the kernel shows it: a number, several numbers, or a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// One whole number.
    Int(i64),
    /// Several, as in `net.ipv4.tcp_rmem`.
    List(Vec<i64>),
    /// Anything else.
    Text(String),
}

impl Value {
    /// Reads what a file says. Numbers beyond 63 bits become the largest one there is.
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let numbers: Option<Vec<i64>> = text.split_whitespace().map(number).collect();
        match numbers {
            Some(one) if one.len() == 1 => Self::Int(one[0]),
            Some(list) if list.len() > 1 => Self::List(list),
            _ => Self::Text(text.to_owned()),
        }
    }

    /// The number, if it is one.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(number) => Some(*number),
            Self::List(_) | Self::Text(_) => None,
        }
    }
}

/// As the kernel takes it.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Int(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::List(list) => {
                let words: Vec<String> = list.iter().map(i64::to_string).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

fn number(word: &str) -> Option<i64> {
    let digits = word.strip_prefix('-').unwrap_or(word);
    // 0644 and 00000001 are no numbers that could be written back as such.
    if digits.is_empty()
        || !digits.bytes().all(|byte| byte.is_ascii_digit())
        || digits.len() > 1 && digits.starts_with('0')
    {
        return None;
    }
    Some(word.parse().unwrap_or(i64::MAX))
}
