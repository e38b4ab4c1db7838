use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    bench: Bench,
}

fn line(words: &str) -> Result<Bench, clap::Error> {
    let words = std::iter::once("bench").chain(words.split_whitespace());
    Line::try_parse_from(words).map(|line| line.bench)
}

fn options(words: &str) -> Result<Options, String> {
    let bench = line(words).map_err(|error| error.to_string())?;
    bench.measure.options().map_err(|error| format!("{error:#}"))
}

#[test]
fn targets_and_verbs_are_told_apart() {
    assert!(line("").is_err(), "something is to be measured");
    let bench = line("/tank iscsi://nas/iqn.x:y/0").expect("two targets");
    assert!(bench.verb.is_none() && bench.measure.targets.len() == 2);
    assert!(matches!(line("compare a b").expect("files").verb, Some(Verb::Compare(_))));
    assert!(matches!(line("net serve").expect("a server").verb, Some(Verb::Net(_))));
    assert!(matches!(line("net 127.0.0.1:99").expect("a host").verb, Some(Verb::Net(_))));
    assert!(line("net").is_err() && line("compare a").is_err());
    let error = options("--rounds 3 compare a b").expect_err("rounds of what?");
    assert!(error.contains("./compare"), "{error}");
    let bench = line("./net").expect("a file of this name");
    assert_eq!(bench.measure.targets, ["./net"]);
}

#[test]
fn numbers_have_bounds() {
    for wrong in [
        "/x --rounds 0",
        "/x --rounds 101",
        "/x --runtime 3",
        "/x --runtime 10ms",
        "/x --size 1KiB",
        "/x --size 5000001",
        "/x --profile slow",
        "/x --digest md5",
        "/x --server-pid 0",
        "/x --net :9",
        "/x --cpus 3-1",
    ] {
        assert!(line(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_path_and_what_is_served_from_it() {
    let both = options("/tank --through iscsi://nas/iqn.x:y/0").expect("one of each");
    assert!(both.through);
    assert!(matches!(both.targets[..], [Given::Path(_), Given::Url(_)]));
    for wrong in [
        "/a /b --through iscsi://nas/iqn.x:y/0",
        "iscsi://nas/iqn.x:y/0 --through iscsi://nas/iqn.x:y/1",
        "/tank --through /other",
        "/tank --null /other",
    ] {
        let error = options(wrong).expect_err(wrong);
        assert!(error.contains("iscsi://HOST/TARGET/LUN"), "{wrong}: {error}");
    }
}

#[test]
fn what_may_be_destroyed_has_its_targets_name() {
    let url = "iscsi://joe%secret@nas/iqn.x:y/0";
    let all = options(&format!("{url} /dev/x --destroy {url} --destroy /dev/x")).expect("right");
    let names: Vec<String> = all.targets.iter().map(Given::name).collect();
    assert_eq!(all.destroy, names);
    assert!(!format!("{all:?}").contains("%secret"), "{all:?}");
}

#[test]
fn a_target_may_have_a_name_of_its_own() {
    let all =
        options("a=/x b=iscsi://nas/iqn.x:y/0 /z --destroy a=/x --destroy b=iscsi://nas/iqn.x:y/0");
    let all = all.expect("right");
    assert_eq!(all.names, ["a", "b", "/z"]);
    assert_eq!(all.destroy, ["/x", "iscsi://nas:3260/iqn.x:y/0"]);
    for wrong in ["a=/x a=/y", "=/x", "a=/x --through iscsi://nas/iqn.x:y/0"] {
        options(wrong).expect_err(wrong);
    }
    let both = options("/x --through iscsi://nas/iqn.x:y/0").expect("right");
    assert_eq!(both.names, ["local", "served"]);
}

#[test]
fn the_load_may_have_processors_of_its_own() {
    let allowed = Cpus::allowed().expect("the kernel says it").to_string();
    let all = options(&format!("/x --cpus {allowed}")).expect("right");
    assert_eq!(all.cpus.map(|cpus| cpus.to_string()), Some(allowed.clone()));
    assert!(all.words.contains(&format!("--cpus={allowed}")), "{:?}", all.words);
    let error = options("/x --cpus 1023").expect_err("no machine here has so many");
    assert!(error.contains("processor 1023"), "{error}");
}

#[test]
fn options_that_make_the_same_workloads_are_kept() {
    let all = options(
        "/x --profile sweep --rounds 7 --runtime 1.5s --size 64MiB --digest both --read-only",
    )
    .expect("right");
    assert_eq!(
        all.words,
        [
            "--profile=sweep",
            "--rounds=7",
            "--runtime=1500ms",
            "--size=67108864",
            "--read-only",
            "--digest=both"
        ]
    );
    assert_eq!(all.profile.rounds, 7);
    assert!(all.profile.workloads.iter().all(|load| load.seconds == 1.5 && !load.writes()));
    let again = options(&format!("/x {}", all.words.join(" "))).expect("they are options");
    assert_eq!(again.profile, all.profile);
}

#[test]
fn digests_are_asked_for_by_option() {
    let all = options("iscsi://nas/iqn.x:y/0 --digest data").expect("right");
    let Given::Url(target) = &all.targets[0] else { panic!("an address") };
    assert!(target.shown().ends_with("?data_digest=crc32c"), "{}", target.shown());
}

#[test]
fn a_secret_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("secret");
    std::fs::write(&file, "a-secret-of-sixteen\n").expect("room");
    let words = format!("iscsi://joe@nas/iqn.x:y/0 --secret-file {}", file.display());
    let mode = |mode| {
        let rights = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&file, rights).expect("it is ours");
    };
    mode(0o644);
    assert!(options(&words).expect_err("others may read it").contains("chmod 600"));
    mode(0o600);
    assert!(options(&words).is_ok());
    let error = options("iscsi://joe@nas/iqn.x:y/0").expect_err("no secret");
    assert!(error.contains("--secret-file"), "{error}");
}
