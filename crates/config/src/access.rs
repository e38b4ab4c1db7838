//! Who may see and reach what: `initiators`, users with their secrets, `[discovery]`.

use std::net::IpAddr;
use std::path::PathBuf;

use lunet_front_iscsi::Initiators;
use lunet_iscsi::chap::{Algorithm, Algorithms, MIN_SECRET, Secret};
use lunet_iscsi::keys::valid_name;
use lunet_server::Network;
use toml::Spanned;
use toml::de::DeValue;

use super::Target;
use super::mistake::{Mistake, Mistakes};
use super::reader::{Convert, Section, choice, label, string};
use super::schema::{self, Table};
use super::sections::path;
use crate::secrets::guard_memory;

/// The longest secret, in bytes.
pub const MAX_SECRET: usize = 255;

/// The longest name of a user (RFC 7143 section 6.1: a text value).
const MAX_NAME: usize = 255;

/// The longest list of initiators, and of users.
const MAX_ENTRIES: usize = 1024;

const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("md5", Algorithm::Md5),
    ("sha1", Algorithm::Sha1),
    ("sha256", Algorithm::Sha256),
    ("sha3-256", Algorithm::Sha3),
];

/// The rules of a target, or of discovery.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// Who may see and reach it; everybody if empty.
    pub initiators: Initiators,
    /// The CHAP algorithms that will do.
    pub algorithms: Algorithms,
    /// Who may log in; nobody has to prove anything if there are none.
    pub users: Vec<User>,
    /// The target's own account, for initiators that want to be sure of it.
    pub mutual: Option<Login>,
    /// LUNs that not all initiators see, each with those who do.
    pub luns: Vec<(u16, Initiators)>,
    /// If nothing else says who may reach it: everybody may, not only who is on this machine.
    pub open: bool,
}

impl Access {
    /// Every account.
    pub fn logins(&self) -> impl Iterator<Item = &Login> {
        self.users.iter().map(|user| &user.login).chain(&self.mutual)
    }

    /// Every account, to change it.
    pub fn logins_mut(&mut self) -> impl Iterator<Item = &mut Login> {
        self.users.iter_mut().map(|user| &mut user.login).chain(&mut self.mutual)
    }
}

/// Somebody who may log in.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Name and secret.
    pub login: Login,
    /// The initiators that may use it; all if empty.
    pub initiators: Initiators,
}

/// A name and where its secret is.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    /// CHAP name, which is unique in the target.
    pub name: String,
    /// Where the secret is.
    pub secret: Source,
    /// Line in the configuration file, from 1.
    pub line: usize,
    /// The key that says so, with the tables around it.
    pub key: String,
}

impl Login {
    /// A mistake of this account's secret.
    pub fn mistake(&self, text: impl Into<String>) -> Mistake {
        Mistake { line: self.line, key: self.key.clone(), text: text.into() }
    }
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// In the configuration itself.
    Here(Secret),
    /// In a file; a relative path starts at the configuration.
    File(PathBuf),
    /// In a variable of the environment.
    Environment(String),
    /// It was read from where it is.
    Read {
        /// The CHAP secret.
        secret: Secret,
        /// The file, if it was one.
        file: Option<PathBuf>,
    },
}

impl Source {
    /// The secret, if it is known by now.
    pub fn known(&self) -> Option<&Secret> {
        match self {
            Self::Here(secret) | Self::Read { secret, .. } => Some(secret),
            Self::File(_) | Self::Environment(_) => None,
        }
    }
}

/// What is wrong with a secret, as the end of a sentence about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum SecretError {
    #[error(
        "is a secret of {0} bytes; it must have {MIN_SECRET} to {MAX_SECRET}, and 16 at most for some initiators"
    )]
    TooShort(usize),
    #[error("is a secret of more than {MAX_SECRET} bytes")]
    TooLong,
    #[error("has more than one line")]
    Lines,
}

/// For those who collect sentences.
impl From<SecretError> for String {
    fn from(error: SecretError) -> Self {
        error.to_string()
    }
}

/// Checks the length of a secret.
///
/// # Errors
/// It has too few bytes, or too many.
pub const fn check_secret(length: usize) -> Result<(), SecretError> {
    match length {
        MIN_SECRET..=MAX_SECRET => Ok(()),
        0..MIN_SECRET => Err(SecretError::TooShort(length)),
        _ => Err(SecretError::TooLong),
    }
}

/// Mistakes at targets' own secrets that are users' secrets too, here or elsewhere (RFC 7143
/// section 9.2.1).
pub fn same_secrets(targets: &[Target], discovery: &Access) -> Vec<Mistake> {
    let rules = || targets.iter().map(|target| &target.access).chain([discovery]);
    let users: Vec<&Login> =
        rules().flat_map(|rules| rules.users.iter().map(|user| &user.login)).collect();
    let twice = |login: &Login| {
        let known = login.secret.known()?;
        let user = users.iter().find(|user| user.secret.known() == Some(known))?;
        let Login { name, line, .. } = user;
        Some(login.mistake(format!(
            "is also the secret of user \"{name}\" (line {line}): who knows it could pose as the \
             target"
        )))
    };
    rules().filter_map(|rules| rules.mutual.as_ref()).filter_map(twice).collect()
}

/// `[discovery]`
pub(super) fn discovery(top: &Section<'_>, mistakes: &mut Mistakes) -> Access {
    let Some(value) = top.raw("discovery") else { return Access::default() };
    let table = Section::open(value, "discovery".to_owned(), &schema::DISCOVERY, mistakes);
    table.map_or_else(Access::default, |table| access(&table, mistakes))
}

/// The rules that a table has, but for those of single LUNs.
pub(super) fn access(table: &Section<'_>, mistakes: &mut Mistakes) -> Access {
    let mut out = Access { initiators: initiators(table, mistakes), ..Access::default() };
    out.users = users(table, mistakes);
    if let Some(value) = table.raw("mutual") {
        let inner = Section::open(value, table.key("mutual"), &schema::MUTUAL, mistakes);
        out.mutual = inner.and_then(|inner| login(&inner, mistakes));
    }
    let algorithms: Convert<'_, Algorithms> = &algorithms;
    table.set("chap-algorithms", &mut out.algorithms, algorithms, mistakes);
    for name in ["mutual", "chap-algorithms"] {
        if let (Some(value), None) = (table.raw(name), table.raw("user")) {
            let text = "has no meaning without a user: a target proves itself only to those who \
                        prove themselves";
            mistakes.add(value.span().start, table.key(name), text);
        }
    }
    out
}

fn users(table: &Section<'_>, mistakes: &mut Mistakes) -> Vec<User> {
    let Some(value) = table.raw("user") else { return Vec::new() };
    let key = table.key("user");
    let items = value.get_ref().as_array().filter(|items| !items.is_empty());
    let Some(items) = items.filter(|items| items.len() <= MAX_ENTRIES) else {
        let heading = if table.path == "discovery" { "discovery" } else { "target" };
        let text =
            format!("must be written as [[{heading}.user]], once for each, 1 to {MAX_ENTRIES}");
        mistakes.add(value.span().start, key, text);
        return Vec::new();
    };
    let mut out: Vec<User> = Vec::new();
    for item in items {
        let Some(table) = Section::open(item, key.clone(), &schema::USER, mistakes) else {
            continue;
        };
        let initiators = initiators(&table, mistakes);
        let Some(login) = login(&table, mistakes) else { continue };
        if out.iter().any(|user| user.login.name == login.name) {
            let offset = table.raw("name").map_or(table.offset, |name| name.span().start);
            mistakes.add(offset, table.key("name"), "is the name of another user here already");
        }
        out.push(User { login, initiators });
    }
    out
}

/// The name of an account, and where its secret is.
fn login(table: &Section<'_>, mistakes: &mut Mistakes) -> Option<Login> {
    let name = table.get("name", &|v| label(v, MAX_NAME), mistakes);
    table.missing("name", mistakes);
    let kinds = ["secret", "secret-file", "secret-env"];
    let said: Vec<_> =
        kinds.iter().filter_map(|kind| Some((*kind, table.raw(kind)?.span().start))).collect();
    let [(kind, offset)] = said[..] else {
        let text = "must have one of secret, secret-file and secret-env";
        let offset = said.last().map_or(table.offset, |(_, offset)| *offset);
        mistakes.add(offset, table.path.clone(), text);
        return None;
    };
    let here: Convert<'_, Source> = &|v| {
        guard_memory();
        let secret = string(v)?.into_bytes();
        check_secret(secret.len())?;
        Ok(Source::Here(Secret::new(secret)))
    };
    let convert: Convert<'_, Source> = match kind {
        "secret" => here,
        "secret-file" => &|v| path(v).map(Source::File),
        _ => &variable,
    };
    let secret = table.get(kind, convert, mistakes)?.value;
    let (line, key) = (mistakes.line(offset), table.key(kind));
    Some(Login { name: name?.value, secret, line, key })
}

/// The name of a variable of the environment.
fn variable(value: &DeValue<'_>) -> Result<Source, String> {
    variable_name(value).map(Source::Environment)
}

/// The same as text.
pub(super) fn variable_name(value: &DeValue<'_>) -> Result<String, String> {
    let name = string(value)?;
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty()
        || !name.chars().all(allowed)
        || name.starts_with(|c: char| c.is_ascii_digit())
    {
        return Err("must be the name of a variable of the environment".to_owned());
    }
    Ok(name)
}

fn algorithms(value: &DeValue<'_>) -> Result<Algorithms, String> {
    let items = value.as_array().filter(|items| !items.is_empty());
    let items = items.ok_or("must be an array, as in [\"sha3-256\", \"sha256\"]")?;
    items.iter().map(|item| choice(item.get_ref(), ALGORITHMS)).collect()
}

/// The key `initiators` of a table.
pub(super) fn initiators(table: &Section<'_>, mistakes: &mut Mistakes) -> Initiators {
    let mut out = Initiators::default();
    let Some(value) = table.raw("initiators") else { return out };
    let key = table.key("initiators");
    let items = value.get_ref().as_array().filter(|items| items.len() <= MAX_ENTRIES);
    let Some(items) = items else {
        let text = format!(
            "must be an array of at most {MAX_ENTRIES} names, addresses and networks; leave it out \
             to name none"
        );
        mistakes.add(value.span().start, key, text);
        return out;
    };
    if items.is_empty() {
        return Initiators::nobody();
    }
    for item in items {
        if let Err(text) = string(item.get_ref()).and_then(|text| entry(&mut out, &text)) {
            mistakes.add(item.span().start, key.clone(), text);
        }
    }
    out
}

/// What an entry of a list of initiators stands for; `None` if it is none.
pub fn initiators_of(text: &str) -> Option<Initiators> {
    let mut out = Initiators::default();
    entry(&mut out, text).ok().map(|()| out)
}

/// Adds an entry: an iSCSI name, possibly with asterisks, an address or a network.
fn entry(out: &mut Initiators, text: &str) -> Result<(), String> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    if let Ok(address) = address.parse::<IpAddr>() {
        let network = match bits {
            None => Some(Network::host(address)),
            Some(bits) => bits.parse().ok().and_then(|bits| Network::new(address, bits)),
        };
        let most = if address.is_ipv4() { 32 } else { 128 };
        let wrong =
            || format!("\"{text}\" must have a prefix of 0 to {most} bits behind the slash");
        out.add_network(network.ok_or_else(wrong)?);
        return Ok(());
    }
    let pattern = text.to_ascii_lowercase();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-.:_*".contains(c);
    if pattern.contains('*') && pattern.len() <= 223 && pattern.chars().all(allowed) {
        out.add_name(&pattern);
        return Ok(());
    }
    // Any name that an initiator may log in with: not all of them have the form that they should.
    if !valid_name(&pattern) || pattern.contains('*') {
        return Err(format!(
            "\"{text}\" is no iSCSI name, no address and no network: write it as in \"iqn.1993-08.org.debian:01:host1\", \"192.0.2.7\" or \"192.0.2.0/24\""
        ));
    }
    out.add_name(&pattern);
    Ok(())
}

/// A LUN: the name of a volume, or a table with the volume and its initiators.
pub(super) fn lun<'a>(
    key: &str,
    value: &'a Spanned<DeValue<'a>>,
    mistakes: &mut Mistakes,
) -> Option<(&'a Spanned<DeValue<'a>>, Option<Initiators>)> {
    const TABLE: &Table = &schema::LUN;
    if value.get_ref().as_table().is_none() {
        return Some((value, None));
    }
    let table = Section::open(value, key.to_owned(), TABLE, mistakes)?;
    let only = table.raw("initiators").map(|_| initiators(&table, mistakes));
    table.missing("volume", mistakes);
    Some((table.raw("volume")?, only))
}

#[cfg(test)]
mod tests;
