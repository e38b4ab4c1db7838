//! What the parts of the interface share, and how a request is answered.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use lunet_api::{Answer, Change};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{MutexGuard, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::access::{Access, BookError, clock, same};
use crate::audit::{AuditEntry, Log, Notifier};
use crate::binds::Binds;
use crate::events::Events;
use crate::everybody;
use crate::guard::{Arrival, Peer};
use crate::jobs::Jobs;
use crate::once::{Again, Given, Known, Once, hash};
use crate::problem::Problem;
use crate::reply::{Response, reply, with_headers};
use crate::routes::{self, Needs, Parameters, Route, Router, Run, Tagged};
use crate::seats::Seat;
use crate::service::{Kind, Principal, Role, Service};
use crate::{Options, openapi, plain};

/// The media type of answers.
pub(crate) const JSON: &str = "application/json";

/// How long a change may take: reserving or copying much space takes its time.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// How long an order to a failover group may take, and a change of what its gateways share: longer than the server waits for its
/// cluster and for the other gateways.
const OF_GROUP: Duration = Duration::from_secs(45);

const CSRF: HeaderName = HeaderName::from_static("x-lunet-csrf");
const KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What the parts of the interface share.
pub(crate) struct App {
    pub(crate) options: Options,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) access: Access,
    pub(crate) log: Log,
    pub(crate) notifier: Notifier,
    pub(crate) events: Events,
    pub(crate) jobs: Jobs,
    pub(crate) document: Bytes,
    pub(crate) router: Router,
    once: Once,
    /// Held from the check of what a change is about until it is made: none comes between.
    changing: tokio::sync::Mutex<()>,
    /// Requests to the server.
    pub(crate) work: Arc<Semaphore>,
    /// Passwords that are hashed.
    pub(crate) hashing: Arc<Semaphore>,
    /// What binds the server, for whoever asks.
    pub(crate) binds: Binds,
    /// Looks at the server's counts, for events.
    pub(crate) looking: Arc<Semaphore>,
    /// Questions whether it is ready.
    pub(crate) asking: Arc<Semaphore>,
    /// Why it was not ready lately.
    pub(crate) readiness: tokio::sync::Mutex<Option<(std::time::Instant, Vec<String>)>>,
    pub(crate) facts: tokio::sync::Mutex<Option<(std::time::Instant, serde_json::Value)>>,
}

/// A request that may be answered.
pub(crate) struct Call {
    pub(crate) who: Principal,
    pub(crate) arrival: Arrival,
    pub(crate) body: Bytes,
    parameters: Parameters,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    method: Method,
    path: String,
    route: &'static Route,
}

/// What has become of something that was asked for, in a sentence.
pub(crate) enum Outcome {
    Done(String),
    Refused(String),
}

impl Outcome {
    pub(crate) fn of<T>(result: &Result<T, Problem>, done: impl FnOnce(&T) -> String) -> Self {
        match result {
            Ok(it) => Self::Done(done(it)),
            Err(problem) => Self::Refused(problem.error.to_string()),
        }
    }
}

/// What an answer is made in.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Result<Response, Problem>> + Send>>;

/// An answer of JSON.
pub(crate) fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(text) => reply(status, JSON, text),
        Err(error) => {
            let code = lunet_api::Code::Failed;
            Problem::from(lunet_api::Error::new(code, error.to_string())).into_response()
        }
    }
}

/// A tag for something of this content.
pub(crate) fn tag(content: &impl Serialize) -> String {
    let text = serde_json::to_vec(content).unwrap_or_default();
    tag_of_hash(&Sha256::digest(text))
}

/// A tag for something whose content has this hash.
pub(crate) fn tag_of_hash(hash: &[u8]) -> String {
    let hash: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hash}\"")
}

/// True if a body says nothing: there is none, or it has no fields.
fn is_nothing(body: &[u8]) -> bool {
    let fields = || serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body);
    body.trim_ascii().is_empty() || fields().is_ok_and(|fields| fields.is_empty())
}

impl Call {
    /// A part of the path; the route has it.
    pub(crate) fn part(&self, name: &str) -> &str {
        let found = self.parameters.iter().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    /// A value of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// A yes or no of the query; no if it is left out.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.query(name) {
            None | Some("false" | "0") => Ok(false),
            Some("true" | "1" | "") => Ok(true),
            Some(_) => Err(Problem::bad(format!("{name} is true or false"))),
        }
    }

    /// A number of the query.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Problem> {
        let parse = |text: &str| text.parse().ok();
        match self.query(name).map(parse) {
            None => Ok(None),
            Some(Some(number)) => Ok(Some(number)),
            Some(None) => Err(Problem::bad(format!("{name} is a number"))),
        }
    }

    /// The body.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let media = self.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media = media.and_then(|media| media.split(';').next()).unwrap_or_default();
        if !media.trim().eq_ignore_ascii_case(JSON) {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(Problem::new(status, "not-json", "the body is not application/json"));
        }
        let no_request = |error| Problem::bad(format!("this is no request: {error}"));
        // A list would be taken for the fields in their order.
        if !self.body.trim_ascii_start().starts_with(b"{") {
            return Err(Problem::bad("this is no request: the body is no object"));
        }
        let request = serde_json::from_slice(&self.body).map_err(no_request)?;
        match plain::strange(&self.body).map_err(no_request)? {
            None => Ok(request),
            Some(name) => {
                let text = format!("{name} has a control character, such as a line break or NUL");
                Err(Problem::invalid(text))
            }
        }
    }

    /// The same; all defaults if there is none.
    pub(crate) fn json_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, Problem> {
        if self.body.is_empty() { Ok(T::default()) } else { self.json() }
    }

    pub(crate) fn header(&self, name: &HeaderName) -> Result<Option<&str>, Problem> {
        let value = self.headers.get(name).map(HeaderValue::to_str);
        value.transpose().map_err(|_| Problem::bad(format!("{name} is no text")))
    }
}

impl App {
    pub(crate) fn new(
        options: Options,
        service: Arc<dyn Service>,
        notifier: Notifier,
    ) -> Result<Self, BookError> {
        let access = Access::open(&options.directory, options.limits.idle)?;
        let (program, environment) = (options.program.clone(), options.environment.clone());
        let document = openapi::document(access.cookie()).into();
        Ok(Self {
            access,
            log: Log::new(&options.directory),
            notifier,
            events: Events::new(options.limits.readers, options.limits.readers_of_one),
            jobs: Jobs::new(program, environment),
            document,
            router: Router::new(),
            once: Once::default(),
            changing: tokio::sync::Mutex::default(),
            work: Arc::new(Semaphore::new(options.limits.requests)),
            hashing: Arc::new(Semaphore::new(2)),
            binds: Binds::default(),
            looking: Arc::new(Semaphore::new(1)),
            asking: Arc::new(Semaphore::new(1)),
            readiness: tokio::sync::Mutex::new(None),
            facts: tokio::sync::Mutex::new(None),
            service,
            options,
        })
    }

    /// The interface itself, where it asks the server.
    pub(crate) fn own(&self) -> Principal {
        Principal {
            name: "lunet".to_owned(),
            role: Role::Viewer,
            kind: Kind::Session,
            peer: Peer::Network(([127, 0, 0, 1], 0).into()),
            id: String::new(),
            owner: String::new(),
            account: String::new(),
            csrf: None,
        }
    }

    /// Does what may block, on a thread where it may. What is not done in time goes on, and keeps its place.
    ///
    /// # Errors
    /// All places are taken, or the time is over.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        places: &Arc<Semaphore>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let place = Arc::clone(places).try_acquire_owned().map_err(|_| Problem::busy())?;
        apart(place, limit, work).await
    }

    /// The same for passwords: a few wait for their turn.
    pub(crate) async fn hash<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let limit = self.options.limits.answer;
        let turn = timeout(limit, Arc::clone(&self.hashing).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else { return Err(Problem::busy()) };
        // What it changes is written down when it has ended, and not when somebody has lost patience.
        apart(turn, LONG, work).await
    }

    /// Asks the server.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        who: &Principal,
        request: lunet_api::Request,
    ) -> Result<Answer, Problem> {
        let limit = match &request {
            lunet_api::Request::Change { .. } => LONG,
            lunet_api::Request::MoveGroup { .. }
            | lunet_api::Request::TakeOverGroup { .. }
            | lunet_api::Request::SetGroupConfig { .. } => OF_GROUP,
            _ => self.options.limits.answer,
        };
        let (service, who) = (Arc::clone(&self.service), who.clone());
        let work = move || service.answer(&who, request);
        Ok(self.blocking(&self.work, limit, work).await??)
    }

    /// A line in the audit log.
    pub(crate) fn record(&self, call: &Call, who: String, what: String, outcome: &Outcome) {
        self.notifier.record(entry(call.arrival.peer, who, what, outcome));
    }

    /// Writes down what is about to be done, on stable storage. Blocks: not for the thread of the interface.
    ///
    /// # Errors
    /// It cannot be written, and is not to be done.
    pub(crate) fn note(
        &self,
        from: Peer,
        who: String,
        what: String,
        done: String,
    ) -> Result<(), Problem> {
        let entry = entry(from, who, what, &Outcome::Done(done));
        Handle::current().block_on(self.notifier.before(entry))
    }

    /// The same for the thread of the interface.
    pub(crate) async fn noted(&self, call: &Call, what: &str, done: &str) -> Result<(), Problem> {
        let (outcome, who) = (Outcome::Done(done.to_owned()), call.who.told());
        let entry = entry(call.arrival.peer, who, what.to_owned(), &outcome);
        self.notifier.before(entry).await
    }

    /// A line about what a stranger was refused, which can be spared.
    pub(crate) fn remark(&self, from: Peer, who: String, what: &str, why: &Problem) {
        let outcome = Outcome::Refused(why.error.to_string());
        self.notifier.remark(entry(from, who, what.to_owned(), &outcome));
    }

    /// Who asks, if they have shown it.
    fn principal(&self, headers: &HeaderMap, peer: Peer) -> Option<Principal> {
        if let Some(value) = headers.get(header::AUTHORIZATION) {
            // Whoever sends a token is not taken for somebody else if it is wrong.
            let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
            // RFC 9110, 11.1: the scheme is case-insensitive.
            let bearer = scheme.eq_ignore_ascii_case("Bearer");
            return bearer.then(|| self.access.of_token(token.trim(), peer)).flatten();
        }
        let cookies =
            headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let pairs = cookies.flat_map(|all| all.split(';')).filter_map(|one| one.split_once('='));
        let own = self.access.cookie();
        let mut ids = pairs.filter(|(name, _)| name.trim() == own).map(|(_, id)| id.trim());
        match (ids.next(), ids.next(), peer) {
            (None, _, Peer::User { uid, role }) => Some(self.local(uid, role, peer)),
            (None, ..) => None,
            // Two of them: one was planted.
            (Some(_), Some(_), _) => None,
            (Some(id), None, _) => self.access.of_session(id, peer),
        }
    }

    /// A user of this machine, who may use a socket of this role.
    fn local(&self, uid: u32, role: Role, peer: Peer) -> Principal {
        let name = (self.options.user)(uid).unwrap_or_else(|| "user".to_owned());
        let owner = format!("{uid} {}", role.as_str());
        let (id, account) = (String::new(), String::new());
        Principal { name, role, kind: Kind::Peer, peer, id, owner, account, csrf: None }
    }

    /// Refuses who may not do this.
    fn admit(
        &self,
        route: &Route,
        headers: &HeaderMap,
        arrival: Arrival,
    ) -> Result<Principal, Problem> {
        let found = self.principal(headers, arrival.peer);
        let Needs::Role(needed) = route.needs else {
            return Ok(found.unwrap_or_else(|| Principal { name: String::new(), ..self.own() }));
        };
        let who = found.ok_or_else(Problem::unauthenticated)?;
        if let (Some(csrf), true) = (&who.csrf, route.changes()) {
            let given = headers.get(CSRF).and_then(|value| value.to_str().ok());
            if !given.is_some_and(|given| same(given, csrf)) {
                let text = "the header X-Lunet-CSRF is missing or wrong";
                return Err(
                    Problem::forbidden(text).fix("send the `csrf` that the login has given")
                );
            }
        }
        if !who.role.may(needed) {
            let text = format!(
                "this needs the role {}, and {} has {}",
                needed.as_str(),
                who.name,
                who.role.as_str()
            );
            return Err(Problem::forbidden(text));
        }
        Ok(who)
    }

    /// Reads a body within its bounds.
    async fn body(&self, headers: &HeaderMap, body: Incoming) -> Result<Bytes, Problem> {
        let limits = &self.options.limits;
        let too_large = || {
            let text = format!("a body has at most {} bytes", limits.body_bytes);
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", text)
        };
        let told = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
        if told.and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > limits.body_bytes as u64) {
            return Err(too_large());
        }
        let limited = Limited::new(body, limits.body_bytes);
        match timeout(limits.body, limited.collect()).await {
            Ok(Ok(all)) => Ok(all.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Problem::bad("the body has no end")),
            Err(_) => {
                let text = "the body did not come in time";
                Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "timeout", text))
            }
        }
    }

    /// Answers a request for a route.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        route: &'static Route,
        parameters: Result<Parameters, Problem>,
        (arrival, seat): (Arrival, &Seat),
        request: Request<Incoming>,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let work = async {
            let who = self.admit(route, &parts.headers, arrival)?;
            let parameters = parameters?;
            let strange = |value: &str| value.chars().any(char::is_control);
            if let Some((name, _)) = parameters.iter().find(|(_, value)| strange(value)) {
                return Err(Problem::bad(format!("{name} has characters that no name has")));
            }
            let query = routes::query(parts.uri.query().unwrap_or_default());
            let twice = |(n, (name, _)): &(usize, &(String, String))| {
                query[..*n].iter().any(|(before, _)| before == name)
            };
            if let Some((_, (name, _))) = query.iter().enumerate().find(twice) {
                return Err(Problem::bad(format!("{name} is there twice")));
            }
            if let Some((name, _)) = query.iter().find(|(name, _)| !route.takes(name)) {
                // It may be what keeps a change from doing harm.
                return Err(Problem::bad(format!("there is no parameter {name:?} here")));
            }
            if let Some((name, _)) = query.iter().find(|(_, value)| strange(value)) {
                return Err(Problem::bad(format!("{name} has characters that no name has")));
            }
            let body = self.body(&parts.headers, body).await?;
            if route.body.is_none() && !is_nothing(&body) {
                // It may be what somebody wants to be looked at before.
                return Err(Problem::bad("this request has no body"));
            }
            // Strangers are to keep no places by what they may ask at any time.
            if matches!(route.needs, Needs::Role(_)) || route.changes() {
                seat.is_busy();
            }
            let (headers, method) = (parts.headers.clone(), parts.method.clone());
            let path = parts.uri.path().to_owned();
            Ok(Call { who, arrival, body, parameters, query, headers, method, path, route })
        };
        match work.await {
            Ok(call) => self.run(call).await.unwrap_or_else(Problem::into_response),
            Err(problem) => problem.into_response(),
        }
    }

    async fn run(self: &Arc<Self>, call: Call) -> Result<Response, Problem> {
        if call.route.once && !call.flag("dry_run")? {
            // If the client goes, the change goes on, and its answer is kept for when it asks again.
            let app = Arc::clone(self);
            let task = tokio::spawn(async move { app.once(call).await });
            return task.await.unwrap_or_else(|_| Err(Problem::late()));
        }
        match &call.route.run {
            Run::Own(run) => run(Arc::clone(self), call).await,
            Run::Read(ask, show) => {
                let answer = self.ask(&call.who, ask(&call)?).await?;
                show(&call, answer)
            }
            Run::Change(change) => {
                let change = change(&call)?;
                self.check_match(&call).await?;
                self.check_opening(&call.who, &change).await?;
                let answer = self.ask(&call.who, lunet_api::Request::preview(change)).await?;
                Ok(json(StatusCode::OK, &answer))
            }
        }
    }

    /// Makes a change, or gives the answer of before.
    async fn once(self: &Arc<Self>, call: Call) -> Result<Response, Problem> {
        let claim = match self.claim(&call)? {
            Some(Known::Given(given)) => return Ok(again(&given)),
            Some(Known::New(claim)) => Some(claim),
            None => None,
        };
        if call.route.written {
            self.notifier.keeps_up()?;
        }
        let result = match &call.route.run {
            Run::Own(run) => run(Arc::clone(self), call).await,
            Run::Change(change) => self.change(&call, change).await,
            Run::Read(..) => Err(Problem::bad("nothing is changed here")),
        };
        let Some(claim) = claim else { return result };
        let (given, response) = match result {
            Err(problem) if problem.passes() => return Err(problem),
            Err(problem) => kept(problem.into_response()).await,
            Ok(response) => kept(response).await,
        };
        claim.keep(given);
        Ok(response)
    }

    async fn change(
        self: &Arc<Self>,
        call: &Call,
        change: &fn(&Call) -> Result<Change, Problem>,
    ) -> Result<Response, Problem> {
        let change = change(call)?;
        let _one = self.begin_change().await?;
        self.check_match(call).await?;
        self.check_opening(&call.who, &change).await?;
        let answer = self.ask(&call.who, lunet_api::Request::change(change)).await?;
        Ok(json(call.route.status(), &answer))
    }

    /// No other change by the interface is made as long as this is held.
    ///
    /// # Errors
    /// Another one takes its time.
    pub(crate) async fn begin_change(&self) -> Result<MutexGuard<'_, ()>, Problem> {
        let late = |_| {
            let code = lunet_api::Code::ChangeUnderWay;
            let error = lunet_api::Error::new(code, "another change is under way");
            error.fix("try again when it has ended").into()
        };
        timeout(self.options.limits.answer, self.changing.lock()).await.map_err(late)
    }

    /// Looks whether a change was made before.
    fn claim(&self, call: &Call) -> Result<Option<Known<'_>>, Problem> {
        let Some(key) = call.header(&KEY)? else { return Ok(None) };
        if key.is_empty() || key.len() > 128 || key.contains(|c: char| !(' '..='~').contains(&c)) {
            return Err(Problem::bad("Idempotency-Key has 1 to 128 printable characters"));
        }
        let query: Vec<String> =
            call.query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = hash(&[
            call.method.as_str().as_bytes(),
            call.path.as_bytes(),
            query.join("&").as_bytes(),
            &call.body,
        ]);
        self.once.claim(call.who.identity(), key, request).map(Some)
    }

    /// Refuses a change by which a target is open to everybody, if that is not for who asks.
    async fn check_opening(
        self: &Arc<Self>,
        who: &Principal,
        change: &Change,
    ) -> Result<(), Problem> {
        let Some(name) = everybody::concerned(change) else { return Ok(()) };
        if who.role.may(Role::Administrator) {
            return Ok(());
        }
        let answer = self.ask(who, lunet_api::Request::Targets).await?;
        let Answer::Targets(all) = answer else {
            let code = lunet_api::Code::Failed;
            return Err(lunet_api::Error::new(code, "the server answers something else").into());
        };
        let mut targets = all.iter().filter(|target| target.name.eq_ignore_ascii_case(name));
        match targets.any(|target| everybody::let_in(change, target)) {
            true => Err(Problem::opens()),
            false => Ok(()),
        }
    }

    /// Refuses a change of something that is not as the client knows it.
    pub(crate) async fn check_match(self: &Arc<Self>, call: &Call) -> Result<(), Problem> {
        let Some(wanted) = call.header(&header::IF_MATCH)? else { return Ok(()) };
        let Tagged::By(ask, find) = call.route.tagged else {
            return Err(Problem::bad("nothing here has an ETag, so If-Match means nothing"));
        };
        let answer = self.ask(&call.who, ask(call)).await?;
        let now = find(call, &answer);
        let fits =
            |now: &String| wanted.split(',').any(|one| ["*", now.as_str()].contains(&one.trim()));
        if now.iter().any(fits) {
            return Ok(());
        }
        let text = "it is not as it was any more";
        Err(Problem::new(StatusCode::PRECONDITION_FAILED, "changed", text).fix("read it again"))
    }
}

/// Does something on a thread where it may block, and holds a place meanwhile.
async fn apart<T: Send + 'static>(
    place: OwnedSemaphorePermit,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let (sender, done) = oneshot::channel();
    on_a_thread(Box::new(move || {
        let result = work();
        drop(place);
        // Without a receiver, the time was over.
        let _ = sender.send(result);
    }));
    // If the sender is dropped, the thread has panicked, or the server ends.
    timeout(limit, done).await.ok().and_then(Result::ok).ok_or_else(Problem::late)
}

/// The runtime's task is compiled once, and not for each kind of work.
fn on_a_thread(work: Box<dyn FnOnce() + Send>) {
    drop(tokio::task::spawn_blocking(work));
}

/// A line of the audit log.
fn entry(from: Peer, who: String, what: String, outcome: &Outcome) -> AuditEntry {
    let outcome = match outcome {
        Outcome::Done(done) => format!("done: {done}"),
        Outcome::Refused(why) => format!("refused: {why}"),
    };
    let address = from.address().map(|address| address.to_string());
    AuditEntry { time: clock(), who, address, what, outcome }
}

/// What is kept of an answer, and the answer.
async fn kept(response: Response) -> (Given, Response) {
    let instead = response.extensions().get::<Again>().cloned();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map(|all| all.to_bytes()).unwrap_or_default();
    let given = Given { status: parts.status, headers: parts.headers, body };
    let response = again(&given);
    let given = match instead {
        None => given,
        Some(Again(problem)) => {
            let (parts, body) = problem.into_response().into_parts();
            let body = body.collect().await.map(|all| all.to_bytes()).unwrap_or_default();
            Given { status: parts.status, headers: parts.headers, body }
        }
    };
    (given, response)
}

/// An answer that is kept.
fn again(given: &Given) -> Response {
    with_headers(given.status, given.headers.clone(), given.body.clone())
}
