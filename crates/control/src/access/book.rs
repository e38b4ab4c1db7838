//! The file of accounts and tokens.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use argon2::{Algorithm, Argon2, Params, Version};
use lunet_api::{Code, Error};
use lunet_files::{self as files, ReadError, Unreplaced};
use serde::{Deserialize, Serialize};

use super::clock;
use crate::folder::FolderError;
use crate::problem::Problem;
use crate::service::Role;

/// The version of the file's form.
const FORM: u32 = 1;

/// The largest file that is read, in bytes.
const MOST: u64 = 1 << 20;

/// Characters of a password.
const PASSWORD: std::ops::RangeInclusive<usize> = 8..=256;

/// Why the accounts cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what is wrong")]
pub enum BookError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("there are no random numbers: {0}")]
    Random(io::Error),
    #[error("cannot make {path}: {error}")]
    Directory { path: PathBuf, error: io::Error },
    #[error("cannot write {path}: {error}")]
    Write { path: PathBuf, error: Unreplaced },
}

/// Somebody who may log in.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Account {
    /// Tells it from others that had its name. Empty for those that were made before there was one.
    #[serde(default)]
    pub(super) id: String,
    pub(super) name: String,
    pub(super) role: Role,
    /// Of the password, by argon2id, in the form of PHC strings.
    pub(super) hash: String,
    /// In seconds since 1970.
    pub(super) created: u64,
}

/// What a program shows instead of a password.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Token {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) role: Role,
    /// SHA-256 of the secret.
    pub(super) hash: String,
    /// Who has made it, for people.
    pub(crate) by: String,
    /// The account that is behind who has made it, as [`Account::identity`] says; empty if none is.
    #[serde(default)]
    pub(super) account: String,
    /// In seconds since 1970, as the next two.
    pub(crate) created: u64,
    pub(crate) expires: u64,
    pub(crate) last_used: Option<u64>,
}

/// All accounts and tokens.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Book {
    version: u32,
    /// Tells this server from others of its host, whose cookies a browser does not tell apart.
    #[serde(default)]
    pub(super) instance: String,
    pub(super) accounts: Vec<Account>,
    pub(super) tokens: Vec<Token>,
}

impl Account {
    pub(super) fn new(name: &str, password: &str, role: Role) -> Result<Self, Problem> {
        check_name(name)?;
        let id = super::random::<8>().map_err(|error| failed(error.to_string()))?.to_string();
        Ok(Self { id, name: name.to_owned(), role, hash: hash(password)?, created: clock() })
    }

    /// Tells it from all other accounts, also from those that had its name before.
    pub(super) fn identity(&self) -> String {
        format!("{}/{}", self.name, self.id)
    }
}

/// Refuses what is no name of an account or a token.
pub(super) fn check_name(name: &str) -> Result<(), Problem> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
        return Err(Problem::invalid(
            "a name has 1 to 64 letters, digits, dots, hyphens, underscores and at signs",
        ));
    }
    Ok(())
}

/// The hash of a password, with a salt of its own.
pub(super) fn hash(password: &str) -> Result<String, Problem> {
    if !PASSWORD.contains(&password.chars().count()) {
        let text = format!("a password has {} to {} characters", PASSWORD.start(), PASSWORD.end());
        return Err(Problem::invalid(text));
    }
    let mut salt = [0; 16];
    lunet_os::random::fill(&mut salt).map_err(|error| failed(error.to_string()))?;
    let hash: Result<PasswordHash, _> = argon().hash_password_with_salt(password.as_bytes(), &salt);
    hash.map(|hash| hash.to_string()).map_err(|error| failed(error.to_string()))
}

fn failed(error: String) -> Problem {
    Error::new(Code::Failed, error).into()
}

/// 19 MiB and two passes, as OWASP recommends for argon2id.
fn argon() -> Argon2<'static> {
    Argon2::new(Algorithm::Argon2id, Version::V0x13, Params::default())
}

/// True if this is the account's password. An account that is not there takes as long.
pub(super) fn verify(account: Option<&Account>, password: &str) -> bool {
    static NOBODY: OnceLock<String> = OnceLock::new();
    let nobody = || NOBODY.get_or_init(|| hash("the password of nobody").unwrap_or_default());
    let text = account.map_or_else(|| nobody().as_str(), |account| &account.hash);
    let Ok(hash) = PasswordHash::new(text) else { return false };
    argon().verify_password(password.as_bytes(), &hash).is_ok() && account.is_some()
}

/// Where the book is.
pub(super) struct Store {
    path: PathBuf,
}

impl Store {
    pub(super) fn new(directory: &Path) -> Self {
        Self { path: directory.join("accounts.json") }
    }

    /// # Errors
    /// The file cannot be read, is damaged, or is of a later version.
    pub(super) fn read(&self) -> Result<Book, BookError> {
        let path = &self.path;
        let Some(bytes) = files::read(path, MOST)? else { return Ok(Book::default()) };
        let damaged = |error| ReadError::Damaged { path: path.clone(), error };
        let book: Book = serde_json::from_slice(&bytes).map_err(damaged)?;
        match book.version {
            FORM => Ok(book),
            found => Err(ReadError::Version { path: path.clone(), found, known: FORM }.into()),
        }
    }

    /// # Errors
    /// The file cannot be replaced.
    pub(super) fn write(&self, book: &Book) -> Result<(), BookError> {
        let path = &self.path;
        let directory = files::parent(path);
        files::make_directory(directory, 0o700)
            .map_err(|error| BookError::Directory { path: directory.to_owned(), error })?;
        let book = Book { version: FORM, ..book.clone() };
        let text = serde_json::to_vec_pretty(&book).unwrap_or_default();
        let mode = files::Mode::Exactly(0o600);
        let failed = |error| BookError::Write { path: path.clone(), error };
        files::replace_as(path, &text, mode).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of accounts outlives many versions of the library that hashes.
    #[test]
    fn passwords_of_earlier_versions_are_known() {
        let hash = "$argon2id$v=19$m=19456,t=2,p=1$Vj7uEpOrMqdqcnZvdgORjA$paWPk0xQ+J8msjG9wZf+pLsRALegauNyUVGzyTM98g4";
        let (id, name) = (String::new(), "root".to_owned());
        let account = Account { id, name, role: Role::Viewer, hash: hash.to_owned(), created: 0 };
        assert!(verify(Some(&account), "a good password"));
        for other in ["", "a good passwore", "A good password", "a good password "] {
            assert!(!verify(Some(&account), other), "{other:?}");
        }
        let damaged = Account { hash: hash.replace("$argon2id$", "$argon9$"), ..account };
        assert!(!verify(Some(&damaged), "a good password"));
        let now = super::hash("a good password").unwrap();
        let form = |hash: &str| hash.rsplitn(3, '$').nth(2).map(str::to_owned);
        assert_eq!(form(&now), form(hash));
        assert_eq!(now.len(), hash.len());
    }
}
