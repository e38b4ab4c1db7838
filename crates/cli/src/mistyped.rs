//! What is wrong with a command line, with what was meant.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};
use lunet_config::units;

/// Words that people know from other programs, and the commands that do the same here.
const SYNONYMS: [(&str, &str); 13] = [
    ("rm", "delete"),
    ("del", "delete"),
    ("destroy", "delete"),
    ("remove", "delete"),
    ("delete", "remove"),
    ("rm", "remove"),
    ("del", "remove"),
    ("new", "create"),
    ("add", "create"),
    ("create", "add"),
    ("ls", "list"),
    ("show", "list"),
    ("status", "list"),
];

/// The same error with better advice. `words` is the command line, the program first.
pub fn advised(mut error: Error, words: &[OsString], root: &Command) -> Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => known_commands(&mut error, words, root),
        ErrorKind::UnknownArgument => split_size(&mut error, words),
        _ => {}
    }
    error
}

/// Proposes commands that are for people, and no other ones.
fn known_commands(error: &mut Error, words: &[OsString], root: &Command) {
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let wrong = wrong.clone();
    let mut at = root;
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        if word == wrong {
            break;
        }
        at = at.find_subcommand(word).unwrap_or(at);
    }
    let is_shown = |name: &str| at.find_subcommand(name).is_some_and(|found| !found.is_hide_set());
    let mut all = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(all)) => all,
        Some(ContextValue::String(one)) => vec![one],
        _ => Vec::new(),
    };
    all.retain(|name| is_shown(name));
    let same = SYNONYMS.iter().filter(|(word, name)| *word == wrong && is_shown(name));
    for (_, name) in same {
        if !all.iter().any(|one| one == name) {
            all.push((*name).to_owned());
        }
    }
    if !all.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(all));
    }
}

/// `--size 10 GB`, which a shell gives as two words.
fn split_size(error: &mut Error, words: &[OsString]) {
    let Some(ContextValue::String(unit)) = error.get(ContextKind::InvalidArg) else { return };
    let Some(at) = words.iter().position(|word| word == unit.as_str()) else { return };
    let before = at.checked_sub(1).and_then(|at| words.get(at)).and_then(|word| word.to_str());
    let Some(number) = before.filter(|word| word.parse::<f64>().is_ok()) else { return };
    let size = format!("{number}{unit}");
    if units::parse_size(&size).is_ok() {
        let tip = format!("a size is one word: write {size}, or '{number} {unit}' in quotes");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn told(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let root = crate::Cli::command();
        let error = root.clone().try_get_matches_from(&words).unwrap_err();
        advised(error, &words, &root).to_string()
    }

    #[test]
    fn what_was_meant_is_proposed() {
        assert!(told("lunet volume rm a").contains("'delete'"), "{}", told("lunet volume rm a"));
        assert!(told("lunet portal rm a").contains("'remove'"));
        assert!(told("lunet volume delet a").contains("'delete'"));
        let split = told("lunet volume create a --size 10 GB");
        assert!(split.contains("write 10GB, or '10 GB' in quotes"), "{split}");
        assert!(!told("lunet volume create a b").contains("a size is one word"));
    }

    #[test]
    fn hidden_commands_are_not_proposed() {
        for word in ["serve-helpr", "server", "serve-res", "servehelper"] {
            let told = told(&format!("lunet {word}"));
            assert!(told.contains("unrecognized subcommand"), "{told}");
            assert!(!told.contains("'serve-helper'") && !told.contains("'serve-rest'"), "{told}");
        }
    }
}
