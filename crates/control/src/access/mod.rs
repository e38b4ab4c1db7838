//! Who may ask for what: accounts, sessions, tokens, and the code of the first start.
//!
//! Passwords are kept as argon2id hashes, tokens and session identifiers as SHA-256 of 256 random bits. Accounts and
//! tokens are in a file that is replaced whole; sessions are in memory.

mod book;
mod code;
mod throttle;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use lunet_api::{Code, Error};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::folder;
use crate::guard::{Peer, Source};
use crate::problem::Problem;
use crate::service::{Kind, Principal, Role};
use book::{Account, Book};
use code::OneTime;
use throttle::Throttle;

pub use book::BookError;
pub(crate) use book::Token;

/// The most sessions of an account at one time.
const SESSIONS: usize = 16;

/// The most accounts, and the most tokens.
const MOST: usize = 256;

/// How long a session lasts at most, whether it is used or not.
const LIFE: Duration = Duration::from_secs(7 * 24 * 3600);

/// What a token begins with.
const PREFIX: &str = "lunet_";

/// Seconds since 1970, UTC.
pub(crate) fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Random bytes in hexadecimal.
///
/// # Errors
/// The system has none yet.
fn random<const N: usize>() -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0; N]);
    lunet_os::random::fill(&mut *bytes)?;
    let mut text = Zeroizing::new(String::with_capacity(2 * N));
    hex(&*bytes, &mut text);
    Ok(text)
}

fn hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        for nibble in [byte >> 4, byte & 15] {
            out.extend(char::from_digit(u32::from(nibble), 16));
        }
    }
}

/// The hash of a secret of 256 random bits, in hexadecimal.
fn digest(text: &str) -> String {
    let mut out = String::with_capacity(64);
    hex(&Sha256::digest(text.as_bytes()), &mut out);
    out
}

/// Compares without telling by its time how much is the same.
pub(crate) fn same(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

fn held_back(wait: Duration) -> Problem {
    let text = "too many logins have failed shortly before";
    let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "throttled", text);
    problem.fix("wait, then try again").retry(wait.as_secs() + 1)
}

/// A login that is in use.
struct Session {
    name: String,
    /// The account's identity.
    account: String,
    csrf: Zeroizing<String>,
    begun: Instant,
    used: Instant,
}

#[derive(Default)]
struct Inner {
    book: Book,
    sessions: HashMap<String, Session>,
    /// Of logins with names of no account.
    addresses: Throttle<Source>,
    /// Of wrong codes of the first start that are told of.
    codes: Throttle<()>,
    /// By address, and the hash of the name: who is wrong elsewhere, or with another name, keeps nobody out.
    names: Throttle<(Source, String)>,
    /// The same for names that are of no account. Any number of them takes the place of none that is.
    strangers: Throttle<(Source, String)>,
    code: Option<OneTime>,
    /// Tokens were used since the file was written.
    used: bool,
}

/// What a login that is wrong hears, whatever is wrong with it.
pub(crate) fn wrong_password() -> Problem {
    let text = "the name or the password is wrong";
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", text)
}

/// A login that has begun.
pub(crate) struct Attempt {
    account: Option<Account>,
    pair: (Source, String),
    /// It has the name of no account, as many before it from this address: it is wrong, and costs neither hashing nor a
    /// line in the audit log.
    pub(crate) idle: bool,
}

/// A login that has succeeded.
pub(crate) struct Login {
    /// The session's identifier, for the cookie.
    pub(crate) id: Zeroizing<String>,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) csrf: Zeroizing<String>,
    /// When it ends if it is not used, in seconds since 1970.
    pub(crate) expires: u64,
}

/// What of an account is shown.
pub(crate) struct ShownAccount {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) created: u64,
    pub(crate) sessions: u64,
}

/// Writes down what is about to be done, or refuses it.
pub(crate) type Note<'n, T> = &'n dyn Fn(&T) -> Result<(), Problem>;

/// Who may ask for what.
pub(crate) struct Access {
    idle: Duration,
    /// The name of the session's cookie. Browsers send a cookie to all ports of a host.
    cookie: String,
    store: book::Store,
    inner: Mutex<Inner>,
    /// Held while the file is written.
    writing: Mutex<()>,
    /// A token was used.
    touched: Notify,
    /// How long the last password took, in microseconds.
    usual: AtomicU64,
}

impl Access {
    /// Reads the accounts. Without one, there is a code for the first.
    ///
    /// # Errors
    /// The file cannot be read, or there are no random numbers.
    pub(crate) fn open(directory: &Path, idle: Duration) -> Result<Self, BookError> {
        folder::keep_to_ourselves(directory)?;
        let store = book::Store::new(directory);
        let mut book = store.read()?;
        if book.instance.is_empty() {
            // It is written with the first change.
            book.instance = random::<4>().map_err(BookError::Random)?.to_string();
        }
        let cookie = format!("lunet-{}", book.instance);
        let code = match book.accounts.is_empty() {
            true => Some(OneTime::new().map_err(BookError::Random)?),
            false => None,
        };
        let inner = Mutex::new(Inner { book, code, ..Inner::default() });
        let (writing, touched) = (Mutex::new(()), Notify::new());
        let usual = AtomicU64::new(0);
        Ok(Self { idle, cookie, store, inner, writing, touched, usual })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the session's cookie.
    pub(crate) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// The code for the first start, while there is no account.
    pub(crate) fn code(&self) -> Option<String> {
        self.lock().code.as_ref().map(|code| code.text().to_owned())
    }

    /// Changes the book, and writes it. What cannot be written has not changed. `note` writes it down before that, or
    /// refuses it.
    fn edit<T>(
        &self,
        edit: impl FnOnce(&mut Book) -> Result<T, Problem>,
        note: Note<'_, T>,
    ) -> Result<T, Problem> {
        let _one = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut book = self.lock().book.clone();
        let result = edit(&mut book)?;
        note(&result)?;
        self.store.write(&book).map_err(|error| Error::new(Code::Failed, error.to_string()))?;
        let mut inner = self.lock();
        // Uses of tokens that were noted meanwhile stay.
        for token in &mut book.tokens {
            let now = inner.book.tokens.iter().find(|now| now.id == token.id);
            token.last_used = token.last_used.max(now.and_then(|now| now.last_used));
        }
        inner.book = book;
        Ok(result)
    }

    /// Waits until a token is used.
    pub(crate) async fn touched(&self) {
        self.touched.notified().await;
    }

    /// Writes when tokens were used, if that is not in the file yet.
    pub(crate) fn flush(&self) {
        if std::mem::take(&mut self.lock().used) {
            if let Err(problem) = self.edit(|_| Ok(()), &|()| Ok(())) {
                tracing::warn!("when tokens were used is not written: {}", problem.error);
            }
        }
    }

    /// True if this is the code of the first start.
    ///
    /// # Errors
    /// There is an account already.
    pub(crate) fn has_code(&self, code: &str) -> Result<bool, Problem> {
        match &self.lock().code {
            Some(one) => Ok(one.is(code)),
            None => {
                let code = Code::Exists.to_string();
                let text = "there is an account already";
                Err(Problem::new(StatusCode::CONFLICT, &code, text).fix("log in"))
            }
        }
    }

    /// Somebody has sent a wrong code. True if that is worth a line in the audit log: strangers can send any number.
    pub(crate) fn wrong_code(&self) -> bool {
        let now = Instant::now();
        let mut inner = self.lock();
        let is_told = inner.codes.waits(&(), now).is_none();
        if is_told {
            inner.codes.failed((), now);
        }
        is_told
    }

    /// Makes the first account, an administrator's, for whoever has the [code](Self::has_code), and logs in.
    pub(crate) fn first_start(
        &self,
        (name, password): (&str, &str),
        note: Note<'_, ()>,
    ) -> Result<Login, Problem> {
        let account = Account::new(name, password, Role::Administrator)?;
        let hash = account.hash.clone();
        let first = |book: &mut Book| match book.accounts.is_empty() {
            true => {
                book.accounts.push(account);
                Ok(())
            }
            false => Err(Error::new(Code::Exists, "there is an account already").into()),
        };
        self.edit(first, note)?;
        self.lock().code = None;
        self.begin(name, &hash)
    }

    /// Somebody begins to log in with this name.
    ///
    /// # Errors
    /// That has failed too often from there.
    pub(crate) fn attempt(&self, name: &str, peer: Peer) -> Result<Attempt, Problem> {
        let (now, pair) = (Instant::now(), (peer.source(), digest(name)));
        let mut inner = self.lock();
        let account = inner.book.accounts.iter().find(|account| account.name == name).cloned();
        let tries = match &account {
            Some(_) => &mut inner.names,
            None => &mut inner.strangers,
        };
        if let Some(wait) = tries.waits(&pair, now) {
            return Err(held_back(wait));
        }
        // Counted before the result is known, so that many at once are no way around it.
        tries.failed(pair.clone(), now);
        let idle = account.is_none() && inner.addresses.waits(&pair.0, now).is_some();
        if account.is_none() && !idle {
            inner.addresses.failed(pair.0, now);
        }
        Ok(Attempt { account, pair, idle })
    }

    /// How long it takes to see that a password is wrong.
    pub(crate) fn usual(&self) -> Duration {
        Duration::from_micros(self.usual.load(Ordering::Relaxed))
    }

    /// Logs in with a password. Hashing takes its time on purpose.
    pub(crate) fn login(&self, attempt: &Attempt, password: &str) -> Result<Login, Problem> {
        let (begun, account) = (Instant::now(), attempt.account.as_ref());
        let is_right = book::verify(account, password);
        let took = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.usual.store(took, Ordering::Relaxed);
        // A password that is right is that of an account.
        let (true, Some(account)) = (is_right, account) else { return Err(wrong_password()) };
        self.lock().names.succeeded(&attempt.pair);
        self.begin(&account.name, &account.hash)
    }

    /// Begins a session for whoever has proved to know the password behind `hash`.
    fn begin(&self, name: &str, hash: &str) -> Result<Login, Problem> {
        let no_random = |error: io::Error| Error::new(Code::Failed, error.to_string());
        let id = random::<32>().map_err(no_random)?;
        let csrf = random::<32>().map_err(no_random)?;
        let now = Instant::now();
        let mut inner = self.lock();
        // The password, or the account, may have become another one while the old one was verified.
        let mut accounts = inner.book.accounts.iter();
        let same = |account: &&Account| account.name == name && account.hash == hash;
        let Some(found) = accounts.find(same) else { return Err(Problem::unauthenticated()) };
        let (role, account) = (found.role, found.identity());
        let (idle, sessions) = (self.idle, &mut inner.sessions);
        sessions.retain(|_, session| session.lasts(idle, now));
        // Nobody's logins end the sessions of others.
        let own = |session: &Session| session.name == name;
        if sessions.values().filter(|session| own(session)).count() >= SESSIONS {
            let own = sessions.iter().filter(|(_, session)| own(session));
            let oldest = own.min_by_key(|(_, session)| session.used).map(|(id, _)| id.clone());
            oldest.into_iter().for_each(|oldest| drop(sessions.remove(&oldest)));
        }
        let csrf_of = csrf.clone();
        let session =
            Session { name: name.to_owned(), account, csrf: csrf_of, begun: now, used: now };
        sessions.insert(digest(&id), session);
        let expires = clock() + self.idle.as_secs();
        Ok(Login { id, name: name.to_owned(), role, csrf, expires })
    }

    /// Whose session it is.
    pub(crate) fn of_session(&self, id: &str, peer: Peer) -> Option<Principal> {
        let (id, now) = (digest(id), Instant::now());
        let mut inner = self.lock();
        let Inner { book, sessions, .. } = &mut *inner;
        let session = sessions.get_mut(&id)?;
        let account = book.accounts.iter().find(|one| one.identity() == session.account);
        let (true, Some(account)) = (session.lasts(self.idle, now), account) else {
            sessions.remove(&id);
            return None;
        };
        session.used = now;
        Some(Principal {
            name: account.name.clone(),
            role: account.role,
            kind: Kind::Session,
            peer,
            csrf: Some(session.csrf.clone()),
            id,
            owner: session.account.clone(),
            account: session.account.clone(),
        })
    }

    /// Whose token it is.
    pub(crate) fn of_token(&self, text: &str, peer: Peer) -> Option<Principal> {
        let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
        let now = clock();
        let mut inner = self.lock();
        let token = inner.book.tokens.iter_mut().find(|token| token.id == id)?;
        if !same(&digest(secret), &token.hash) || token.expires <= now {
            return None;
        }
        let fresh = token.last_used.is_none_or(|last| last < now);
        token.last_used = Some(now);
        let (name, role, id) = (token.name.clone(), token.role, token.id.clone());
        let account = token.account.clone();
        if fresh && !std::mem::replace(&mut inner.used, true) {
            self.touched.notify_one();
        }
        let owner = id.clone();
        Some(Principal { name, role, kind: Kind::Token, peer, id, owner, account, csrf: None })
    }

    /// True if who asked some time ago could still ask.
    pub(crate) fn still(&self, who: &Principal) -> bool {
        let (inner, now) = (self.lock(), Instant::now());
        match who.kind {
            Kind::Session => {
                inner.sessions.get(&who.id).is_some_and(|session| session.lasts(self.idle, now))
            }
            Kind::Token => {
                let mut tokens = inner.book.tokens.iter();
                tokens.any(|token| token.id == who.id && token.expires > clock())
            }
            // Whoever has the connection may have it.
            Kind::Peer => true,
        }
    }

    /// Ends a session that has just begun.
    pub(crate) fn end(&self, login: &Login) {
        self.lock().sessions.remove(&digest(&login.id));
    }

    /// Ends a session.
    pub(crate) fn logout(&self, who: &Principal) {
        self.lock().sessions.remove(&who.id);
    }

    pub(crate) fn accounts(&self) -> Vec<ShownAccount> {
        let inner = self.lock();
        let shown = |account: &Account| ShownAccount {
            name: account.name.clone(),
            role: account.role,
            created: account.created,
            sessions: inner.sessions.values().filter(|one| one.name == account.name).count() as u64,
        };
        inner.book.accounts.iter().map(shown).collect()
    }

    pub(crate) fn add_account(
        &self,
        name: &str,
        password: &str,
        role: Role,
        note: Note<'_, ()>,
    ) -> Result<(), Problem> {
        if role == Role::Metrics {
            return Err(Problem::invalid("only a token can have the role metrics"));
        }
        let account = Account::new(name, password, role)?;
        let add = |book: &mut Book| {
            if book.accounts.iter().any(|account| account.name == name) {
                let error = Error::new(Code::Exists, format!("there is an account {name} already"));
                return Err(error.fix("choose another name").into());
            }
            if book.accounts.len() >= MOST {
                return Err(Problem::invalid(format!("there are {MOST} accounts, and no more")));
            }
            book.accounts.push(account);
            Ok(())
        };
        self.edit(add, note)?;
        // There is an account now, if there was none.
        self.lock().code = None;
        Ok(())
    }

    /// Removes an account, its sessions, and the tokens that were made by it, or by tokens of it. Gives how many tokens.
    pub(crate) fn remove_account(
        &self,
        name: &str,
        note: Note<'_, usize>,
    ) -> Result<usize, Problem> {
        let remove = |book: &mut Book| {
            let at = position(book, name)?;
            let is_admin = |account: &&Account| account.role == Role::Administrator;
            if is_admin(&&book.accounts[at]) && book.accounts.iter().filter(is_admin).count() == 1 {
                let error = Error::new(Code::LastOne, format!("{name} is the only administrator"));
                return Err(error.fix("make another one first").into());
            }
            let account = book.accounts.remove(at).identity();
            let before = book.tokens.len();
            // Tokens of a time when the account was not noted have its name.
            let of_it = |token: &Token| match token.account.as_str() {
                "" => token.by == name,
                of => of == account,
            };
            book.tokens.retain(|token| !of_it(token));
            Ok((account, before - book.tokens.len()))
        };
        let (account, tokens) = self.edit(remove, &|(_, tokens)| note(tokens))?;
        self.lock().sessions.retain(|_, session| session.account != account);
        Ok(tokens)
    }

    /// Sets a password. Whoever is no administrator proves to know the old one.
    pub(crate) fn set_password(
        &self,
        who: &Principal,
        name: &str,
        (password, current): (&str, Option<&str>),
        note: Note<'_, ()>,
    ) -> Result<(), Problem> {
        let account = self.lock().book.accounts.iter().find(|one| one.name == name).cloned();
        let needs = who.role != Role::Administrator || current.is_some();
        if account.is_some() && needs {
            // Whoever has taken over a session is not to find out the password by it.
            let tries = (who.peer.source(), digest(&format!("password of {}", who.owner)));
            let now = Instant::now();
            if let Some(wait) = self.lock().names.waits(&tries, now) {
                return Err(held_back(wait));
            }
            self.lock().names.failed(tries.clone(), now);
            if !book::verify(account.as_ref(), current.unwrap_or_default()) {
                return Err(Problem::forbidden("the current password is wrong or missing"));
            }
            self.lock().names.succeeded(&tries);
        }
        let hash = book::hash(password)?;
        let set = |book: &mut Book| {
            let at = position(book, name)?;
            book.accounts[at].hash = hash;
            Ok(())
        };
        self.edit(set, note)?;
        // Whoever has learned of the old one is out; who has changed it stays.
        self.lock().sessions.retain(|id, session| session.name != name || *id == who.id);
        Ok(())
    }

    pub(crate) fn tokens(&self) -> Vec<Token> {
        self.lock().book.tokens.clone()
    }

    /// Makes a token. The text is shown once.
    pub(crate) fn add_token(
        &self,
        who: &Principal,
        (name, role): (&str, Role),
        seconds: u64,
        note: Note<'_, Token>,
    ) -> Result<(Token, Zeroizing<String>), Problem> {
        let no_random = |error: io::Error| Error::new(Code::Failed, error.to_string());
        book::check_name(name)?;
        let secret = random::<32>().map_err(no_random)?;
        let id = random::<8>().map_err(no_random)?;
        let now = clock();
        let token = Token {
            id: id.to_string(),
            name: name.to_owned(),
            role,
            hash: digest(&secret),
            by: match who.kind {
                Kind::Session => who.name.clone(),
                Kind::Token | Kind::Peer => who.told(),
            },
            account: who.account.clone(),
            created: now,
            expires: now.saturating_add(seconds),
            last_used: None,
        };
        let add = |book: &mut Book| {
            book.tokens.retain(|token| token.expires > now);
            if book.tokens.len() >= MOST {
                return Err(Problem::invalid(format!("there are {MOST} tokens, and no more")));
            }
            book.tokens.push(token.clone());
            Ok(token)
        };
        let made = self.edit(add, note)?;
        let text = Zeroizing::new(format!("{PREFIX}{}_{}", *id, *secret));
        Ok((made, text))
    }

    pub(crate) fn remove_token(&self, id: &str, note: Note<'_, Token>) -> Result<Token, Problem> {
        let remove = |book: &mut Book| match book.tokens.iter().position(|token| token.id == id) {
            Some(at) => Ok(book.tokens.remove(at)),
            None => Err(Problem::not_found(format!("there is no token {id}"))),
        };
        self.edit(remove, note)
    }
}

impl Session {
    fn lasts(&self, idle: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.used) < idle
            && now.saturating_duration_since(self.begun) < LIFE
    }
}

fn position(book: &Book, name: &str) -> Result<usize, Problem> {
    let at = book.accounts.iter().position(|account| account.name == name);
    at.ok_or_else(|| Problem::not_found(format!("there is no account {name}")))
}
