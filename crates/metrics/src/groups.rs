//! Failover groups, as this gateway knows them.

use lunet_api::{Group, GroupProtocol, GroupState};

use super::text::{Kind, Text};

/// What this gateway is in each group, and what it has done for it.
pub(crate) fn all(text: &mut Text, groups: &[Group]) {
    let mut each = |name: &str, kind: Kind, help: &str, value: &dyn Fn(&Group) -> u64| {
        let mut metric = text.metric(name, kind, help);
        for group in groups {
            metric.count(&[("group", group.name.as_str())], value(group));
        }
    };
    let help =
        "Number of the gateway that owns the group; 0 if nobody does, or that is not known here.";
    each("lunet_group_owner", Kind::Gauge, help, &|group| group.owner.unwrap_or(0).into());
    let help = "How often the group has changed hands; 0 if that is not known here.";
    each("lunet_group_epoch", Kind::Gauge, help, &|group| group.epoch);
    let help = "Revision of the shared configuration that this gateway serves by; 0 if there is none, or it is not known.";
    each("lunet_group_config_revision", Kind::Gauge, help, &|group| group.config.unwrap_or(0));
    let help = "How many things an administrator has to see to.";
    each("lunet_group_notices", Kind::Gauge, help, &|group| group.notices.len() as u64);
    let help = "How often this gateway has become the owner.";
    each("lunet_group_takeovers", Kind::Counter, help, &|group| group.takeovers);
    let help =
        "How often connections of this gateway were reset because it owns the group no more.";
    each("lunet_group_deposed", Kind::Counter, help, &|group| group.deposed);
    states(text, groups);
    passed_on(text, groups);
}

fn states(text: &mut Text, groups: &[Group]) {
    let help = "1 for what this gateway is in the group, 0 for what it is not.";
    let mut metric = text.metric("lunet_group_state", Kind::Gauge, help);
    for group in groups {
        for state in GroupState::KNOWN {
            let labels = [("group", group.name.as_str()), ("state", state.as_str())];
            metric.count(&labels, u64::from(*state == group.state));
        }
    }
}

fn passed_on(text: &mut Text, groups: &[Group]) {
    let mut each = |name: &str, kind: Kind, help: &str, value: &dyn Fn(&GroupProtocol) -> u64| {
        let mut metric = text.metric(name, kind, help);
        for group in groups {
            for protocol in &group.protocols {
                let labels =
                    [("group", group.name.as_str()), ("protocol", protocol.protocol.as_str())];
                metric.count(&labels, value(protocol));
            }
        }
    };
    let help = "Commands of hosts that this gateway has passed on to the owner.";
    each("lunet_group_passed_on_operations", Kind::Counter, help, &|protocol| protocol.commands);
    let help = "Connections to the owner by which commands are passed on.";
    each("lunet_group_connections", Kind::Gauge, help, &|protocol| protocol.connections);
}
