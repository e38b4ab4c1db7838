//! `lunet group list`

use lunet_api::Group;

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
        let trouble = group.trouble.iter();
        trouble.for_each(|why| {
            out.push_str(&format!("{}: {}\n", harmless(&group.name), harmless(why)))
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_api::GroupState;

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
            ..Group::default()
        };
        assert_eq!(
            groups(&[group]),
            "  group  this gateway    state  owner  epoch  config       record\n  \
             g                 2  standby      1      7       8  rbd://rbd/g\ng: why\n"
        );
    }
}
