//! What is to be measured, as the caller names it: a path, or the address of a LUN or a namespace.

use std::path::{Path, PathBuf};

use lunet_client::iscsi::{Account, DigestOffer, Secret, Target, TargetError};
use lunet_client::nvme;
use lunet_iscsi::printable::is_printable;

use super::Refused;
use super::remote::Remote;
use lunet_config::secrets;

/// A longer name would break tables, in characters.
const LONGEST_LABEL: usize = 40;

/// What a target may be.
const FORMS: &str = "a path, iscsi://HOST/TARGET/LUN or nvme-tcp://HOST/NQN/NSID (over RDMA: iser://, nvme-rdma://)";

/// A target of the command line.
#[derive(Clone, Debug)]
pub enum Given {
    /// A file, a directory or a block device: fio measures it.
    Path(PathBuf),
    /// A LUN or a namespace: the own initiator or host measures it.
    Url(Box<Remote>),
}

/// Which digests are asked for, whatever the address says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digests {
    /// CRC32C of headers.
    pub header: bool,
    /// CRC32C of data.
    pub data: bool,
}

/// What logins need besides the address.
#[derive(Debug, Default)]
pub struct Access {
    /// The secret of the user that an address names without one.
    pub secret: Option<Secret>,
    /// The secret that a target proves, where `target_user` is named without `target_password`.
    pub target_secret: Option<Secret>,
    /// The secret by which a host proves itself to subsystems (DH-HMAC-CHAP).
    pub host_key: Option<nvme::Secret>,
    /// The secret by which a controller proves itself in turn.
    pub controller_key: Option<nvme::Secret>,
    /// The host's key of TLS, for subsystems.
    pub tls_key: Option<nvme::Secret>,
    /// Digests.
    pub digests: Option<Digests>,
}

impl Given {
    /// Reads an argument.
    ///
    /// # Errors
    /// An address that is none, or a secret that is missing.
    pub fn parse(text: &str, access: &Access) -> Result<Self, Refused> {
        if text.is_empty() {
            return Err(Refused(format!("an empty name is no target: give {FORMS}")));
        }
        match text.split_once("://") {
            Some(("iscsi" | "iser", _)) => {
                Ok(Self::Url(Box::new(Remote::Iscsi(url(text, access)?))))
            }
            Some(("nvme-tcp" | "nvme-rdma", _)) => {
                Ok(Self::Url(Box::new(Remote::Nvme(namespace(text, access)?))))
            }
            Some((scheme, _)) if scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') => {
                Err(Refused(format!("{scheme}:// cannot be measured: give {FORMS}")))
            }
            _ => Ok(Self::Path(text.into())),
        }
    }

    /// How it is named to the user, and by which `--destroy` means it: a path as it was given, an address without secrets.
    pub fn name(&self) -> String {
        match self {
            Self::Path(path) => path.display().to_string(),
            Self::Url(target) => target.to_string(),
        }
    }
}

/// The [name](Given::name) of what is to be destroyed. It is written as a target is, with or without its secret and its label, or
/// is the label alone: `labels` are those of the targets.
pub fn meant(text: &str, labels: &[(&str, &Given)], access: &Access) -> String {
    if let Some((_, given)) = labels.iter().find(|(label, _)| *label == text) {
        return given.name();
    }
    let place = labelled(text).map_or(text, |(_, place)| place);
    Given::parse(place, access).map_or_else(|_| text.to_owned(), |given| given.name())
}

/// The address of a LUN, with what it leaves out.
fn url(text: &str, access: &Access) -> Result<Target, String> {
    let mut target = Target::parse(text).map_err(|error| wrong(&error))?;
    let missing = |what: &str, option: &str| {
        format!("the secret of {what} is missing: give {option} FILE, or write it into the address")
    };
    let without = |account: &&mut Account| account.secret.is_empty();
    if let Some(account) = target.account.as_mut().filter(without) {
        let known = access.secret.clone().or_else(secrets::of_initiator);
        account.secret = known.ok_or_else(|| missing(&account.name, "--secret-file"))?;
    }
    if let Some(account) = target.mutual.as_mut().filter(without) {
        let known = access.target_secret.clone();
        account.secret = known.ok_or_else(|| missing(&account.name, "--target-secret-file"))?;
    }
    if let Some(digests) = access.digests.filter(|_| !target.rdma) {
        let offer = |wanted| if wanted { DigestOffer::Crc32c } else { DigestOffer::None };
        (target.header_digest, target.data_digest) = (offer(digests.header), offer(digests.data));
    }
    Ok(target)
}

/// The address of a namespace, with what it leaves out.
fn namespace(text: &str, access: &Access) -> Result<nvme::Target, String> {
    let mut target = nvme::Target::parse(text).map_err(|error| error.to_string())?;
    target.nsid = Some(target.namespace());
    target.secret = match &access.host_key {
        Some(secret) => Some(secret.clone()),
        None => secrets::of_host().map_err(|error| error.to_string())?,
    };
    target.controller_secret.clone_from(&access.controller_key);
    if target.rdma && access.tls_key.is_some() {
        return Err("TLS is for NVMe over TCP: measure nvme-rdma:// without --tls-key-file".into());
    }
    target.tls_key.clone_from(&access.tls_key);
    if let Some(digests) = access.digests.filter(|_| !target.rdma) {
        (target.header_digest, target.data_digest) = (digests.header, digests.data);
    }
    Ok(target)
}

/// Never shows what may be a secret.
fn wrong(error: &TargetError) -> String {
    match error {
        TargetError::Brackets(_) | TargetError::Open(_) | TargetError::Port(_) => {
            "the host or port of the address is none: iscsi://[USER%SECRET@]HOST[:PORT]/TARGET/LUN"
                .into()
        }
        other => other.to_string(),
    }
}

/// Takes the name off an argument that has one: `NAME=iscsi://...`, `NAME=nvme-tcp://...`, `NAME=/path`, `NAME=./path`, and `NAME=path` where that path
/// is there and the whole is not. All else has none: a path may hold any character.
///
/// # Errors
/// A name that no table can show.
pub fn labelled(text: &str) -> Result<(Option<&str>, &str), Refused> {
    let Some((label, rest)) = text.split_once('=') else { return Ok((None, text)) };
    let there = |path: &str| Path::new(path).exists();
    let target = ["iscsi://", "iser://", "nvme-tcp://", "nvme-rdma://", "/", "./", "../"]
        .iter()
        .any(|start| rest.starts_with(start))
        || (there(rest) && !there(text));
    if label.contains('/') || !target {
        return Ok((None, text));
    }
    let fits = (1..=LONGEST_LABEL).contains(&label.chars().count());
    match fits && label.trim() == label && label.chars().all(is_printable) {
        true => Ok((Some(label), rest)),
        false => Err(Refused(format!(
            "the name before = has 1 to {LONGEST_LABEL} characters, all of them printable, and no space at its ends"
        ))),
    }
}

/// What targets are called: as the caller calls them, or as [`names`] does.
///
/// # Errors
/// Two have the same name.
pub fn called(given: &[Given], labels: &[Option<&str>]) -> Result<Vec<String>, Refused> {
    let mut all = names(given);
    for (name, label) in all.iter_mut().zip(labels) {
        if let Some(label) = label {
            (*label).clone_into(name);
        }
    }
    let twice = (1..all.len()).find(|at| all[..*at].contains(&all[*at]));
    match twice {
        Some(at) => Err(Refused(format!(
            "two targets are called {}: give each a name of its own, as in NAME=TARGET",
            all[at]
        ))),
        None => Ok(all),
    }
}

/// Short names for tables and plots, each one once: a path, or the last part of a target's name with the LUN.
pub fn names(given: &[Given]) -> Vec<String> {
    let short = |one: &Given| match one {
        Given::Path(_) => one.name(),
        Given::Url(target) => target.short(),
    };
    let mut names: Vec<String> = given.iter().map(short).collect();
    let twice = |names: &[String], name: &String| names.iter().filter(|n| *n == name).count() > 1;
    let old = names.clone();
    for (name, one) in names.iter_mut().zip(given) {
        if let (true, Given::Url(target)) = (twice(&old, name), one) {
            *name = target.shown();
        }
    }
    // The same thing twice is a good question: how much do runs of one target differ?
    for at in 1..names.len() {
        let before = names[..at].iter().filter(|name| **name == names[at]).count();
        if before > 0 {
            names[at] = format!("{} ({})", names[at], before + 1);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Given, Refused> {
        let access =
            Access { secret: Some(Secret::new(b"from-a-file".to_vec())), ..Access::default() };
        Given::parse(text, &access)
    }

    fn lun(text: &str) -> Target {
        match parse(text) {
            Ok(Given::Url(target)) => match *target {
                Remote::Iscsi(target) => target,
                Remote::Nvme(_) => panic!("no LUN"),
            },
            _ => panic!("an address"),
        }
    }

    #[test]
    fn paths_and_addresses_are_told_apart() {
        assert!(matches!(parse("/dev/sdb"), Ok(Given::Path(_))));
        assert!(matches!(parse("net"), Ok(Given::Path(_))));
        assert!(parse("a://b/c d").is_err(), "no scheme of ours");
        assert!(matches!(parse("./x://y"), Ok(Given::Path(_))));
        let target = lun("iscsi://nas/iqn.2026-11.x:y/3");
        assert_eq!((target.host.as_str(), target.lun), ("nas", Some(3)));
        let Ok(Given::Url(target)) = parse("nvme-tcp://nas/nqn.2026-11.x:y") else {
            panic!("an address");
        };
        assert_eq!(target.to_string(), "nvme-tcp://nas:4420/nqn.2026-11.x:y/1");
        assert!(parse("nvme-tcp://nas/iqn.2026-11.x:y/0").is_err());
        for url in ["iser://nas:3260/iqn.2026-11.x:y/3", "nvme-rdma://nas:4420/nqn.2026-11.x:y/1"] {
            let Ok(Given::Url(target)) = parse(url) else { panic!("an address") };
            assert!(target.is_rdma() && target.to_string() == url);
        }
        let error = parse("nfs://nas/x").expect_err("not that");
        assert!(error.0.starts_with("nfs:// cannot be measured"), "{error}");
        assert!(parse("").is_err());
    }

    #[test]
    fn a_secret_that_is_nowhere_is_asked_for() {
        let error = parse("iscsi://joe@nas/iqn.x:y/0?target_user=t").expect_err("no secret");
        assert!(error.0.contains("--target-secret-file"), "{error}");
    }

    #[test]
    fn a_secret_of_a_file_is_the_users_and_one_in_the_address_stays() {
        let target = lun("iscsi://joe@nas/iqn.x:y/0?data_digest=crc32c");
        let account = target.account.clone().expect("an account");
        assert_eq!(account.name, "joe");
        assert_eq!(account.secret, Secret::new(b"from-a-file".to_vec()));
        let shown = Remote::Iscsi(target).shown();
        assert_eq!(shown, "iscsi://joe@nas:3260/iqn.x:y/0?data_digest=crc32c");
        let target = lun("iscsi://joe%o/w@n@nas/iqn.x:y/0");
        let secret = target.account.clone().expect("an account").secret;
        assert_eq!(secret, Secret::new(b"o/w@n".to_vec()));
        let given = Given::Url(Box::new(Remote::Iscsi(target)));
        assert_eq!(given.name(), "iscsi://joe@nas:3260/iqn.x:y/0");
        // Whatever is wrong, a secret is not in the sentence.
        let error = parse("iscsi://joe%s3cret@[::1/iqn.x:y/0").expect_err("no host");
        assert!(!error.0.contains("s3cret"), "{error}");
    }

    #[test]
    fn an_option_decides_about_digests() {
        let digests = Some(Digests { header: false, data: true });
        let access = Access { digests, ..Access::default() };
        for (text, shown) in [
            ("iscsi://n/iqn.x/0?header_digest=crc32c", "iscsi://n:3260/iqn.x/0?data_digest=crc32c"),
            (
                "nvme-tcp://n/nqn.2026-11.x/2?header_digest=crc32c",
                "nvme-tcp://n:4420/nqn.2026-11.x/2?data_digest=crc32c",
            ),
        ] {
            let Ok(Given::Url(target)) = Given::parse(text, &access) else {
                panic!("an address");
            };
            assert_eq!(target.shown(), shown);
            assert!(target.has_data_digest());
        }
    }

    #[test]
    fn names_are_short_and_unique() {
        let all = |texts: &[&str]| {
            let given: Vec<Given> =
                texts.iter().map(|text| parse(text).expect("a target")).collect();
            names(&given)
        };
        assert_eq!(all(&["/tank", "iscsi://h/iqn.x:demo/0"]), ["/tank", "demo/0"]);
        assert_eq!(
            all(&["iscsi://a/iqn.x:demo/0", "iscsi://b/iqn.x:demo/0"]),
            ["iscsi://a:3260/iqn.x:demo/0", "iscsi://b:3260/iqn.x:demo/0"]
        );
        assert_eq!(
            all(&["iscsi://h/iqn.x:demo/0", "nvme-tcp://h/nqn.2026-11.x:demo"]),
            ["demo/0", "demo/1"]
        );
        let two = ["iscsi://h/iqn.x:demo/0", "iser://h/iqn.x:demo/0"];
        assert_eq!(all(&two), ["iscsi://h:3260/iqn.x:demo/0", "iser://h:3260/iqn.x:demo/0"]);
        assert_eq!(all(&["/tank", "/tank"]), ["/tank", "/tank (2)"]);
    }

    #[test]
    fn a_name_may_stand_before_a_target() {
        for (text, name, target) in [
            ("fast one=iscsi://h/iqn.x:y/0", Some("fast one"), "iscsi://h/iqn.x:y/0"),
            ("new=nvme-tcp://h/nqn.x:y", Some("new"), "nvme-tcp://h/nqn.x:y"),
            ("tank=/tank/x=y", Some("tank"), "/tank/x=y"),
            ("here=./x", Some("here"), "./x"),
            // No names: an option of an address, a part of a path, a file.
            ("iscsi://h/iqn.x:y/0?data_digest=/x", None, "iscsi://h/iqn.x:y/0?data_digest=/x"),
            ("/tank/a=/b", None, "/tank/a=/b"),
            ("a=b", None, "a=b"),
            // Tests run in the folder of the crate.
            ("code=src", Some("code"), "src"),
        ] {
            assert_eq!(labelled(text), Ok((name, target)));
        }
        for wrong in ["=/tank", " x=/tank", "x\u{1b}=/tank", &format!("{}=/tank", "x".repeat(41))] {
            assert!(labelled(wrong).is_err(), "{wrong:?}");
        }
        let [a, b] = ["/a", "/b"].map(|path| Given::Path(path.into()));
        let labels = [("old", &a), ("new", &b)];
        let access = Access::default();
        for (text, name) in [("new", "/b"), ("/a", "/a"), ("old=/a", "/a"), ("./old", "./old")] {
            assert_eq!(meant(text, &labels, &access), name);
        }
        let given = ["/a", "/b", "/c"].map(|path| Given::Path(path.into()));
        let all = called(&given, &[Some("old"), None, Some("new")]).expect("they differ");
        assert_eq!(all, ["old", "/b", "new"]);
        let error = called(&given, &[Some("x"), None, Some("x")]).expect_err("twice");
        assert!(error.0.contains("two targets are called x"), "{error}");
        assert!(called(&given, &[Some("/b"), None, None]).is_err());
    }
}
