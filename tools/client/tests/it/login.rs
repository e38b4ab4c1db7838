//! Finding targets and logging in.

use lunet_client::iscsi::{DigestOffer, Error, Login, discover, inspect, luns};

use lunet_front_iscsi::{Access, Guard, Initiators, User};
use lunet_iscsi::chap::{Account, Algorithms, Secret};

use crate::support::{NAME, Served, config, memory, target};

const OTHER: &str = "iqn.2026-11.local.lunet:other";

/// Two targets: one with two disks, one with one.
fn served() -> Served {
    let mut config = config(vec![memory(16), memory(4), memory(8)]);
    config.layout.targets = vec![target(NAME, 0..2), target(OTHER, 2..3)];
    Served::start(config)
}

#[test]
fn a_portal_tells_of_its_targets_and_a_target_of_its_disks() {
    let served = served();
    let login = Login::default();
    let offers = discover(&served.at("", ""), &login).expect("a portal");
    let names: Vec<&str> = offers.iter().map(|offer| offer.name.as_str()).collect();
    assert_eq!(names, [NAME, OTHER]);
    assert!(offers.iter().all(|offer| !offer.addresses.is_empty()));
    assert_eq!(luns(&served.lun(0), &login).expect("a target"), [0, 1]);
    let unit = inspect(&served.lun(1), &login).expect("a disk");
    assert_eq!((unit.lun, unit.bytes(), unit.block_size), (1, 4 << 20, 512));
    assert_eq!((unit.target.as_str(), unit.write_cache), (NAME, Some(false)));
    assert!(unit.max_transfer.is_some_and(|most| most >= 1 << 20) && !unit.read_only);
    assert!(unit.window > 1 && !unit.vendor.is_empty());
}

#[test]
fn what_is_not_named_is_chosen_where_there_is_one() {
    let served = served();
    let login = Login::default();
    let ask = |rest: &str| inspect(&served.at("", rest), &login);
    assert_eq!(ask(&format!("/{OTHER}")).expect("one disk").bytes(), 8 << 20);
    assert!(matches!(ask(&format!("/{NAME}")), Err(Error::ManyLuns(luns)) if luns == [0, 1]));
    assert!(matches!(ask(""), Err(Error::ManyTargets(names)) if names.len() == 2));
    assert!(matches!(ask(&format!("/{NAME}/7")), Err(Error::NoLun(7, luns)) if luns == [0, 1]));
    let error = ask("/iqn.2026-11.local.lunet:none/0").expect_err("no such target");
    assert!(error.to_string().contains("no target of this name"), "{error}");
    let allow =
        format!("`lunet target allow iqn.2026-11.local.lunet:none {}`", login.initiator_name);
    assert!(error.to_string().contains(&allow), "{error}");
}

#[test]
fn digests_are_agreed_on_as_asked_for() {
    let served = served();
    let text = format!("/{NAME}/0?header_digest=crc32c&data_digest=crc32c");
    let target = served.at("", &text);
    assert_eq!(target.data_digest, DigestOffer::Crc32c);
    assert!(inspect(&target, &Login::default()).is_ok());
}

#[test]
fn chap_goes_in_one_direction_and_in_both() {
    let account = |name: &str, secret: &str| Account {
        name: name.into(),
        secret: Secret::new(secret.as_bytes().to_vec()),
    };
    let alice =
        User { account: account("alice", "secret of alice"), initiators: Initiators::default() };
    let mutual = Some(account("storage", "secret of storage"));
    let guard = Guard { algorithms: Algorithms::ALL, users: vec![alice], mutual };
    let mut config = config(vec![memory(4)]);
    config.layout.targets[0].access = Access { guard: Some(guard), ..Access::default() };
    let served = Served::start(config);
    let ask = |account: &str, options: &str| {
        let target = served.at(account, &format!("/{NAME}/0{options}"));
        inspect(&target, &Login::default()).map(|unit| unit.lun)
    };
    assert!(matches!(ask("alice%secret of alice@", ""), Ok(0)));
    let both = "?target_user=storage&target_password=secret of storage";
    assert!(matches!(ask("alice%secret of alice@", both), Ok(0)));
    let wrong = "?target_user=storage&target_password=another secret..";
    assert!(matches!(ask("alice%secret of alice@", wrong), Err(Error::Protocol(_))));
    assert!(matches!(ask("alice@", both), Err(Error::Proof)));
    assert!(matches!(ask("alice%secret of alice@", "?target_user=storage"), Err(Error::Proof)));
    for account in ["", "alice@", "alice%a wrong secret.@"] {
        let error = ask(account, "").expect_err("not let in").to_string();
        assert!(error.contains("USER%SECRET"), "{error}");
    }
}
