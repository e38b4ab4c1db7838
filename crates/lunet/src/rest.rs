//! The REST interface of the server: what the crate `control` is told and asked.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use lunet_api::{Answer, Done, Error, Preview, Request};
use lunet_control::{
    AuditEntry, Bound, Control, Limits, ListenError, Listeners, Notices, Notifier, Options,
    Principal, RefusedLogin, Service, notifier,
};
use zeroize::Zeroizing;

use crate::audit::{Origin, Told};
use crate::control::VARIABLE;
use crate::plan::Plan;
use crate::running::{Asked, Running};
use crate::{holder, log, trouble};

/// The folder of the interface in the data directory.
const FOLDER: &str = "control";

/// Sockets of the interface that nobody serves yet.
pub struct Ready {
    bound: Bound,
    options: Options,
}

/// What is told when it is known.
pub enum Found {
    /// The interface can be had.
    Ready(Box<Ready>),
    /// It is switched off.
    Off,
    /// It is not there, which nobody has asked for: why.
    Without(String),
}

/// Listens where the plan says.
///
/// # Errors
/// An address that was asked for cannot be had, or the certificate cannot be used.
pub fn bind(plan: &Plan) -> Result<Found> {
    let page = &plan.page;
    if page.listen.is_empty() {
        return Ok(Found::Off);
    }
    let directory = plan.data.join(FOLDER);
    let config = &plan.config.control;
    let beside = |path: &Path| lunet_files::parent(&plan.file).join(path);
    let certificate = config.certificate.as_ref().map(|(one, key)| (beside(one), beside(key)));
    let listeners = Listeners { addresses: page.listen.clone(), certificate };
    let bound = match Bound::new(&listeners, &config.names, &directory) {
        Ok(bound) => bound,
        Err(ListenError::InUse { address }) if !page.asked => {
            return Ok(Found::Without(format!(
                "{address} is in use, so there is no page and no REST interface: name another address in `listen` of \
                 [control], or with --listen-control"
            )));
        }
        Err(error) if !page.asked => {
            return Ok(Found::Without(format!("there is no page and no REST interface: {error}")));
        }
        Err(error) => return Err(refused(&error)),
    };
    let options = Options {
        directory,
        names: config.names.clone(),
        program: std::env::current_exe().ok(),
        // The commands of jobs ask this server.
        environment: vec![(OsString::from(VARIABLE), plan.data.clone().into())],
        limits: Limits::default(),
        tell: Box::new(log::tell),
    };
    Ok(Found::Ready(Box::new(Ready { bound, options })))
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
    /// Serves. The second value is what the user is told: where it is, and how to begin.
    ///
    /// # Errors
    /// The accounts cannot be read, or the system has no thread to give.
    pub fn start(self, running: &Running) -> Result<(Control, Vec<String>)> {
        let Self { bound, options } = self;
        let (urls, fingerprint) = (bound.urls(), bound.fingerprint().map(str::to_owned));
        let (notifier, notices): (Notifier, Notices) = notifier();
        listen(running, notifier.clone());
        let service = Arc::new(running.asked());
        let control = Control::start(bound, options, service, (notifier, notices))?;
        let code = control.code().map(|code| format!(" first-start code: {code}"));
        let code = code.unwrap_or_default();
        let mut lines: Vec<String> =
            urls.iter().map(|url| format!("page: {url}{code}\n")).collect();
        lines.extend(fingerprint.map(|hash| format!("certificate: SHA-256 {hash}\n")));
        Ok((control, lines))
    }
}

/// Has the interface told of each change, wherever it comes from.
fn listen(running: &Running, notifier: Notifier) {
    running.listener().set(move |change, told| {
        let Told { origin, what, outcome } = told;
        let done = outcome.is_ok();
        let (who, address) = match origin {
            Origin::Rest(who, address) => (who, Some(address.to_canonical().to_string())),
            other => (other.to_string(), None),
        };
        let outcome = match outcome {
            Ok(text) => format!("done: {text}"),
            Err(text) => format!("refused: {text}"),
        };
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        notifier.changed(change, AuditEntry { time, who, address, what, outcome }, done);
    });
}

impl Service for Asked {
    fn answer(&self, who: &Principal, request: Request) -> Result<Answer, Error> {
        self.answer_to(&Origin::Rest(who.told(), who.address.ip()), request)
    }

    fn check(&self, text: &str) -> Result<Preview, Error> {
        self.manager().check_text(text).map_err(|error| trouble::coded(&error))
    }

    fn write(&self, who: &Principal, text: Zeroizing<String>) -> Result<Done, Error> {
        let done = self.manager().write_text(&text);
        match &done {
            Ok(_) => tracing::info!("the configuration file is written by {}", who.told()),
            Err(error) => {
                tracing::warn!(
                    "the configuration file is not written, as {} asks: {error:#}",
                    who.told()
                );
            }
        }
        done.map_err(|error| trouble::coded(&error))
    }

    fn ready(&self) -> Vec<String> {
        let portals = self.portals();
        let silent = portals
            .iter()
            .filter(|portal| !(portal.tcp || portal.iser || portal.nvme_tcp || portal.nvme_rdma));
        let silent = silent.map(|portal| format!("nothing is served at {}", portal.address));
        let now = self.manager().now();
        let lost = now.unserved.values().map(|one| format!("not served: {}", one.failure));
        silent.chain(lost).collect()
    }

    fn refused(&self) -> Vec<RefusedLogin> {
        let shown = |one: lunet_front_iscsi::Refusal| RefusedLogin {
            time: one.time.as_secs(),
            initiator: one.initiator,
            target: one.target,
            address: one.peer.to_string(),
            why: one.why,
        };
        self.refusals().into_iter().map(shown).collect()
    }
}
