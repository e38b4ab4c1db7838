//! Takes back what was done, and nothing else.

use lunet_host::apply::Fault;
use lunet_host::source::Source;

use crate::disk;
use crate::journal::{Attachment, State};
use crate::server::Secrets;
use crate::status::{self, PathState};
use crate::step::{Context, Step};
use crate::system::{Call, System};

/// A disk that takes longer for a block does not answer, in seconds.
const PATIENCE: u64 = 20;

/// Takes an attachment back, the last step first. `others` are the other attachments of this machine: what they use, too,
/// stays. With `force` a disk that does not answer is given up. Gives what stays because somebody has changed it since, and what
/// is lost.
///
/// # Errors
/// Somebody uses the disk, or it is mounted and does not answer, and nothing was changed; or a step cannot be taken back, and it
/// stays in the journal with those before it, for another try.
pub fn detach(
    system: &dyn System,
    attachment: &mut Attachment,
    others: &[Attachment],
    state: &str,
    force: bool,
) -> Result<Vec<String>, Fault> {
    let others: Vec<Step> = others.iter().flat_map(|have| have.steps.clone()).collect();
    let secrets = Secrets::default();
    let own = attachment.steps.clone();
    let mut cx = Context { system, secrets: &secrets, others: &others, own: &own, force: false };
    let source = system.machine().source();
    if let Some(file) = mounted_over(source, attachment) {
        let at = attachment.mount.as_deref().unwrap_or_default();
        return Err(Fault(format!(
            "nothing was changed, because {file}, which is not of this disk, is mounted at {at}: unmount it, and detach again"
        )));
    }
    let silent = silent(system, attachment);
    let users = disk::users(source, &disks(&cx, attachment), attachment.mount.as_deref());
    let Some(silent) = silent else {
        if users.is_empty() {
            return take_back(&cx, attachment, state);
        }
        return Err(Fault(format!(
            "nothing was changed, because the disk is in use:\n  {}",
            users.join("\n  ")
        )));
    };
    if !force {
        let (name, mount) = (&attachment.name, attachment.mount.as_deref().unwrap_or_default());
        return Err(Fault(format!(
            "nothing was changed, because {silent}, and {mount} cannot be unmounted without it: see that its server is reached, and \
             detach again; or give it up by `lunet detach --force {name}`, and what was written to {mount} and is not on the disk \
             yet is lost"
        )));
    }
    cx.force = true;
    attachment.state = State::Detaching;
    let _ = attachment.write(system.machine(), state);
    // First what keeps I/O waiting: an unmount would wait for it.
    for step in attachment.steps.iter().rev() {
        step.cut(&cx)?;
    }
    let lost = users.into_iter().map(|user| format!("{user}, and its I/O fails"));
    Ok(lost.chain(take_back(&cx, attachment, state)?).collect())
}

/// What is mounted at its directory and is not of its disk: it is not ours to unmount, be it by force.
fn mounted_over(source: &dyn Source, attachment: &Attachment) -> Option<String> {
    let file = disk::mounted_at(source, attachment.mount.as_deref()?)?;
    let own = disk::files(source, &status::disks_of(source, attachment));
    let all = disk::files(source, &source.names("/sys/block"));
    // A mount outlives its disk, and names a device then that is not there.
    let is_gone = file.starts_with("/dev/") && !all.contains(&file);
    let is_ours = own.contains(&file) || is_gone;
    (!is_ours).then_some(file)
}

/// Why the disk of a mounted file system does not answer, in words.
fn silent(system: &dyn System, attachment: &Attachment) -> Option<String> {
    let source = system.machine().source();
    disk::mounted_at(source, attachment.mount.as_deref()?)?;
    let mut paths = status::paths(source, attachment);
    // A path that the kernel has given up holds nothing back.
    paths.retain(|path| path.id.is_some());
    if !paths.is_empty() && paths.iter().all(|path| !path.works) {
        let said = |path: &PathState| format!("{} is {}", path.portal, path.state);
        let all: Vec<String> = paths.iter().map(said).collect();
        return Some(format!("no path of its disk works ({})", all.join(", ")));
    }
    let device = disk::device(source, &status::device_of(source, attachment)?);
    let read = Call::new("dd of=/dev/null bs=4096 count=1 iflag=direct status=none")
        .with([format!("if={device}")])
        .within(PATIENCE);
    let answers = system.start(&read).is_ok_and(|ran| ran.code == 0);
    (!answers).then(|| format!("its disk {device} does not answer"))
}

/// The disks that go with an attachment.
fn disks(cx: &Context<'_>, attachment: &Attachment) -> Vec<String> {
    let source = cx.system.machine().source();
    let own = attachment.steps.iter().filter(|step| cx.twin(step).is_none());
    let mut names: Vec<String> = own.flat_map(|step| step.disks(source)).collect();
    names.sort();
    names.dedup();
    names
}

/// Undoes all steps; the journal is shorter by each.
pub(crate) fn take_back(
    cx: &Context<'_>,
    attachment: &mut Attachment,
    state: &str,
) -> Result<Vec<String>, Fault> {
    let machine = cx.system.machine();
    let mut kept = Vec::new();
    if attachment.steps.is_empty() {
        attachment.remove(machine, state)?;
        return Ok(kept);
    }
    let (before, all) = (attachment.state, attachment.steps.len());
    attachment.state = State::Detaching;
    // On a full disk it cannot be noted what was taken back. That keeps nothing from being taken back: a step can be so twice.
    let _ = attachment.write(machine, state);
    while let Some(step) = attachment.steps.last() {
        match step.undo(cx) {
            Ok(told) => kept.extend(told),
            Err(fault) => {
                // As a file system that is in use: nothing was changed.
                if attachment.steps.len() == all {
                    attachment.state = before;
                    let _ = attachment.write(machine, state);
                }
                return Err(fault);
            }
        }
        attachment.steps.pop();
        let _ = attachment.write(machine, state);
    }
    attachment.remove(machine, state)?;
    Ok(kept)
}
