//! The line that is written each way.
//!
//! Version 1 had neither `api` nor codes: `{"request":"stats"}`, `{"ok":...}`, `{"error":"a sentence"}`. Its readers take a
//! second key of an answer for an error, so who does not tell a version is answered in that form.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Code, Error, Request, VERSION};

/// The first version whose errors have codes, and that names itself.
const CODED: u32 = 2;

/// The version that is spoken where none is told.
const FIRST: u32 = 1;

/// How a server of version 1 begins its answer to a request that it does not know.
const NO_REQUEST: &str = "this is no request";

/// The same of a change that came later.
const NO_CHANGE: &str = "this lunet understands changes of version";

/// The next step where the server is not of the command's version.
const SAME_PROGRAM: &str = "use the `lunet` program that the server runs";

/// What a server says to a client that it does not listen to, in the words of version 1.
pub const TOO_MANY: &str = "too many clients at once";

/// A request as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Call<'r> {
    api: u32,
    #[serde(flatten)]
    request: &'r Request,
}

impl<'r> Call<'r> {
    /// A request of this version.
    pub const fn new(request: &'r Request) -> Self {
        Self { api: VERSION, request }
    }
}

/// What a request says of its client.
#[derive(Deserialize)]
struct Caller {
    #[serde(default = "first")]
    api: u32,
}

const fn first() -> u32 {
    FIRST
}

/// Reads a request: the client's version, and what it asks.
///
/// # Errors
/// It is no request ([`Code::BadRequest`]), or the client is newer than this server and asks what it does not know
/// ([`Code::OtherVersion`]).
pub fn read_call(line: &[u8]) -> (u32, Result<Request, Error>) {
    let caller: Caller = match serde_json::from_slice(line) {
        Ok(caller) => caller,
        Err(error) => return (FIRST, Err(bad(&error))),
    };
    let request: Result<Request, Error> =
        serde_json::from_slice(line).map_err(|error| match caller.api {
            api if api > VERSION => older_server(VERSION, api, &error.to_string()),
            _ => bad(&error),
        });
    let request = request.and_then(|request| match request.version_of_change() {
        Some(since) if since > VERSION => {
            Err(older_server(VERSION, since, "the change came later"))
        }
        _ => Ok(request),
    });
    (caller.api, request)
}

fn bad(error: &serde_json::Error) -> Error {
    Error::new(Code::BadRequest, format!("{NO_REQUEST}: {error}"))
}

/// A server of an older version than the client's does not know what it is asked.
fn older_server(server: u32, client: u32, why: &str) -> Error {
    let message = format!(
        "the running lunet is older than this command (version {server} of the API, not {client}), and does not know what it \
         asks ({why})"
    );
    Error::new(Code::OtherVersion, message).fix(SAME_PROGRAM)
}

/// An answer as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply<T> {
    /// The server's version.
    pub api: u32,
    /// The answer, or why there is none.
    pub outcome: Result<T, Error>,
}

impl<T> Reply<T> {
    /// An answer of this version to a client of version `client`.
    pub fn to(client: u32, outcome: Result<T, Error>) -> Self {
        Self { api: if client < CODED { FIRST } else { VERSION }, outcome }
    }

    /// The answer to a client whose request was not read, so that its version is not known: in the form that every
    /// version can read.
    pub const fn unread(error: Error) -> Self {
        Self { api: FIRST, outcome: Err(error) }
    }
}

impl<T: Serialize> Serialize for Reply<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tells = self.api > FIRST;
        let mut line = serializer.serialize_struct("Reply", 1 + usize::from(tells))?;
        if tells {
            line.serialize_field("api", &self.api)?;
        }
        match &self.outcome {
            Ok(answer) => line.serialize_field("ok", answer)?,
            Err(error) if tells => line.serialize_field("error", error)?,
            Err(error) => line.serialize_field("error", &error.to_string())?,
        }
        line.end()
    }
}

/// An error of any version.
#[derive(Deserialize)]
#[serde(untagged)]
enum Told {
    Sentence(String),
    Coded(Error),
}

impl From<Told> for Error {
    fn from(told: Told) -> Self {
        match told {
            Told::Coded(error) => error,
            Told::Sentence(text) if text.starts_with(TOO_MANY) => {
                Self::new(Code::TooManyClients, text)
            }
            Told::Sentence(text) if [NO_REQUEST, NO_CHANGE].iter().any(|p| text.starts_with(p)) => {
                older_server(FIRST, VERSION, &text)
            }
            Told::Sentence(text) => Self::new(Code::Failed, text),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Reply<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(bound = "T: Deserialize<'de>")]
        struct Line<T> {
            #[serde(default = "first")]
            api: u32,
            ok: Option<T>,
            error: Option<Told>,
        }
        let Line { api, ok, error } = Line::deserialize(deserializer)?;
        let outcome = match (ok, error) {
            (_, Some(told)) => Err(told.into()),
            (Some(answer), None) => Ok(answer),
            (None, None) => return Err(serde::de::Error::custom("neither an answer nor an error")),
        };
        Ok(Self { api, outcome })
    }
}

/// Why an answer cannot be read.
#[derive(Debug)]
pub enum Unread {
    /// No lunet has written it.
    Strange(serde_json::Error),
    /// A lunet of another version has: the error says which side is older.
    OtherVersion(Error),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strange(error) => error.fmt(f),
            Self::OtherVersion(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Unread {}

/// Reads the answer to a request.
///
/// # Errors
/// It is none, or one that only another version can read.
pub fn read_reply<T: DeserializeOwned>(line: &[u8]) -> Result<Result<T, Error>, Unread> {
    let error = match serde_json::from_slice::<Reply<T>>(line) {
        Ok(reply) => return Ok(reply.outcome),
        Err(error) => error,
    };
    let Ok(reply) = serde_json::from_slice::<Reply<IgnoredAny>>(line) else {
        return Err(Unread::Strange(error));
    };
    let other = |server: &str, command: &str, fix: &str| {
        let message = format!(
            "{server} is older than {command} (version {} of the API in the server, {VERSION} in the command), and the answer \
             cannot be read ({error})",
            reply.api
        );
        Unread::OtherVersion(Error::new(Code::OtherVersion, message).fix(fix))
    };
    match reply.api {
        api if api > VERSION => Err(other("this command", "the running lunet", SAME_PROGRAM)),
        api if api < VERSION => Err(other("the running lunet", "this command", SAME_PROGRAM)),
        _ => Err(Unread::Strange(error)),
    }
}
