//! What the server gives up before it serves, so that whoever takes it over has little: see docs/design/sandbox.md.
//!
//! Each layer is optional by the kernel. One that is not there is told of in the log, and is no reason not to serve.

#[cfg(debug_assertions)]
pub mod attempts;
mod filter;
mod paths;
mod user;

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use lunet_os::role::{self, Role};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use self::filter::Filters;
use self::paths::{Limited, Reach};
pub use self::user::User;
use crate::plan::Plan;

static FILTERS: OnceLock<Filters> = OnceLock::new();
static REACH: OnceLock<Reach> = OnceLock::new();

/// What is in force, for the log.
#[derive(Debug, Default)]
pub struct Sandbox {
    is_on: bool,
    /// Capabilities that are left.
    left: Vec<String>,
    filter: Option<String>,
    files: Option<Limited>,
}

/// No program that this process starts gets more rights than it has, and no dump of its memory is made.
///
/// # Errors
/// The kernel refuses.
pub fn close() -> Result<()> {
    rustix::thread::set_no_new_privs(true)?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

/// The same for the process of the REST interface, which besides does nothing that neither it nor a job does.
///
/// # Errors
/// The kernel refuses.
pub fn close_interface() -> Result<()> {
    close()?;
    if let Err(error) = Filters::limit_interface() {
        tracing::debug!("the system calls of the REST interface are not filtered: {error}");
    }
    Ok(())
}

/// Whether files at a path are out of reach for the server.
pub fn keeps_from(path: &Path) -> bool {
    REACH.get().is_some_and(|reach| !reach.has(path))
}

impl Sandbox {
    /// Gives up capabilities, and limits the system calls of this thread and of all that it starts. There is no other one.
    ///
    /// # Errors
    /// The kernel refuses what it says that it can do.
    pub fn new(plan: &Plan) -> Result<Self> {
        user::give_up()?;
        // Nobody may ask later.
        let left = user::left();
        if !plan.config.sandbox.enabled {
            return Ok(Self { left, ..Self::default() });
        }
        let filter = match Filters::new().and_then(|filters| {
            filters.limit_server()?;
            Ok(filters)
        }) {
            Ok(filters) => {
                let _ = FILTERS.set(filters);
                role::limit_with(limit);
                None
            }
            Err(error) => Some(error.to_string()),
        };
        Ok(Self { is_on: true, left, filter, files: None })
    }

    /// Limits the files that this thread and all that it starts may reach. The data directory is there.
    ///
    /// # Errors
    /// The kernel refuses what it says that it can do.
    pub fn limit_files(&mut self, plan: &Plan) -> Result<()> {
        if self.is_on {
            let reach = Reach::of(plan);
            let limited = paths::limit(&reach).context("cannot limit files (Landlock)")?;
            self.files = Some(limited);
            if limited != Limited::Not {
                let _ = REACH.set(reach);
            }
        }
        Ok(())
    }

    /// What is in force and what is not, in one line.
    pub fn told(&self) -> String {
        let left = match self.left.as_slice() {
            [] => "none".to_owned(),
            left => left.join(", "),
        };
        let filter = match &self.filter {
            None if !self.is_on => "not filtered (`enabled` of [sandbox] is off)".to_owned(),
            None => "filtered".to_owned(),
            Some(why) => format!("not filtered ({why})"),
        };
        let files = match self.files {
            None if !self.is_on => "not limited",
            Some(Limited::Whole) => "limited",
            Some(Limited::Part) => "limited as far as this kernel can",
            Some(Limited::Not) | None => "not limited (this kernel has no Landlock)",
        };
        format!(
            "sandbox: user {}; capabilities: {left}; system calls: {filter}; files and connections: {files}; no dumps, no new \
             privileges",
            rustix::process::geteuid().as_raw()
        )
    }
}

/// Limits a thread that begins with its work. One that cannot be limited further has the limits of the server.
fn limit(role: Role) {
    if let Some(Err(error)) = FILTERS.get().map(|filters| filters.limit_to(role)) {
        tracing::warn!("a thread ({role:?}) is not limited to its work: {error}");
    }
}
