//! The server as a whole: portals, sessions, configuration, counts, and whether it lives.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::{StatusCode, header};
use lunet_api::{
    Answer, Change, Code, Configuration, Done, Error, Portal, Preview, Request, SecretText,
    Session, Stats, Transport, Verdict,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{
    FORCE, KEEP, Needs, Of, Route, Run, Tagged, Verb, any, change, get, many, number, one, route,
    text, whole, with_tag,
};
use crate::app::{App, Call, JSON, LONG, Outcome, json, tag};
use crate::audit::AuditEntry;
use crate::binds;
use crate::events::Events;
use crate::problem::Problem;
use crate::reply::{Response, reply};
use crate::service::{RefusedLogin, Role};

/// The TCP port of iSCSI.
const ISCSI: u16 = 3260;

/// The most entries of the audit log in one answer.
const ENTRIES: u64 = 1000;

/// How long the facts about the machine are kept, and may take.
const FRESH: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_secs(60);

/// How long the server has to say whether it is ready, and how long that is the answer to whoever asks.
const READY: Duration = Duration::from_secs(2);
const STILL_READY: Duration = Duration::from_secs(1);

/// A portal to add.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewPortal {
    /// IP address and TCP port; the port is 3260 if left out.
    address: String,
    /// The portal group tag; 1 if left out.
    tag: Option<u16>,
    /// Over what; all that can be had there if there is none.
    #[serde(default)]
    transport: Vec<Transport>,
}

/// How the configuration is applied.
#[derive(Debug, Default, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
struct Apply {
    /// Although sessions use what would be gone.
    force: bool,
    /// Sessions stay that could not log in any more.
    keep_sessions: bool,
}

/// A configuration.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct ConfigText {
    /// The text of `lunet.toml`.
    #[cfg_attr(test, schema(value_type = String))]
    text: SecretText,
}

/// Whether the server serves.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
struct Readiness {
    /// It does.
    ready: bool,
    /// Why not, a sentence each.
    why: Vec<String>,
}

/// An address as people write it.
fn address(text: &str) -> Result<SocketAddr, Problem> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let alone = bare.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, ISCSI));
    text.parse().or(alone).map_err(|_| Problem::invalid(format!("{text:?} is no address and port")))
}

fn add_portal(call: &Call) -> Result<Change, Problem> {
    let NewPortal { address: text, tag, transport } = call.json()?;
    Ok(Change::AddPortal { address: address(&text)?, tag, transport })
}

fn remove_portal(call: &Call) -> Result<Change, Problem> {
    let (force, keep_sessions) = (call.flag("force")?, call.flag("keep_sessions")?);
    Ok(Change::RemovePortal { address: address(call.part("address"))?, force, keep_sessions })
}

fn end_sessions(call: &Call) -> Result<Change, Problem> {
    match call.query("initiator") {
        Some(name) if !name.is_empty() => {
            Ok(Change::EndSessions { session: None, initiator: Some(name.to_owned()) })
        }
        _ => Err(Problem::bad("say whose sessions: ?initiator=NAME")),
    }
}

/// The tag of what is in force, and behind a dot that of what was written into the file since: both have to be known to
/// whoever writes.
fn tag_of(answer: &Answer) -> Option<String> {
    let Answer::Config(config) = answer else { return None };
    let in_force = tag(&config.text);
    Some(match &config.pending_version {
        None => in_force,
        Some(version) => {
            let (one, other) = (in_force.trim_matches('"'), tag(version));
            format!("\"{one}.{}\"", other.trim_matches('"'))
        }
    })
}

const TAGGED: Tagged =
    Tagged::By(|_| Request::Config, |_, answer| tag_of(answer).into_iter().collect());

/// What is applied may have been written by whoever has read before that: of the tags that were sent, those of what is in
/// force.
const APPLIED: Tagged = Tagged::By(
    |_| Request::Config,
    |call, answer| {
        let Answer::Config(config) = answer else { return Vec::new() };
        let in_force = tag(&config.text);
        let of_it = |one: &&str| match one.split_once('.') {
            Some((first, _)) => format!("{first}\"") == in_force,
            None => *one == in_force,
        };
        let sent = call.header(&header::IF_MATCH).ok().flatten().unwrap_or_default();
        let known = sent.split(',').map(str::trim).filter(of_it).map(str::to_owned);
        known.chain([in_force.clone()]).collect()
    },
);

fn config(_: &Call, answer: Answer) -> Result<Response, Problem> {
    let tag = tag_of(&answer).unwrap_or_default();
    Ok(with_tag(json(StatusCode::OK, &answer), &tag))
}

fn apply(call: &Call) -> Result<Change, Problem> {
    let Apply { force, keep_sessions } = call.json_or_default()?;
    Ok(Change::Apply { force, keep_sessions })
}

async fn check(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let ConfigText { text } = call.json()?;
    let (service, who) = (Arc::clone(&app.service), call.who.clone());
    let limit = app.options.limits.answer;
    let check = move || service.check(&who, text.text());
    let checked = app.blocking(&app.work, limit, check).await?;
    Ok(json(StatusCode::OK, &checked?))
}

async fn write(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let ConfigText { text } = call.json()?;
    if call.header(&header::IF_MATCH)?.is_none() {
        let status = StatusCode::PRECONDITION_REQUIRED;
        let problem = Problem::new(status, "precondition-required", "If-Match is missing");
        return Err(problem.fix("send the ETag of the configuration that you have read"));
    }
    let _one = app.begin_change().await?;
    app.check_match(&call).await?;
    let (service, who) = (Arc::clone(&app.service), call.who.clone());
    let text = Zeroizing::new(text.text().to_owned());
    let written = app.blocking(&app.work, LONG, move || service.write(&who, text)).await?;
    let written = written.map_err(Problem::from);
    let outcome = Outcome::of(&written, |done| done.done.clone());
    app.record(&call, call.who.told(), "write-config".to_owned(), &outcome);
    if written.is_ok() {
        app.notifier.differs("config");
    }
    let answer = json(StatusCode::OK, &written?);
    // Of what was written: nobody else has written meanwhile.
    let now = app.ask(&call.who, Request::Config).await.ok();
    Ok(match now.as_ref().and_then(tag_of) {
        Some(tag) => with_tag(answer, &tag),
        None => answer,
    })
}

async fn refused(app: Arc<App>, _: Call) -> Result<Response, Problem> {
    let service = Arc::clone(&app.service);
    let limit = app.options.limits.answer;
    let all = app.blocking(&app.work, limit, move || service.refused()).await?;
    Ok(json(StatusCode::OK, &all))
}

async fn audit(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let before = call.number("before")?.unwrap_or(u64::MAX);
    let limit = call.number("limit")?.unwrap_or(100).min(ENTRIES) as usize;
    let log = app.log.clone();
    let read = move || log.read(before, limit);
    let all = app.blocking(&app.work, app.options.limits.answer, read).await?;
    let all = all.map_err(|error| Error::new(Code::Failed, error.to_string()))?;
    Ok(json(StatusCode::OK, &all))
}

async fn ready(app: Arc<App>, _: Call) -> Result<Response, Problem> {
    // Whoever asks meanwhile waits for this answer: that many ask does not make the server less ready.
    let mut kept = app.readiness.lock().await;
    let why = match &*kept {
        Some((at, why)) if at.elapsed() < STILL_READY => why.clone(),
        _ => {
            let service = Arc::clone(&app.service);
            let why = match app.blocking(&app.asking, READY, move || service.ready()).await {
                Ok(why) => why,
                // It has not answered the last question, or this one.
                Err(_) => vec!["the server has not answered in time".to_owned()],
            };
            *kept = Some((Instant::now(), why.clone()));
            why
        }
    };
    drop(kept);
    let ready = why.is_empty();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Ok(json(status, &Readiness { ready, why }))
}

/// What of the facts somebody with this role sees. The command line of the kernel may have secrets in it, and says how
/// the machine can be attacked.
fn shown(mut facts: Value, role: Role) -> Value {
    if !role.may(Role::Operator) {
        if let Some(all) = facts.as_object_mut() {
            all.remove("cmdline");
        }
        if let Some(platform) = facts.get_mut("platform").and_then(Value::as_object_mut) {
            platform.remove("cmdline_text");
        }
    }
    facts
}

async fn facts(app: Arc<App>, role: Role) -> Result<Response, Problem> {
    // Whoever asks meanwhile waits for this answer.
    let mut kept = app.facts.lock().await;
    if let Some((at, facts)) = &*kept {
        if at.elapsed() < FRESH {
            return Ok(json(StatusCode::OK, &shown(facts.clone(), role)));
        }
    }
    let words = ["tune", "facts", "--json"].map(str::to_owned);
    let facts = app.jobs.ask(&words, LOOK).await?;
    let response = json(StatusCode::OK, &shown(facts.clone(), role));
    *kept = Some((Instant::now(), facts));
    Ok(response)
}

const BEFORE: super::Parameter =
    ("before", Of::Number, "Entries from before this time, in seconds since 1970");
const LIMIT: super::Parameter =
    ("limit", Of::Number, "At most so many, up to 1000; 100 if left out");
const BY_INITIATOR: super::Parameter =
    ("by_initiator", Of::Flag, "Sessions by initiator, too, for the first 256 of them");
const INITIATOR: super::Parameter =
    ("initiator", Of::Text, "The initiator's name, or the host's NQN");

pub(super) const ROUTES: &[Route] = &[
    get(
        "/api/v1/portals",
        "The portals",
        many::<Portal>,
        Run::Read(|_| Ok(Request::Portals), whole),
    ),
    change(Verb::Post, "/api/v1/portals", Role::Administrator, "Listens at an address", add_portal)
        .body(one::<NewPortal>)
        .answer(one::<Done>)
        .created(),
    change(
        Verb::Delete,
        "/api/v1/portals/{address}",
        Role::Administrator,
        "Listens at an address no more",
        remove_portal,
    )
    .query(&[FORCE, KEEP])
    .answer(one::<Done>),
    get(
        "/api/v1/sessions",
        "The sessions and controllers",
        many::<Session>,
        Run::Read(|_| Ok(Request::Sessions), whole),
    ),
    change(
        Verb::Delete,
        "/api/v1/sessions",
        Role::Operator,
        "Ends the sessions of an initiator",
        end_sessions,
    )
    .query(&[INITIATOR])
    .answer(one::<Done>),
    change(Verb::Delete, "/api/v1/sessions/{tsih}", Role::Operator, "Ends a session", |call| {
        Ok(Change::EndSessions { session: Some(number(call, "tsih")?), initiator: None })
    })
    .answer(one::<Done>),
    get(
        "/api/v1/config",
        "The configuration in force, without its secrets",
        one::<Configuration>,
        Run::Read(|_| Ok(Request::Config), config),
    )
    .needs(Needs::Role(Role::Operator))
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/config/apply",
        Role::Administrator,
        "Reads the configuration file again, and serves what it says",
        apply,
    )
    .body(one::<Apply>)
    .answer(one::<Done>)
    .tagged(APPLIED),
    route(
        Verb::Post,
        "/api/v1/config/check",
        Needs::Role(Role::Operator),
        "What a configuration would change",
        Run::Own(|app, call| Box::pin(check(app, call))),
    )
    .body(one::<ConfigText>)
    .answer(one::<Preview>),
    route(
        Verb::Put,
        "/api/v1/config",
        Needs::Role(Role::Administrator),
        "Replaces the configuration file, and does not apply it; If-Match is required",
        Run::Own(|app, call| Box::pin(write(app, call))),
    )
    .body(one::<ConfigText>)
    .answer(one::<Done>)
    .tagged(TAGGED)
    .needs_match()
    .once()
    .written(),
    get(
        "/api/v1/stats",
        "What has been done since the start",
        one::<Stats>,
        Run::Read(|_| Ok(Request::Stats), whole),
    ),
    get(
        "/api/v1/verdict",
        "What binds the server and each volume now; the first answer in a minute takes a second",
        one::<Verdict>,
        Run::Own(|app, _| {
            Box::pin(async { Ok(json(StatusCode::OK, &binds::verdict(app).await?)) })
        }),
    ),
    get(
        "/metrics",
        "Metrics for Prometheus: OpenMetrics, or its text format",
        text,
        Run::Own(|app, call| Box::pin(binds::metrics(app, call))),
    )
    .needs(Needs::Role(Role::Metrics))
    .query(&[BY_INITIATOR])
    .media(&["application/openmetrics-text", "text/plain"]),
    get(
        "/api/v1/refused",
        "Logins and NVMe hosts that were refused lately, the newest first",
        many::<RefusedLogin>,
        Run::Own(|app, call| Box::pin(refused(app, call))),
    ),
    get(
        "/api/v1/facts",
        "What the tuner knows of this machine",
        any,
        Run::Own(|app, call| Box::pin(facts(app, call.who.role))),
    ),
    get(
        "/api/v1/audit",
        "Changes, logins and tokens, the newest first",
        many::<AuditEntry>,
        Run::Own(|app, call| Box::pin(audit(app, call))),
    )
    .needs(Needs::Role(Role::Administrator))
    .query(&[BEFORE, LIMIT]),
    get(
        "/api/v1/events",
        "What happens, as server-sent events: interval, verdict, changed, job",
        text,
        Run::Own(|app, call| Box::pin(async move { Events::listen(&app, call.who) })),
    )
    .media(&["text/event-stream"]),
    get(
        "/api/v1/openapi.json",
        "This document",
        any,
        Run::Own(|app, _| {
            Box::pin(async move { Ok(reply(StatusCode::OK, JSON, app.document.clone())) })
        }),
    )
    .needs(Needs::Nobody),
    get(
        "/healthz",
        "Whether this interface lives",
        text,
        Run::Own(|_, _| {
            Box::pin(async { Ok(reply(StatusCode::OK, "text/plain; charset=utf-8", "ok")) })
        }),
    )
    .needs(Needs::Nobody)
    .media(&["text/plain"]),
    get(
        "/readyz",
        "Whether the server serves: 503 if it does not",
        one::<Readiness>,
        Run::Own(|app, call| Box::pin(ready(app, call))),
    )
    .needs(Needs::Nobody),
];
