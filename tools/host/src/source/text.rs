//! A tree as one text:
//!
//! ```text
//! # comment
//! /sys/class/net/eth0/mtu: 9000
//! /proc/meminfo:
//! | MemTotal:       16384000 kB
//! | MemFree:         8192000 kB
//! /sys/class/net/: eth0 lo
//! /sys/class/net/eth0/device -> ../../../0000:41:00.0
//! $ ethtool -g eth0
//! | Ring parameters for eth0:
//! $ zpool list -Hp
//! exit 1
//! - /sys/class/net/eth1
//! - $ ethtool -g eth1
//! ```
//!
//! A file's text always ends with a line feed, or is empty. The lines with `-` take away what is
//! there, for a tree that is laid over another.

use std::fmt::Write;

use super::{Output, Tree};

/// A line that a tree's text cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct ParseError {
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

/// What the lines that start with `|` belong to.
enum Open {
    Nothing,
    File(String),
    Command(String),
}

/// Lays the text over the tree.
pub(super) fn overlay(tree: &mut Tree, text: &str) -> Result<(), ParseError> {
    let mut open = Open::Nothing;
    for (number, line) in text.lines().enumerate() {
        let wrong = |what| ParseError { line: number + 1, what };
        if let Some(content) = line.strip_prefix('|') {
            let into = match &open {
                Open::Nothing => return Err(wrong("text that belongs to no file or command")),
                Open::File(path) => tree.files.entry(path.clone()).or_default(),
                Open::Command(line) => &mut tree.commands.entry(line.clone()).or_default().stdout,
            };
            into.push_str(content.strip_prefix(' ').unwrap_or(content));
            into.push('\n');
            continue;
        }
        if let Some(code) = line.strip_prefix("exit ") {
            let Open::Command(line) = &open else { return Err(wrong("exit of no command")) };
            let code = code.trim().parse().map_err(|_| wrong("exit without a number"))?;
            tree.commands.entry(line.clone()).or_default().code = code;
            continue;
        }
        open = Open::Nothing;
        if let Some(command) = line.strip_prefix("$ ") {
            tree.command(command, Output::default());
            open = Open::Command(command.to_owned());
        } else if let Some(command) = line.strip_prefix("- $ ") {
            tree.remove_command(command);
        } else if let Some(path) = line.strip_prefix("- /") {
            tree.remove(&format!("/{path}"));
        } else if line.starts_with('/') {
            open = path(tree, line).ok_or_else(|| wrong("a path without : or ->"))?;
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            return Err(wrong("starts with none of / | $ - # and exit"));
        }
    }
    Ok(())
}

/// A line about a file, a directory or a link.
fn path(tree: &mut Tree, line: &str) -> Option<Open> {
    if let Some((path, target)) = line.split_once(" -> ") {
        tree.symlink(path, target.trim_end());
        return Some(Open::Nothing);
    }
    if let Some((directory, names)) = line.split_once("/:") {
        let names = names.split_whitespace().map(|name| name.replace("%20", " ")).collect();
        tree.lists.insert(directory.to_owned(), names);
        return Some(Open::Nothing);
    }
    if let Some((path, text)) = line.split_once(": ") {
        tree.file(path, &format!("{text}\n"));
        return Some(Open::Nothing);
    }
    let path = line.strip_suffix(':')?;
    tree.file(path, "");
    Some(Open::File(path.to_owned()))
}

/// Writes the tree.
pub(super) fn write(tree: &Tree) -> String {
    let mut out = String::from("# A machine as `lunet tune capture` saw it.\n");
    for (directory, names) in &tree.lists {
        let names: Vec<String> = names.iter().map(|name| name.replace(' ', "%20")).collect();
        let _ = writeln!(out, "{directory}/: {}", names.join(" "));
    }
    for (path, target) in &tree.links {
        let _ = writeln!(out, "{path} -> {target}");
    }
    for (path, text) in &tree.files {
        let one = text.strip_suffix('\n').unwrap_or(text);
        if one.is_empty() && text.len() <= 1 || one.contains(['\n', '\r']) || one.contains(" -> ") {
            let _ = writeln!(out, "{path}:");
            lines(&mut out, text);
        } else {
            let _ = writeln!(out, "{path}: {one}");
        }
    }
    for (command, output) in &tree.commands {
        let _ = writeln!(out, "$ {command}");
        if output.code != 0 {
            let _ = writeln!(out, "exit {}", output.code);
        }
        lines(&mut out, &output.stdout);
    }
    out
}

fn lines(out: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(out, "{}", format!("| {line}").trim_end());
    }
}
