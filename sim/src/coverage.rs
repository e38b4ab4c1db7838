//! What the worlds have reached: the variants of enums that the server dispatches on (`lunet_os::met`), compared with the
//! sources.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use lunet_os::simulated::Variant;

/// How often each variant was met: by the type's name, then by the variant's place in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<String, BTreeMap<u64, u64>>);

impl Coverage {
    /// Adds what a world has met.
    pub fn add(&mut self, met: &BTreeMap<Variant, u64>) {
        for ((name, place), count) in met {
            self.count(name, *place, *count);
        }
    }

    fn count(&mut self, name: &str, place: u64, count: u64) {
        // Without the parameters of the type.
        let name = name.split('<').next().unwrap_or(name);
        let variants = self.0.entry(name.to_owned()).or_default();
        *variants.entry(place).or_default() += count;
    }

    /// A line for each variant, for [`take`](Self::take) in another process.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().flat_map(|(name, variants)| {
            variants.iter().map(move |(place, count)| format!("met {name} {place} {count}"))
        })
    }

    /// Takes such a line. False if it is none.
    pub fn take(&mut self, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let ["met", name, place, count] = words[..] else { return false };
        let (Ok(place), Ok(count)) = (place.parse(), count.parse()) else { return false };
        self.count(name, place, count);
        true
    }

    /// Compares it with the sources.
    ///
    /// # Errors
    /// A type is not found in the sources.
    pub fn compare(&self) -> Result<Vec<Reached>> {
        self.0.iter().map(|(name, met)| Reached::of(name, met)).collect()
    }
}

/// What was reached of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The type.
    pub name: String,
    /// Its variants, and how often each was met.
    pub variants: Vec<(String, u64)>,
}

impl Reached {
    fn of(name: &str, met: &BTreeMap<u64, u64>) -> Result<Self> {
        let variants = variants(&source(name)?, name.rsplit("::").next().unwrap_or(name))
            .with_context(|| format!("{name} is not in its source"))?;
        let count = |place: usize| met.get(&(place as u64)).copied().unwrap_or(0);
        let variants =
            variants.into_iter().enumerate().map(|(at, variant)| (variant, count(at))).collect();
        Ok(Self { name: name.to_owned(), variants })
    }

    /// How many variants there are, and how many of them were never met.
    pub fn counts(&self) -> (usize, usize) {
        let never = self.variants.iter().filter(|(_, count)| *count == 0).count();
        (self.variants.len(), never)
    }
}

impl Display for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (all, missing) = self.counts();
        write!(f, "{}: {} of {all}", self.name, all - missing)?;
        let missing = self.variants.iter().filter(|(_, count)| *count == 0);
        let missing: Vec<&str> = missing.map(|(variant, _)| variant.as_str()).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => write!(f, "; never {}", missing.join(", ")),
        }
    }
}

/// The source of the module that a type is in.
fn source(name: &str) -> Result<String> {
    let mut parts: Vec<&str> = name.split("::").collect();
    parts.pop();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let krate = parts.first().context("a type has a crate")?;
    let folder = krate.strip_prefix("lunet_").unwrap_or(krate).replace('_', "-");
    let root = crates.join(folder).join("src");
    let module: PathBuf = parts[1..].iter().collect();
    let files = match parts.len() {
        1 => vec![root.join("lib.rs")],
        _ => vec![root.join(&module).with_extension("rs"), root.join(&module).join("mod.rs")],
    };
    let found = files.iter().find_map(|file| fs::read_to_string(file).ok());
    found.with_context(|| format!("{name} has no source in {}", root.display()))
}

/// The variants of an enum, in order.
fn variants(source: &str, name: &str) -> Option<Vec<String>> {
    let begins = |line: &&str| {
        let after = line.split_once("enum ").map(|(_, after)| after);
        after.is_some_and(|after| {
            after.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '<']))
        })
    };
    let mut lines = source.lines().map(str::trim).skip_while(|line| !begins(line));
    lines.next()?;
    let (mut depth, mut found) = (1, Vec::new());
    for line in lines {
        let code = line.split("//").next().unwrap_or_default();
        if depth == 1 && code.starts_with(char::is_uppercase) {
            let end = code.find(|c: char| !c.is_alphanumeric()).unwrap_or(code.len());
            found.push(code[..end].to_owned());
        }
        depth += code.matches(['{', '(', '[']).count();
        depth -= code.matches(['}', ')', ']']).count().min(depth);
        if depth == 0 {
            return Some(found);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_are_found_in_order() {
        let source = "/// Doc.\npub enum Mail<F: Front> {\n    /// One (with a bracket.\n    One,\n    #[default]\n    Two {\n        Field: u8,\n    },\n    \
                      Three(Vec<u8>),\n}\npub enum Mailbox {\n    Other,\n}\n";
        assert_eq!(
            variants(source, "Mail"),
            Some(["One", "Two", "Three"].map(String::from).into())
        );
        assert_eq!(variants(source, "Mai"), None);
    }

    #[test]
    fn what_was_met_passes_between_processes() {
        let mut one = Coverage::default();
        one.count("lunet_server::mail::Mail<lunet_front_iscsi::engine::Engine>", 2, 5);
        let mut two = Coverage::default();
        assert!(one.lines().all(|line| two.take(&line)) && !two.take("7 1 2"));
        assert_eq!(one, two);
        let reached = two.compare().expect("it is in the sources");
        assert_eq!(reached[0].variants[2], ("Rdma".to_owned(), 5));
        assert!(reached[0].to_string().contains("never Connection, RdmaRequest, End"));
    }
}
