//! A command that runs as a job of the REST interface ends with that interface.

use lunet_config::place::JOB_VARIABLE;
use rustix::process::{
    Resource, Rlimit, Signal, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};

/// Whether this is a job whose interface has ended. One whose interface ends later gets SIGTERM.
pub fn has_ended() -> bool {
    let of: Option<i32> = std::env::var(JOB_VARIABLE).ok().and_then(|text| text.parse().ok());
    let Some(of) = of else { return false };
    // A job has a use for more memory than the interface. Best effort: it may have what there is.
    let limit = getrlimit(Resource::Data);
    let _ = setrlimit(Resource::Data, Rlimit { current: limit.maximum, ..limit });
    // Best effort: without it, a job goes on for nobody.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
    // What a job itself has started has another parent.
    let is_own = getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == of);
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap_or_default();
    !is_own && (stat.is_empty() || stat.contains(") Z "))
}
