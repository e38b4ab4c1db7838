//! The routes, one by one. The router and the OpenAPI document are made of [`TABLE`].

mod groups;
mod people;
mod server;
mod targets;
mod volumes;
mod work;

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, StatusCode};
use lunet_api::{Answer, Change};
use percent_encoding::percent_decode_str;

use crate::app::{Answering, App, Call, json};
use crate::guard::Arrival;
use crate::page;
use crate::problem::Problem;
use crate::reply::Response;
use crate::seats::Seat;
use crate::service::Role;
use crate::shape::{Shape, any, many, one, text};

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Everybody.
    Nobody,
    /// Whoever has at least this role.
    Role(Role),
}

/// A method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// The methods that it answers, as in the header `Allow`.
    const fn allowed(self) -> &'static str {
        match self {
            Self::Get => "GET,HEAD",
            other => other.as_str(),
        }
    }

    /// True if it answers this method. HEAD is answered as GET, without the body.
    fn answers(self, method: &Method) -> bool {
        method.as_str() == self.as_str() || (self == Self::Get && method == Method::HEAD)
    }
}

/// The type of a parameter of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Flag,
    Number,
    Text,
}

/// A parameter of the query: name, type, meaning.
pub(crate) type Parameter = (&'static str, Of, &'static str);

pub(crate) const DRY_RUN: Parameter =
    ("dry_run", Of::Flag, "Tell what would happen, and change nothing");
const FORCE: Parameter =
    ("force", Of::Flag, "Although sessions use what is removed, or others lose or gain access");
const KEEP: Parameter = ("keep_sessions", Of::Flag, "Sessions stay that could not log in any more");

/// What has an ETag, and how it is found.
#[derive(Clone, Copy)]
pub(crate) enum Tagged {
    /// Nothing.
    Not,
    /// What is found in the answer to a request; none if it is not there.
    By(fn(&Call) -> lunet_api::Request, fn(&Call, &Answer) -> Vec<String>),
}

/// How a route is answered.
#[derive(Clone, Copy)]
pub(crate) enum Run {
    /// By the server: what it is asked, and how its answer is shown.
    Read(
        fn(&Call) -> Result<lunet_api::Request, Problem>,
        fn(&Call, Answer) -> Result<Response, Problem>,
    ),
    /// By a change of what is served.
    Change(fn(&Call) -> Result<Change, Problem>),
    /// By the interface itself.
    Own(fn(Arc<App>, Call) -> Answering),
}

/// One route.
#[derive(Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "the OpenAPI document is made in a test"))]
pub(crate) struct Route {
    pub(crate) method: Verb,
    pub(crate) path: &'static str,
    pub(crate) needs: Needs,
    pub(crate) about: &'static str,
    pub(crate) query: &'static [Parameter],
    pub(crate) body: Option<Shape>,
    pub(crate) answer: Option<Shape>,
    /// The media types that an answer may have.
    pub(crate) media: &'static [&'static str],
    status: u16,
    pub(crate) tagged: Tagged,
    /// A request has to say which version it means.
    pub(crate) needs_match: bool,
    /// It is a change, which is made once by the same Idempotency-Key.
    pub(crate) once: bool,
    /// It is always written into the audit log.
    pub(crate) written: bool,
    pub(crate) run: Run,
}

const fn route(
    method: Verb,
    path: &'static str,
    needs: Needs,
    about: &'static str,
    run: Run,
) -> Route {
    let media = &[crate::app::JSON];
    let (query, tagged) = (&[], Tagged::Not);
    Route {
        method,
        path,
        needs,
        about,
        query,
        body: None,
        answer: None,
        media,
        status: 200,
        tagged,
        needs_match: false,
        once: false,
        written: false,
        run,
    }
}

const fn get(path: &'static str, about: &'static str, answer: Shape, run: Run) -> Route {
    route(Verb::Get, path, Needs::Role(Role::Viewer), about, run).answer(answer)
}

const fn change(
    method: Verb,
    path: &'static str,
    role: Role,
    about: &'static str,
    change: fn(&Call) -> Result<Change, Problem>,
) -> Route {
    route(method, path, Needs::Role(role), about, Run::Change(change)).once().written()
}

impl Route {
    const fn needs(self, needs: Needs) -> Self {
        Self { needs, ..self }
    }

    const fn body(self, shape: Shape) -> Self {
        Self { body: Some(shape), ..self }
    }

    const fn answer(self, shape: Shape) -> Self {
        Self { answer: Some(shape), ..self }
    }

    const fn media(self, media: &'static [&'static str]) -> Self {
        Self { media, ..self }
    }

    const fn query(self, query: &'static [Parameter]) -> Self {
        Self { query, ..self }
    }

    const fn created(self) -> Self {
        Self { status: 201, ..self }
    }

    const fn accepted(self) -> Self {
        Self { status: 202, ..self }
    }

    const fn needs_match(self) -> Self {
        Self { needs_match: true, ..self }
    }

    const fn once(self) -> Self {
        Self { once: true, ..self }
    }

    const fn written(self) -> Self {
        Self { written: true, ..self }
    }

    const fn tagged(self, tagged: Tagged) -> Self {
        Self { tagged, ..self }
    }

    /// The status of success.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::OK)
    }

    /// True if this is no question.
    pub(crate) fn changes(&self) -> bool {
        self.method != Verb::Get
    }

    /// True if its query may have this parameter.
    pub(crate) fn takes(&self, name: &str) -> bool {
        let dry = matches!(self.run, Run::Change(_)) && name == DRY_RUN.0;
        dry || self.query.iter().any(|(known, ..)| *known == name)
    }
}

/// The server's answer as it is.
fn whole(_: &Call, answer: Answer) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &answer))
}

/// An answer with its ETag.
fn with_tag(mut response: Response, tag: &str) -> Response {
    if let Ok(tag) = HeaderValue::from_str(tag) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// A part of the path that is a number.
fn number(call: &Call, name: &str) -> Result<u16, Problem> {
    let text = call.part(name);
    text.parse().map_err(|_| Problem::bad(format!("{text:?} is no number from 0 to 65535")))
}

/// Every route.
pub(crate) static TABLE: &[Route] = &{
    const PARTS: [&[Route]; 6] = [
        volumes::ROUTES,
        targets::ROUTES,
        groups::ROUTES,
        server::ROUTES,
        people::ROUTES,
        work::ROUTES,
    ];
    const COUNT: usize = {
        let (mut count, mut at) = (0, 0);
        while at < PARTS.len() {
            count += PARTS[at].len();
            at += 1;
        }
        count
    };
    let mut all = [PARTS[0][0]; COUNT];
    let (mut filled, mut part) = (0, 0);
    while part < PARTS.len() {
        let mut at = 0;
        while at < PARTS[part].len() {
            all[filled] = PARTS[part][at];
            filled += 1;
            at += 1;
        }
        part += 1;
    }
    all
};

/// The parts of a path: name and value, decoded.
pub(crate) type Parameters = Vec<(String, String)>;

/// A path, and the routes that it has.
struct Place {
    path: &'static str,
    routes: Vec<&'static Route>,
}

/// Finds the route of a request.
pub(crate) struct Router(matchit::Router<Place>);

impl Router {
    /// The router of all routes.
    ///
    /// # Panics
    /// Two paths of the table match the same requests.
    pub(crate) fn new() -> Self {
        let mut places: Vec<Place> = Vec::new();
        for route in TABLE {
            match places.iter_mut().find(|place| place.path == route.path) {
                Some(place) => place.routes.push(route),
                None => places.push(Place { path: route.path, routes: vec![route] }),
            }
        }
        let mut router = matchit::Router::new();
        for place in places {
            router.insert(place.path, place).expect("the paths of the table are distinct");
        }
        Self(router)
    }

    /// Answers a request for a route, a file of the page, or nothing.
    pub(crate) async fn answer(
        &self,
        app: &Arc<App>,
        from: (Arrival, &Seat),
        request: Request<Incoming>,
    ) -> Response {
        let (method, path) = (request.method(), request.uri().path());
        let Ok(found) = self.0.at(path) else {
            return elsewhere(method, path, request.headers());
        };
        let routes = &found.value.routes;
        let Some(route) = routes.iter().find(|route| route.method.answers(method)) else {
            return not_allowed(routes);
        };
        let parameters = decoded(&found.params);
        app.answer(route, parameters, from, request).await
    }
}

/// The parts of a path.
fn decoded(parts: &matchit::Params<'_, '_>) -> Result<Parameters, Problem> {
    let one = |(name, value): (&str, &str)| {
        let value = percent_decode_str(value).decode_utf8();
        let value = value.map_err(|_| Problem::bad("the path is not UTF-8 text"))?;
        Ok((name.to_owned(), value.into_owned()))
    };
    parts.iter().map(one).collect()
}

/// The parameters of a query (`application/x-www-form-urlencoded`).
pub(crate) fn query(text: &str) -> Vec<(String, String)> {
    let decoded = |text: &str| {
        let text = text.replace('+', " ");
        percent_decode_str(&text).decode_utf8_lossy().into_owned()
    };
    let one = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        (decoded(name), decoded(value))
    };
    text.split('&').filter(|part| !part.is_empty()).map(one).collect()
}

/// The answer to a method that none of these routes has.
fn not_allowed(routes: &[&Route]) -> Response {
    let text = "nothing here can be asked in this way";
    let problem = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", text);
    let mut response = problem.into_response();
    let allowed: Vec<&str> = routes.iter().map(|route| route.method.allowed()).collect();
    if let Ok(allowed) = HeaderValue::from_str(&allowed.join(",")) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// What is no route: a file of the page, or nothing.
fn elsewhere(method: &Method, path: &str, headers: &HeaderMap) -> Response {
    if path.starts_with("/api/") || !matches!(*method, Method::GET | Method::HEAD) {
        return Problem::not_found("there is no such route").into_response();
    }
    page::file(path, headers).unwrap_or_else(Problem::into_response)
}

#[cfg(test)]
mod tests {
    use super::query;

    #[test]
    fn a_query_is_decoded() {
        let one = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(query(""), []);
        assert_eq!(
            query("a=1&&b+c=%C3%A9+%2B=%3D&d&=e"),
            [one("a", "1"), one("b c", "é +=="), one("d", ""), one("", "e")]
        );
        assert_eq!(query("a=%zz%ff"), [one("a", "%zz\u{fffd}")]);
    }
}
