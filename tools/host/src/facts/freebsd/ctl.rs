//! The iSCSI target of FreeBSD: /etc/ctl.conf, and what ctladm says of the kernel's side (CTL).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::parse::{colon_lines, ip};
use crate::source::Source;

/// What /etc/ctl.conf says (ctl.conf(5)).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CtlConf {
    /// Groups of addresses that initiators connect to.
    pub portal_groups: Vec<PortalGroup>,
    /// Who may log in, and how they prove it.
    pub auth_groups: Vec<AuthGroup>,
    /// The targets.
    pub targets: Vec<CtlTarget>,
}

/// A group of addresses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortalGroup {
    /// Its name.
    pub name: String,
    /// Addresses, without ports.
    pub addresses: Vec<String>,
    /// The auth group that discovery asks; `null` means that it is denied.
    pub discovery: Option<String>,
}

/// A way to log in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthGroup {
    /// Its name.
    pub name: String,
    /// `none`, `chap`, `chap-mutual` or `deny`.
    pub kind: String,
    /// How many names or addresses of initiators it is limited to; 0 = any.
    pub limits: i64,
}

/// A target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CtlTarget {
    /// Its iSCSI name.
    pub name: String,
    /// The weakest of its ways to log in: `none`, `chap`, `chap-mutual`, `deny`; `null` if the group is not defined.
    pub auth: Option<String>,
    /// Whether the weakest way is limited to some initiators.
    pub limited: bool,
    /// Names of its portal groups; none = `default`.
    pub portal_groups: Vec<String>,
    /// Names of portal groups or auth groups that are not defined.
    pub missing: Vec<String>,
    /// Addresses at which it is offered.
    pub addresses: Vec<String>,
    /// What its logical units are stored on: `/dev/zvol/tank/vm1`.
    pub paths: Vec<String>,
}

/// A logical unit of CTL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CtlLun {
    /// Number in CTL, which is not the one that initiators see.
    pub id: i64,
    /// `block` or `ramdisk`.
    pub backend: String,
    /// Size in bytes.
    pub size_bytes: Option<i64>,
    /// Block in bytes.
    pub block_bytes: Option<i64>,
    /// File or device: `/dev/zvol/tank/vm1`.
    pub path: Option<String>,
    /// The volume of ZFS that it is stored on.
    pub zvol: Option<String>,
    /// Its other attributes: `pblocksize`, `unmap`, `readonly`, `num_threads`...
    pub options: BTreeMap<String, String>,
}

/// A port of CTL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CtlPort {
    /// Number in CTL.
    pub id: i64,
    /// Whether initiators may use it.
    pub online: bool,
    /// `iscsi`, `camsim`, `ioctl`, `tpc`, `isp`...
    pub frontend: String,
    /// The target that it belongs to.
    pub target: Option<String>,
    /// How many logical units it shows; `null` for all of them.
    pub luns: Option<i64>,
}

/// A session of an initiator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CtlSession {
    /// Number in CTL.
    pub id: i64,
    /// The initiator's iSCSI name.
    pub initiator: String,
    /// Its address.
    pub address: String,
    /// The target's name.
    pub target: String,
    /// `None` or `CRC32C`.
    pub header_digest: Option<String>,
    /// `None` or `CRC32C`.
    pub data_digest: Option<String>,
    /// Longest data segment that the target sends, in bytes; of older releases the only one that is told.
    pub data_segment_bytes: Option<i64>,
    /// Whether data may come with a write's command.
    pub immediate_data: Option<bool>,
    /// Whether it is iSER.
    pub iser: Option<bool>,
    /// What does the work: `none` is the processor, `cxgbei` a card.
    pub offload: Option<String>,
}

/// A word of ctl.conf.
#[derive(Clone, Debug, PartialEq)]
enum Word {
    Text(String),
    Open,
    Close,
    /// The end of a line or a semicolon.
    End,
}

/// Reads /etc/ctl.conf.
pub(super) fn conf(source: &dyn Source) -> Option<CtlConf> {
    let text = source.read("/etc/ctl.conf")?;
    let mut conf = CtlConf::default();
    // What luns are stored on that several targets share.
    let mut shared: BTreeMap<String, String> = BTreeMap::new();
    let mut raw: Vec<Written> = Vec::new();
    for (head, block) in blocks(&text) {
        let name = head.get(1).cloned().unwrap_or_default();
        match head.first().map(String::as_str) {
            Some("portal-group") => conf.portal_groups.push(portal_group(name, &block)),
            Some("auth-group") => conf.auth_groups.push(auth_group(name, &block)),
            Some("lun") => {
                if let Some(path) = first(&block, "path") {
                    shared.insert(name, path);
                }
            }
            Some("target") => raw.push(target(name, &block)),
            _ => {}
        }
    }
    for written in raw {
        let target = resolve(written, &conf, &shared);
        conf.targets.push(target);
    }
    Some(conf)
}

/// A target as it is written: with the names of groups.
#[derive(Default)]
struct Written {
    target: CtlTarget,
    /// Portal groups, each with an auth group of its own or none.
    groups: Vec<(String, Option<String>)>,
    auth_group: Option<String>,
    /// The kind of login that the target itself has.
    chap: Option<String>,
    limits: i64,
}

/// Statements of a block: its words, and the statements of a block of its own.
#[derive(Clone, Debug, Default)]
struct Statement {
    words: Vec<String>,
    inner: Vec<Vec<String>>,
}

/// Blocks at the outermost level, by the words before their brace.
fn blocks(text: &str) -> Vec<(Vec<String>, Vec<Statement>)> {
    let mut all = Vec::new();
    let mut words = words(text).into_iter().peekable();
    let mut head: Vec<String> = Vec::new();
    while let Some(word) = words.next() {
        match word {
            Word::Text(text) => head.push(text),
            Word::Open => all.push((std::mem::take(&mut head), block(&mut words))),
            Word::End | Word::Close => {
                // The brace may stand in the next line.
                while words.next_if_eq(&Word::End).is_some() {}
                if words.peek() != Some(&Word::Open) {
                    head.clear();
                }
            }
        }
    }
    all
}

/// The statements up to the closing brace. A block within is one of a lun.
fn block(words: &mut impl Iterator<Item = Word>) -> Vec<Statement> {
    let (mut all, mut now, mut depth) = (Vec::new(), Statement::default(), 1);
    let mut line: Vec<String> = Vec::new();
    for word in words {
        match word {
            Word::Text(text) if depth == 1 => now.words.push(text),
            Word::Text(text) => line.push(text),
            Word::Open => depth += 1,
            Word::End if depth == 1 => {
                if !now.words.is_empty() {
                    all.push(std::mem::take(&mut now));
                }
            }
            Word::End => {
                if !line.is_empty() {
                    now.inner.push(std::mem::take(&mut line));
                }
            }
            Word::Close => {
                if !line.is_empty() {
                    now.inner.push(std::mem::take(&mut line));
                }
                if !now.words.is_empty() {
                    all.push(std::mem::take(&mut now));
                }
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
        }
    }
    all
}

/// Words, quoted or not; a comment ends with its line.
fn words(text: &str) -> Vec<Word> {
    let mut all = Vec::new();
    for line in text.lines() {
        let mut rest = line.trim_start();
        while let Some(next) = rest.chars().next() {
            let used = match next {
                '#' => break,
                '{' => {
                    all.push(Word::Open);
                    1
                }
                '}' => {
                    all.push(Word::Close);
                    1
                }
                ';' => {
                    all.push(Word::End);
                    1
                }
                '"' => {
                    let inner = rest[1..].split('"').next().unwrap_or_default();
                    all.push(Word::Text(inner.to_owned()));
                    (inner.len() + 2).min(rest.len())
                }
                _ => {
                    let end = rest.find([' ', '\t', '{', '}', ';', '"', '#']).unwrap_or(rest.len());
                    all.push(Word::Text(rest[..end].to_owned()));
                    end
                }
            };
            rest = rest[used..].trim_start();
        }
        all.push(Word::End);
    }
    all
}

/// The first value of a statement.
fn first(block: &[Statement], name: &str) -> Option<String> {
    block.iter().find(|s| s.words.first().is_some_and(|word| word == name))?.words.get(1).cloned()
}

fn portal_group(name: String, block: &[Statement]) -> PortalGroup {
    let listen =
        block.iter().filter(|s| s.words.first().is_some_and(|word| word.starts_with("listen")));
    let addresses = listen.filter_map(|s| s.words.get(1)).map(|address| without_port(address));
    PortalGroup {
        name,
        addresses: addresses.collect(),
        discovery: first(block, "discovery-auth-group"),
    }
}

/// `10.0.0.2:3260`, `[::]:3260`, `0.0.0.0`.
fn without_port(address: &str) -> String {
    if let Some(rest) = address.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default().to_owned();
    }
    match address.rsplit_once(':') {
        Some((host, _)) if ip(host).is_some() => host.to_owned(),
        _ => address.to_owned(),
    }
}

fn limits(block: &[Statement]) -> i64 {
    let limit = |s: &&Statement| {
        s.words.first().is_some_and(|word| word == "initiator-name" || word == "initiator-portal")
    };
    i64::try_from(block.iter().filter(limit).count()).unwrap_or(i64::MAX)
}

fn auth_group(name: String, block: &[Statement]) -> AuthGroup {
    let has = |word: &str| block.iter().any(|s| s.words.first().is_some_and(|first| first == word));
    let kind = first(block, "auth-type").unwrap_or_else(|| {
        let kind = match (has("chap-mutual"), has("chap")) {
            (true, _) => "chap-mutual",
            (_, true) => "chap",
            // A group with limits alone lets those in without a proof; an empty one nobody.
            _ if limits(block) > 0 => "none",
            _ => "deny",
        };
        kind.to_owned()
    });
    AuthGroup { name, kind, limits: limits(block) }
}

/// A target as it is written.
fn target(name: String, block: &[Statement]) -> Written {
    let chap = ["chap-mutual", "chap"].iter().find(|kind| first(block, kind).is_some());
    let mut written = Written {
        target: CtlTarget { name, ..CtlTarget::default() },
        groups: Vec::new(),
        auth_group: first(block, "auth-group"),
        chap: chap.map(|kind| (*kind).to_owned()).or_else(|| first(block, "auth-type")),
        limits: limits(block),
    };
    for statement in block {
        let word = |at: usize| statement.words.get(at).cloned();
        match statement.words.first().map(String::as_str) {
            Some("portal-group") => written.groups.extend(word(1).map(|group| (group, word(2)))),
            Some("lun") => {
                let path = statement.inner.iter().find(|line| line[0] == "path");
                // `lun 0 { path ... }` or `lun 0 name`.
                let path = path.and_then(|line| line.get(1).cloned()).or_else(|| word(2));
                written.target.paths.extend(path);
            }
            _ => {}
        }
    }
    written
}

/// How strict a way to log in is.
fn strictness(kind: &str) -> usize {
    ["none", "chap", "chap-mutual", "deny"].iter().position(|known| *known == kind).unwrap_or(1)
}

/// The ways to log in, the weakest first: their kind, and how many initiators each is limited to. Names of groups that
/// are not defined go to `missing`.
fn ways(written: &Written, conf: &CtlConf, missing: &mut Vec<String>) -> Vec<(String, i64)> {
    // Groups that are always there (ctl.conf(5)).
    let auth = |name: &str| match name {
        "no-authentication" => Some(("none".to_owned(), 0)),
        "no-access" => Some(("deny".to_owned(), 0)),
        _ => match conf.auth_groups.iter().find(|group| group.name == name) {
            Some(group) => Some((group.kind.clone(), group.limits)),
            None if name == "default" => Some(("deny".to_owned(), 0)),
            None => None,
        },
    };
    let default = written.auth_group.clone().unwrap_or_else(|| "default".to_owned());
    let named = written.groups.iter().map(|(_, auth)| auth.as_ref());
    let mut ways = Vec::new();
    for name in named.chain(written.groups.is_empty().then_some(None)) {
        match (name, &written.chap, written.limits) {
            (None, Some(kind), limits) => ways.push((kind.clone(), limits)),
            // Limits of a target without a group: those come in without a proof.
            (None, None, limits @ 1..) if written.auth_group.is_none() => {
                ways.push(("none".to_owned(), limits));
            }
            (name, _, _) => match auth(name.unwrap_or(&default)) {
                Some(way) => ways.push(way),
                None => missing.push(name.unwrap_or(&default).clone()),
            },
        }
    }
    ways.sort_by_key(|(kind, limits)| (strictness(kind), *limits > 0));
    ways
}

/// The target with what the groups say that it names.
fn resolve(written: Written, conf: &CtlConf, shared: &BTreeMap<String, String>) -> CtlTarget {
    let mut missing = Vec::new();
    let ways = ways(&written, conf, &mut missing);
    let Written { mut target, groups, .. } = written;
    if let (Some((kind, limits)), true) = (ways.first(), missing.is_empty()) {
        target.auth = Some(kind.clone());
        target.limited = *limits > 0;
    }
    let named: Vec<&str> = match groups.is_empty() {
        true => vec!["default"],
        false => groups.iter().map(|(name, _)| name.as_str()).collect(),
    };
    for name in named {
        match conf.portal_groups.iter().find(|group| group.name == name) {
            Some(group) => target.addresses.extend(group.addresses.iter().cloned()),
            None if name == "default" => target.addresses.push("0.0.0.0".to_owned()),
            None => missing.push(name.to_owned()),
        }
    }
    target.portal_groups = groups.into_iter().map(|(name, _)| name).collect();
    target.missing = missing;
    for path in &mut target.paths {
        if let Some(known) = shared.get(path) {
            path.clone_from(known);
        }
    }
    target
}

/// `ctladm devlist -v`: `  0 block            2147483648  512 ...`, and its attributes below it.
pub(super) fn luns(source: &dyn Source) -> Vec<CtlLun> {
    let text = source.output("ctladm", &["devlist", "-v"]).unwrap_or_default();
    let mut all: Vec<CtlLun> = Vec::new();
    for line in text.lines().skip(1) {
        if let Some((name, value)) =
            line.trim().split_once('=').filter(|_| line.starts_with("      "))
        {
            if let Some(lun) = all.last_mut() {
                lun.options.insert(name.to_owned(), value.to_owned());
            }
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let [id, backend, blocks, bytes, ..] = words[..] else { continue };
        let Ok(id) = id.parse() else { continue };
        let (blocks, bytes): (Option<i64>, Option<i64>) = (blocks.parse().ok(), bytes.parse().ok());
        all.push(CtlLun {
            id,
            backend: backend.to_owned(),
            size_bytes: blocks.zip(bytes).and_then(|(blocks, bytes)| blocks.checked_mul(bytes)),
            block_bytes: bytes,
            ..CtlLun::default()
        });
    }
    for lun in &mut all {
        lun.path = lun.options.remove("file");
        let zvol = lun.path.as_deref().and_then(|path| path.strip_prefix("/dev/zvol/"));
        lun.zvol = zvol.map(|zvol| zvol.replace('+', " "));
    }
    all
}

/// `ctladm portlist -v`: `3    YES    iscsi    iscsi    257 1  iqn...,t,0x0101`, and what belongs to it below.
pub(super) fn ports(source: &dyn Source) -> Vec<CtlPort> {
    let text = source.output("ctladm", &["portlist", "-v"]).unwrap_or_default();
    let mut all: Vec<CtlPort> = Vec::new();
    for line in text.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            let [id, online, frontend, ..] = words[..] else { continue };
            let Ok(id) = id.parse() else { continue };
            let (online, frontend) = (online == "YES", frontend.to_owned());
            all.push(CtlPort { id, online, frontend, ..CtlPort::default() });
            continue;
        }
        let Some(port) = all.last_mut() else { continue };
        match line.trim() {
            "No LUNs mapped" => port.luns = Some(0),
            text if text.starts_with("LUN ") => port.luns = Some(port.luns.unwrap_or(0) + 1),
            text => {
                if let Some(target) = text.strip_prefix("cfiscsi_target=") {
                    port.target = Some(target.to_owned());
                }
            }
        }
    }
    all
}

/// `ctladm islist -v`: blocks that begin with `Session ID:`.
pub(super) fn sessions(source: &dyn Source) -> Vec<CtlSession> {
    let text = source.output("ctladm", &["islist", "-v"]).unwrap_or_default();
    let mut all: Vec<CtlSession> = Vec::new();
    for (key, value) in colon_lines(&text) {
        if key == "Session ID" {
            let id = value.parse().unwrap_or(-1);
            all.push(CtlSession { id, ..CtlSession::default() });
        }
        let Some(session) = all.last_mut() else { continue };
        let (text, yes) = (Some(value.to_owned()), Some(value == "Yes"));
        match key {
            "Initiator name" => value.clone_into(&mut session.initiator),
            "Initiator portal" => value.clone_into(&mut session.address),
            "Target name" => value.clone_into(&mut session.target),
            "Header digest" => session.header_digest = text,
            "Data digest" => session.data_digest = text,
            // Up to FreeBSD 11 one number, later one for each direction.
            "DataSegmentLen" | "MaxSendDataSegmentLength" => {
                session.data_segment_bytes = value.parse().ok();
            }
            "ImmediateData" => session.immediate_data = yes,
            "iSER (RDMA)" => session.iser = yes,
            "Offload driver" => session.offload = text,
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Tree;

    /// The first two groups are those of the example in ctl.conf(5), the others as TrueNAS CORE writes them.
    const TREE: &str = r#"/etc/ctl.conf:
| pidfile /var/run/ctld.pid
| # a comment { with a brace
| auth-group ag0 {
| 	chap-mutual "user" "***" "mutualuser" "***"
| 	initiator-portal 192.168.1.1/16
| }
| auth-group ag4tg_1 {
| 	auth-type "none"
| 	initiator-name iqn.1998-01.com.vmware:esx1
| }
| portal-group pg0 {
| 	discovery-auth-group no-authentication
| 	listen 10.0.0.2:3260
| 	listen [2001:db8::2]:3260
| }
| portal-group pg2
| {
| 	listen 10.0.1.2
| }
| lun "vm1" {
| 	ctl-lun "0"
| 	path "/dev/zvol/tank/vm1"
| 	blocksize 512
| }
| target iqn.2012-06.com.example:chap {
| 	alias "Example target"
| 	auth-group ag0
| 	portal-group pg0
| 	lun 0 {
| 		path /dev/zvol/tank/example_0
| 		blocksize 4096
| 	}
| 	lun 1 { path /tank/file.img }
| }
| target iqn.2005-10.org.freenas.ctl:vm {
| 	portal-group "pg0" "ag4tg_1"
| 	portal-group "pg2" "no-authentication"
| 	lun "0" "vm1"
| }
| target iqn.2012-06.com.example:bare {
| 	lun 0 { path /dev/da9; }
| }
| target iqn.2012-06.com.example:lost {
| 	auth-group gone
| 	portal-group nowhere
| }
$ ctladm devlist -v
| LUN Backend       Size (Blocks)   BS Serial Number    Device ID
|   0 block            2147483648  512 ***
|       lun_type=0
|       num_threads=14
|       file=/dev/zvol/tank/vm+1
|       ctld_name=vm1
|       pblocksize=0
|   1 ramdisk                   0    0 ***
|       lun_type=3
$ ctladm portlist -v
| Port Online Frontend Name     pp vp
| 0    YES    camsim   camsim   0  0  naa.5000000f9da12481
|   All LUNs mapped
| 1    NO     ioctl    ioctl    0  0
|   All LUNs mapped
| 3    YES    iscsi    iscsi    257 1  iqn.2005-10.org.freenas.ctl:vm,t,0x0101
|   Target: iqn.2005-10.org.freenas.ctl:vm
|   LUN 0: 0
|   LUN 1: 1
|       cfiscsi_state=1
|       cfiscsi_target=iqn.2005-10.org.freenas.ctl:vm
|       cfiscsi_portal_group_tag=257
| 4    NO     iscsi    iscsi    258 1  iqn.2012-06.com.example:chap,t,0x0102
|   No LUNs mapped
|       cfiscsi_target=iqn.2012-06.com.example:chap
$ ctladm islist -v
| Session ID:               4
| Initiator name:           iqn.1998-01.com.vmware:esx1
| Initiator portal:         10.0.0.51
| Initiator alias:          esx1
| Target name:              iqn.2005-10.org.freenas.ctl:vm
| Target alias:             vm
| Header digest:            None
| Data digest:              CRC32C
| MaxRecvDataSegmentLength: 262144
| MaxSendDataSegmentLength: 131072
| MaxBurstLen:              262144
| FirstBurstLen:            262144
| ImmediateData:            Yes
| iSER (RDMA):              No
| Offload driver:           none
|
| Session ID:       5
| Initiator name:   iqn.1993-08.org.debian:01:pve1
| Initiator portal: 10.0.0.31
| Data digest:      None
| DataSegmentLen:   8192
| ImmediateData:    No
"#;

    #[test]
    fn reads_the_configuration() {
        let conf = conf(&Tree::parse(TREE).unwrap()).unwrap();
        let kinds: Vec<(&str, i64)> =
            conf.auth_groups.iter().map(|group| (group.kind.as_str(), group.limits)).collect();
        assert_eq!(kinds, [("chap-mutual", 1), ("none", 1)]);
        assert_eq!(conf.portal_groups[0].addresses, ["10.0.0.2", "2001:db8::2"]);
        assert_eq!(conf.portal_groups[0].discovery.as_deref(), Some("no-authentication"));
        assert_eq!(conf.portal_groups[1].addresses, ["10.0.1.2"]);
        let [chap, vm, bare, lost] = &conf.targets[..] else { panic!("{:?}", conf.targets) };
        assert_eq!((chap.auth.as_deref(), chap.limited), (Some("chap-mutual"), true));
        assert_eq!(chap.paths, ["/dev/zvol/tank/example_0", "/tank/file.img"]);
        // The group without limits is the weakest.
        assert_eq!((vm.auth.as_deref(), vm.limited), (Some("none"), false));
        assert_eq!(vm.paths, ["/dev/zvol/tank/vm1"]);
        assert_eq!(vm.addresses, ["10.0.0.2", "2001:db8::2", "10.0.1.2"]);
        assert_eq!((bare.auth.as_deref(), bare.portal_groups.len()), (Some("deny"), 0));
        assert_eq!(
            (bare.addresses.as_slice(), bare.paths.as_slice()),
            (&["0.0.0.0".to_owned()][..], &["/dev/da9".to_owned()][..])
        );
        assert_eq!(
            (lost.missing.as_slice(), lost.auth.as_deref()),
            (&["gone".to_owned(), "nowhere".to_owned()][..], None)
        );
    }

    #[test]
    fn reads_what_the_kernel_serves() {
        let tree = Tree::parse(TREE).unwrap();
        let found = luns(&tree);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].size_bytes, found[0].block_bytes), (Some(1 << 40), Some(512)));
        assert_eq!(found[0].zvol.as_deref(), Some("tank/vm 1"));
        assert_eq!(found[0].options["pblocksize"], "0");
        let found = ports(&tree);
        let seen: Vec<_> = found
            .iter()
            .map(|p| (p.id, p.online, p.frontend.as_str(), p.target.is_some(), p.luns))
            .collect();
        assert_eq!(
            seen,
            [
                (0, true, "camsim", false, None),
                (1, false, "ioctl", false, None),
                (3, true, "iscsi", true, Some(2)),
                (4, false, "iscsi", true, Some(0)),
            ]
        );
        let found = sessions(&tree);
        assert_eq!((found[0].id, found[0].data_digest.as_deref()), (4, Some("CRC32C")));
        assert_eq!(
            (found[0].data_segment_bytes, found[0].immediate_data),
            (Some(131_072), Some(true))
        );
        assert_eq!(found[0].offload.as_deref(), Some("none"));
        assert_eq!(
            (found[1].data_segment_bytes, found[1].immediate_data),
            (Some(8192), Some(false))
        );
        assert_eq!((found[1].iser, found[1].address.as_str()), (None, "10.0.0.31"));
    }

    #[test]
    fn a_file_that_is_cut_off_is_read_as_far_as_it_goes() {
        for cut in 0..TREE.len().min(900) {
            let Some(start) = TREE.get(..cut) else { continue };
            if let Ok(tree) = Tree::parse(start) {
                conf(&tree);
            }
        }
    }
}
