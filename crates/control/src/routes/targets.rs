//! Targets, their LUNs, and who may log in.

use hyper::StatusCode;
use lunet_api::{
    Answer, Change, Code, Done, Error, NewSecret, NewUser, Request, SecretText, Target,
};
use serde::Deserialize;

use super::{FORCE, KEEP, Route, Run, Tagged, Verb, change, get, many, number, one, with_tag};
use crate::app::{Call, json, tag};
use crate::everybody;
use crate::problem::Problem;
use crate::reply::Response;
use crate::service::Role;

/// A target to make.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewTarget {
    /// Its iSCSI name.
    name: String,
    /// A name for people.
    alias: Option<String>,
    /// It is served over NVMe, too.
    #[serde(default)]
    nvme: bool,
}

/// The volume of a LUN.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewLun {
    /// Name of the volume.
    volume: String,
    /// Although the target closes by it, and sessions end.
    #[serde(default)]
    force: bool,
}

/// Initiators to let in, or entries of the list to remove.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewInitiators {
    /// Names, addresses and networks, or NQNs of NVMe hosts.
    #[cfg_attr(test, schema(min_items = 1))]
    initiators: Vec<String>,
    /// Although sessions of others end by it.
    #[serde(default)]
    force: bool,
    /// Sessions stay that could not log in any more.
    #[serde(default)]
    keep_sessions: bool,
}

/// A secret in clear text: `{"text":"..."}`.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct Secret {
    /// The secret. It is never shown again.
    #[cfg_attr(test, schema(value_type = String, write_only))]
    text: SecretText,
}

/// A user to add.
#[derive(Debug, Deserialize)]
#[cfg_attr(test, derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
struct NewTargetUser {
    /// The name (CHAP_N).
    name: String,
    /// CHAP secret of the user.
    secret: Secret,
    /// The initiators that may use it; all if there are none.
    #[serde(default)]
    initiators: Vec<String>,
    /// The user is there, and gets another secret.
    #[serde(default)]
    replace: bool,
    /// Although sessions end by it.
    #[serde(default)]
    force: bool,
    /// Sessions stay that could not log in any more.
    #[serde(default)]
    keep_sessions: bool,
}

fn target(call: &Call) -> String {
    call.part("name").to_owned()
}

fn find<'a>(call: &Call, answer: &'a Answer) -> Option<&'a Target> {
    let Answer::Targets(all) = answer else { return None };
    all.iter().find(|target| target.name == call.part("name"))
}

fn tag_of(target: &Target) -> String {
    tag(&Target { sessions: 0, ..target.clone() })
}

/// What of a target somebody with this role sees: where secrets are is for those who may read the configuration.
fn shown(target: &Target, role: Role) -> Target {
    let mut target = target.clone();
    if !role.may(Role::Operator) {
        target.users.iter_mut().for_each(|user| user.file = None);
    }
    target
}

fn list(call: &Call, answer: Answer) -> Result<Response, Problem> {
    let Answer::Targets(all) = answer else {
        return Err(Error::new(Code::Failed, "the server answers something else").into());
    };
    let all: Vec<Target> = all.iter().map(|target| shown(target, call.who.role)).collect();
    Ok(json(StatusCode::OK, &all))
}

fn show(call: &Call, answer: Answer) -> Result<Response, Problem> {
    match find(call, &answer) {
        Some(target) => {
            let answer = json(StatusCode::OK, &shown(target, call.who.role));
            Ok(with_tag(answer, &tag_of(target)))
        }
        None => Err(Problem::not_found(format!("there is no target {}", call.part("name")))),
    }
}

const TAGGED: Tagged = Tagged::By(
    |_| Request::Targets,
    |call, answer| find(call, answer).map(tag_of).into_iter().collect(),
);

fn make(call: &Call) -> Result<Change, Problem> {
    let NewTarget { name, alias, nvme } = call.json()?;
    Ok(Change::CreateTarget { name, alias, nvme })
}

fn map(call: &Call) -> Result<Change, Problem> {
    let NewLun { volume, force } = call.json()?;
    Ok(Change::Map { target: target(call), lun: number(call, "lun")?, volume, force })
}

fn unmap(call: &Call) -> Result<Change, Problem> {
    let (lun, force) = (number(call, "lun")?, call.flag("force")?);
    Ok(Change::Unmap { target: target(call), lun, force })
}

fn allow(call: &Call) -> Result<Change, Problem> {
    let NewInitiators { initiators, force, keep_sessions } = call.json()?;
    if initiators.is_empty() {
        return Err(Problem::invalid("say which initiators"));
    }
    if everybody::are(&initiators) && !call.who.role.may(Role::Administrator) {
        return Err(Problem::opens());
    }
    Ok(Change::AllowInitiators { target: target(call), initiators, force, keep_sessions })
}

fn deny(call: &Call) -> Result<Change, Problem> {
    let initiators = vec![call.part("initiator").to_owned()];
    let (force, keep_sessions) = (call.flag("force")?, call.flag("keep_sessions")?);
    Ok(Change::DenyInitiators { target: target(call), initiators, force, keep_sessions })
}

fn deny_all(call: &Call) -> Result<Change, Problem> {
    let NewInitiators { initiators, force, keep_sessions } = call.json()?;
    if initiators.is_empty() {
        return Err(Problem::invalid("say which initiators"));
    }
    Ok(Change::DenyInitiators { target: target(call), initiators, force, keep_sessions })
}

fn add_user(call: &Call) -> Result<Change, Problem> {
    let new: NewTargetUser = call.json()?;
    let secret = NewSecret::Text(new.secret.text);
    let user = NewUser { name: new.name, secret, initiators: new.initiators, replace: new.replace };
    let (force, keep_sessions) = (new.force, new.keep_sessions);
    Ok(Change::AddUser { target: target(call), user, force, keep_sessions })
}

fn remove_user(call: &Call) -> Result<Change, Problem> {
    let (force, keep_sessions) = (call.flag("force")?, call.flag("keep_sessions")?);
    let name = call.part("user").to_owned();
    Ok(Change::RemoveUser { target: target(call), name, force, keep_sessions })
}

pub(super) const ROUTES: &[Route] = &[
    get(
        "/api/v1/targets",
        "The targets",
        many::<Target>,
        Run::Read(|_| Ok(Request::Targets), list),
    ),
    get(
        "/api/v1/targets/{name}",
        "A target",
        one::<Target>,
        Run::Read(|_| Ok(Request::Targets), show),
    )
    .tagged(TAGGED),
    change(Verb::Post, "/api/v1/targets", Role::Operator, "Makes a target", make)
        .body(one::<NewTarget>)
        .answer(one::<Done>)
        .created(),
    change(
        Verb::Delete,
        "/api/v1/targets/{name}",
        Role::Administrator,
        "Removes a target",
        |call| Ok(Change::DeleteTarget { name: target(call), force: call.flag("force")? }),
    )
    .query(&[FORCE])
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Put,
        "/api/v1/targets/{name}/luns/{lun}",
        Role::Operator,
        "Makes a volume a LUN",
        map,
    )
    .body(one::<NewLun>)
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Delete,
        "/api/v1/targets/{name}/luns/{lun}",
        Role::Operator,
        "Removes a LUN",
        unmap,
    )
    .query(&[FORCE])
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/targets/{name}/initiators",
        Role::Operator,
        "Lets initiators in",
        allow,
    )
    .body(one::<NewInitiators>)
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Delete,
        "/api/v1/targets/{name}/initiators/{initiator}",
        Role::Operator,
        "Lets an initiator in no more",
        deny,
    )
    .query(&[FORCE, KEEP])
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/targets/{name}/deny",
        Role::Operator,
        "Lets several initiators in no more, in one change",
        deny_all,
    )
    .body(one::<NewInitiators>)
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/targets/{name}/users",
        Role::Operator,
        "Adds a user, or gives one another secret",
        add_user,
    )
    .body(one::<NewTargetUser>)
    .answer(one::<Done>)
    .created()
    .tagged(TAGGED),
    change(
        Verb::Delete,
        "/api/v1/targets/{name}/users/{user}",
        Role::Operator,
        "Removes a user",
        remove_user,
    )
    .query(&[FORCE, KEEP])
    .answer(one::<Done>)
    .tagged(TAGGED),
    change(
        Verb::Post,
        "/api/v1/targets/{name}/open",
        Role::Administrator,
        "Opens a target that names nobody to everybody",
        |call| Ok(Change::OpenTarget { target: target(call) }),
    )
    .answer(one::<Done>)
    .tagged(TAGGED),
];
