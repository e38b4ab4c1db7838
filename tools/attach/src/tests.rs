//! Plans, and what becomes of them on a machine in memory.

use std::time::Duration;

use lunet_iscsi::printable::is_printable;
use proptest::prelude::*;
use zeroize::Zeroizing;

use crate::address::{Address, AddressError, Transport, check_name, is_same_host};
use crate::attach::{AttachError, Attached, settled};
use crate::detach::detach;
use crate::fake::{Disk as Content, Fake, UUID};
use crate::host::Host;
use crate::journal::{self, Journals, STATE, State};
use crate::plan::{FileSystem, Options, Plan, Refusal, plan};
use crate::profile::Profile;
use crate::script::{Platform, script};
use crate::server::{Disk, Offer, Portal, Secrets, Server};
use crate::status::status;
use crate::system::System;
use crate::{Fault, page};

const IQN: &str = "iqn.2026-11.local.lunet:lab";
const NQN: &str = "nqn.2026-11.local.lunet:lab";
const SECRET: &str = "a-secret-of-lab-1";
const KEY: &str = "DHHC-1:01:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0:";

fn address(text: &str) -> Address {
    Address::parse(text).expect("an address")
}

fn offer(transport: Transport, portals: usize) -> Offer {
    let portal = |number: usize| Portal {
        address: format!("192.0.2.{number}"),
        port: if transport.is_nvme() { 4420 } else { 3260 },
        tag: (!transport.is_nvme()).then_some(1),
    };
    let name = match transport.is_nvme() {
        true => "uuid.6024c4e0-0000-4000-8000-000000000001",
        false => "naa.6024c4e0",
    };
    let disk = Disk {
        vendor: "LUNET".into(),
        product: "VIRTUAL DISK".into(),
        bytes: 1 << 26,
        block_bytes: 512,
        read_only: false,
        names: vec![name.to_owned()],
    };
    Offer {
        transport,
        name: if transport.is_nvme() { NQN } else { IQN }.to_owned(),
        unit: u32::from(transport.is_nvme()),
        portals: (1..=portals).map(portal).collect(),
        disks: vec![disk.clone(); portals],
        disk,
        claims: Vec::new(),
        unusable: Vec::new(),
    }
}

fn server(offers: Vec<Offer>) -> Server {
    Server { offers, refused: Vec::new() }
}

fn mounted() -> Options {
    Options {
        mount: Some("/srv/a b".into()),
        mkfs: Some(FileSystem::Ext4),
        nvme_secret: true,
        ..Options::default()
    }
}

fn secrets() -> Secrets {
    let text = |text: &str| Some(Zeroizing::new(text.to_owned()));
    Secrets {
        chap: text(SECRET),
        target: text("another-secret-1"),
        host: text(KEY),
        controller: None,
        tls: None,
    }
}

/// A plan for the fake machine as it is.
fn planned(fake: &Fake, transport: Transport, portals: usize, options: &Options) -> Plan {
    let url = match transport {
        Transport::Iscsi => format!("iscsi://joe@192.0.2.1/{IQN}/0?target_user=nas"),
        _ => format!("{}://192.0.2.1/{NQN}", transport.scheme()),
    };
    let host = Host::look(fake);
    plan(
        &address(&url),
        &host,
        &server(vec![offer(transport, portals)]),
        options,
        &Journals::default(),
    )
    .expect("a plan")
}

/// Attaches a disk whose server says of it what the fake has.
fn attach(
    fake: &Fake,
    plan: &Plan,
    secrets: &Secrets,
    there: &[journal::Attachment],
    state: &str,
) -> Result<Attached, AttachError> {
    let ask = |offer: &Offer| {
        let mut disk = offer.disk.clone();
        disk.names = fake.renamed.borrow().clone().map_or(disk.names, |name| vec![name]);
        Ok((disk, fake.claims.borrow().clone()))
    };
    crate::attach::attach(fake, plan, secrets, there, state, &ask)
}

fn journals(fake: &Fake) -> Journals {
    journal::all(fake, STATE)
}

fn there(fake: &Fake) -> Vec<journal::Attachment> {
    journals(fake).all
}

/// Detaches all.
fn clear(fake: &Fake) -> Result<Vec<String>, Fault> {
    let mut all = there(fake);
    let mut kept = Vec::new();
    while let Some(mut last) = all.pop() {
        kept.extend(detach(fake, &mut last, &all, STATE, false)?);
    }
    Ok(kept)
}

const CASES: [(Transport, usize); 4] = [
    (Transport::Iscsi, 1),
    (Transport::Iscsi, 2),
    (Transport::NvmeTcp, 1),
    (Transport::NvmeTcp, 2),
];

#[test]
fn what_is_attached_is_as_it_was_set_and_detach_restores_everything() {
    for (transport, portals) in CASES {
        let fake = Fake::new();
        let before = fake.state();
        let plan = planned(&fake, transport, portals, &mounted());
        let done = attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        assert_eq!(done.attachment.state, State::Attached);
        let state = status(&fake, &done.attachment);
        assert!(state.is_fine() && state.mounted, "{state:?}");
        assert_eq!(state.paths.len(), portals);
        assert!(page::status(&[state]).contains("as it was set"));
        let fstab = lunet_host::source::Source::read(&fake, "/etc/fstab").expect("fstab");
        let line = format!("UUID={UUID} /srv/a\\040b ext4 _netdev,nofail,nosuid,nodev 0 2\n");
        assert!(fstab.contains(&line), "{fstab}");
        assert_eq!(clear(&fake), Ok(Vec::new()));
        assert_eq!(fake.state(), before, "{transport}");
    }
}

#[test]
fn secrets_are_in_no_journal_on_no_command_line_and_in_no_plan() {
    for (transport, portals) in CASES {
        let fake = Fake::new();
        let plan = planned(&fake, transport, portals, &mounted());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let journals: Vec<String> =
            fake.tree.borrow().entries().filter(|entry| entry.starts_with(STATE)).collect();
        assert_eq!(journals.len(), 1);
        let shown = [
            lunet_host::source::Source::read(&fake, &journals[0]).expect("a journal"),
            fake.ran.borrow().join("\n"),
            page::plan(&plan),
            serde_json::to_string(&plan).expect("JSON"),
        ];
        for text in shown {
            assert!(
                !text.contains(SECRET) && !text.contains("another-secret") && !text.contains(KEY),
                "{text}"
            );
        }
        // But they are where the initiators want them.
        let all = fake.state();
        assert!(all.contains(if transport.is_nvme() { KEY } else { SECRET }));
    }
}

#[test]
fn a_step_that_fails_leaves_nothing() {
    for (transport, portals) in CASES {
        let count = {
            let fake = Fake::new();
            let plan = planned(&fake, transport, portals, &mounted());
            attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
            fake.changes.get()
        };
        for number in 0..count {
            let fake = Fake::new();
            let before = fake.state();
            let plan = planned(&fake, transport, portals, &mounted());
            fake.fail_at.set(Some(number));
            // Programs that only take a file over may fail.
            if attach(&fake, &plan, &secrets(), &[], STATE).is_ok() {
                clear(&fake).expect("detached");
            }
            fake.revive();
            clear(&fake).expect("the rest");
            assert_eq!(fake.state(), before, "change {number} of {transport}");
        }
    }
}

#[test]
fn a_kill_at_any_point_leaves_what_detach_takes_back() {
    for (transport, portals) in CASES {
        for number in 0.. {
            let fake = Fake::new();
            let before = fake.state();
            let plan = planned(&fake, transport, portals, &mounted());
            fake.die_at.set(Some(number));
            let done = attach(&fake, &plan, &secrets(), &[], STATE);
            let all = done.is_ok();
            if all {
                // It also dies while it is taken back.
                fake.die_at.set(Some(fake.changes.get() + number % 11));
                let _ = clear(&fake);
            }
            fake.revive();
            assert_eq!(clear(&fake), Ok(Vec::new()), "change {number} of {transport}");
            assert_eq!(fake.state(), before, "change {number} of {transport}");
            if all && number > 60 {
                break;
            }
        }
    }
}

/// What fills up while a disk is attached is in the way of attaching it, and not of taking it back.
#[test]
fn a_full_disk_leaves_nothing() {
    for (transport, portals) in CASES {
        for number in 0.. {
            let fake = Fake::new();
            let before = fake.state();
            let plan = planned(&fake, transport, portals, &mounted());
            fake.full_at.set(Some(number));
            let Err(error) = attach(&fake, &plan, &secrets(), &[], STATE) else {
                // It is taken back by whoever has the room for it, and without any, too.
                let fstab = lunet_host::source::Source::read(&fake, "/etc/fstab");
                fake.full_at.set(None);
                assert!(fstab.is_some() && clear(&fake) == Ok(Vec::new()));
                break;
            };
            // But for what is changed in files of others, as /etc/fstab.
            if matches!(error, AttachError::Failed { left: Err(_), .. }) {
                fake.full_at.set(None);
                clear(&fake).expect("detached");
            }
            assert_eq!(fake.state(), before, "change {number} of {transport}");
        }
    }
}

#[test]
fn a_machine_that_takes_no_changes_stays_as_it_is() {
    for top in ["/etc", "/var"] {
        for (transport, portals) in CASES {
            let fake = Fake::new();
            let before = fake.state();
            let plan = planned(&fake, transport, portals, &mounted());
            *fake.read_only.borrow_mut() = Some(top.to_owned());
            let error = attach(&fake, &plan, &secrets(), &[], STATE).expect_err("read-only");
            assert!(error.to_string().ends_with("everything was taken back"), "{error}");
            assert_eq!(fake.state(), before, "{top} {transport}");
        }
    }
}

#[test]
fn files_of_others_are_not_written_over() {
    let rules = "/etc/udev/rules.d/90-lunet-attach-lab-1-mount.rules";
    for path in ["/etc/nvme/lunet-attach-lab-1.json", rules] {
        let fake = Fake::new();
        fake.tree.borrow_mut().file(path, "mine\n");
        let before = fake.state();
        let plan = planned(&fake, Transport::NvmeTcp, 1, &mounted());
        let error = attach(&fake, &plan, &secrets(), &[], STATE).expect_err("it is there");
        assert!(error.to_string().contains(&format!("{path} is there already")), "{error}");
        assert_eq!(fake.state(), before);
    }
}

#[test]
fn what_somebody_has_changed_since_stays() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::Iscsi, 2, &mounted());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    let conf = "/etc/multipath/conf.d/lunet-attach-lab-0.conf";
    fake.tree.borrow_mut().file(conf, "# mine\n");
    let fstab = lunet_host::source::Source::read(&fake, "/etc/fstab").expect("fstab")
        + "mine /mine ext4 0 0\n";
    fake.tree.borrow_mut().file("/etc/fstab", &fstab);
    let found = status(&fake, &there(&fake)[0]);
    assert_eq!(found.differs, [format!("{conf} was changed")]);
    let kept = clear(&fake).expect("detached");
    assert!(kept.iter().any(|what| what.contains(conf)), "{kept:?}");
    assert_eq!(lunet_host::source::Source::read(&fake, conf).as_deref(), Some("# mine\n"));
    let fstab = lunet_host::source::Source::read(&fake, "/etc/fstab").expect("fstab");
    assert_eq!(fstab, "UUID=1 / ext4 defaults 0 1\nmine /mine ext4 0 0\n");
}

#[test]
fn only_an_empty_disk_is_formatted_and_only_if_that_is_wanted() {
    for (content, mkfs, made) in [
        (Content::Blank, true, true),
        (Content::Blank, false, false),
        (Content::Unknown, true, false),
        (Content::Lvm, true, false),
        (Content::Lvm, false, false),
        (Content::Table, true, false),
        (Content::Ext4, true, false),
    ] {
        let fake = Fake::new();
        fake.disk.set(content);
        let before = fake.state();
        let options = Options { mkfs: mkfs.then_some(FileSystem::Ext4), ..mounted() };
        let plan = planned(&fake, Transport::Iscsi, 1, &options);
        let done = attach(&fake, &plan, &secrets(), &[], STATE);
        assert_eq!(done.is_ok(), made, "{content:?}");
        let ran = fake.ran.borrow().iter().any(|call| call.starts_with("mkfs"));
        assert_eq!(ran, made, "{content:?}");
        if let Err(AttachError::Failed { left, .. }) = done {
            assert_eq!(left, Ok(Vec::new()));
            assert_eq!(fake.state(), before);
        }
    }
    // What is there is mounted.
    let fake = Fake::new();
    fake.disk.set(Content::Ext4);
    let plan = planned(&fake, Transport::Iscsi, 1, &Options { mkfs: None, ..mounted() });
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
}

/// Two servers with one target name, or a LUN that is another one behind each portal.
#[test]
fn paths_to_two_disks_are_not_taken_for_one() {
    for transport in [Transport::Iscsi, Transport::NvmeTcp] {
        let host = Host::look(&Fake::new());
        let url = address(&format!("{}://192.0.2.1", transport.scheme()));
        let planned = |names: [&str; 2], bytes: u64, options: &Options| {
            let mut offer = offer(transport, 2);
            for (disk, name) in offer.disks.iter_mut().zip(names) {
                disk.names = vec![name.to_owned()];
                disk.names.retain(|name| !name.is_empty());
            }
            offer.disks[1].bytes = bytes;
            offer.disk = offer.disks[0].clone();
            plan(&url, &host, &server(vec![offer]), options, &Journals::default())
        };
        let one = Options { one_path: true, ..mounted() };
        assert!(planned(["naa.1", "naa.1"], 1 << 26, &mounted()).is_ok());
        for (names, bytes, said) in [
            (["naa.1", "naa.2"], 1 << 26, "at 192.0.2.1:"),
            (["naa.1", "naa.1"], 1 << 27, "leads to two disks"),
            (["naa.1", ""], 1 << 26, "192.0.2.2"),
            (["", ""], 1 << 26, "no name of its own"),
        ] {
            for options in [Options::default(), mounted()] {
                let refused = planned(names, bytes, &options).expect_err("two disks");
                assert!(refused.to_string().contains(said), "{refused}");
                assert!(refused.to_string().contains("--one-path"), "{refused}");
            }
            // A disk that has no name cannot be known again, and is attached without its file system.
            let bare = Options { one_path: true, ..Options::default() };
            assert!(planned(names, bytes, &bare).is_ok(), "{names:?}");
            assert_eq!(planned(names, bytes, &one).is_ok(), !names[0].is_empty(), "{names:?}");
        }
    }
}

/// The portal that is in the address lists another one alone, behind which is another disk.
#[test]
fn the_disk_of_the_plan_is_that_of_every_portal() {
    let (url, host) = (address("iscsi://192.0.2.9"), Host::look(&Fake::new()));
    let planned = |change: &dyn Fn(&mut Disk)| {
        let mut offer = offer(Transport::Iscsi, 1);
        change(&mut offer.disk);
        plan(&url, &host, &server(vec![offer]), &Options::default(), &Journals::default())
    };
    assert!(planned(&|_| {}).is_ok());
    let changes: [&dyn Fn(&mut Disk); 4] = [
        &|disk| disk.names = vec!["naa.6024c4e9".to_owned()],
        &|disk| disk.names.clear(),
        &|disk| disk.bytes = 1 << 25,
        &|disk| disk.block_bytes = 4096,
    ];
    for change in changes {
        let refused = planned(change).expect_err("another disk").to_string();
        assert!(
            refused.contains("another disk") && refused.contains("192.0.2.1:3260"),
            "{refused}"
        );
    }
}

#[test]
fn a_disk_that_linux_cannot_address_is_refused() {
    let (url, host) = (address("iscsi://192.0.2.1"), Host::look(&Fake::new()));
    for (bytes, is_fine) in [((1 << 63) - 512, true), (1 << 63, false), (u64::MAX - 511, false)] {
        let mut offer = offer(Transport::Iscsi, 1);
        (offer.disk.bytes, offer.disks[0].bytes) = (bytes, bytes);
        let planned =
            plan(&url, &host, &server(vec![offer]), &Options::default(), &Journals::default());
        assert_eq!(planned.is_ok(), is_fine, "{bytes}");
    }
}

/// dm-multipath knows disks of SCSI by NAA and EUI-64 names only.
#[test]
fn a_disk_with_a_uuid_alone_is_no_map() {
    let uuid = "uuid.6024c4e0-0000-4000-8000-000000000001";
    let (url, host) = (address("iscsi://192.0.2.1"), Host::look(&Fake::new()));
    for (names, portals, one_path, made) in [
        (&[uuid][..], 2, false, false),
        (&[uuid], 2, true, true),
        (&[uuid], 1, false, true),
        (&[uuid, "eui.0200"], 2, false, true),
    ] {
        let mut offered = offer(Transport::Iscsi, portals);
        for disk in offered.disks.iter_mut().chain([&mut offered.disk]) {
            disk.names = names.iter().map(|name| (*name).to_owned()).collect();
        }
        let options = Options { one_path, ..Options::default() };
        let plan = plan(&url, &host, &server(vec![offered]), &options, &Journals::default());
        assert_eq!(plan.is_ok(), made, "{names:?} {portals}");
        if let Err(refused) = plan {
            let refused = refused.to_string();
            assert!(refused.contains(uuid) && refused.contains("--one-path"), "{refused}");
        }
    }
}

/// The kernel may reach another disk than lunet's own initiators did a moment before.
#[test]
fn what_the_kernel_shows_has_to_be_the_disk_that_was_asked() {
    for (portals, naa, options, said) in [
        (1, "naa.6024c4e7", mounted(), "it is another disk"),
        (1, "naa.6024c4e7", Options::default(), "it is another disk"),
        (2, "naa.6024c4e7", Options::default(), "it is another disk"),
        (2, "t10.LUNET", Options::default(), "knows no name"),
        (1, "t10.LUNET", mounted(), "knows no name"),
    ] {
        let fake = Fake::new();
        let before = fake.state();
        *fake.naa.borrow_mut() = match portals {
            1 => vec![naa.to_owned()],
            _ => vec!["naa.6024c4e0".to_owned(), naa.to_owned()],
        };
        let plan = planned(&fake, Transport::Iscsi, portals, &options);
        let Err(AttachError::Failed { why, left: Ok(_), .. }) =
            attach(&fake, &plan, &secrets(), &[], STATE)
        else {
            panic!("{naa} was attached")
        };
        assert!(why.0.contains(said), "{why}");
        assert!(!fake.ran.borrow().iter().any(|call| call.starts_with("multipath -a")));
        assert_eq!(fake.state(), before);
    }
}

/// A name may be copied, and a disk need not have one.
#[test]
fn what_the_kernel_shows_has_to_have_the_size_that_was_told() {
    for (naa, sizes, is_it) in [
        (None, (1 << 17, 512), true),
        (None, (1 << 16, 512), false),
        (None, (1 << 17, 4096), false),
        (Some("t10.LUNET"), (1 << 17, 512), true),
        (Some("t10.LUNET"), (1 << 16, 512), false),
    ] {
        let fake = Fake::new();
        let before = fake.state();
        fake.sizes.set(sizes);
        *fake.naa.borrow_mut() = naa.map(str::to_owned).into_iter().collect();
        let plan = planned(&fake, Transport::Iscsi, 1, &Options::default());
        match attach(&fake, &plan, &secrets(), &[], STATE) {
            Ok(_) => assert!(is_it, "{naa:?} {sizes:?}"),
            Err(error) => {
                assert!(!is_it && error.to_string().contains("it is another disk"), "{error}");
                assert_eq!(fake.state(), before);
            }
        }
    }
}

#[test]
fn what_others_have_reserved_is_told_and_not_formatted() {
    let host = Host::look(&Fake::new());
    let mut reserved = offer(Transport::Iscsi, 1);
    reserved.claims = vec!["the host x has reserved the disk".to_owned()];
    let offers = server(vec![reserved]);
    let planned = |mkfs| {
        let options = Options { mkfs, ..mounted() };
        plan(&address("iscsi://192.0.2.1"), &host, &offers, &options, &Journals::default())
    };
    let told = page::plan(&planned(None).expect("a plan"));
    assert!(told.contains("Note: the host x has reserved the disk: "), "{told}");
    let refused = planned(Some(FileSystem::Ext4)).expect_err("reserved");
    assert!(matches!(refused, Refusal::Reserved(_)), "{refused}");
}

/// Somebody thinks about the plan for an hour.
#[test]
fn what_became_of_the_disk_since_the_plan_keeps_it_from_being_formatted() {
    for (transport, portals) in CASES {
        for (claim, name, said) in [
            (Some("the host x has reserved the disk"), None, "the host x has reserved the disk"),
            (None, Some("naa.1"), "has another disk there by now: naa.1"),
            (None, None, ""),
        ] {
            let fake = Fake::new();
            let before = fake.state();
            let plan = planned(&fake, transport, portals, &mounted());
            fake.claims.borrow_mut().extend(claim.map(str::to_owned));
            *fake.renamed.borrow_mut() = name.map(str::to_owned);
            let done = attach(&fake, &plan, &secrets(), &[], STATE);
            let made = fake.ran.borrow().iter().any(|call| call.starts_with("mkfs"));
            assert_eq!(made, said.is_empty());
            if !said.is_empty() {
                let error = done.expect_err("not formatted").to_string();
                assert!(error.contains(said), "{error}");
                assert_eq!(fake.state(), before);
            }
            // Of what is not formatted it is told, as the plan does.
            fake.revive();
            clear(&fake).expect("detached");
            fake.disk.set(Content::Ext4);
            let plan = planned(&fake, transport, portals, &Options { mkfs: None, ..mounted() });
            attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        }
    }
}

#[test]
fn a_disk_in_use_is_not_detached() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::Iscsi, 1, &Options::default());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    let before = fake.state();
    fake.tree.borrow_mut().file("/proc/77/comm", "qemu");
    fake.tree.borrow_mut().symlink("/proc/77/fd/3", "/dev/sda1");
    let error = clear(&fake).expect_err("in use");
    assert!(error.0.contains("qemu (process 77) has /dev/sda1 open"), "{error}");
    fake.tree.borrow_mut().remove("/proc/77");
    assert_eq!(fake.state(), before);
    clear(&fake).expect("detached");
}

/// By a mount in another namespace or a target of the kernel, which no list shows.
#[test]
fn a_disk_that_only_the_kernel_knows_to_be_in_use_keeps_its_session() {
    for portals in [1, 2] {
        let fake = Fake::new();
        let before = fake.state();
        let plan = planned(&fake, Transport::Iscsi, portals, &Options::default());
        let device = attach(&fake, &plan, &secrets(), &[], STATE).expect("attached").device;
        *fake.held.borrow_mut() = Some(device.clone());
        let error = clear(&fake).expect_err("in use");
        assert!(error.0.contains(&device) && error.0.contains("detach again"), "{error}");
        assert!(!fake.ran.borrow().iter().any(|call| call.contains("--logout")), "{portals}");
        *fake.held.borrow_mut() = None;
        clear(&fake).expect("detached");
        assert_eq!(fake.state(), before);
    }
}

/// A copy of a disk has a file system with the same UUID, and a mount may take that one.
#[test]
fn the_file_system_of_a_copy_is_not_taken_for_the_one_that_was_meant() {
    let fake = Fake::new();
    let before = fake.state();
    *fake.copy.borrow_mut() = Some("/dev/sdz".into());
    let plan = planned(&fake, Transport::Iscsi, 1, &mounted());
    let error = attach(&fake, &plan, &secrets(), &[], STATE).expect_err("it was mounted");
    let error = error.to_string();
    assert!(error.contains("/dev/sdz now") && error.contains("tune2fs -U random"), "{error}");
    // What was made on the disk is there for good, and told.
    let end = "\nKept: the disk that was /dev/sda1 has an ext4 file system now, or a part of one";
    assert!(error.ends_with(&format!("everything else was taken back:{end}")), "{error}");
    assert_eq!(fake.state(), before);
}

#[test]
fn directories_that_were_made_go_if_they_are_empty() {
    let deep = Options { mount: Some("/srv/a/b/c".into()), ..mounted() };
    for (there, kept) in [(None, &[][..]), (Some("/srv/a/mine"), &["mine"])] {
        let fake = Fake::new();
        fake.tree.borrow_mut().file("/srv/x", "");
        let plan = planned(&fake, Transport::Iscsi, 1, &deep);
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let names = |path: &str| lunet_host::source::Source::names(&fake, path);
        assert_eq!(names("/srv/a/b"), ["c"]);
        there.iter().for_each(|path| fake.tree.borrow_mut().file(path, ""));
        clear(&fake).expect("detached");
        assert_eq!(names("/srv/a"), kept);
        assert!(names("/srv").contains(&"x".to_owned()));
        assert_eq!(names("/srv").contains(&"a".to_owned()), there.is_some());
    }
}

/// What the disk says of its file system stands in /etc/fstab and in a rule of udev.
#[test]
fn a_uuid_that_is_none_or_is_anothers_is_not_mounted() {
    let copy = format!("UUID={UUID} /old ext4 0 0\n");
    let quoted = format!("UUID=\"{}\" /old ext4 0 0\n", UUID.to_uppercase());
    let link = format!("/dev/disk/by-uuid/{UUID} /old ext4 0 0\n");
    let udev = format!("S:disk/by-uuid/{UUID}\nE:ID_FS_UUID={UUID}\n");
    let other = format!("# {copy}/dev/vda1 / ext4 0 0\n");
    for (uuid, fstab, udev, said) in [
        ("1\\040/ ext4 suid", "", "", "is no UUID"),
        ("a\", RUN+=\"x", "", "", "is no UUID"),
        ("0b7cf1de-8a0f-4f44-9c47-3a6f0b1a2c3d-0b7c", "", "", "is no UUID"),
        ("", "", "", "is no UUID"),
        (UUID, &copy, "", "at /old"),
        (UUID, &quoted, "", "at /old"),
        (UUID, &link, "", "at /old"),
        (UUID, &other, &udev, "the file system of /dev/sdz1"),
        (UUID, &other, "E:ID_FS_UUID=0b7c\n", ""),
        (UUID, &other, "seen by blkid", "the file system of /dev/sdz"),
    ] {
        let fake = Fake::new();
        fake.disk.set(Content::Ext4);
        *fake.uuid.borrow_mut() = uuid.to_owned();
        fake.tree.borrow_mut().file("/etc/fstab", fstab);
        if udev.starts_with("seen") {
            fake.copy_is_seen.set(true);
            *fake.copy.borrow_mut() = Some("/dev/sdz".into());
        } else {
            fake.tree.borrow_mut().file("/run/udev/data/b65:145", udev);
            fake.tree.borrow_mut().symlink("/sys/dev/block/65:145", "../../block/sdz/sdz1");
        }
        let before = fake.state();
        let plan = planned(&fake, Transport::Iscsi, 1, &Options { mkfs: None, ..mounted() });
        let Err(error) = attach(&fake, &plan, &secrets(), &[], STATE) else {
            assert_eq!(said, "");
            continue;
        };
        assert!(!said.is_empty() && error.to_string().contains(said), "{error}");
        assert_eq!(fake.state(), before);
        assert!(!fake.ran.borrow().iter().any(|call| call.starts_with("mount")));
    }
}

#[test]
fn a_directory_that_fstab_has_is_not_taken() {
    let fake = Fake::new();
    fake.tree.borrow_mut().file("/etc/fstab", "# x /srv/a\\040b\n/dev/x\t/srv/a\\040b/ ext4 0 0\n");
    let error = crate::attach::check_directory(&fake, "/srv/a b").expect_err("it is in use");
    assert!(error.0.contains("/etc/fstab mounts /dev/x"), "{error}");
    assert_eq!(crate::attach::check_directory(&fake, "/srv/a"), Ok(()));
}

/// What somebody has mounted over it is not taken away, and neither is the disk below.
#[test]
fn what_is_mounted_over_it_stays() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::Iscsi, 1, &mounted());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    let mounts = lunet_host::source::Source::read(&fake, "/proc/mounts").expect("mounts");
    let over = format!("{mounts}tmpfs /srv/a\\040b tmpfs rw 0 0\n");
    fake.tree.borrow_mut().file("/proc/mounts", &over);
    let error = clear(&fake).expect_err("in use");
    assert!(error.0.contains("tmpfs, which is not of this disk"), "{error}");
    fake.tree.borrow_mut().file("/proc/mounts", &mounts);
    clear(&fake).expect("detached");
}

#[test]
fn two_luns_of_a_target_share_its_session() {
    let fake = Fake::new();
    let before = fake.state();
    let first = planned(&fake, Transport::Iscsi, 1, &Options::default());
    attach(&fake, &first, &secrets(), &[], STATE).expect("attached");
    let host = Host::look(&fake);
    let mut other = offer(Transport::Iscsi, 1);
    let url = format!("iscsi://192.0.2.1/{IQN}/1");
    let again = plan(
        &address(&url),
        &host,
        &server(vec![other.clone()]),
        &Options::default(),
        &journals(&fake),
    );
    assert!(matches!(again, Err(Refusal::Attached { .. })), "{again:?}");
    other.unit = 1;
    for disk in other.disks.iter_mut().chain([&mut other.disk]) {
        disk.names = vec!["naa.6024c4e1".to_owned()];
    }
    let second =
        plan(&address(&url), &host, &server(vec![other]), &Options::default(), &journals(&fake))
            .expect("a plan");
    attach(&fake, &second, &Secrets::default(), &there(&fake), STATE).expect("attached");
    let mut all = there(&fake);
    assert_eq!(all.len(), 2);
    let mut gone = all.remove(0);
    detach(&fake, &mut gone, &all, STATE, false).expect("detached");
    assert!(status(&fake, &all[0]).is_fine());
    clear(&fake).expect("detached");
    assert_eq!(fake.state(), before);
}

/// The settings of a session, or of the paths of a subsystem, are those of all its disks.
#[test]
fn a_second_disk_of_a_session_cannot_have_other_settings() {
    for (transport, portals, profile, said) in [
        (Transport::Iscsi, 1, Profile::Database, "node.session.cmds_max is 512, and would be 128"),
        (Transport::Iscsi, 2, Profile::Vm, "replacement_timeout is 600, and would be 15"),
        (Transport::NvmeTcp, 1, Profile::Database, "--ctrl-loss-tmo=600"),
    ] {
        let fake = Fake::new();
        let first = planned(&fake, transport, 1, &Options::default());
        attach(&fake, &first, &secrets(), &[], STATE).expect("attached");
        let mut other = offer(transport, portals);
        other.unit += 1;
        for disk in other.disks.iter_mut().chain([&mut other.disk]) {
            disk.names = vec!["naa.6024c4e1".to_owned()];
        }
        let user = if transport.is_nvme() { "" } else { "joe@" };
        let url = |user| address(&format!("{}://{user}192.0.2.1", transport.scheme()));
        let again = |user, profile| {
            let options = Options { profile, ..Options::default() };
            let offers = server(vec![other.clone()]);
            plan(&url(user), &Host::look(&fake), &offers, &options, &journals(&fake))
        };
        let refused = again(user, profile).expect_err("other settings").to_string();
        assert!(refused.contains(said) && refused.contains("--profile vm"), "{refused}");
        if portals == 1 {
            again(user, Profile::Vm).expect("the same settings");
        }
        if !transport.is_nvme() {
            let refused = again("jim@", Profile::Vm).expect_err("another user").to_string();
            assert!(portals == 2 || refused.contains("the CHAP user is joe"), "{refused}");
        }
    }
}

/// A disk of the host's own that goes by the name of the one that is offered, be it a copy or the same one by another way.
#[test]
fn a_disk_that_passes_for_the_one_that_is_offered_is_in_the_way() {
    let uuid = "6024c4e0-0000-4000-8000-000000000001";
    let scsi = [("device/wwid", "naa.6024C4E0")];
    for (transport, disk, files) in [
        (Transport::Iscsi, "sdz", &scsi[..]),
        // Of dm-multipath, without a path.
        (Transport::Iscsi, "dm-9", &[("dm/uuid", "mpath-36024c4e0")]),
        (Transport::NvmeTcp, "nvme0n1", &[("wwid", "nvme.1d0f-1"), ("uuid", uuid), ("nsid", "1")]),
        (Transport::NvmeTcp, "dm-9", &[("dm/uuid", &format!("mpath-uuid.{uuid}"))]),
        // Of another controller, and one that has a name too many.
        (
            Transport::NvmeTcp,
            "nvme0n1",
            &[("device/subsysnqn", "nqn.x"), ("nsid", "1"), ("uuid", uuid)],
        ),
    ] {
        let fake = Fake::new();
        let planned = planned(&fake, transport, 1, &mounted());
        for (file, text) in files {
            fake.tree.borrow_mut().file(&format!("/sys/block/{disk}/{file}"), text);
        }
        let before = fake.state();
        let offers = server(vec![offer(transport, 1)]);
        let url = address(&format!("{}://192.0.2.1", transport.scheme()));
        let host = Host::look(&fake);
        let refused = plan(&url, &host, &offers, &mounted(), &Journals::default());
        let refused = refused.expect_err("a disk of that name").to_string();
        assert!(refused.contains(&format!("/dev/{disk}")), "{refused}");
        // It came between the plan and its answer.
        let error = attach(&fake, &planned, &secrets(), &[], STATE).expect_err("it is there");
        assert!(matches!(error, AttachError::Before(_)), "{error}");
        assert_eq!(fake.state(), before);
        assert_eq!(fake.ran.borrow().len(), 0);
    }
}

/// The designators of one unit: NGUID and EUI64 as the kernel writes them, and zeros for what there is not.
#[test]
fn every_name_of_a_disk_counts() {
    let fake = Fake::new();
    for (file, text) in [
        ("wwid", "eui.00112233445566778899aabbccddeeff\n"),
        ("nguid", "00112233-4455-6677-8899-AABBCCDDEEFF\n"),
        ("eui", "00 25 38 00 00 00 00 01\n"),
        ("uuid", "00000000-0000-0000-0000-000000000000\n"),
    ] {
        fake.tree.borrow_mut().file(&format!("/sys/block/nvme0n1/{file}"), text);
    }
    fake.tree.borrow_mut().file("/sys/block/sdq/device/wwid", "t10.ATA     QEMU HARDDISK");
    let disks = Host::look(&fake).disks;
    assert_eq!(disks.len(), 1);
    assert_eq!(disks[0].names, ["eui.00112233445566778899aabbccddeeff", "eui.0025380000000001"]);
}

/// A path to a disk of the same name that comes while this one is attached ends in the same map.
#[test]
fn nothing_is_written_to_a_map_with_a_foreign_path() {
    for came in ["--login", "multipath -a"] {
        let fake = Fake::new();
        let plan = planned(&fake, Transport::Iscsi, 2, &mounted());
        let (path, naa) = ("/sys/block/sdz/device/wwid", "naa.6024c4e0");
        *fake.comes.borrow_mut() = Some((came.to_owned(), path.to_owned(), naa.to_owned()));
        let error = attach(&fake, &plan, &secrets(), &[], STATE).expect_err("another disk");
        let AttachError::Failed { why, left: Ok(_), .. } = error else { panic!("{error}") };
        assert!(why.0.contains("sdz"), "{why}");
        assert!(!fake.ran.borrow().iter().any(|call| call.starts_with("mkfs")));
        assert!(there(&fake).is_empty());
    }
}

/// The list of multipath, and its maps, belong to others as well.
#[test]
fn what_multipath_had_before_stays() {
    let list = "/etc/multipath/wwids";
    let lines = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    for text in ["# WWIDs\n/36024c4e0/\n", "/36024c4e01/\n", "# WWIDs\n"] {
        let fake = Fake::new();
        fake.tree.borrow_mut().file(list, text);
        let plan = planned(&fake, Transport::Iscsi, 2, &mounted());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let now = lunet_host::source::Source::read(&fake, list).expect("a list");
        assert!(now.contains("/36024c4e0/\n"), "{now}");
        assert_eq!(clear(&fake), Ok(Vec::new()));
        let now = lunet_host::source::Source::read(&fake, list).expect("a list");
        assert_eq!(lines(&now), lines(text));
    }
    // multipathd may make a map of every LUN of a session by itself.
    let fake = Fake::new();
    let first = planned(&fake, Transport::Iscsi, 2, &Options::default());
    attach(&fake, &first, &secrets(), &[], STATE).expect("attached");
    fake.map("36024c4e1");
    let mut other = offer(Transport::Iscsi, 2);
    other.unit = 1;
    for disk in other.disks.iter_mut().chain([&mut other.disk]) {
        disk.names = vec!["naa.6024c4e1".to_owned()];
    }
    let (url, host) = (address(&format!("iscsi://joe@192.0.2.1/{IQN}/1")), Host::look(&fake));
    let second = plan(&url, &host, &server(vec![other]), &Options::default(), &journals(&fake));
    let second = second.expect("a plan");
    let all = there(&fake);
    let mut done = attach(&fake, &second, &secrets(), &all, STATE).expect("attached").attachment;
    assert_eq!(detach(&fake, &mut done, &all, STATE, false), Ok(Vec::new()));
    assert!(crate::disk::map_of(&fake, "36024c4e1").is_some(), "its map stays");
    let now = lunet_host::source::Source::read(&fake, list).expect("a list");
    assert_eq!(lines(&now), ["/36024c4e0/"]);
}

/// Somebody has logged in to a disk of the same name since.
#[test]
fn a_map_with_a_path_of_others_stays() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::Iscsi, 2, &Options::default());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    fake.tree.borrow_mut().symlink("/sys/block/dm-1/slaves/sdz", "/sys/block/sdz");
    fake.tree.borrow_mut().file("/sys/block/sdz/size", "1");
    let found = status(&fake, &there(&fake)[0]);
    assert!(found.differs.len() == 1 && found.differs[0].contains("/dev/sdz"), "{found:?}");
    let kept = clear(&fake).expect("detached");
    assert!(kept.iter().any(|kept| kept.contains("/dev/sdz is a path of it")), "{kept:?}");
    let ran = fake.ran.borrow();
    assert!(!ran.iter().any(|call| call.starts_with("multipath -f")), "{ran:?}");
    assert!(!ran.iter().any(|call| call.starts_with("multipath -w")), "{ran:?}");
}

/// Between the plan and its answer.
#[test]
fn a_session_that_somebody_has_made_meanwhile_is_not_taken_for_ours() {
    for (transport, call) in [
        (
            Transport::Iscsi,
            format!("iscsiadm -m node -T {IQN} -p 192.0.2.1:3260,1 -I default --login"),
        ),
        (Transport::NvmeTcp, format!("nvme connect -t tcp -a 192.0.2.1 -s 4420 -n {NQN}")),
    ] {
        let fake = Fake::new();
        let mut offered = offer(transport, 1);
        offered.disk.names.clear();
        offered.disks[0].names.clear();
        let url = address(&format!("{}://192.0.2.1", transport.scheme()));
        let host = Host::look(&fake);
        let options = Options::default();
        let plan = plan(&url, &host, &server(vec![offered]), &options, &Journals::default());
        fake.run(&crate::system::Call::new(&call)).expect("a session");
        let before = fake.state();
        let error = attach(&fake, &plan.expect("a plan"), &secrets(), &[], STATE);
        let error = error.expect_err("a foreign session").to_string();
        assert!(error.contains("meanwhile"), "{error}");
        assert_eq!(fake.state(), before, "it stays");
    }
}

/// What somebody has mounted at the directory since is not unmounted, by force neither.
#[test]
fn a_mount_of_another_disk_is_not_unmounted() {
    for file in ["/dev/sdz", "nas:/vms"] {
        let fake = Fake::new();
        let plan = planned(&fake, Transport::Iscsi, 1, &mounted());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let read = |path: &str| lunet_host::source::Source::read(&fake, path);
        let own = read("/proc/mounts").expect("mounts");
        let call = format!("iscsiadm -m node -T {IQN} -p 192.0.2.1:3260,1 -I default --logout");
        fake.run(&crate::system::Call::new(&call)).expect("logged out by hand");
        fake.tree.borrow_mut().file("/sys/block/sdz/size", "1");
        let mounts = own.replace("/dev/sda1 /srv", &format!("{file} /srv"));
        assert_ne!(mounts, own);
        fake.tree.borrow_mut().file("/proc/mounts", &mounts);
        for force in [false, true] {
            let error = detach(&fake, &mut there(&fake)[0], &[], STATE, force);
            let error = error.expect_err("another disk").0;
            assert!(error.contains(&format!("{file}, which is not of this disk")), "{error}");
        }
        assert_eq!(read("/proc/mounts").expect("mounts"), mounts);
        // What is mounted of a disk that is gone is ours.
        fake.tree.borrow_mut().file("/proc/mounts", &own);
        clear(&fake).expect("detached");
        assert!(!read("/proc/mounts").expect("mounts").contains("/srv"));
    }
}

/// A service that somebody has begun to use since is not taken from him.
#[test]
fn a_service_that_others_use_by_now_stays_on() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::Iscsi, 2, &Options::default());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    fake.tree.borrow_mut().file("/sys/block/dm-7/dm/uuid", "mpath-3600");
    let record = "/etc/iscsi/nodes/iqn.x/192.0.2.9,3260,1/default";
    fake.tree.borrow_mut().file(record, "node.startup = automatic\n");
    let kept = clear(&fake).expect("detached");
    let wants = "/etc/systemd/system/multi-user.target.wants";
    for (unit, user) in [("multipathd.service", "3600"), ("open-iscsi.service", "iqn.x")] {
        assert!(kept.iter().any(|kept| kept.contains(unit) && kept.contains(user)), "{kept:?}");
        assert!(lunet_host::source::Source::read(&fake, &format!("{wants}/{unit}")).is_some());
    }
    // What was in use before is no reason to leave it on.
    let fake = Fake::new();
    fake.tree.borrow_mut().file("/sys/block/dm-7/dm/uuid", "mpath-3600");
    let before = fake.state();
    let plan = planned(&fake, Transport::Iscsi, 2, &Options::default());
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    assert_eq!(clear(&fake), Ok(Vec::new()));
    assert_eq!(fake.state(), before);
}

/// A server that starts later than this machine, and a disk that comes when systemd has given up waiting for it.
#[test]
fn what_comes_late_after_a_reboot_is_connected_and_mounted() {
    for (transport, portals) in CASES {
        let fake = Fake::new();
        let plan = planned(&fake, transport, portals, &mounted());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let read = |path: &str| lunet_host::source::Source::read(&fake, path);
        for number in 1..=portals {
            let unit = format!("lunet-attach-{}-{number}.service", plan.name);
            let text = read(&format!("/etc/systemd/system/{unit}")).expect("a unit");
            assert!(text.contains("\nType=simple\n") && text.contains("\nRestart=on-failure\n"));
            assert!(text.contains(&format!("192.0.2.{number}")), "{text}");
            let wants = format!("/etc/systemd/system/multi-user.target.wants/{unit}");
            assert!(read(&wants).is_some(), "{unit} is enabled");
        }
        let rule = format!("/etc/udev/rules.d/90-lunet-attach-{}-mount.rules", plan.name);
        let rule = read(&rule).expect("a rule");
        let disk = match (transport.is_nvme(), portals) {
            (true, _) => r#"ATTR{wwid}=="uuid.6024c4e0-0000-4000-8000-000000000001""#,
            (false, 1) => r#"ATTRS{wwid}=="naa.6024c4e0""#,
            (false, _) => r#"ENV{DM_UUID}=="mpath-36024c4e0""#,
        };
        let wants = r#"TAG+="systemd", ENV{SYSTEMD_WANTS}+="srv-a\\x20b.mount""#;
        let wanted = format!(r#"{disk}, ENV{{ID_FS_UUID}}=="{UUID}", {wants}"#);
        assert!(rule.contains(&wanted), "{rule}");
        clear(&fake).expect("detached");
        // A unit that is trying again does not go on when its file is gone.
        let stop = format!("systemctl stop lunet-attach-{}-1.service", plan.name);
        assert!(fake.ran.borrow().contains(&stop));
    }
}

#[test]
fn tls_needs_a_kernel_and_its_helper_and_keeps_its_key_to_itself() {
    let tls = "NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd:";
    let fake = Fake::new();
    let lacks = |fake: &Fake, transport| Host::look(fake).lacks_tls(transport).unwrap_or_default();
    assert!(lacks(&fake, Transport::NvmeTcp).contains("no TLS for NVMe over TCP"));
    fake.tree.borrow_mut().file("/sys/module/nvme_keyring/x", "");
    assert!(lacks(&fake, Transport::NvmeTcp).ends_with("`apt install ktls-utils`"));
    fake.tree.borrow_mut().file("/usr/sbin/tlshd", "");
    assert_eq!(lacks(&fake, Transport::NvmeTcp), "");
    assert!(lacks(&fake, Transport::Iscsi).contains("iSCSI over TCP has no TLS"));
    let before = fake.state();
    let options = Options { tls: true, ..Options::default() };
    let plan = planned(&fake, Transport::NvmeTcp, 1, &options);
    let secrets = Secrets { tls: Some(Zeroizing::new(tls.to_owned())), ..Secrets::default() };
    attach(&fake, &plan, &secrets, &[], STATE).expect("attached");
    let config = "/etc/nvme/lunet-attach-lab-1.json";
    let config = lunet_host::source::Source::read(&fake, config).expect("a file");
    assert!(config.contains(tls) && config.contains("\"tls\": true"), "{config}");
    let ran = fake.ran.borrow().join("\n");
    assert!(ran.contains(" --tls ") && ran.contains("enable --quiet --now tlshd.service"), "{ran}");
    let told = page::plan(&plan) + &serde_json::to_string(&there(&fake)).expect("JSON") + &ran;
    assert!(!told.contains("NVMeTLSkey"), "{told}");
    clear(&fake).expect("detached");
    assert_eq!(fake.state(), before);
}

/// systemd takes what begins with a percent sign for something of its own.
#[test]
fn units_name_link_local_addresses_with_their_interface() {
    for transport in [Transport::Iscsi, Transport::NvmeTcp] {
        let mut offer = offer(transport, 1);
        offer.portals[0].address = "fe80::1%eth0".to_owned();
        let fake = Fake::new();
        let url = address(&format!("{}://[fe80::1%eth0]", transport.scheme()));
        let none = Journals::default();
        let host = Host::look(&fake);
        let plan = plan(&url, &host, &server(vec![offer]), &Options::default(), &none);
        let plan = plan.expect("a plan");
        let unit = plan.steps.iter().filter_map(crate::step::Step::text);
        let unit = unit.filter(|(path, _)| path.ends_with("-1.service")).collect::<Vec<_>>();
        let (_, text) = unit[0];
        let commands: Vec<&str> = text.lines().filter(|line| line.contains("fe80")).collect();
        assert!(!commands.is_empty());
        for line in commands {
            let places = line.matches("fe80::1%").count();
            assert!(places > 0 && line.matches("fe80::1%%eth0").count() == places, "{line}");
        }
    }
}

/// The file of the host's name may be changed, and the paths still come back as the host that the server knows.
#[test]
fn a_host_stays_who_it_was_when_it_was_attached() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::NvmeTcp, 1, &Options::default());
    let text = page::plan(&plan);
    let host = "--hostid=0f01fb42-9f7f-4856-b0b3-51e60b8de349";
    assert!(text.lines().filter(|line| line.contains(host)).count() == 2, "{text}");
    assert!(text.contains("--hostnqn=nqn.2014-08.org.nvmexpress:uuid:0f01fb42"), "{text}");
}

/// One journal that nobody can read is about one disk.
#[test]
fn a_damaged_journal_is_in_the_way_of_its_own_disk_only() {
    let fake = Fake::new();
    let before = fake.state();
    for (file, text) in [
        ("lab-0", "{\"version\": 1, \"na"),
        ("old", "{\"version\": 7}"),
        ("other", "[]"),
        ("empty", ""),
    ] {
        fake.tree.borrow_mut().file(&format!("{STATE}/{file}.json"), text);
    }
    let damaged = fake.state();
    let found = journals(&fake);
    let names: Vec<&str> = found.damaged.iter().map(|have| have.name.as_str()).collect();
    assert_eq!((names.as_slice(), found.all.len()), (&["empty", "lab-0", "old", "other"][..], 0));
    let told = found.damaged[1].to_string();
    assert!(told.contains("/lab-0.json") && told.contains("take back by hand"), "{told}");
    // Its name is not taken, nor its file overwritten.
    let offers = server(vec![offer(Transport::Iscsi, 1)]);
    let url = address("iscsi://joe@192.0.2.1");
    let plan = plan(&url, &Host::look(&fake), &offers, &mounted(), &found).expect("a plan");
    assert_eq!(plan.name, "lab-0-2");
    attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    assert_eq!(journals(&fake).damaged.len(), 4);
    clear(&fake).expect("detached");
    assert_eq!(fake.state(), damaged);
    fake.tree.borrow_mut().remove(STATE);
    assert_eq!(fake.state(), before);
}

/// Root would do what it says.
#[test]
fn a_journal_of_another_user_is_not_believed() {
    for foreign in [STATE.to_owned(), format!("{STATE}/lab-0.json")] {
        let fake = Fake::new();
        let plan = planned(&fake, Transport::Iscsi, 1, &Options::default());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        *fake.foreign.borrow_mut() = Some(foreign.clone());
        let found = journals(&fake);
        assert_eq!((found.all.len(), found.damaged.len()), (0, 1));
        assert!(found.damaged[0].to_string().contains("another user's"), "{}", found.damaged[0]);
        if foreign == STATE {
            let fake = Fake::new();
            let before = fake.state();
            *fake.foreign.borrow_mut() = Some(foreign);
            let error = attach(&fake, &plan, &secrets(), &[], STATE).expect_err("not there");
            assert!(matches!(error, AttachError::Before(_)), "{error}");
            assert_eq!(fake.state(), before);
        }
    }
}

/// What hangs in the kernel until its server is back.
#[test]
fn a_mounted_disk_without_a_path_is_detached_by_force_only() {
    for (transport, portals) in CASES {
        let fake = Fake::new();
        let before = fake.state();
        let plan = planned(&fake, transport, portals, &mounted());
        attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
        let attached = fake.state();
        fake.paths_are_gone();
        let lost = fake.state();
        let ran = fake.ran.borrow().len();
        let error = clear(&fake).expect_err("no path");
        assert!(error.0.contains("lunet detach --force") && error.0.contains("lost"), "{error}");
        assert_eq!((fake.state(), fake.ran.borrow().len()), (lost, ran), "{transport}");
        // A disk that does not answer, although its paths look well.
        fake.paths_are_back();
        assert_eq!(fake.state(), attached);
        fake.silent.set(true);
        let error = clear(&fake).expect_err("no answer");
        assert!(error.0.contains("does not answer"), "{error}");
        assert_eq!(fake.state(), attached);
        let mut all = there(&fake);
        let kept = detach(&fake, &mut all.remove(0), &[], STATE, true).expect("by force");
        assert!(kept.iter().any(|kept| kept.contains("/srv/a b") && kept.contains("lost")));
        assert_eq!(fake.state(), before, "{transport}");
        let ran = fake.ran.borrow();
        let at = |start: &str| ran.iter().rposition(|call| call.contains(start));
        let ends = if transport.is_nvme() { "nvme disconnect" } else { "--logout" };
        assert!(
            at(ends).is_some() && at(ends) < at("umount -l"),
            "the path is cut before it is unmounted: {ran:?}"
        );
    }
}

/// Killed, with the program that it ran still at work.
#[test]
fn a_program_of_a_killed_run_is_waited_for() {
    let fake = Fake::new();
    assert_eq!(settled(&fake, Duration::ZERO, &mut |_| panic!("nothing runs")), Ok(()));
    fake.tree.borrow_mut().file("/proc/55/comm", "iscsiadm\n");
    fake.tree.borrow_mut().file("/proc/55/status", "Name:\tiscsiadm\nUid:\t0\t0\t0\t0\n");
    fake.tree.borrow_mut().symlink("/proc/55/fd/0", "/run/lunet-attach/lock");
    // In a namespace of an ordinary user.
    fake.tree.borrow_mut().file("/proc/54/status", "Name:\tx\nUid:\t1000\t0\t0\t0\n");
    fake.tree.borrow_mut().symlink("/proc/54/fd/0", "/run/lunet-attach/lock");
    fake.tree.borrow_mut().file("/proc/56/comm", "bash\n");
    fake.tree.borrow_mut().symlink("/proc/56/fd/0", "/dev/null");
    let mut told = Vec::new();
    let error = settled(&fake, Duration::ZERO, &mut |text| told.push(text.to_owned()));
    let error = error.expect_err("it runs").0;
    assert!(error.contains("iscsiadm (process 55)") && error.contains("`kill 55`"), "{error}");
    assert_eq!(told.len(), 1);
}

#[test]
fn a_session_that_is_not_ours_is_left_alone() {
    let fake = Fake::new();
    let call = crate::system::Call::new(&format!(
        "iscsiadm -m node -T {IQN} -p 192.0.2.1:3260,1 -I default --login"
    ));
    fake.run(&call).expect("a session");
    let offers = server(vec![offer(Transport::Iscsi, 1)]);
    let url = format!("iscsi://192.0.2.1/{IQN}/0");
    let refused = plan(
        &address(&url),
        &Host::look(&fake),
        &offers,
        &Options::default(),
        &Journals::default(),
    );
    assert!(matches!(refused, Err(Refusal::Foreign { .. })), "{refused:?}");
}

/// The same portal with another portal group tag: of a target that was set up anew, and not ours.
#[test]
fn a_record_of_another_portal_group_is_not_taken_for_ours() {
    let fake = Fake::new();
    let record = format!("/etc/iscsi/nodes/{IQN}/192.0.2.1,3260,2/default");
    fake.tree.borrow_mut().file(&record, "node.startup = manual\nnode.session.queue_depth = 7\n");
    let before = fake.state();
    let plan = planned(&fake, Transport::Iscsi, 1, &Options::default());
    let done = attach(&fake, &plan, &secrets(), &[], STATE).expect("attached");
    assert!(status(&fake, &done.attachment).is_fine());
    let read = |path: &str| lunet_host::source::Source::read(&fake, path);
    assert!(read(&record.replace(",2/", ",1/")).is_some_and(|text| text.contains("automatic")));
    assert!(read(&record).is_some_and(|text| text.contains("= 7")));
    clear(&fake).expect("detached");
    assert_eq!(fake.state(), before);
    // A session of it is not ours either.
    let login = format!("iscsiadm -m node -T {IQN} -p 192.0.2.1:3260,2 -I default --login");
    fake.run(&crate::system::Call::new(&login)).expect("a session");
    let sessions = Host::look(&fake).sessions;
    let paths = done.attachment.steps.iter().filter_map(|step| match step {
        crate::step::Step::Session { path } => Some(path),
        _ => None,
    });
    assert!(
        paths.clone().count() == 1
            && paths.into_iter().all(|path| path.session(&sessions).is_none())
    );
}

#[test]
fn the_best_transport_is_taken_and_the_others_have_their_reason() {
    let fake = Fake::new();
    let host = Host::look(&fake);
    assert!(host.lacks(Transport::NvmeRdma).is_some_and(|why| why.contains("RDMA device")));
    let mut all = server(vec![offer(Transport::Iscsi, 1), offer(Transport::NvmeTcp, 1)]);
    all.refused.push((Transport::Iser, "no RDMA".into()));
    let made = plan(
        &address(&format!("192.0.2.1/{IQN}")),
        &host,
        &all,
        &Options::default(),
        &Journals::default(),
    )
    .expect("a plan");
    assert_eq!(made.offer.transport, Transport::NvmeTcp);
    let reasons: Vec<Transport> = made.not_taken.iter().map(|(transport, _)| *transport).collect();
    assert_eq!(reasons, [Transport::Iser, Transport::Iscsi]);
    all.offers[1].disk.bytes = 1;
    let refused =
        plan(&address("192.0.2.1"), &host, &all, &Options::default(), &Journals::default());
    assert!(matches!(refused, Err(Refusal::Several(_))), "{refused:?}");
    let none = plan(
        &address("192.0.2.1"),
        &host,
        &Server::default(),
        &Options::default(),
        &Journals::default(),
    );
    assert!(matches!(none, Err(Refusal::NoWay(_))), "{none:?}");
}

#[test]
fn packages_are_named_as_the_distribution_names_them() {
    let fake = Fake::new();
    fake.tree.borrow_mut().remove("/usr/sbin/iscsiadm");
    fake.tree.borrow_mut().remove("/usr/sbin/multipath");
    let lacks = |fake: &Fake| Host::look(fake).lacks(Transport::Iscsi).unwrap_or_default();
    assert!(lacks(&fake).ends_with("`apt install open-iscsi`"), "{}", lacks(&fake));
    let two = server(vec![offer(Transport::Iscsi, 2)]);
    let refused = plan(
        &address(&format!("iscsi://h/{IQN}/0")),
        &Host::look(&fake),
        &two,
        &Options::default(),
        &Journals::default(),
    );
    let error = refused.expect_err("no multipath").to_string();
    assert!(error.contains("`apt install multipath-tools`"), "{error}");
    fake.tree
        .borrow_mut()
        .file("/etc/os-release", "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n");
    assert!(lacks(&fake).ends_with("`dnf install iscsi-initiator-utils`"), "{}", lacks(&fake));
}

#[test]
fn profiles_set_queues_and_timeouts() {
    let value = |profile: Profile, several, name: &str| {
        profile
            .of_session(several)
            .into_iter()
            .find(|choice| choice.name == name)
            .map(|choice| choice.value)
    };
    let depth = "node.session.queue_depth";
    assert_eq!(value(Profile::Vm, false, depth).as_deref(), Some("256"));
    assert_eq!(value(Profile::Database, false, depth).as_deref(), Some("32"));
    let wait = "node.session.timeo.replacement_timeout";
    assert_eq!(value(Profile::Vm, true, wait).as_deref(), Some("15"));
    assert_eq!(value(Profile::Vm, false, wait).as_deref(), Some("600"));
    assert_eq!(Profile::Vm.io_policy((6, 1)).value, "round-robin");
    assert_eq!(Profile::Vm.io_policy((6, 12)).value, "queue-depth");
    let fake = Fake::new();
    let plan = planned(
        &fake,
        Transport::NvmeTcp,
        2,
        &Options { profile: Profile::Backup, ..Options::default() },
    );
    let text = page::plan(&plan);
    assert!(
        text.contains("queue/read_ahead_kb}=\"4096\"")
            && text.contains("iopolicy}=\"round-robin\""),
        "{text}"
    );
    assert!(text.contains("--ctrl-loss-tmo=-1"), "{text}");
    let options = Options { profile: Profile::Backup, ..Options::default() };
    let text = page::plan(&planned(&fake, Transport::Iscsi, 2, &options));
    assert!(text.contains("ENV{DM_UUID}==\"mpath-36024c4e0\", ATTR{queue/read_ahead_kb}=\"4096\""));
}

#[test]
fn addresses_are_read() {
    let lun = address(&format!("iser://joe@[fd00::1]:3261/{IQN}/3?data_digest=none"));
    assert_eq!((lun.transport, lun.port, lun.unit), (Some(Transport::Iser), Some(3261), Some(3)));
    assert_eq!((lun.host.as_str(), lun.user.as_deref()), ("fd00::1", Some("joe")));
    let namespace = address(&format!("nvme+tcp://nas/{NQN}/2"));
    assert_eq!(
        (namespace.transport, namespace.port, namespace.unit),
        (Some(Transport::NvmeTcp), None, Some(2))
    );
    let local = address(&format!("nvme-tcp://[fe80::1%eth0.7]/{NQN}"));
    assert_eq!(local.host, "fe80::1%eth0.7");
    assert!(is_same_host("fe80::1%eth0", "fe80:0::1%eth0"));
    assert!(!is_same_host("fe80::1%eth0", "fe80::1%eth1") && !is_same_host("a%b", "a%c"));
    assert_eq!(address(&format!("nas/{NQN}")).transport, None);
    let any = address(&format!("nas:3260/{IQN}/1"));
    assert_eq!((any.transport, any.port, any.unit), (None, Some(3260), Some(1)));
    assert_eq!(
        Address::parse(&format!("iscsi://joe%secret@nas/{IQN}/0")),
        Err(AddressError::Secret)
    );
    assert_eq!(Address::parse("nfs://nas/x"), Err(AddressError::Scheme("nfs".into())));
    let name = format!("iscsi://nas/{IQN};rm -rf/0");
    assert!(matches!(Address::parse(&name), Err(AddressError::IscsiName(_))));
    let name = format!("nvme-tcp://nas/{NQN};rm/1");
    assert!(matches!(Address::parse(&name), Err(AddressError::Nqn(_))));
    let user = format!("iscsi://a\nnode.startup@nas/{IQN}/0");
    assert_eq!(Address::parse(&user), Err(AddressError::User));
}

/// They are parts of paths, and words of commands, units and rules; the server says them, too.
#[test]
fn names_have_the_forms_that_there_are() {
    let long = |len: usize| format!("iqn.2026-11.x:{}", "n".repeat(len - 14));
    let long_nqn = |len: usize| "n".repeat(len);
    for name in [
        IQN,
        "iqn.2001-04.com.example",
        "iqn.1992-08.com.netapp:sn.1:vs_3",
        "eui.02004567A425678D",
        "naa.52004567ba64678d",
        "naa.62004567BA64678D0123456789ABCDEF",
        &long(223),
        NQN,
        "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "blktests-subsystem-1",
        &long_nqn(223),
    ] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    for name in [
        "iqn.2026-11.x:a/../../etc",
        "iqn.2026-11.x:a/b",
        "iqn.2026-11.x:a@b",
        "iqn.2026-11.x:a,b",
        "iqn.2026-11.x:a b",
        "iqn.2026-11.x:\u{e4}",
        "iqn.2026-11.",
        "iqn.2026-1.x",
        "iqn.26-11.x",
        "iqn.x:y",
        "iqn.",
        "eui.0200",
        "eui.02004567A425678G",
        "naa.52004567ba64678d0",
        &long(224),
        "",
        "..",
        "-config=x",
        "-oexec",
        "../../../etc/cron.d",
        "iqn.2026-11.x:a/../x",
        "a/b",
        "a b",
        "a\nb",
        "a'b",
        "a*b",
        "nqn.2026-11.x:\u{e4}",
        &long_nqn(224),
    ] {
        assert!(check_name(name).is_err(), "{name}");
    }
    // As the server says them.
    let host = Host::look(&Fake::new());
    let planned = |transport: Transport, name: &str| {
        let named = Offer { name: name.to_owned(), ..offer(transport, 1) };
        let url = address(&format!("{}://192.0.2.1", transport.scheme()));
        let (offers, options) = (server(vec![named]), Options::default());
        plan(&url, &host, &offers, &options, &Journals::default()).is_ok()
    };
    assert!(planned(Transport::Iscsi, IQN) && planned(Transport::NvmeTcp, NQN));
    assert!(!planned(Transport::Iscsi, NQN) && !planned(Transport::NvmeTcp, IQN));
    assert!(!planned(Transport::Iscsi, "iqn.2026-11.x:a/b") && !planned(Transport::Iscsi, ".."));
}

/// A server says what it likes: no text of it steers a terminal, in a refusal neither.
#[test]
fn names_that_are_refused_steer_no_terminal() {
    let host = Host::look(&Fake::new());
    let planned = |names: &[&str], url: &str| {
        let named = |(at, name): (usize, &&str)| {
            let mut one = Offer { name: (*name).to_owned(), ..offer(Transport::ALL[3 - at], 1) };
            one.disk.bytes <<= at;
            one
        };
        let offers = server(names.iter().enumerate().map(named).collect());
        let options = Options::default();
        let refused = plan(&address(url), &host, &offers, &options, &Journals::default());
        refused.expect_err("no name").to_string()
    };
    for odd in ["\u{1b}[2J", "\u{9b}2J", "\u{202e}x", "\u{2066}x", "\nlunet: fine", "\rx"] {
        for name in [format!("iqn.2026-11.x:{odd}"), format!("nqn.2026-11.x:{odd}")] {
            // By a transport, and where several names are shown.
            for said in
                [planned(&[&name], "iscsi://192.0.2.1"), planned(&[&name, NQN], "192.0.2.1")]
            {
                assert!(said.chars().all(is_printable), "{said:?}");
            }
        }
    }
}

/// Names begin with no dash, and the programs of the units are told so, too.
#[test]
fn units_take_no_name_for_an_option() {
    let fake = Fake::new();
    let plan = planned(&fake, Transport::NvmeTcp, 1, &Options::default());
    let all: Vec<_> = plan.steps.iter().filter_map(|step| step.text()).collect();
    let text = all.iter().find(|(path, _)| path.ends_with("-1.service")).expect("a unit").1;
    for word in [format!("-qsxFe {NQN} "), "-qsxe tcp ".into(), "-qxFe traddr=192.0.2.1,".into()] {
        assert!(text.contains(&word), "{text}");
    }
}

#[test]
fn scripts_are_for_other_machines() {
    let url = address(&format!("iscsi://joe@192.0.2.10/{IQN}/2"));
    let esxi = script(Platform::Esxi, &url).expect("a script");
    assert!(esxi.contains("\nportal='192.0.2.10:3260'\n"), "{esxi}");
    let windows = script(Platform::Windows, &url).expect("a script");
    assert!(windows.contains("Connect-IscsiTarget @connect") && windows.contains(IQN), "{windows}");
    let libvirt = script(Platform::Libvirt, &url).expect("a script");
    assert!(libvirt.contains(&format!("name='{IQN}/2'")), "{libvirt}");
    let comments = libvirt.split("<!--").skip(1).filter_map(|rest| rest.split_once("-->"));
    comments.for_each(|(comment, _)| {
        assert!(!comment.contains("--"), "XML has no such comment: {comment}")
    });
    // A name is a word, whatever it holds.
    let odd = Address { user: Some("o'$(x)".into()), ..url };
    assert!(script(Platform::Esxi, &odd).expect("a script").contains(r"user='o'\''$(x)'"));
    assert!(script(Platform::Windows, &odd).expect("a script").contains("$user = 'o''$(x)'"));
    let nvme = address(&format!("nvme-tcp://nas/{NQN}"));
    for (platform, said) in
        [(Platform::Windows, "use iscsi://"), (Platform::Libvirt, "attach the host")]
    {
        let error = script(platform, &nvme).expect_err("no NVMe").to_string();
        assert!(error.contains("NVMe over TCP") && error.contains(said), "{error}");
    }
    let esxi = script(Platform::Esxi, &nvme).expect("a script");
    assert!(esxi.contains("--protocol TCP") && esxi.contains("--tagname=NVMeTCP"), "{esxi}");
    assert!(esxi.contains("--port-number 4420") && esxi.contains(&format!("\nnqn='{NQN}'\n")));
    let rdma = address(&format!("nvme-rdma://nas:4421/{NQN}"));
    let esxi = script(Platform::Esxi, &rdma).expect("a script");
    assert!(esxi.contains("--protocol RDMA") && esxi.contains("--port-number 4421"), "{esxi}");
    assert!(script(Platform::Esxi, &address("iscsi://nas")).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever somebody writes, an address that is taken shows as one that is the same.
    #[test]
    fn what_is_shown_is_the_same_address(text in "(iscsi|nvme-tcp|iser)://[a-z]{1,4}(:[1-9][0-9]{0,3})?/(iqn|nqn)\\.2026-11\\.[a-z:;' ]{1,6}(/[0-9]{1,3})?") {
        if let Ok(read) = Address::parse(&text) {
            prop_assert_eq!(Address::parse(&read.to_string()), Ok(read));
        }
    }
}
