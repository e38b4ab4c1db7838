//! The REST interface of the server: what the crate `control` is told and asked.
//!
//! It runs in a process of its own, which the server has started ([`keeper`]) by its [helper] and answers over a pair of sockets ([`link`]): what
//! happens to that [`process`] happens to no volume.

mod keeper;
mod link;
mod process;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use lunet_control::{AuditEntry, Bound, ListenError, Listeners, RefusedLogin, Role, concerned};
use lunet_iscsi::printable::printable;
use lunet_server::refusals::Refusal;
use zeroize::Zeroizing;

use self::keeper::Teller;
use self::link::{Ask, Reply, Setup, Text};
use crate::audit::{About, Origin, Told};
use crate::control::{Placed, listen_for};
use crate::plan::Plan;
use crate::running::{Asked, Running};
use crate::{helper, holder, trouble, users};
use lunet_config::place::{ADMIN, READ};

pub use self::keeper::Interface;
pub use self::process::run;
pub use crate::helper::REST as COMMAND;

/// The folder of the interface in the data directory.
const FOLDER: &str = "control";

/// Sockets of the interface that nobody serves yet.
pub struct Ready {
    bound: Bound,
    local: Vec<Placed>,
    setup: Setup,
}

/// The interface, as it was found.
pub struct Found {
    /// It can be had.
    pub ready: Option<Box<Ready>>,
    /// Why something is not there, which nobody has asked for.
    pub note: Option<String>,
}

/// The interface of a running server. The sockets go before it: as long as they are there, somebody answers.
pub struct Served {
    local: Vec<Placed>,
    interface: Interface,
    /// What the user is told: where it is, and how to begin.
    pub lines: Vec<String>,
}

impl Served {
    /// Ends it.
    pub fn end(self) {
        drop(self.local);
        drop(self.interface);
    }
}

/// Listens where the plan says, on Unix sockets that are there already as far as `given` has them.
///
/// # Errors
/// An address or a socket that was asked for cannot be had, or the certificate cannot be used.
pub fn bind(plan: &Plan, given: impl FnMut(&Path) -> Option<UnixListener>) -> Result<Found> {
    let page = &plan.page;
    let directory = plan.data.join(FOLDER);
    let config = &plan.config.control;
    let beside = |path: &Path| lunet_files::parent(&plan.file).join(path);
    let certificate = config.certificate.as_ref().map(|(one, key)| (beside(one), beside(key)));
    let listeners = Listeners { addresses: page.listen.clone(), certificate };
    let (bound, note) = match Bound::new(&listeners, &config.names, &directory) {
        Ok(bound) => (Some(bound), None),
        Err(ListenError::InUse { address }) if !page.asked => (
            None,
            Some(format!(
                "{address} is in use, so there is no page and no REST interface: name another address in `listen` of \
                 [control], or with --listen-control"
            )),
        ),
        Err(error) if !page.asked => {
            (None, Some(format!("there is no page and no REST interface: {error}")))
        }
        Err(error) => return Err(refused(&error)),
    };
    let is_there = bound.is_some() && !page.listen.is_empty();
    let (bound, local) = and_sockets(plan, bound.unwrap_or_default(), given)?;
    if !is_there && local.is_empty() {
        return Ok(Found { ready: None, note });
    }
    let text = |(one, key): (PathBuf, PathBuf)| (Text::of(one), Text::of(key));
    let setup = Setup {
        addresses: bound.addresses(),
        roles: bound.roles(),
        certificate: listeners.certificate.map(text),
        names: config.names.clone(),
        directory: Text::of(directory),
        // This program, even if another one has taken its place since.
        program: Some(Text::of(helper::PROGRAM)),
        data: Text::of(&plan.data),
        log_level: plan.config.server.log_level,
    };
    Ok(Found { ready: Some(Box::new(Ready { bound, local, setup })), note })
}

/// Adds the Unix sockets for the groups that the configuration names.
fn and_sockets(
    plan: &Plan,
    mut bound: Bound,
    mut given: impl FnMut(&Path) -> Option<UnixListener>,
) -> Result<(Bound, Vec<Placed>)> {
    let config = &plan.config.control;
    let folder = lunet_files::parent(&plan.socket);
    let mut local = Vec::new();
    for (group, name, role) in [
        (&config.read_group, READ, Role::Viewer),
        (&config.admin_group, ADMIN, Role::Administrator),
    ] {
        let Some(group) = group else { continue };
        let number = users::group(&group.name)
            .ok_or_else(|| anyhow!("this machine has no group {}", group.name))?;
        let path = folder.join(name);
        let (socket, placed) = listen_for(&path, number, given(&path))?;
        local.push(placed);
        bound = bound.and_local(socket, role).context("cannot listen on a Unix socket")?;
    }
    Ok((bound, local))
}

/// Why there is no interface, with the next step.
fn refused(error: &ListenError) -> anyhow::Error {
    let place = "name another address in `listen` of [control], or with --listen-control";
    match error {
        ListenError::InUse { address } => anyhow!("{}", holder::taken(*address)),
        ListenError::Listen { address, error } => {
            anyhow!("{}", trouble::listening(*address, error, place))
        }
        error => anyhow!("the REST interface: {error}"),
    }
}

impl Ready {
    /// Serves.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn start(self, running: &Running) -> Result<Served> {
        let Self { bound, local, setup } = self;
        let (urls, fingerprint) = (bound.urls(), bound.fingerprint().map(str::to_owned));
        let sockets = bound.into_sockets();
        let mut more: Vec<String> =
            fingerprint.iter().map(|hash| format!("certificate: SHA-256 {hash}")).collect();
        more.extend(local.iter().map(|one| format!("REST: {}", one.path().display())));
        let lines = (urls.clone(), more.clone());
        let (interface, code) = Interface::start(running.asked(), setup, sockets, lines)?;
        listen(running, interface.teller());
        let lines = match code {
            Ok(code) => [told(&urls, code.as_deref()), more].concat(),
            // They come when it serves.
            Err(why) => {
                tracing::warn!("the REST interface does not serve: {why}; it is tried again");
                Vec::new()
            }
        };
        Ok(Served { local, interface, lines })
    }
}

/// Where the page is, and how to begin.
fn told(urls: &[String], code: Option<&str>) -> Vec<String> {
    let code = code.map(|code| format!(" first-start code: {code}")).unwrap_or_default();
    urls.iter().map(|url| format!("page: {url}{code}")).collect()
}

/// Has the interface told of each change, wherever it comes from.
fn listen(running: &Running, teller: Teller) {
    running.listener().set(move |about, told| {
        let lists = match about {
            About::Change(change) => concerned(change),
            About::Lists(lists) => lists,
        };
        let Some(Told { origin, what, outcome }) = told else { return teller.differs(lists) };
        let lists = if outcome.is_ok() { lists } else { &[] };
        let (who, address) = match origin {
            Origin::Rest(who, address) => (who, address.map(|address| address.to_string())),
            other => (other.to_string(), None),
        };
        let outcome = match outcome {
            Ok(text) => format!("done: {text}"),
            Err(text) => format!("refused: {text}"),
        };
        let time = lunet_os::time::unix().as_secs();
        teller.changed(lists, AuditEntry { time, who, address, what, outcome });
    });
}

/// What the server answers to a question of the interface.
fn answers(asked: &Asked, ask: Ask) -> Reply {
    match ask {
        Ask::Answer { who, address, request } => {
            let answer = asked.answer_to(&Origin::Rest(who, address), *request);
            Reply::Answer(answer.map(link::Told))
        }
        Ask::Check { text, administrator } => {
            let preview = asked.manager().check_text(&text, administrator);
            Reply::Check(preview.map_err(|error| trouble::coded(&error)))
        }
        Ask::Write { who, text } => {
            let done = asked.manager().write_text(&Zeroizing::new(text));
            match &done {
                Ok(_) => tracing::info!("the configuration file is written by {who}"),
                Err(error) => {
                    tracing::warn!(
                        "the configuration file is not written, as {who} asks: {error:#}"
                    );
                }
            }
            Reply::Write(done.map_err(|error| trouble::coded(&error)))
        }
        Ask::Ready => Reply::Ready(unready(asked)),
        Ask::Refused => {
            // What a stranger has sent is not shown as it is.
            let shown = |(protocol, one): (&str, Refusal)| RefusedLogin {
                time: one.time.as_secs(),
                protocol: protocol.to_owned(),
                initiator: printable(&one.client).to_string(),
                target: printable(&one.export).to_string(),
                address: one.peer.to_string(),
                why: one.why,
            };
            Reply::Refused(asked.refusals().into_iter().map(shown).collect())
        }
    }
}

/// Why the server is not ready, a sentence each.
fn unready(asked: &Asked) -> Vec<String> {
    let portals = asked.portals();
    let silent = portals
        .iter()
        .filter(|portal| !(portal.tcp || portal.iser || portal.nvme_tcp || portal.nvme_rdma));
    let silent = silent.map(|portal| format!("nothing is served at {}", portal.address));
    let now = asked.manager().now();
    let lost = now.unserved.values().map(|one| format!("not served: {}", one.failure));
    silent.chain(lost).collect()
}
