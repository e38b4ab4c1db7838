//! Takes back what was done, and nothing else.

use lunet_host::apply::Fault;

use crate::disk;
use crate::journal::{Attachment, State};
use crate::server::Secrets;
use crate::step::{Context, Step};
use crate::system::System;

/// Takes an attachment back, the last step first. `others` are the other attachments of this machine: what they use, too,
/// stays. Gives what stays because somebody has changed it since.
///
/// # Errors
/// Somebody uses the disk, and nothing was changed; or a step cannot be taken back, and it stays in the journal with those
/// before it, for another try.
pub fn detach(
    system: &dyn System,
    attachment: &mut Attachment,
    others: &[Attachment],
    state: &str,
) -> Result<Vec<String>, Fault> {
    let others: Vec<Step> = others.iter().flat_map(|have| have.steps.clone()).collect();
    let secrets = Secrets::default();
    let cx = Context { system, secrets: &secrets, others: &others };
    let source = system.machine().source();
    let users = disk::users(source, &disks(&cx, attachment), attachment.mount.as_deref());
    if !users.is_empty() {
        return Err(Fault(format!(
            "nothing was changed, because the disk is in use:\n  {}",
            users.join("\n  ")
        )));
    }
    take_back(&cx, attachment, state)
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
    attachment.write(machine, state)?;
    while let Some(step) = attachment.steps.last() {
        match step.undo(cx) {
            Ok(told) => kept.extend(told),
            Err(fault) => {
                // As a file system that is in use: nothing was changed.
                if attachment.steps.len() == all {
                    attachment.state = before;
                    attachment.write(machine, state)?;
                }
                return Err(fault);
            }
        }
        attachment.steps.pop();
        attachment.write(machine, state)?;
    }
    attachment.remove(machine, state)?;
    Ok(kept)
}
