//! Plans and states as texts for people.

use std::fmt::Write;

use lunet_iscsi::printable::printable_lines;

use crate::attach::MOUNT_OPTIONS;
use crate::plan::Plan;
use crate::status::Status;

/// Adds a line. Writing to a text cannot fail.
macro_rules! line {
    ($out:expr, $($words:tt)*) => {{ let _ = writeln!($out, $($words)*); }};
}

/// A size in bytes for people.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.iter().find(|(bits, _)| bytes >= 1 << bits);
    unit.map_or_else(
        || format!("{bytes} bytes"),
        |(bits, name)| {
            let tenths = (u128::from(bytes) * 10) >> bits;
            match tenths % 10 {
                0 => format!("{} {name}", tenths / 10),
                tenth => format!("{}.{tenth} {name}", tenths / 10),
            }
        },
    )
}

/// A plan.
#[must_use]
pub fn plan(plan: &Plan) -> String {
    let mut out = String::new();
    let offer = &plan.offer;
    line!(out, "Attach {} as {}", plan.url, plan.name);
    let portals: Vec<String> = offer.portals.iter().map(crate::server::Portal::place).collect();
    line!(out, "  by        {} at {}", offer.transport, portals.join(", "));
    for (transport, why) in &plan.not_taken {
        line!(out, "            not {transport}: {why}");
    }
    let unit = if offer.transport.is_nvme() { "namespace" } else { "LUN" };
    let product = format!("{} {}", offer.disk.vendor, offer.disk.product);
    let (size, block) = (size(offer.disk.bytes), offer.disk.block_bytes);
    line!(
        out,
        "  disk      {unit} {} of {}: {size}, blocks of {block} bytes, {}",
        offer.unit,
        offer.name,
        product.trim()
    );
    for name in &offer.disk.names {
        line!(out, "            {name}");
    }
    if let Some(name) = &plan.known_as {
        line!(out, "  known as  {name}, which the server lets in");
    }
    line!(out, "  profile   {}", plan.profile.name());
    for choice in &plan.choices {
        line!(out, "            {} = {}: {}", choice.name, choice.value, choice.why);
    }
    line!(out, "Steps");
    for (number, step) in plan.steps.iter().enumerate() {
        line!(out, "{:>4}  {}", number + 1, step.what());
        for call in step.calls() {
            line!(out, "        {call}");
        }
        if let Some((_, text)) = step.text() {
            text.lines()
                .filter(|text| !text.starts_with("# Written"))
                .for_each(|text| line!(out, "        | {text}"));
        }
    }
    let mut number = plan.steps.len();
    for what in later(plan) {
        number += 1;
        line!(out, "{number:>4}  {what}");
    }
    for note in &plan.notes {
        line!(out, "Note: {note}");
    }
    printable_lines(&out)
}

/// What is done once the disk is there.
#[must_use]
pub fn later(plan: &Plan) -> Vec<String> {
    let mut later = Vec::new();
    if plan.map {
        later.push("have dm-multipath make one disk of the paths".to_owned());
    }
    if let Some(directory) = &plan.mount {
        if let Some(kind) = plan.mkfs {
            later.push(format!(
                "make an {} file system if the disk is empty, and stop if it is not",
                kind.name()
            ));
        }
        later.push(format!(
            "mount its file system at {directory}, by a line of /etc/fstab with its UUID and {MOUNT_OPTIONS}, and by a rule of udev \
             that has systemd do so whenever the disk comes"
        ));
    }
    later
}

/// What is attached.
#[must_use]
pub fn status(all: &[Status]) -> String {
    let mut out = String::new();
    if all.is_empty() {
        out.push_str("Nothing is attached by `lunet attach`.\n");
    }
    for status in all {
        line!(out, "{}: {}", status.name, status.url);
        line!(out, "  by       {}, profile {}", status.transport, status.profile.name());
        for path in &status.paths {
            let id = path.id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
            line!(out, "  path     {} {}{id}", path.portal, path.state);
        }
        match (&status.device, status.bytes) {
            (Some(device), Some(bytes)) => line!(out, "  disk     {device}, {}", size(bytes)),
            (Some(device), None) => line!(out, "  disk     {device}"),
            (None, _) => line!(out, "  disk     none"),
        }
        if let Some(name) = &status.disk {
            line!(out, "           {name}");
        }
        if let Some(directory) = &status.mount {
            let state = if status.mounted { "" } else { ", which is not mounted" };
            line!(out, "  mount    {directory}{state}");
        }
        if status.interrupted {
            let (url, name) = (&status.url, &status.name);
            line!(
                out,
                "  state    interrupted: `lunet detach {name}`, or `lunet attach {url}` again"
            );
        }
        for what in &status.differs {
            line!(out, "  differs  {what}");
        }
        if status.is_fine() {
            line!(out, "  state    as it was set");
        }
    }
    printable_lines(&out)
}
