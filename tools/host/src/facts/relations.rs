//! What follows from several facts at once.

use super::{Drive, Facts, Nic, Vdev};

/// Whether a portal, a session or a path of this machine uses RDMA.
pub(crate) fn rdma_used(facts: &Facts) -> bool {
    let is = |transport: &Option<String>| matches!(transport.as_deref(), Some("iser" | "rdma"));
    let serves = facts.targets.iter().any(|target| {
        target.sessions.iter().any(|session| is(&session.transport))
            || target.portals.iter().any(|portal| is(&portal.transport))
    });
    let sessions = facts.initiators.open_iscsi.iter().flat_map(|open| &open.sessions);
    let mut paths = facts.initiators.nvme_hosts.iter().flat_map(|host| &host.paths);
    serves
        || sessions.into_iter().any(|session| is(&session.transport))
        || paths.any(|path| is(&path.transport))
}

/// The drives of a vdev that are known, without remote and unknown ones.
pub(crate) fn drives_of<'a>(facts: &'a Facts, vdev: &Vdev) -> Vec<&'a Drive> {
    let names = vdev.disks.iter().filter_map(|disk| disk.drive.as_deref());
    names.filter_map(|name| facts.drives.iter().find(|drive| drive.name == name)).collect()
}

/// The interfaces with hardware and a cable that storage goes over; all of those with hardware and
/// a cable, if that is not known of any.
pub(crate) fn storage_nics(facts: &Facts) -> Vec<&Nic> {
    let named = |name: &str| facts.nics.iter().find(|nic| nic.name == name);
    let told: Vec<&Nic> = facts.nics.iter().filter(|nic| nic.storage == Some(true)).collect();
    let real: Vec<&Nic> =
        facts.nics.iter().filter(|nic| !nic.is_virtual && nic.carrier != Some(false)).collect();
    if told.is_empty() {
        return real;
    }
    // A VLAN lies on another interface; a bond or bridge has several.
    let mut below: Vec<&str> = told.iter().map(|nic| nic.name.as_str()).collect();
    let mut at = 0;
    while let Some(nic) = below.get(at).and_then(|name| named(name)) {
        let under = nic.slaves.iter().map(String::as_str).chain(nic.parent.as_deref());
        let new: Vec<&str> = under.filter(|name| !below.contains(name)).collect();
        below.extend(new);
        at += 1;
    }
    real.into_iter().filter(|nic| below.contains(&nic.name.as_str())).collect()
}
