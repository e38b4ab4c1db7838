//! Requests of the control socket in the form that the REST interface has for them: docs/rest.md.

use std::net::SocketAddr;

use lunet_api::{Change, Code, Error, NewSecret, NewUser, Request, SecretText, Transport};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use zeroize::Zeroizing;

/// What stands in a path and in a query as it is (RFC 3986, unreserved).
const ENCODED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

/// A request of HTTP.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) method: &'static str,
    /// With the query.
    pub(super) path: String,
    /// JSON, which may have a secret in it.
    pub(super) body: Option<Zeroizing<Vec<u8>>>,
    /// If-Match.
    pub(super) if_match: Option<&'static str>,
}

/// The bodies that are not of the API, as the REST interface describes them.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'c> {
    Apply {
        force: bool,
        keep_sessions: bool,
    },
    Resize {
        size: Option<u64>,
    },
    Snapshot {
        snapshot: &'c str,
    },
    Clone {
        name: &'c str,
        snapshot: Option<&'c str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        naa: Option<&'c str>,
    },
    Rollback {
        snapshot: &'c str,
        force: bool,
    },
    Target {
        name: &'c str,
        alias: Option<&'c str>,
        nvme: bool,
    },
    Initiators {
        initiators: &'c [String],
        force: bool,
        keep_sessions: bool,
    },
    User(User<'c>),
    Portal {
        address: SocketAddr,
        tag: Option<u16>,
        transport: &'c [Transport],
    },
    Lun {
        volume: &'c str,
        force: bool,
    },
    Config {
        text: &'c str,
    },
    MoveGroup {
        gateway: u16,
    },
    GroupConfig {
        text: &'c SecretText,
        force: bool,
    },
}

#[derive(Serialize)]
struct User<'c> {
    name: &'c str,
    secret: Secret<'c>,
    initiators: &'c [String],
    replace: bool,
    force: bool,
    keep_sessions: bool,
}

#[derive(Serialize)]
struct Secret<'c> {
    text: &'c SecretText,
}

impl Asked {
    /// A request for what the parts of a path name.
    ///
    /// # Errors
    /// A part is empty, so that the path would be another one.
    pub(super) fn new(method: &'static str, parts: &[&str]) -> Result<Self, Error> {
        let mut path = "/api/v1".to_owned();
        for part in parts {
            if part.is_empty() {
                return Err(Error::new(Code::Invalid, "an empty name is no name"));
            }
            path.push('/');
            path.extend(utf8_percent_encode(part, ENCODED));
        }
        Ok(Self { method, path, body: None, if_match: None })
    }

    /// The same with a body.
    pub(super) fn with(self, body: &impl Serialize) -> Result<Self, Error> {
        let mut text = Zeroizing::new(Vec::with_capacity(lunet_api::line::ROOM));
        serde_json::to_writer(&mut *text, body)
            .map_err(|error| Error::new(Code::Invalid, format!("this is no JSON: {error}")))?;
        Ok(Self { body: Some(text), ..self })
    }

    /// The same with a value in the query.
    fn query(mut self, name: &str, value: &str) -> Self {
        self.path.push(if self.path.contains('?') { '&' } else { '?' });
        self.path.push_str(name);
        self.path.push('=');
        self.path.extend(utf8_percent_encode(value, ENCODED));
        self
    }

    /// The same with a yes in the query, or without it.
    fn flag(self, name: &str, yes: bool) -> Self {
        if yes { self.query(name, "true") } else { self }
    }
}

/// The form of a request.
///
/// # Errors
/// It has none.
pub(super) fn of(request: &Request) -> Result<Asked, Error> {
    let get = |parts: &[&str]| Asked::new("GET", parts);
    match request {
        Request::Sessions => get(&["sessions"]),
        Request::Stats => get(&["stats"]),
        Request::Volumes => get(&["volumes"]),
        Request::Snapshots { volume: None } => get(&["snapshots"]),
        Request::Snapshots { volume: Some(volume) } => get(&["volumes", volume, "snapshots"]),
        Request::Targets => get(&["targets"]),
        Request::Portals => get(&["portals"]),
        Request::Config => get(&["config"]),
        Request::Groups => get(&["groups"]),
        Request::Gateways { group } => get(&["groups", group, "gateways"]),
        Request::GroupConfig { group } => get(&["groups", group, "config"]),
        Request::MoveGroup { group, gateway } => {
            let gateway = *gateway;
            Asked::new("POST", &["groups", group, "move"])?.with(&Body::MoveGroup { gateway })
        }
        Request::GrowGroup { .. } => {
            let fix = "run the command on the gateway itself";
            Err(Error::new(Code::Unsupported, "REST has no form for more gateways").fix(fix))
        }
        Request::TakeOverGroup { group } => Asked::new("POST", &["groups", group, "take-over"]),
        Request::SetGroupConfig { group, text, force, .. } => {
            let body = Body::GroupConfig { text, force: *force };
            let asked = Asked::new("PUT", &["groups", group, "config"])?.with(&body)?;
            // Which revision is replaced the text says.
            Ok(Asked { if_match: Some("*"), ..asked })
        }
        Request::Change { change, .. } => of_change(change),
        Request::Preview { change, .. } => Ok(of_change(change)?.flag("dry_run", true)),
    }
}

/// The form of a question what a configuration with this text would change.
///
/// # Errors
/// It has none.
pub(super) fn of_text(text: &str) -> Result<Asked, Error> {
    Asked::new("POST", &["config", "check"])?.with(&Body::Config { text })
}

fn of_change(change: &Change) -> Result<Asked, Error> {
    match change {
        Change::Apply { force, keep_sessions } => {
            let (force, keep_sessions) = (*force, *keep_sessions);
            Asked::new("POST", &["config", "apply"])?.with(&Body::Apply { force, keep_sessions })
        }
        Change::EndSessions { session: Some(tsih), initiator: None } => {
            Asked::new("DELETE", &["sessions", &tsih.to_string()])
        }
        Change::EndSessions { session: None, initiator: Some(name) } => {
            Ok(Asked::new("DELETE", &["sessions"])?.query("initiator", name))
        }
        Change::EndSessions { .. } => {
            Err(Error::new(Code::BadRequest, "name one session, or one initiator"))
        }
        Change::CreateTarget { name, alias, nvme } => {
            let body = Body::Target { name, alias: alias.as_deref(), nvme: *nvme };
            Asked::new("POST", &["targets"])?.with(&body)
        }
        Change::DeleteTarget { name, force } => {
            Ok(Asked::new("DELETE", &["targets", name])?.flag("force", *force))
        }
        Change::AddPortal { address, tag, transport } => {
            let body = Body::Portal { address: *address, tag: *tag, transport };
            Asked::new("POST", &["portals"])?.with(&body)
        }
        Change::RemovePortal { address, force, keep_sessions } => {
            let asked = Asked::new("DELETE", &["portals", &address.to_string()])?;
            Ok(asked.flag("force", *force).flag("keep_sessions", *keep_sessions))
        }
        Change::Map { target, lun, volume, force } => {
            let body = Body::Lun { volume, force: *force };
            Asked::new("PUT", &["targets", target, "luns", &lun.to_string()])?.with(&body)
        }
        Change::Unmap { target, lun, force } => {
            let asked = Asked::new("DELETE", &["targets", target, "luns", &lun.to_string()])?;
            Ok(asked.flag("force", *force))
        }
        _ => of_volume(change),
    }
}

/// The form of a change of volumes.
fn of_volume(change: &Change) -> Result<Asked, Error> {
    let post = |parts: &[&str]| Asked::new("POST", parts);
    match change {
        Change::CreateVolume(new) => post(&["volumes"])?.with(new),
        Change::ResizeVolume { name, size } => {
            Asked::new("PATCH", &["volumes", name])?.with(&Body::Resize { size: *size })
        }
        Change::LimitVolume { name, limits } => {
            Asked::new("PATCH", &["volumes", name, "limits"])?.with(limits)
        }
        Change::ReopenVolume { name } => post(&["volumes", name, "reopen"]),
        Change::RecreateVolume { name } => post(&["volumes", name, "recreate"]),
        Change::AdoptVolume { name } => post(&["volumes", name, "adopt"]),
        Change::DeleteVolume { name, keep_data, force } => {
            let asked = Asked::new("DELETE", &["volumes", name])?;
            Ok(asked.flag("keep_data", *keep_data).flag("force", *force))
        }
        Change::CreateSnapshot { volume, snapshot } => {
            post(&["volumes", volume, "snapshots"])?.with(&Body::Snapshot { snapshot })
        }
        Change::DeleteSnapshot { volume, snapshot } => {
            Asked::new("DELETE", &["volumes", volume, "snapshots", snapshot])
        }
        Change::CloneVolume { volume, snapshot, name, naa } => {
            let (snapshot, naa) = (snapshot.as_deref(), naa.as_deref());
            let body = Body::Clone { name, snapshot, naa };
            post(&["volumes", volume, "clone"])?.with(&body)
        }
        Change::Rollback { volume, snapshot, force } => {
            let body = Body::Rollback { snapshot, force: *force };
            post(&["volumes", volume, "rollback"])?.with(&body)
        }
        _ => of_access(change),
    }
}

/// The form of a change of who may log in.
fn of_access(change: &Change) -> Result<Asked, Error> {
    let post = |target: &str, what: &str| Asked::new("POST", &["targets", target, what]);
    match change {
        Change::AllowInitiators { target, initiators, force, keep_sessions } => {
            let (force, keep_sessions) = (*force, *keep_sessions);
            post(target, "initiators")?.with(&Body::Initiators { initiators, force, keep_sessions })
        }
        Change::DenyInitiators { target, initiators, force, keep_sessions } => {
            let (force, keep_sessions) = (*force, *keep_sessions);
            post(target, "deny")?.with(&Body::Initiators { initiators, force, keep_sessions })
        }
        Change::OpenTarget { target } => post(target, "open"),
        Change::AddUser { target, user, force, keep_sessions } => {
            let NewUser { name, secret, initiators, replace } = user;
            let NewSecret::Text(text) = secret else {
                return Err(Error::new(
                    Code::Unsupported,
                    "a file of the server cannot be named from another machine",
                )
                .fix("give the secret itself, on standard input"));
            };
            let (secret, replace) = (Secret { text }, *replace);
            let (force, keep_sessions) = (*force, *keep_sessions);
            let user = User { name, secret, initiators, replace, force, keep_sessions };
            post(target, "users")?.with(&Body::User(user))
        }
        Change::RemoveUser { target, name, force, keep_sessions } => {
            let asked = Asked::new("DELETE", &["targets", target, "users", name])?;
            Ok(asked.flag("force", *force).flag("keep_sessions", *keep_sessions))
        }
        _ => Err(Error::new(Code::Unsupported, "REST has no form for this change")),
    }
}

#[cfg(test)]
mod tests {
    use lunet_api::{Backend, NewVolume, VolumeLimits};

    use super::*;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    /// One of each. Who adds a change is reminded here, by the compiler, to add it to the list.
    #[rustfmt::skip]
    fn changes() -> Vec<Change> {
        const fn known(change: &Change) {
            match change {
                Change::Apply { .. } | Change::EndSessions { .. } | Change::CreateVolume(_)
                | Change::ResizeVolume { .. } | Change::LimitVolume { .. } | Change::ReopenVolume { .. } | Change::RecreateVolume { .. }
                | Change::AdoptVolume { .. } | Change::DeleteVolume { .. } | Change::CreateSnapshot { .. }
                | Change::DeleteSnapshot { .. } | Change::CloneVolume { .. } | Change::Rollback { .. }
                | Change::CreateTarget { .. } | Change::DeleteTarget { .. } | Change::AllowInitiators { .. }
                | Change::DenyInitiators { .. } | Change::OpenTarget { .. } | Change::AddUser { .. }
                | Change::RemoveUser { .. } | Change::AddPortal { .. } | Change::RemovePortal { .. }
                | Change::Map { .. } | Change::Unmap { .. } => {}
            }
        }
        let (name, volume, target, snapshot) = (text("v"), text("v"), text("iqn.2026-11.l:x"), text("s"));
        let (force, keep_sessions, initiators) = (true, true, vec![text("10.0.0.0/8")]);
        let secret = NewSecret::Text(SecretText::new(Zeroizing::new(text("a secret of 16 b"))));
        let user = NewUser { name: text("u"), secret, initiators: Vec::new(), replace: false };
        let address = "[fd00::1]:3260".parse().unwrap();
        let all = vec![
            Change::Apply { force, keep_sessions },
            Change::EndSessions { session: Some(7), initiator: None },
            Change::EndSessions { session: None, initiator: Some(text("iqn.a:1")) },
            Change::CreateVolume(NewVolume { name: name.clone(), backend: Backend::Memory, ..NewVolume::default() }),
            Change::ResizeVolume { name: name.clone(), size: None },
            Change::LimitVolume { name: name.clone(), limits: VolumeLimits { iops: Some(5), ..VolumeLimits::default() } },
            Change::ReopenVolume { name: name.clone() },
            Change::RecreateVolume { name: name.clone() },
            Change::AdoptVolume { name: name.clone() },
            Change::DeleteVolume { name: name.clone(), keep_data: true, force },
            Change::CreateSnapshot { volume: volume.clone(), snapshot: snapshot.clone() },
            Change::DeleteSnapshot { volume: volume.clone(), snapshot: snapshot.clone() },
            Change::CloneVolume { volume: volume.clone(), snapshot: None, name: name.clone(), naa: Some(text("6")) },
            Change::Rollback { volume: volume.clone(), snapshot, force },
            Change::CreateTarget { name: target.clone(), alias: None, nvme: true },
            Change::DeleteTarget { name: target.clone(), force },
            Change::AllowInitiators { target: target.clone(), initiators: initiators.clone(), force, keep_sessions },
            Change::DenyInitiators { target: target.clone(), initiators, force, keep_sessions },
            Change::OpenTarget { target: target.clone() },
            Change::AddUser { target: target.clone(), user, force, keep_sessions },
            Change::RemoveUser { target: target.clone(), name: text("u"), force, keep_sessions },
            Change::AddPortal { address, tag: None, transport: vec![Transport::Tcp] },
            Change::RemovePortal { address, force, keep_sessions },
            Change::Map { target: target.clone(), lun: 1, volume, force },
            Change::Unmap { target, lun: 1, force },
        ];
        all.iter().for_each(known);
        all
    }

    /// The route of a request, as the REST interface writes it.
    fn route(asked: &Asked) -> Option<(&'static str, &'static str)> {
        let path = asked.path.split('?').next().unwrap_or_default();
        let fits = |route: &str| {
            let (route, path) = (route.split('/'), path.split('/'));
            route.clone().count() == path.clone().count()
                && route.zip(path).all(|(one, other)| one.starts_with('{') || one == other)
        };
        // A word goes before a part that may be anything, as in the router.
        let all = lunet_control::routes().into_iter();
        let found = all.filter(|(method, path)| *method == asked.method && fits(path));
        found.min_by_key(|(_, path)| path.matches('{').count())
    }

    #[test]
    fn every_request_is_one_of_the_routes() {
        let volume = Some(text("v"));
        let mut all = vec![Request::Sessions, Request::Stats, Request::Volumes, Request::Targets];
        all.extend([Request::Portals, Request::Config, Request::Snapshots { volume: None }]);
        all.push(Request::Snapshots { volume });
        let (group, secret) = (text("g"), SecretText::new(Zeroizing::new(text("x"))));
        all.extend([Request::Groups, Request::Gateways { group: group.clone() }]);
        all.push(Request::MoveGroup { group: group.clone(), gateway: 2 });
        all.push(Request::TakeOverGroup { group: group.clone() });
        all.push(Request::GroupConfig { group: group.clone() });
        all.push(Request::SetGroupConfig { group, text: secret, revision: None, force: true });
        all.extend(changes().into_iter().map(Request::preview));
        let routes: Vec<_> = all
            .iter()
            .map(|request| {
                let asked = of(request).unwrap();
                route(&asked).unwrap_or_else(|| panic!("{} {}", asked.method, asked.path))
            })
            .collect();
        for (at, one) in routes.iter().enumerate() {
            assert!(!routes[..at].contains(one), "{one:?} is the route of two requests");
        }
        assert!(route(&of_text("").unwrap()).is_some());
    }

    #[test]
    fn names_are_encoded_and_consent_is_in_the_query() {
        let of = |change| of(&Request::change(change)).unwrap();
        let target = text("iqn.2026-11.l:x");
        let removed = of(Change::RemoveUser {
            target,
            name: text("a/b?c é"),
            force: true,
            keep_sessions: false,
        });
        assert_eq!(removed.method, "DELETE");
        assert_eq!(
            removed.path,
            "/api/v1/targets/iqn.2026-11.l:x/users/a%2Fb%3Fc%20%C3%A9?force=true"
        );
        let ended = of(Change::EndSessions { session: None, initiator: Some(text("iqn.a:1&x=2")) });
        assert_eq!(ended.path, "/api/v1/sessions?initiator=iqn.a:1%26x%3D2");
        let rolled = of(Change::Rollback { volume: text("v"), snapshot: text("s"), force: true });
        assert_eq!(&rolled.body.unwrap()[..], br#"{"snapshot":"s","force":true}"#);
        let empty = super::of(&Request::change(Change::ReopenVolume { name: String::new() }));
        assert_eq!(empty.unwrap_err().code, Code::Invalid);
    }

    #[test]
    fn a_file_of_the_server_is_not_named_from_elsewhere() {
        let user = NewUser {
            name: text("u"),
            secret: NewSecret::File("/tmp/x".into()),
            initiators: Vec::new(),
            replace: false,
        };
        let change =
            Change::AddUser { target: text("t"), user, force: false, keep_sessions: false };
        assert_eq!(of(&Request::change(change)).unwrap_err().code, Code::Unsupported);
    }
}
