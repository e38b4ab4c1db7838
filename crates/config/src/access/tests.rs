//! Each mistake of the access keys, and what they mean when there is none.

use std::net::IpAddr;

use lunet_iscsi::chap::{Algorithm, Secret};

use super::*;
use crate::{Config, check};

const TARGET: &str = "[volumes.a]\nbackend = 'null'\nsize = 512\n[volumes.b]\nbackend = 'null'\nsize = 512\n\
     [[target]]\nname = 'iqn.2026-11.l:x'\n";

/// A target with `more` from line 9 on.
fn with(more: &str) -> Result<Config, Vec<String>> {
    let result = check(&format!("{TARGET}{more}"));
    result.map_err(|all| all.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn one(more: &str, mistake: &str) {
    let found = with(more).expect_err("it must be refused");
    assert!(found.len() == 1 && found[0].starts_with(mistake), "{found:#?}");
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn all_rules_together() {
    let config = with("initiators = ['iqn.2026-11.l:Host-*', 'eui.02004567A425678D', '10.0.0.0/24',\n\
         'fd00::/8', '192.0.2.7']\nluns = { 0 = 'a', 7 = { volume = 'b', initiators = ['*:esx'] } }\n\
         chap-algorithms = ['sha256', 'sha3-256']\n\
         [[target.user]]\nname = 'esx'\nsecret-file = 'esx.secret'\ninitiators = ['*:esx']\n\
         [[target.user]]\nname = 'other'\nsecret-env = 'OTHER_SECRET'\n\
         [target.mutual]\nname = 'storage'\nsecret = 'a secret of 16 b'\n\
         [discovery]\ninitiators = ['10.0.0.0/8']\nuser = [{ name = 'd', secret = 'another secret' }]\n")
    .unwrap();
    let target = &config.targets[0];
    assert_eq!(target.luns, [(0, 0), (7, 1)]);
    let rules = &target.access;
    for (name, address, admitted) in [
        ("iqn.2026-11.l:host-1", "10.0.0.7", true),
        ("eui.02004567a425678d", "fd00::1", true),
        ("iqn.2026-11.l:host-1", "10.0.1.7", false),
        ("iqn.2026-11.l:guest", "192.0.2.7", false),
        ("iqn.2026-11.l:host-1", "192.0.2.8", false),
    ] {
        assert_eq!(rules.initiators.have(name, ip(address)), admitted, "{name} {address}");
    }
    let [(7, esx)] = &rules.luns[..] else { panic!("{:?}", rules.luns) };
    assert!(esx.have("iqn.x:esx", ip("::1")) && !esx.have("iqn.x:esx2", ip("::1")));
    assert!(rules.algorithms.has(Algorithm::Sha3) && !rules.algorithms.has(Algorithm::Sha1));
    let [first, second] = &rules.users[..] else { panic!("two users") };
    assert_eq!(first.login.secret, Source::File("esx.secret".into()));
    assert!(!first.initiators.have("iqn.x:a", ip("::1")));
    assert_eq!(second.login.secret, Source::Environment("OTHER_SECRET".into()));
    assert!(second.initiators.is_everybody());
    let mutual = rules.mutual.as_ref().unwrap();
    assert_eq!(mutual.name, "storage");
    assert_eq!(mutual.secret, Source::Here(Secret::new(b"a secret of 16 b".to_vec())));
    assert_eq!(config.discovery.users.len(), 1);
    assert!(!config.discovery.initiators.have("iqn.x:a", ip("11.0.0.1")));
    assert!(!format!("{config:?}").contains("secret of"), "secrets are not printed");
}

#[test]
fn without_rules_everybody_is_let_in() {
    let config = with("luns = ['a', { volume = 'b' }]\n").unwrap();
    assert_eq!(config.targets[0].luns, [(0, 0), (1, 1)]);
    assert_eq!(
        (&config.targets[0].access, &config.discovery),
        (&Access::default(), &Access::default())
    );
    assert!(config.discovery.initiators.is_everybody());
}

#[test]
fn initiators_are_names_addresses_and_networks() {
    let list = "must be an array of at most 1024 names, addresses and networks";
    one("initiators = '10.0.0.1'\n", &format!("9: target.initiators: {list}"));
    one("initiators = [\n5]\n", "10: target.initiators: must be a string in quotes");
    for (entry, words) in [
        ("10.0.0.0/33", "\"10.0.0.0/33\" must have a prefix of 0 to 32 bits behind the slash"),
        ("fd00::/129", "\"fd00::/129\" must have a prefix of 0 to 128 bits"),
        ("10.0.0.0/", "\"10.0.0.0/\" must have a prefix"),
        ("10.0.0.300", "\"10.0.0.300\" is no iSCSI name, no address and no network"),
        ("10.0.0/24", "\"10.0.0/24\" is no iSCSI name"),
        ("esx1", "\"esx1\" is no iSCSI name"),
        ("iqn.x y", "\"iqn.x y\" is no iSCSI name"),
        ("iqn.x:* y", "\"iqn.x:* y\" is no iSCSI name"),
        ("", "\"\" is no iSCSI name"),
    ] {
        one(&format!("initiators = ['{entry}']\n"), &format!("9: target.initiators: {words}"));
    }
    let many = "'10.0.0.1',".repeat(1025);
    one(&format!("initiators = [{many}]\n"), &format!("9: target.initiators: {list}"));
}

#[test]
fn a_user_has_one_secret() {
    let user = |lines: &str| format!("[[target.user]]\n{lines}");
    let which = "target.user: must have one of secret, secret-file and secret-env";
    one(&user("name = 'a'\n"), &format!("9: {which}"));
    one(&user("name = 'a'\nsecret = '123456789012'\nsecret-env = 'A'\n"), &format!("12: {which}"));
    one(&user("secret-env = 'A'\n"), "9: target.user.name: is missing");
    one(&user("name = ''\nsecret-env = 'A'\n"), "10: target.user.name: must be 1 to 255 printable");
    one(
        &user("name = 'a'\nsecret = 'eleven byte'\n"),
        "11: target.user.secret: is a secret of 11 bytes; it must have 12 to 255",
    );
    one(
        &user(&format!("name = 'a'\nsecret = '{}'\n", "x".repeat(256))),
        "11: target.user.secret: ",
    );
    one(&user("name = 'a'\nsecret = 123456789012\n"), "11: target.user.secret: must be a string");
    one(&user("name = 'a'\nsecret-file = ''\n"), "11: target.user.secret-file: must be a path");
    for name in ["", "1A", "A=B", "A B"] {
        let line = format!("name = 'a'\nsecret-env = '{name}'\n");
        one(&user(&line), "11: target.user.secret-env: must be the name of a variable");
    }
    let twice = format!(
        "{}{}",
        user("name = 'a'\nsecret-env = 'A'\n"),
        user("name = 'a'\nsecret-env = 'B'\n")
    );
    one(&twice, "13: target.user.name: is the name of another user here already");
    one(
        &user("name = 'a'\npassword = 'x'\nsecret-env = 'A'\n"),
        "11: target.user.password: is not a key",
    );
    one("user = 5\n", "9: target.user: must be written as [[target.user]], once for each");
    one("user = [5]\n", "9: target.user: must be a table");
    one("[discovery]\nuser = []\n", "10: discovery.user: must be written as [[discovery.user]]");
}

#[test]
fn a_secret_never_stands_in_a_mistake() {
    for more in [
        "[[target.user]]\nname = 'a'\nsecret = 'HIDDEN'\n",
        "[[target.user]]\nname = 'a'\nsecret = 'HIDDEN-HIDDEN'\nsecret-env = 'A'\n",
        "[[target.user]]\nname = 'a'\nsecret = 'HIDDEN-HIDDEN\n",
        "[[target.user]]\nname = 'a'\nsecret = HIDDEN-HIDDEN\n",
        "[[target.user]]\nname = 'a'\nsecret = [\"HIDDEN-HIDDEN\"]\n",
        "secret = 'HIDDEN-HIDDEN'\n",
    ] {
        let found = with(more).expect_err("it must be refused").join("\n");
        assert!(!found.contains("HIDDEN"), "{found}");
    }
}

#[test]
fn what_means_nothing_without_users_is_a_mistake() {
    let words = "has no meaning without a user";
    one("chap-algorithms = ['md5']\n", &format!("9: target.chap-algorithms: {words}"));
    one("mutual = { name = 'm', secret-env = 'M' }\n", &format!("9: target.mutual: {words}"));
    one(
        "[discovery.mutual]\nname = 'm'\nsecret-env = 'M'\n",
        &format!("9: discovery.mutual: {words}"),
    );
    let user = "user = [{ name = 'a', secret-env = 'A' }]\n";
    one(&format!("{user}chap-algorithms = []\n"), "10: target.chap-algorithms: must be an array");
    one(
        &format!("{user}chap-algorithms = ['sha-256']\n"),
        "10: target.chap-algorithms: must be one of \"md5\", \"sha1\", \"sha256\", \"sha3-256\"; did",
    );
}

#[test]
fn a_target_does_not_share_its_secret_with_users() {
    one(
        "[[target.user]]\nname = 'a'\nsecret = 'a secret of 16 b'\n[target.mutual]\nname = 'm'\n\
         secret = 'a secret of 16 b'\n",
        "14: target.mutual.secret: is also the secret of user \"a\" (line 11)",
    );
    one(
        "[[target.user]]\nname = 'a'\nsecret = 'another secret'\n[target.mutual]\nname = 'm'\n\
         secret = 'a secret of 16 b'\n[discovery]\nuser = [{ name = 'd', secret = 'a secret of 16 b' }]\n",
        "14: target.mutual.secret: is also the secret of user \"d\" (line 16)",
    );
}

#[test]
fn a_lun_may_be_a_table() {
    one("luns = { 0 = { initiators = ['*:a'] } }\n", "9: target.luns.0.volume: is missing");
    one("luns = { 0 = { volume = 'c' } }\n", "9: target.luns.0: there is no volume \"c\"");
    one(
        "luns = { 0 = { volume = 'a', initiators = ['x'] } }\n",
        "9: target.luns.0.initiators: \"x\" is",
    );
    one("luns = [{ volume = 'a', mask = 1 }]\n", "9: target.luns.0.mask: is not a key");
    one(
        "luns = ['a', { volume = 'a' }]\n",
        "9: target.luns.1: volume \"a\" is LUN 0 of this target",
    );
    let headed = "[target.luns.3]\nvolume = 'b'\ninitiators = ['10.0.0.1']\n";
    assert_eq!(with(headed).unwrap().targets[0].luns, [(3, 1)]);
}
