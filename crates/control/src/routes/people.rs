//! Logins, accounts and tokens.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use lunet_api::{Code, Error, SecretText};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;

use super::{Needs, Route, Run, Verb, get, many, one, route};
use crate::access::{self, Login};
use crate::app::{App, Call, Outcome, json};
use crate::once::Again;
use crate::problem::Problem;
use crate::reply::Response;
use crate::service::{Kind, Role};

/// How long a token lasts if nobody says so, and at most, in seconds.
const LASTS: u64 = 90 * 24 * 3600;
const LONGEST: u64 = 10 * 366 * 24 * 3600;

/// How long whoever sends a wrong code of the first start waits for the answer.
const WRONG: Duration = Duration::from_millis(100);

/// Whether there is no account yet.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct FirstStart {
    /// There is none, so the first one is to be made.
    needed: bool,
}

/// The first account, an administrator's.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct FirstAccount {
    /// The code that `lunet serve` has printed.
    code: String,
    /// The account's name.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._@-]+$"))]
    name: String,
    /// Its password, of 8 to 256 characters.
    #[cfg_attr(test, schema(value_type = String, write_only, min_length = 8, max_length = 256))]
    password: SecretText,
}

/// A login.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct Credentials {
    /// The account's name.
    name: String,
    /// Its password.
    #[cfg_attr(test, schema(value_type = String, write_only))]
    password: SecretText,
}

/// A session that has begun. Its identifier is in the cookie.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct LoggedIn {
    /// The account's name.
    name: String,
    /// What it may do.
    role: Role,
    /// What changes have to send as X-Lunet-CSRF.
    csrf: String,
    /// When the session ends if it is not used, in seconds since 1970, UTC.
    expires: u64,
}

/// Who asks.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Me {
    /// The account's name, or the token's.
    name: String,
    /// What it may do.
    role: Role,
    /// What changes have to send as X-Lunet-CSRF; none with a token.
    csrf: Option<String>,
    /// How it has shown who it is.
    kind: Kind,
}

/// What was done, in a sentence.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Said {
    /// The sentence.
    done: String,
}

/// Somebody who may log in.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Account {
    /// The name.
    name: String,
    /// What it may do.
    role: Role,
    /// When it was made, in seconds since 1970, UTC.
    created: u64,
    /// Its sessions now.
    sessions: u64,
}

/// An account to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewAccount {
    /// The name.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._@-]+$"))]
    name: String,
    /// Its password, of 8 to 256 characters.
    #[cfg_attr(test, schema(value_type = String, write_only, min_length = 8, max_length = 256))]
    password: SecretText,
    /// What it may do; not `metrics`.
    role: Role,
}

/// Another password.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewPassword {
    /// The password, of 8 to 256 characters.
    #[cfg_attr(test, schema(value_type = String, write_only, min_length = 8, max_length = 256))]
    password: SecretText,
    /// The one before. Whoever is no administrator has to know it.
    #[cfg_attr(test, schema(value_type = Option<String>, write_only))]
    #[serde(default)]
    current: Option<SecretText>,
}

/// A token, without its secret.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Token {
    /// Its number.
    id: String,
    /// A name for people.
    name: String,
    /// What it may do.
    role: Role,
    /// Who has made it; behind a token's name is `(token)`, and behind that of a user of this machine its number.
    by: String,
    /// When it was made, in seconds since 1970, UTC.
    created: u64,
    /// When it ends.
    expires: u64,
    /// When it was used last.
    last_used: Option<u64>,
}

/// A token to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewToken {
    /// A name for people.
    #[cfg_attr(test, schema(min_length = 1, max_length = 64, pattern = "^[A-Za-z0-9._@-]+$"))]
    name: String,
    /// What it may do.
    role: Role,
    /// How long it lasts; 90 days if left out.
    #[cfg_attr(test, schema(minimum = 1, maximum = 316_224_000))]
    expires_seconds: Option<u64>,
}

/// A token that was made.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct MadeToken {
    /// Its number.
    id: String,
    /// The token. It is shown this once.
    token: String,
    /// When it ends, in seconds since 1970, UTC.
    expires: u64,
}

impl From<access::Token> for Token {
    fn from(token: access::Token) -> Self {
        let access::Token { id, name, role, by, created, expires, last_used, .. } = token;
        Self { id, name, role, by, created, expires, last_used }
    }
}

/// The answer to a login, with the cookie.
fn logged_in(app: &App, call: &Call, login: &Login) -> Response {
    let answer = LoggedIn {
        name: login.name.clone(),
        role: login.role,
        csrf: login.csrf.to_string(),
        expires: login.expires,
    };
    let mut response = json(StatusCode::OK, &answer);
    set_cookie((app, call), &mut response, &login.id, "");
    response
}

fn set_cookie((app, call): (&App, &Call), response: &mut Response, id: &str, more: &str) {
    let secure = if call.arrival.tls { "; Secure" } else { "" };
    let name = app.access.cookie();
    let cookie = format!("{name}={id}; Path=/; HttpOnly; SameSite=Strict{secure}{more}");
    if let Ok(mut value) = HeaderValue::from_str(&cookie) {
        value.set_sensitive(true);
        response.headers_mut().insert(header::SET_COOKIE, value);
    }
}

/// A name as a stranger has sent it, for the audit log.
fn printable(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    name.chars().take(64).map(plain).collect()
}

async fn first_start(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let FirstAccount { code, name, password } = call.json()?;
    let (shown, peer) = (printable(&name), call.arrival.peer);
    if !app.access.has_code(&code)? {
        let text = "this is not the code";
        let wrong = Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", text);
        let wrong = wrong.fix("`lunet serve` has printed it at its start");
        if app.access.wrong_code() {
            app.remark(peer, shown, "first-start", &wrong);
        }
        // No more of them in a second than ten times the connections.
        sleep(WRONG).await;
        return Err(wrong);
    }
    let here = Arc::clone(&app);
    // Whoever asks may go meanwhile. That hides nothing.
    let work = move || {
        let done = "the first account is made";
        let note = || here.note(peer, shown.clone(), "first-start".to_owned(), done.to_owned());
        let made = here.access.first_start((&name, password.text()), &|()| note());
        let failed = |problem: &&Problem| problem.status.is_server_error();
        if let Some(problem) = made.as_ref().err().filter(failed) {
            here.remark(peer, shown, "first-start", problem);
        }
        made
    };
    let made = app.hash(work).await?;
    Ok(logged_in(&app, &call, &made?))
}

async fn login(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let Credentials { name, password } = call.json()?;
    let (shown, peer) = (printable(&name), call.arrival.peer);
    // Those that are held back are not written down one by one.
    let attempt = app.access.attempt(&name, peer)?;
    if attempt.idle {
        // As long as if there were such an account.
        sleep(app.access.usual()).await;
        return Err(access::wrong_password());
    }
    let here = Arc::clone(&app);
    let work = move || {
        let login = here.access.login(&attempt, password.text()).and_then(|login| {
            let noted = here.note(peer, shown.clone(), "login".to_owned(), "logged in".to_owned());
            if noted.is_err() {
                here.access.end(&login);
            }
            noted.map(|()| login)
        });
        if let Err(problem) = &login {
            here.remark(peer, shown, "login", problem);
        }
        login
    };
    let login = app.hash(work).await?;
    Ok(logged_in(&app, &call, &login?))
}

async fn logout(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    app.access.logout(&call.who);
    app.record(
        &call,
        call.who.told(),
        "logout".to_owned(),
        &Outcome::Done("logged out".to_owned()),
    );
    let mut response = json(StatusCode::OK, &Said { done: "logged out".to_owned() });
    set_cookie((&app, &call), &mut response, "", "; Max-Age=0");
    Ok(response)
}

async fn me(call: Call) -> Result<Response, Problem> {
    let who = call.who;
    let csrf = who.csrf.as_ref().map(|csrf| csrf.to_string());
    Ok(json(StatusCode::OK, &Me { name: who.name, role: who.role, csrf, kind: who.kind }))
}

async fn accounts(app: Arc<App>) -> Result<Response, Problem> {
    let shown = |one: access::ShownAccount| Account {
        name: one.name,
        role: one.role,
        created: one.created,
        sessions: one.sessions,
    };
    let all: Vec<Account> = app.access.accounts().into_iter().map(shown).collect();
    Ok(json(StatusCode::OK, &all))
}

/// Writes down what is about to be done to accounts and tokens by who asks.
fn note(
    app: &Arc<App>,
    call: &Call,
    what: &str,
) -> impl Fn(&str) -> Result<(), Problem> + Send + use<> {
    let (app, what) = (Arc::clone(app), what.to_owned());
    let (peer, who) = (call.arrival.peer, call.who.told());
    move |done| app.note(peer, who.clone(), what.clone(), done.to_owned())
}

/// Says what was done to an account. That it is done is in the audit log by now, and that it is not comes there.
fn concluded(
    app: &App,
    call: &Call,
    what: String,
    done: Result<String, Problem>,
    status: StatusCode,
) -> Result<Response, Problem> {
    if let Err(problem) = &done {
        let outcome = Outcome::Refused(problem.error.to_string());
        app.record(call, call.who.told(), what, &outcome);
    }
    let done = done?;
    app.notifier.differs("accounts");
    Ok(json(status, &Said { done }))
}

async fn add_account(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let NewAccount { name, password, role } = call.json()?;
    let what = format!("create-account name={:?} role={}", printable(&name), role.as_str());
    let (here, note) = (Arc::clone(&app), note(&app, &call, &what));
    let work = move || {
        let done = format!("account {name} is created");
        let made = here.access.add_account(&name, password.text(), role, &|()| note(&done));
        made.map(|()| done)
    };
    let done = app.hash(work).await?;
    concluded(&app, &call, what, done, StatusCode::CREATED)
}

async fn remove_account(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let name = call.part("name").to_owned();
    let what = format!("delete-account name={:?}", printable(&name));
    let (here, note) = (Arc::clone(&app), note(&app, &call, &what));
    let work = move || {
        let done = |tokens: &usize| match tokens {
            0 => format!("account {name} is gone"),
            1 => format!("account {name} is gone, and a token that was made by it"),
            more => format!("account {name} is gone, and {more} tokens that were made by it"),
        };
        let removed = here.access.remove_account(&name, &|tokens| note(&done(tokens)));
        removed.map(|tokens| done(&tokens))
    };
    let done = app.hash(work).await?;
    concluded(&app, &call, what, done, StatusCode::OK)
}

async fn set_password(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let name = call.part("name").to_owned();
    let own = call.who.kind == Kind::Session && call.who.name == name;
    if !own && call.who.role != Role::Administrator {
        return Err(Problem::forbidden("this needs the role administrator"));
    }
    let NewPassword { password, current } = call.json()?;
    let what = format!("set-password name={:?}", printable(&name));
    let (here, who, note) = (Arc::clone(&app), call.who.clone(), note(&app, &call, &what));
    let work = move || {
        let done = format!("account {name} has another password");
        let secrets = (password.text(), current.as_ref().map(SecretText::text));
        let set = here.access.set_password(&who, &name, secrets, &|()| note(&done));
        set.map(|()| done)
    };
    let done = app.hash(work).await?;
    concluded(&app, &call, what, done, StatusCode::OK)
}

async fn tokens(app: Arc<App>) -> Result<Response, Problem> {
    let all: Vec<Token> = app.access.tokens().into_iter().map(Token::from).collect();
    Ok(json(StatusCode::OK, &all))
}

async fn add_token(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let NewToken { name, role, expires_seconds } = call.json()?;
    let seconds = expires_seconds.unwrap_or(LASTS);
    if !(1..=LONGEST).contains(&seconds) {
        return Err(Problem::invalid(format!("a token lasts 1 to {LONGEST} seconds")));
    }
    let what = format!("create-token name={:?} role={}", printable(&name), role.as_str());
    let (here, who, note) = (Arc::clone(&app), call.who.clone(), note(&app, &call, &what));
    let work = move || {
        let note = |token: &access::Token| note(&format!("token {} is created", token.id));
        here.access.add_token(&who, (&name, role), seconds, &note)
    };
    let made = app.hash(work).await?;
    if let Err(problem) = &made {
        let outcome = Outcome::Refused(problem.error.to_string());
        app.record(&call, call.who.told(), what, &outcome);
    }
    let (token, text) = made?;
    app.notifier.differs("accounts");
    // The secret is not kept, not even for whoever has not got the answer.
    let id = &token.id;
    let again = Error::new(
        Code::Exists,
        format!(
            "token {id} was made by the first request with this Idempotency-Key, and it is shown once"
        ),
    );
    let again =
        again.fix("if that answer was lost, revoke the token, and make another one with a new key");
    let made = MadeToken { id: token.id, token: text.to_string(), expires: token.expires };
    let mut response = json(StatusCode::CREATED, &made);
    response.extensions_mut().insert(Again(again.into()));
    Ok(response)
}

async fn remove_token(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let id = call.part("id").to_owned();
    let what = format!("delete-token id={:?}", printable(&id));
    let (here, note) = (Arc::clone(&app), note(&app, &call, &what));
    let work = move || {
        let done = |token: &access::Token| format!("token {} ({}) is gone", token.id, token.name);
        here.access.remove_token(&id, &|token| note(&done(token))).map(|token| done(&token))
    };
    let done = app.hash(work).await?;
    concluded(&app, &call, what, done, StatusCode::OK)
}

/// Whoever has shown who they are.
const KNOWN: Needs = Needs::Role(Role::Metrics);
const ADMIN: Needs = Needs::Role(Role::Administrator);

pub(super) const ROUTES: &[Route] = &[
    get(
        "/api/v1/first-start",
        "Whether there is no account yet",
        one::<FirstStart>,
        Run::Own(|app, _| {
            Box::pin(async move {
                Ok(json(StatusCode::OK, &FirstStart { needed: app.access.code().is_some() }))
            })
        }),
    )
    .needs(Needs::Nobody),
    route(
        Verb::Post,
        "/api/v1/first-start",
        Needs::Nobody,
        "Makes the first account, and logs in",
        Run::Own(|app, call| Box::pin(first_start(app, call))),
    )
    .body(one::<FirstAccount>)
    .answer(one::<LoggedIn>),
    route(
        Verb::Post,
        "/api/v1/login",
        Needs::Nobody,
        "Logs in",
        Run::Own(|app, call| Box::pin(login(app, call))),
    )
    .body(one::<Credentials>)
    .answer(one::<LoggedIn>),
    route(
        Verb::Post,
        "/api/v1/logout",
        KNOWN,
        "Ends this session",
        Run::Own(|app, call| Box::pin(logout(app, call))),
    )
    .answer(one::<Said>),
    get("/api/v1/me", "Who asks", one::<Me>, Run::Own(|_, call| Box::pin(me(call)))).needs(KNOWN),
    get(
        "/api/v1/accounts",
        "The accounts",
        many::<Account>,
        Run::Own(|app, _| Box::pin(accounts(app))),
    )
    .needs(ADMIN),
    route(
        Verb::Post,
        "/api/v1/accounts",
        ADMIN,
        "Makes an account",
        Run::Own(|app, call| Box::pin(add_account(app, call))),
    )
    .body(one::<NewAccount>)
    .answer(one::<Said>)
    .created()
    .once()
    .written(),
    route(
        Verb::Delete,
        "/api/v1/accounts/{name}",
        ADMIN,
        "Removes an account, and ends its sessions and the tokens that were made by it",
        Run::Own(|app, call| Box::pin(remove_account(app, call))),
    )
    .answer(one::<Said>)
    .once()
    .written(),
    route(
        Verb::Put,
        "/api/v1/accounts/{name}/password",
        Needs::Role(Role::Viewer),
        "Sets a password: one's own, or with the role administrator any",
        Run::Own(|app, call| Box::pin(set_password(app, call))),
    )
    .body(one::<NewPassword>)
    .answer(one::<Said>)
    .once()
    .written(),
    get("/api/v1/tokens", "The tokens", many::<Token>, Run::Own(|app, _| Box::pin(tokens(app))))
        .needs(ADMIN),
    route(
        Verb::Post,
        "/api/v1/tokens",
        ADMIN,
        "Makes a token",
        Run::Own(|app, call| Box::pin(add_token(app, call))),
    )
    .body(one::<NewToken>)
    .answer(one::<MadeToken>)
    .created()
    .once()
    .written(),
    route(
        Verb::Delete,
        "/api/v1/tokens/{id}",
        ADMIN,
        "Revokes a token",
        Run::Own(|app, call| Box::pin(remove_token(app, call))),
    )
    .answer(one::<Said>)
    .once()
    .written(),
];
