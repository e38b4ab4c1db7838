//! `lunet group list`, `lunet group gateways`

use lunet_api::{Group, GroupGateway};

use super::layout::{Columns, harmless};

/// A line for each group, and one for what is wrong with it.
pub fn groups(groups: &[Group]) -> String {
    let mut columns = Columns::default();
    columns.row(["group", "this gateway", "state", "owner", "epoch", "config", "record"]);
    for group in groups {
        let owner = match (group.owner, group.heir) {
            (Some(owner), _) => owner.to_string(),
            (None, Some(heir)) => format!("none, then {heir}"),
            (None, None) => "-".to_owned(),
        };
        columns.row([
            harmless(&group.name),
            group.gateway.to_string(),
            harmless(group.state.as_str()),
            owner,
            group.epoch.to_string(),
            group.config.map_or("-".to_owned(), |revision| revision.to_string()),
            harmless(&group.record),
        ]);
    }
    let mut out = String::new();
    columns.write(&mut out);
    for group in groups {
        // An older server tells of one alone.
        let others = group.notices.iter().filter(|why| Some(*why) != group.trouble.as_ref());
        for why in group.trouble.iter().chain(others) {
            out.push_str(&format!("{}: {}\n", harmless(&group.name), harmless(why)));
        }
    }
    out
}

/// A line for each gateway, and one for why it does not serve by the latest revision.
pub fn gateways(gateways: &[GroupGateway]) -> String {
    let mut columns = Columns::default();
    columns.row(["gateway", "state", "epoch", "config"]);
    let known = |number: u64| if number == 0 { "-".to_owned() } else { number.to_string() };
    for one in gateways {
        columns.row([
            one.gateway.to_string(),
            harmless(one.state.as_str()),
            known(one.epoch),
            one.config.map_or("-".to_owned(), known),
        ]);
    }
    let mut out = String::new();
    columns.write(&mut out);
    for one in gateways {
        if let Some(why) = &one.trouble {
            out.push_str(&format!("gateway {}: {}\n", one.gateway, harmless(why)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_api::{GatewayState, GroupState};

    #[test]
    fn a_group_is_told_with_its_owner_and_what_is_wrong() {
        let group = Group {
            name: "g".into(),
            record: "rbd://rbd/g".into(),
            gateway: 2,
            state: GroupState::Standby,
            owner: Some(1),
            epoch: 7,
            config: Some(8),
            trouble: Some("why".into()),
            notices: vec!["why".into(), "and why".into()],
            ..Group::default()
        };
        assert_eq!(
            groups(&[group]),
            "  group  this gateway    state  owner  epoch  config       record\n  \
             g                 2  standby      1      7       8  rbd://rbd/g\ng: why\ng: and why\n"
        );
    }

    #[test]
    fn gateways_are_told_with_what_they_serve_by() {
        let (trouble, silent) = (Some("why".to_owned()), GatewayState::Silent);
        let all = [
            GroupGateway {
                gateway: 1,
                state: GatewayState::Owner,
                epoch: 7,
                config: Some(8),
                trouble,
            },
            GroupGateway { gateway: 2, state: silent, ..GroupGateway::default() },
        ];
        assert_eq!(
            gateways(&all),
            "  gateway   state  epoch  config\n  1         owner      7       8\n  2        silent      -       -\n\
             gateway 1: why\n"
        );
    }
}
