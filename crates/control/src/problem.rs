//! Errors as RFC 9457 describes them, with the code and the words of the command line.

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use lunet_api::{Code, Error};
use serde::Serialize;

use crate::reply::{Response, reply};

/// The media type of a problem.
pub(crate) const MEDIA: &str = "application/problem+json";

/// The code of what is not for who asks.
const FORBIDDEN: &str = "forbidden";

/// An error, as it is sent.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[cfg_attr(test, schema(as = Problem))]
pub(crate) struct Body {
    /// `urn:lunet:error:` and the code.
    #[serde(rename = "type")]
    kind: String,
    /// The code in words.
    title: String,
    /// The HTTP status.
    status: u16,
    /// The message with the fix, as one sentence.
    detail: String,
    /// What kind of error it is, in a word that stays the same from version to version.
    code: String,
    /// What is wrong.
    message: String,
    /// What to do next; empty if the message says it.
    fix: String,
}

/// Why a request is not done.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) error: Error,
    /// Seconds after which the same request may be done.
    retry: Option<u64>,
}

impl Problem {
    /// A refusal with a code of the interface.
    pub(crate) fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, error: Error::new(Code::from(code), message), retry: None }
    }

    /// The same with what to do next.
    pub(crate) fn fix(mut self, fix: &str) -> Self {
        self.error.fix = fix.to_owned();
        self
    }

    /// The same, for a while.
    pub(crate) fn retry(self, seconds: u64) -> Self {
        Self { retry: Some(seconds.max(1)), ..self }
    }

    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Error::new(Code::BadRequest, message).into()
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(Code::Invalid, message).into()
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Error::new(Code::NotFound, message).into()
    }

    pub(crate) fn unauthenticated() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", "nobody is logged in here")
            .fix("log in, or send a token")
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, FORBIDDEN, message)
    }

    /// A change that is for administrators, as it lets everybody in.
    pub(crate) fn opens() -> Self {
        Self::forbidden("to let everybody in needs the role administrator")
    }

    pub(crate) fn busy() -> Self {
        let code = Code::TooManyClients.to_string();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, &code, "too many requests at once")
            .fix("try again")
            .retry(1)
    }

    pub(crate) fn late() -> Self {
        let code = Code::NotAnswered.to_string();
        Self::new(StatusCode::SERVICE_UNAVAILABLE, &code, "the server has not answered in time")
            .fix("see its log, and whether a disk hangs")
            .retry(5)
    }

    /// True if the same request would do better a moment later.
    pub(crate) fn passes(&self) -> bool {
        self.retry.is_some() || self.status.is_server_error()
    }
}

/// The status for a code.
fn status(code: &Code) -> StatusCode {
    match code {
        Code::BadRequest => StatusCode::BAD_REQUEST,
        Code::Invalid | Code::Unsupported | Code::OtherVersion => StatusCode::UNPROCESSABLE_ENTITY,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Exists
        | Code::InUse
        | Code::ChangesAccess
        | Code::LastOne
        | Code::ChangedByHand
        | Code::ChangeUnderWay
        | Code::NeedsRestart
        | Code::NotServed
        | Code::WriteBackFailed => StatusCode::CONFLICT,
        Code::Other(word) if word == FORBIDDEN => StatusCode::FORBIDDEN,
        Code::Stopping
        | Code::NotAnswered
        | Code::TooManyClients
        | Code::Failed
        | Code::Other(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let retry = matches!(error.code, Code::ChangeUnderWay | Code::TooManyClients).then_some(1);
        Self { status: status(&error.code), error, retry }
    }
}

impl Problem {
    /// The answer that says it.
    pub(crate) fn into_response(self) -> Response {
        let code = self.error.code.to_string();
        let body = Body {
            kind: format!("urn:lunet:error:{code}"),
            title: code.replace('-', " "),
            status: self.status.as_u16(),
            detail: self.error.to_string(),
            code,
            message: self.error.message,
            fix: self.error.fix,
        };
        let text = serde_json::to_vec(&body).unwrap_or_default();
        let mut response = reply(self.status, MEDIA, text);
        if let Some(seconds) = self.retry {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let value = HeaderValue::from_static("Bearer realm=\"lunet\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_status_and_none_is_500() {
        for code in Code::KNOWN {
            let problem = Problem::from(Error::new(code.clone(), "it is so"));
            assert_ne!(problem.status, StatusCode::INTERNAL_SERVER_ERROR, "{code}");
            assert!(problem.status.as_u16() >= 400, "{code}");
        }
        let forbidden = Problem::from(Error::new(Code::from(FORBIDDEN), "it is not for you"));
        assert_eq!(forbidden.status, StatusCode::FORBIDDEN);
        let waits = Problem::from(Error::new(Code::ChangeUnderWay, "another one"));
        assert_eq!(waits.into_response().headers()[header::RETRY_AFTER], "1");
    }
}
