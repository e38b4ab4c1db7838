//! Failover groups: what this gateway is in each, orders to them, and what their gateways share of their configuration.

use std::sync::Arc;

use hyper::{StatusCode, header};
use lunet_api::{Answer, Done, Group, GroupConfig, GroupGateway, Request, SecretText};
use serde::Deserialize;

use super::{Needs, Route, Run, Tagged, Verb, get, many, one, route, whole, with_tag};
use crate::app::{App, Call, json, tag};
use crate::problem::Problem;
use crate::reply::Response;
use crate::service::Role;

/// Where a group is to go.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct MoveTo {
    /// The number of the gateway, from 1.
    #[cfg_attr(test, schema(minimum = 1))]
    gateway: u16,
}

/// What the gateways of a group are to share.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct SharedText {
    /// The text. If it begins with the line of a revision, only that one is replaced.
    #[cfg_attr(test, schema(value_type = String))]
    text: SecretText,
    /// Although sessions lose what they use.
    #[serde(default)]
    force: bool,
}

fn name(call: &Call) -> String {
    call.part("name").to_owned()
}

fn show(call: &Call, answer: Answer) -> Result<Response, Problem> {
    let name = call.part("name");
    let Answer::Groups(all) = answer else { return Err(strange()) };
    match all.iter().find(|group| group.name == name) {
        Some(group) => Ok(json(StatusCode::OK, group)),
        None => Err(Problem::not_found(format!("there is no group \"{name}\""))),
    }
}

fn strange() -> Problem {
    lunet_api::Error::new(lunet_api::Code::Failed, "the server answers something else").into()
}

/// The tag of what a group shares: its text names the revision, and of a group that was made anew it is another one.
fn tag_of(answer: &Answer) -> Option<String> {
    let Answer::GroupConfig(config) = answer else { return None };
    Some(tag(config))
}

const TAGGED: Tagged = Tagged::By(
    |call| Request::GroupConfig { group: name(call) },
    |_, answer| tag_of(answer).into_iter().collect(),
);

fn config(_: &Call, answer: Answer) -> Result<Response, Problem> {
    let tag = tag_of(&answer).unwrap_or_default();
    Ok(with_tag(json(StatusCode::OK, &answer), &tag))
}

/// Gives an order, and waits for its end within the server's bounds.
async fn order(app: Arc<App>, call: Call, request: Request) -> Result<Response, Problem> {
    match app.ask(&call.who, request).await? {
        answer @ Answer::Done(_) => Ok(json(StatusCode::OK, &answer)),
        _ => Err(strange()),
    }
}

async fn go(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let MoveTo { gateway } = call.json()?;
    if gateway == 0 {
        return Err(Problem::invalid("gateways have numbers from 1"));
    }
    let request = Request::MoveGroup { group: name(&call), gateway };
    order(app, call, request).await
}

async fn take_over(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let request = Request::TakeOverGroup { group: name(&call) };
    order(app, call, request).await
}

async fn write(app: Arc<App>, call: Call) -> Result<Response, Problem> {
    let SharedText { text, force } = call.json()?;
    let Some(wanted) = call.header(&header::IF_MATCH)?.map(str::to_owned) else {
        let status = StatusCode::PRECONDITION_REQUIRED;
        let problem = Problem::new(status, "precondition-required", "If-Match is missing");
        return Err(problem.fix("send the ETag of the configuration that you have read"));
    };
    let _one = app.begin_change().await?;
    // The cluster compares: another gateway may take a change meanwhile.
    let revision = match wanted.trim() {
        "*" => None,
        _ => match app.ask(&call.who, Request::GroupConfig { group: name(&call) }).await? {
            Answer::GroupConfig(GroupConfig { revision, .. }) => Some(revision),
            _ => return Err(strange()),
        },
    };
    app.check_match(&call).await?;
    let request = Request::SetGroupConfig { group: name(&call), text, revision, force };
    let answer = app.ask(&call.who, request).await?;
    let answer = json(StatusCode::OK, &answer);
    let now = app.ask(&call.who, Request::GroupConfig { group: name(&call) }).await.ok();
    Ok(match now.as_ref().and_then(tag_of) {
        Some(tag) => with_tag(answer, &tag),
        None => answer,
    })
}

pub(super) const ROUTES: &[Route] = &[
    get(
        "/api/v1/groups",
        "The failover groups that this server is a gateway of",
        many::<Group>,
        Run::Read(|_| Ok(Request::Groups), whole),
    ),
    get(
        "/api/v1/groups/{name}",
        "A failover group",
        one::<Group>,
        Run::Read(|_| Ok(Request::Groups), show),
    ),
    get(
        "/api/v1/groups/{name}/gateways",
        "Which gateways of a group are there now: they are asked, which may take some seconds",
        many::<GroupGateway>,
        Run::Read(|call| Ok(Request::Gateways { group: name(call) }), whole),
    ),
    route(
        Verb::Post,
        "/api/v1/groups/{name}/move",
        Needs::Role(Role::Operator),
        "Has a group go to another gateway in good order",
        Run::Own(|app, call| Box::pin(go(app, call))),
    )
    .body(one::<MoveTo>)
    .answer(one::<Done>)
    .once()
    .written(),
    route(
        Verb::Post,
        "/api/v1/groups/{name}/take-over",
        Needs::Role(Role::Administrator),
        "Has this gateway take a group, whatever its owner does: that one is shut out of the cluster",
        Run::Own(|app, call| Box::pin(take_over(app, call))),
    )
    .answer(one::<Done>)
    .once()
    .written(),
    get(
        "/api/v1/groups/{name}/config",
        "What the gateways of a group share of their configuration, without its secrets",
        one::<GroupConfig>,
        Run::Read(|call| Ok(Request::GroupConfig { group: name(call) }), config),
    )
    .needs(Needs::Role(Role::Operator))
    .tagged(TAGGED),
    route(
        Verb::Put,
        "/api/v1/groups/{name}/config",
        Needs::Role(Role::Administrator),
        "Replaces what the gateways of a group share, and has them serve by it; If-Match is required",
        Run::Own(|app, call| Box::pin(write(app, call))),
    )
    .body(one::<SharedText>)
    .answer(one::<Done>)
    .tagged(TAGGED)
    .needs_match()
    .once()
    .written(),
];
