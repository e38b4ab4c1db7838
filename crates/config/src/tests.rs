//! Each mistake: its line, its key, its words. And the documentation against the schema.

use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

use lunet_backends::layers::{Effect, Layer, Ops, Rate, Which};
use lunet_backends::rbd::ImageName;
use lunet_ring::BusyPoll;
use proptest::prelude::*;

use super::*;

/// A file that is right, for mistakes to be put into.
const GOOD: &str = r#"
[server]
data = "/srv/lunet"
busy-poll = "50us"
send-with-invalidate = "off"
zero-copy-send = "never"

[iscsi]
max-burst-length = "1MiB"
data-digest = "require"

[[portal]]
address = "192.0.2.1:3260"

[[portal]]
address = "[2001:db8::1]"
tag = 2

[volumes.vm1]
backend = "file"
size = "100GiB"

[volumes.fast]
backend = "block"
path = "/dev/zvol/tank/fast"
block-size = 4096

[volumes.scratch]
backend = "memory"
size = "1GiB"

[[target]]
name = "iqn.2026-11.local.lunet:one"
alias = "the first"
portals = ["[2001:db8::1]:3260"]
luns = { 0 = "vm1", 7 = "fast" }
allow-reset = true

[[target]]
name = "iqn.2026-11.local.lunet:two"
luns = ["scratch", "vm1"]
"#;

/// The smallest file that is right, with `more` behind it.
fn with(more: &str) -> String {
    format!("target = [{{ name = \"iqn.2026-11.local.lunet:t\" }}]\n{more}")
}

/// Asserts that `text` has exactly one mistake: on this line, of this key, with these words.
#[track_caller]
fn one(text: &str, line: usize, key: &str, words: &str) {
    let mistakes = check(text).expect_err("the file must be refused");
    let [mistake] = &mistakes[..] else { panic!("one mistake expected, not {mistakes:#?}") };
    assert_eq!((mistake.line, mistake.key.as_str()), (line, key), "{mistake}");
    assert!(mistake.text.contains(words), "{mistake}");
}

#[test]
fn a_key_that_is_there_twice_hides_no_other_mistake() {
    let text = "[volumes.a]\nbackend = 'null'\nsize = 512\nsize = 1024\n[volumes.a]\nblock-size = 7\n\
                [[target]]\nname = 'iqn.2026-11.l:x'\nname = 'iqn.2026-11.l:y'\nlun = ['a']\n\
                [server]\nshards = 0\n";
    let mistakes = check(text).unwrap_err();
    let told: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let starts = [
        "4: duplicate key: size is already defined",
        "5: duplicate key: a is already defined",
        "6: volumes.a.block-size: must be 512 or 4096",
        "9: duplicate key: name is already defined",
        "10: target.lun: ",
        "12: server.shards: must be",
    ];
    assert_eq!(told.len(), starts.len(), "{told:#?}");
    for (told, start) in told.iter().zip(starts) {
        assert!(told.starts_with(start), "{told:?} {start:?}");
    }
    // Of text that is broken in another way nobody knows what was meant.
    let mistakes = check("[server]\nshards = = 3\n[volumes.a]\nblock-size = 7\n").unwrap_err();
    assert_eq!(mistakes.len(), 1, "{mistakes:?}");
}

#[test]
fn a_file_that_is_right_is_read_as_written() {
    let config = check(GOOD).expect("right");
    assert_eq!(config.server.data.as_deref(), Some(Path::new("/srv/lunet")));
    assert_eq!(config.server.busy_poll, BusyPoll::For(Duration::from_micros(50)));
    assert_eq!(config.server.send_with_invalidate, SendWithInvalidate::Off);
    assert!(!config.server.zero_copy_send);
    assert_eq!(config.server.max_sessions, Server::default().max_sessions);
    assert_eq!(config.iscsi.max_burst_length, 1 << 20);
    assert_eq!(config.iscsi.data_digest, Digest::Require);
    let portals: Vec<_> = config.portals.iter().map(|p| (p.address.to_string(), p.tag)).collect();
    assert_eq!(portals, [("192.0.2.1:3260".into(), 1), ("[2001:db8::1]:3260".into(), 2)]);
    let names: Vec<_> = config.volumes.iter().map(|v| v.name.as_str()).collect();
    assert_eq!(names, ["fast", "scratch", "vm1"]);
    assert_eq!(config.volumes[0].block_size, Some(4096));
    assert_eq!(config.volumes[1].size(), Some(1 << 30));
    let data = Path::new("/srv/lunet");
    assert_eq!(config.volumes[2].path(data).as_deref(), Some(Path::new("/srv/lunet/vm1.img")));
    assert_eq!(config.volumes[2].size(), Some(100 << 30));
    assert_eq!(config.targets[0].portals, [1]);
    assert_eq!(config.targets[0].luns, [(0, 2), (7, 0)]);
    assert_eq!(config.targets[0].alias.as_deref(), Some("the first"));
    assert!(config.targets[1].portals.is_empty());
    let resets: Vec<_> = config.targets.iter().map(|target| target.allow_reset).collect();
    assert_eq!(resets, [true, false]);
    assert_eq!(config.targets[1].luns, [(0, 1), (1, 2)]);
}

#[test]
fn broken_toml_names_its_line_and_nothing_else() {
    one("[server]\nshards = = 3\n[iscsi]\nnonsense = 1\n", 2, "", "");
    let twice = "[server]\nshards = 1\nshards = 2\n[[target]]\nname = 'iqn.2026-11.l:x'\n";
    one(twice, 3, "", "duplicate key");
}

#[test]
fn unknown_keys_come_with_the_key_that_was_meant() {
    one(&with("[server]\nshard = 2"), 3, "server.shard", "did you mean \"shards\"?");
    let text = with("[volumes.a]\nbackend = \"null\"\nsize = 512\nblock_size = 512");
    one(&text, 5, "volumes.a.block_size", "did you mean \"block-size\"?");
    one(&with("[server]\nqueue-depth = 2"), 3, "server.queue-depth", "belongs into [iscsi]");
    one(&with("[server]\nxyzzy = 2"), 3, "server.xyzzy", "is not a key");
    one(&with("[volume.a]"), 2, "volume", "did you mean \"volumes\"?");
    one(&with("[[portal]]\naddress = \"::\"\nport = 1"), 4, "portal.port", "is not a key");
}

#[test]
fn a_key_that_is_gone_is_no_mistake_but_noted() {
    let config = check(&with("[server]\nshards = 2\ncoalesce = \"20us\"")).expect("no mistake");
    assert_eq!(config.server, Server { shards: Some(2), ..Server::default() });
    let [note] = &config.notes[..] else { panic!("one note expected, not {:?}", config.notes) };
    assert_eq!((note.line, note.key.as_str()), (4, "server.coalesce"));
    assert!(note.text.contains("no effect"), "{note}");
    let says = format!("note: line {note}\n");
    assert!(summary(&config).contains(&says), "{}", summary(&config));
    // It is gone where it was, not everywhere.
    one(&with("[iscsi]\ncoalesce = 1"), 3, "iscsi.coalesce", "is not a key");
    for gone in schema::RETIRED {
        let table = schema::TABLES.iter().find(|table| table.heading == gone.heading);
        assert!(!table.expect("a table of the file").has(gone.name), "{}", gone.name);
    }
}

#[test]
fn a_file_of_a_later_version_is_refused_for_that_alone() {
    check(&with("").replace("target", "version = 2\ntarget")).expect("the present version");
    let later = "version = 3\nnew-key = 1\n";
    one(later, 1, "version", "reads versions up to 2");
    one(&format!("version = 0\n{}", with("")), 1, "version", "from 1 to 2");
}

#[test]
fn values_of_the_wrong_type_or_range_are_named() {
    for (line, key, words) in [
        ("shards = 0", "server.shards", "from 1 to 1024"),
        ("shards = -1", "server.shards", "from 1 to 1024"),
        ("shards = \"2\"", "server.shards", "not a string"),
        ("processors = \"0-x\"", "server.processors", "\"x\" is no processor"),
        ("processors = \"3-1\"", "server.processors", "runs backwards"),
        ("processors = [0, 1]", "server.processors", "not an array"),
        ("data = 7", "server.data", "not an integer"),
        ("data = \"\"", "server.data", "no path"),
        ("driver = \"uring\"", "server.driver", "did you mean \"io_uring\"?"),
        ("busy-poll = \"1h\"", "server.busy-poll", "from 0 s to 10 ms"),
        ("busy-poll = 50", "server.busy-poll", "as in \"15s\""),
        ("send-with-invalidate = true", "server.send-with-invalidate", "\"auto\", \"on\""),
        ("send-with-invalidate = \"no\"", "server.send-with-invalidate", "\"auto\""),
        ("zero-copy-send = true", "server.zero-copy-send", "\"auto\", \"never\""),
        ("zero-copy-send = \"always\"", "server.zero-copy-send", "\"never\""),
        ("login-timeout = \"0s\"", "server.login-timeout", "from 1 s to 5 min 0 s"),
        ("buffer-memory = \"1KiB\"", "server.buffer-memory", "from 8 MiB to 64 GiB"),
        ("buffer-memory = true", "server.buffer-memory", "not a boolean"),
        ("log-level = \"loud\"", "server.log-level", "\"error\", \"warn\""),
        ("max-sessions = 0x10000", "server.max-sessions", "from 1 to 65535"),
    ] {
        one(&with(&format!("[server]\n\n{line}")), 4, key, words);
    }
    for (line, key, words) in [
        ("initial-r2t = \"No\"", "iscsi.initial-r2t", "true or false"),
        ("header-digest = \"crc32c\"", "iscsi.header-digest", "\"require\""),
        ("max-burst-length = 17000000", "iscsi.max-burst-length", "512 B to 16 MiB"),
        ("first-burst-length = \"1e3\"", "iscsi.first-burst-length", "not a size"),
        ("queue-depth = 1.5", "iscsi.queue-depth", "not a float"),
    ] {
        one(&with(&format!("[iscsi]\n{line}")), 3, key, words);
    }
    one("server = 1\ntarget = []", 1, "server", "must be a table: [server]");
    one("[target]\nname = 1", 1, "target", "[[target]]");
    one(&with("[[volumes]]"), 2, "volumes", "[volumes.NAME]");
    one(&with("[volumes]\na = 1"), 3, "volumes.a", "must be a table");
}

#[test]
fn lengths_of_16_mib_are_taken_as_the_largest_that_fits() {
    let config = check(&with("[iscsi]\nmax-burst-length = \"16MiB\"")).expect("right");
    assert_eq!(config.iscsi.max_burst_length, (16 << 20) - 1024);
    let beyond = with("[iscsi]\nmax-burst-length = 16776704");
    let mistakes = check(&beyond).expect_err("it would be another length");
    assert!(mistakes[0].text.contains("16383KiB at most, which is what 16MiB"), "{mistakes:?}");
}

#[test]
fn the_first_burst_fits_into_a_burst() {
    let small = check(&with("[iscsi]\nmax-burst-length = \"64KiB\"")).expect("right");
    assert_eq!(small.iscsi.first_burst_length, 64 << 10);
    let text = with("[iscsi]\nmax-burst-length = 1024\nfirst-burst-length = 2048");
    one(&text, 4, "iscsi.first-burst-length", "larger than max-burst-length");
}

#[test]
fn portals_are_addresses_and_differ() {
    for (address, words) in [
        ("192.0.2.256:1", "is not an address"),
        ("2001:db8::1:3260:x", "is not an address"),
        ("localhost:3260", "is not an address"),
        ("[192.0.2.1]", "is not an address"),
        ("192.0.2.1:65536", "is not an address"),
    ] {
        one(&with(&format!("[[portal]]\naddress = \"{address}\"")), 3, "portal.address", words);
    }
    for (a, b) in [("192.0.2.1", "192.0.2.1:3260"), ("0.0.0.0", "10.0.0.1"), ("::1", "[::]")] {
        let text = with(&format!("[[portal]]\naddress = '{a}'\n[[portal]]\naddress = '{b}'"));
        one(&text, 5, "portal.address", "by the portal of line 3");
    }
    let text = with("[[portal]]\naddress = '0.0.0.0'\n[[portal]]\naddress = '::'");
    assert_eq!(check(&text).expect("right").portals.len(), 2);
    one(&with("[[portal]]\ntag = 1"), 2, "portal.address", "is missing");
    one(&with("[[portal]]\naddress = '::'\ntag = 0"), 4, "portal.tag", "from 1 to 65535");
}

#[test]
fn a_portal_has_transports() {
    let read = |more: &str| {
        let text = with(&format!("[[portal]]\naddress = '::'\n{more}"));
        check(&text).expect("right").portals[0].transports
    };
    assert_eq!(read(""), Transports::Any);
    assert_eq!(read("transport = ['tcp']"), Transports::Tcp);
    assert_eq!(read("transport = ['iser']"), Transports::Rdma);
    assert_eq!(read("transport = ['iser', 'tcp']"), Transports::Both);
    let free = with("[[portal]]\naddress = '[::]:0'\ntransport = ['iser']");
    one(&free, 3, "portal.address", "must have a port");
    for (value, words) in [
        ("'iser'", "must be an array"),
        ("[]", "must be an array"),
        ("['isr']", "did you mean \"iser\"?"),
        ("['tcp', 'tcp']", "a transport twice"),
        ("['tcp', 1]", "must be one of \"tcp\", \"iser\""),
    ] {
        let text = with(&format!("[[portal]]\naddress = '::'\ntransport = {value}"));
        one(&text, 4, "portal.transport", words);
    }
}

#[test]
fn a_portal_for_nvme_has_transports() {
    let read = |more: &str| {
        let text = with(&format!("[[portal]]\naddress = '192.0.2.1'\n{more}"));
        let portal = check(&text).expect("right").nvme.portals[0].clone();
        assert_eq!(portal.address.port(), NVME_PORT);
        (portal.transports, portal.tls)
    };
    assert_eq!(read("transport = 'nvme-tcp'"), (Transports::Tcp, Tls::Allowed));
    assert_eq!(read("transport = 'nvme-rdma'"), (Transports::Rdma, Tls::Off));
    assert_eq!(read("transport = ['nvme-rdma']"), (Transports::Rdma, Tls::Off));
    let both = "transport = ['nvme-tcp', 'nvme-rdma']";
    assert_eq!(read(both), (Transports::Both, Tls::Allowed));
    assert_eq!(read(&format!("{both}\ntls = 'off'")), (Transports::Both, Tls::Off));
    for (more, line, key, words) in [
        ("transport = ['nvme-rdma', 'iser']", 4, "portal.transport", "a portal of its own"),
        ("transport = ['nvme-rdma', 'nvme-rdma']", 4, "portal.transport", "a transport twice"),
        ("transport = ['nvme-tcp', 'nvme']", 4, "portal.transport", "a portal of its own"),
        ("transport = ['rdma']", 4, "portal.transport", "or \"nvme-tcp\" and \"nvme-rdma\" alone"),
        ("transport = 'nvme-rdma'\ntls = 'required'", 5, "portal.tls", "there is no TLS over RDMA"),
        ("transport = 'nvme-rdma'\ntls = 'allowed'", 5, "portal.tls", "there is no TLS over RDMA"),
        (&format!("{both}\ntls = 'required'"), 5, "portal.tls", "cannot be \"required\""),
    ] {
        let text = with(&format!("[[portal]]\naddress = '192.0.2.1'\n{more}"));
        one(&text, line, key, words);
    }
    let free = with("[[portal]]\naddress = '[::]:0'\ntransport = 'nvme-rdma'");
    one(&free, 3, "portal.address", "must have a port");
}

#[test]
fn portals_with_a_tag_are_one_group() {
    let portal = |last: u8, more: &str| format!("[[portal]]\naddress = '192.0.2.{last}'\n{more}\n");
    let text = portal(1, "tag = 3\ngroup-state = 'non-optimized'") + &portal(2, "preferred = true");
    let read = check(&with(&text)).expect("right").portals;
    assert_eq!((read[0].group_state, read[0].preferred), (AccessState::NonOptimized, false));
    assert_eq!((read[1].group_state, read[1].preferred), (AccessState::Optimized, true));
    one(&with(&portal(1, "group-state = 'standy'")), 4, "portal.group-state", "\"standby\"?");
    let text = portal(1, "group-state = 'standby'") + &portal(2, "group-state = 'unavailable'");
    one(&with(&text), 7, "portal.group-state", "must be that of line 3");
    let text = portal(1, "preferred = true") + &portal(2, "");
    one(&with(&text), 5, "portal.preferred", "must be that of line 3");
    let many: String = (1..=17).map(|n| portal(n, &format!("tag = {n}"))).collect();
    one(&with(&many), 2 + 16 * 3, "portal.tag", "the 16 that there may be");
}

#[test]
fn an_image_has_one_volume_that_writes() {
    let two = |more: &str| {
        let one = |name: &str| format!("[volumes.{name}]\nbackend = 'rbd'\nimage = 'rbd://p/a'\n");
        with(&format!("{}{}{more}", one("a"), one("b")))
    };
    one(&two(""), 7, "volumes.b.image", "that of volume \"a\" already");
    check(&two("read-only = true")).expect("one writes");
    check(&two("ceph-conf = '/etc/other.conf'")).expect("two clusters");
}

#[test]
fn volumes_have_what_their_backend_needs_and_nothing_else() {
    for (lines, line, key, words) in [
        ("size = 512", 2, "backend", "is missing"),
        ("backend = \"ram\"", 3, "backend", "must be one of \"file\", \"block\""),
        ("backend = \"nul\"", 3, "backend", "did you mean \"null\"?"),
        ("backend = \"memory\"", 2, "size", "is missing"),
        ("backend = \"block\"", 2, "path", "is missing"),
        ("backend = \"null\"\nsize = 512\npath = \"x\"", 5, "path", "no meaning"),
        ("backend = \"block\"\npath = \"/dev/x\"\nsize = 512", 5, "size", "no meaning"),
        ("backend = \"memory\"\nsize = 512\ncache = \"direct\"", 5, "cache", "no meaning"),
        ("backend = \"null\"\nsize = 512\nwrite-cache = \"off\"", 5, "write-cache", "no meaning"),
        (
            "backend = \"file\"\npassthrough = \"polled\"",
            4,
            "passthrough",
            "no meaning for a volume with backend = \"file\"",
        ),
        (
            "backend = \"block\"\npath = \"/dev/nvme0n1\"\npassthrough = \"poll\"",
            5,
            "passthrough",
            "one of \"never\", \"interrupt\", \"polled\"",
        ),
        ("backend = \"file\"\nwrite-cache = false", 4, "write-cache", "one of \"on\", \"off\""),
        ("backend = \"file\"\nwrite-cache = \"no\"", 4, "write-cache", "one of \"on\", \"off\""),
        ("backend = \"file\"\nthreshold = \"100%\"", 4, "threshold", "\"1%\" to \"99%\""),
        ("backend = \"file\"\nthreshold = \"80\"", 4, "threshold", "\"1%\" to \"99%\""),
        ("backend = \"file\"\nthreshold = 80", 4, "threshold", "a string in quotes"),
        ("backend = \"null\"\nsize = 512\nthreshold = \"80%\"", 5, "threshold", "no meaning"),
        (
            "backend = \"file\"\nprovisioning = \"full\"\nthreshold = \"80%\"",
            5,
            "threshold",
            "provisioning = \"full\"",
        ),
        ("backend = \"rbd\"", 2, "image", "is missing"),
        ("backend = \"rbd\"\nimage = \"rbd/a\"", 4, "image", "rbd://POOL/IMAGE"),
        ("backend = \"rbd\"\nimage = \"rbd://p/a@s\"", 4, "image", "rbd://POOL/IMAGE"),
        ("backend = \"rbd\"\nimage = \"rbd://p/a\"\nsize = 512", 5, "size", "no meaning"),
        (
            "backend = \"rbd\"\nimage = \"rbd://p/a\"\nceph-user = \"client.x\"",
            5,
            "ceph-user",
            "without \"client.\": \"x\"",
        ),
        (
            "backend = \"rbd\"\nimage = \"rbd://p/a\"\nceph-conf = \"ceph.conf\"",
            5,
            "ceph-conf",
            "absolute path",
        ),
        ("backend = \"file\"\nceph-keyring = \"/k\"", 4, "ceph-keyring", "no meaning"),
        ("backend = \"file\"\nsize = 1000", 4, "size", "a multiple of the block size, 512"),
        ("backend = \"file\"\nsize = 0", 4, "size", "from 512 B"),
        ("backend = \"file\"\nblock-size = 520", 4, "block-size", "must be 512 or 4096"),
        ("backend = \"file\"\nphysical-block-size = 3", 4, "physical-block-size", "power of two"),
        ("backend = \"file\"\nproduct = \"seventeen letters\"", 4, "product", "1 to 16 printable"),
        ("backend = \"file\"\nserial = \"\"", 4, "serial", "1 to 32 printable"),
        ("backend = \"file\"\nvendor = \"ÄÖ\"", 4, "vendor", "1 to 8 printable"),
        ("backend = \"file\"\nnaa = \"6001405abcdef012\"", 4, "naa", "or 32, the first 6"),
        ("backend = \"file\"\nnaa = \"naa.5001405abcdef01é\"", 4, "naa", "or 32, the first 6"),
        ("backend = \"file\"\neui = \"0000000000000000\"", 4, "eui", "not all zero"),
    ] {
        one(&with(&format!("[volumes.a]\n{lines}")), line, &format!("volumes.a.{key}"), words);
    }
    let text = with("[volumes.a]\nbackend = 'file'\nblock-size = 4096\nphysical-block-size = 512");
    one(&text, 5, "volumes.a.physical-block-size", "smaller than block-size");
    one(&with("[volumes.'../x']\nbackend = 'file'"), 2, "volumes.../x", "name of a volume");
}

#[test]
fn an_image_has_a_namespace_a_user_and_a_keyring() {
    let text = with(
        "[volumes.a]\nbackend = 'rbd'\nimage = 'rbd://p/n/a'\nceph-user = 'gw'\nceph-keyring = '/k'",
    );
    assert_eq!(
        check(&text).expect("an image").volumes[0].backend,
        Backend::Rbd {
            image: ImageName::parse("rbd://p/n/a").expect("a name"),
            conf: None,
            user: Some("gw".to_owned()),
            keyring: Some("/k".into()),
        }
    );
}

#[test]
fn a_layer_does_one_thing() {
    let volume =
        |layer| with(&format!("[volumes.a]\nbackend = 'null'\nsize = 512\nlayers = {layer}"));
    for (layers, key, words) in [
        ("'delay'", "", "an array of tables"),
        ("['delay']", "", "must be a table"),
        ("[{ }]", "", "one of fault, delay, hang, limit and iops"),
        ("[{ delay = '5ms' }, { fault = 'read', hang = 'read' }]", "", "one of fault, delay"),
        ("[{ delai = '5ms', hang = 'all' }]", ".delai", "did you mean \"delay\"?"),
        ("[{ fault = 'wirte' }]", ".fault", "did you mean \"write\"?"),
        ("[{ fault = 'write', errno = 'EWHAT' }]", ".errno", "must be one of \"EIO\""),
        ("[{ fault = 'write', spread = '1ms' }]", ".spread", "it belongs to delay"),
        ("[{ hang = 'write', share = 1.5 }]", ".share", "from 0.0 to 1.0"),
        ("[{ hang = 'write', share = 0.0000001 }]", ".share", "a whole number of millionths"),
        ("[{ hang = 'write', share = 0.5, nth = 1 }]", ".nth", "contradicts share"),
        ("[{ hang = 'write', nth = 0 }]", ".nth", "from 1"),
        ("[{ hang = 'write', from = 4096, to = 4096 }]", ".to", "larger than from"),
        ("[{ delay = '2d' }]", ".delay", "2d"),
        ("[{ limit = 0 }]", ".limit", "1"),
        ("[{ iops = 0 }]", ".iops", "from 1"),
        ("[{ limit = '1MiB', spread = '1ms' }]", ".spread", "it belongs to delay"),
        ("[{ hang = 'read', on = 'read' }]", ".on", "it belongs to delay, limit, iops"),
    ] {
        one(&volume(layers), 5, &format!("volumes.a.layers{key}"), words);
    }
    let text = volume(
        "[{ delay = '5ms', spread = '1ms', on = 'read' }, { fault = 'write', share = 0.01, \
         errno = 'ENOSPC', from = '1MiB' }, { hang = 'flush', nth = 3 }, { limit = '2KiB', on = 'write' }, \
         { iops = 7 }]",
    );
    let millis = Duration::from_millis;
    let delay = Effect::Delay { time: millis(5), spread: millis(1) };
    let fault = Layer::new(Effect::Fault(28), Ops::WRITE);
    let fault = Layer { which: Which::Share(10_000), range: Some(1 << 20..u64::MAX), ..fault };
    let hang = Layer { which: Which::Nth(3), ..Layer::new(Effect::Hang, Ops::FLUSH) };
    let rate = |rate| NonZeroU64::new(rate).expect("not 0");
    let limit = Layer::new(Effect::Limit(Rate::Bytes(rate(2048))), Ops::WRITE);
    let iops = Layer::new(Effect::Limit(Rate::Operations(rate(7))), Ops::ALL);
    let expected = vec![Layer::new(delay, Ops::READ), fault, hang, limit, iops];
    assert_eq!(check(&text).expect("right").volumes[0].layers, expected);
}

#[test]
fn no_two_volumes_share_a_designator() {
    for (key, first, second) in [
        ("naa", "naa.300000000000000F", "300000000000000f"),
        ("eui", "eui.0123456789abcdef", "0x0123456789ABCDEF"),
    ] {
        let text = with(&format!(
            "[volumes.a]\nbackend = 'file'\n{key} = '{first}'\n[volumes.b]\nbackend = 'file'\n{key} = '{second}'"
        ));
        one(&text, 7, &format!("volumes.b.{key}"), "is that of volume \"a\" already");
    }
}

#[test]
fn no_two_volumes_share_a_file() {
    let text =
        with("[volumes.b]\nbackend = 'file'\npath = './x/../a.img'\n[volumes.a]\nbackend = 'file'");
    one(&text, 5, "volumes.a.path", "is the file of volume \"b\" already");
    let text = with(
        "[volumes.b]\nbackend='block'\npath = '/dev/sda'\n[volumes.c]\nbackend='file'\npath='/dev//sda'",
    );
    one(&text, 7, "volumes.c.path", "is the file of volume \"b\" already");
}

#[test]
fn targets_name_what_is_there() {
    const NULL: &str = "[volumes.vm1]\nbackend = 'null'\nsize = 512\n[[target]]\n";
    let name = "name = 'iqn.2026-11.local.lunet:x'\n";
    for (lines, line, key, words) in [
        ("name = 'x'", 5, "target.name", "must start with iqn."),
        ("alias = 'x'", 4, "target.name", "is missing"),
        ("NAME\nluns = 1", 7, "target.luns", "{ 0 = \"vm1\" }"),
        ("NAME\nluns = { 0 = 'vm2' }", 7, "target.luns.0", "did you mean \"vm1\"?"),
        ("NAME\nluns = ['nothing']", 7, "target.luns.0", "there is no volume \"nothing\""),
        ("NAME\nluns = [1]", 7, "target.luns.0", "a string in quotes"),
        ("NAME\nluns = { 16384 = 'vm1' }", 7, "target.luns.16384", "0 to 16383"),
        ("NAME\nluns = { 00 = 'vm1' }", 7, "target.luns.00", "leading zeroes"),
        ("NAME\nluns = ['vm1', 'vm1']", 7, "target.luns.1", "is LUN 0 of this target already"),
        ("NAME\nportals = []", 7, "target.portals", "leave it out"),
        ("NAME\nportals = ['10.0.0.1']", 7, "target.portals", "has the address \"10.0.0.1:3260\""),
        ("NAME\nportals = '::1'", 7, "target.portals", "an array"),
    ] {
        one(&format!("{NULL}{}", lines.replace("NAME", name)), line, key, words);
    }
    let text = format!("[[target]]\n{name}[[target]]\n{name}");
    one(&text, 4, "target.name", "target of line 2 already");
    let text = format!("[[portal]]\naddress='::1'\n[[target]]\n{name}portals=['::1','[::1]:3260']");
    one(&text, 5, "target.portals", "the same portal twice");
    one("", 1, "target", "at least one [[target]] or [[subsystem]]");
}

#[test]
fn a_volume_with_a_mistake_is_still_there_for_its_target() {
    let text = "[volumes.a]\nbackend = 'memory'\n[[target]]\nname = 'iqn.2026-11.l:x'\nluns=['a']";
    one(text, 1, "volumes.a.size", "is missing");
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_lines() {
    let text = "[[target]]\nname = 'x'\n[volumes.a]\nbackend = 'file'\nsize = '1X'\n\
                [server]\nshards = 0\nfoo = 1\n";
    let lines: Vec<_> = check(text).expect_err("wrong").iter().map(|m| m.line).collect();
    assert_eq!(lines, [2, 5, 7, 8]);
    let many =
        with(&format!("[server]\n{}", (0..500).map(|i| format!("k{i} = 0\n")).collect::<String>()));
    assert_eq!(check(&many).expect_err("wrong").len(), 100);
}

#[test]
fn a_mistake_reads_as_line_key_and_sentence() {
    let mistakes = check(&with("[volumes.fast]\nbackend = 'file'\nblock-size = 1")).unwrap_err();
    assert_eq!(mistakes[0].to_string(), "4: volumes.fast.block-size: must be 512 or 4096 (bytes)");
}

/// The defaults that the schema states are those that the code has.
#[test]
fn stated_defaults_are_real() {
    let mut text = with("");
    for table in [&schema::SERVER, &schema::ISCSI] {
        text.push_str(&format!("{}\n", table.heading));
        for key in table.keys.iter().filter(|key| !key.default.starts_with('(')) {
            text.push_str(&format!("{} = {}\n", key.name, key.default));
        }
    }
    let stated = check(&text).expect("defaults are right");
    let silent = check(&with("")).expect("right");
    assert_eq!(stated.iscsi, silent.iscsi);
    let server = Server { data: Some(DEFAULT_DATA.into()), ..silent.server };
    assert_eq!(stated.server, server);
}

const PAGE: &str = include_str!("../../../docs/configuration.md");

/// The part of the page under `## \`HEADING\``.
fn chapter(heading: &str) -> &'static str {
    let start = format!("\n## `{heading}`\n");
    let at = PAGE.find(&start).unwrap_or_else(|| panic!("no chapter for {heading}"));
    let rest = &PAGE[at + start.len()..];
    &rest[..rest.find("\n## ").unwrap_or(rest.len())]
}

#[test]
fn the_page_has_every_key_with_its_type_and_default_and_no_other() {
    for table in schema::TABLES {
        let chapter = chapter(table.heading);
        let rows: Vec<&str> = chapter.lines().filter(|line| line.starts_with("| `")).collect();
        for key in table.keys {
            let default = match key.default.strip_prefix('(') {
                Some(words) => words.trim_end_matches(')').to_owned(),
                None => format!("`{}`", key.default),
            };
            let row = format!("| `{}` | {} | {default} |", key.name, key.kind);
            let found = rows.iter().find(|line| line.starts_with(&row));
            assert!(found.is_some(), "{}: no row {row:?} ...", table.heading);
        }
        assert_eq!(rows.len(), table.keys.len(), "{}: rows that are no keys", table.heading);
        // An example of each key, in the chapter's own snippet.
        let snippet = chapter.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next());
        let snippet = snippet.unwrap_or_else(|| panic!("{}: no example", table.heading));
        for key in table.keys {
            let start = format!("\n{} = ", key.name);
            assert!(snippet.contains(&start), "{}: no example of {}", table.heading, key.name);
        }
    }
}

#[test]
fn every_example_of_the_page_passes_the_check() {
    let mut whole_files = 0;
    let mut pieces = String::new();
    for snippet in PAGE.split("```toml\n").skip(1) {
        let snippet = snippet.split("```").next().unwrap_or("");
        if snippet.contains("# lunet.toml") {
            whole_files += 1;
            check(snippet).unwrap_or_else(|mistakes| panic!("{snippet}\n{mistakes:#?}"));
        } else {
            pieces.push_str(snippet);
        }
    }
    assert!(whole_files >= 1);
    check(&pieces).unwrap_or_else(|mistakes| panic!("{pieces}\n{mistakes:#?}"));
}

#[test]
fn deep_nesting_is_a_mistake_and_does_not_exhaust_the_stack() {
    for open in ["[", "{ a = ", "{ a = [ "] {
        let mistakes = check(&with(&format!("x = {}", open.repeat(100_000)))).unwrap_err();
        assert_eq!(mistakes[0].line, 2, "{}", mistakes[0]);
    }
    assert!(check(&with(&format!("[{}a]", "a.".repeat(100_000)))).is_err());
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _ = check(&text);
    }

    /// A byte of a right file changed: still read or refused, and each mistake is on a line.
    #[test]
    fn a_damaged_file_is_read_or_refused(at in 0..GOOD.len(), byte in 0x09u8..0x7f) {
        let mut bytes = GOOD.as_bytes().to_vec();
        bytes[at] = byte;
        let text = String::from_utf8(bytes).unwrap();
        if let Err(mistakes) = check(&text) {
            let lines = text.lines().count() + 1;
            prop_assert!(!mistakes.is_empty());
            prop_assert!(mistakes.iter().all(|m| (1..=lines).contains(&m.line)));
        }
    }
}

#[test]
fn portals_have_a_limit_and_addresses_that_are_listened_on() {
    let many = |n: usize| -> String {
        let portal = |n| format!("[[portal]]\naddress = \"192.0.2.1:{}\"\n", 1 + n);
        (0..n).map(portal).chain(["[[target]]\nname = \"iqn.2026-11.l:x\"\n".into()]).collect()
    };
    assert_eq!(check(&many(1024)).map(|config| config.portals.len()), Ok(1024));
    let mistakes = check(&many(1026)).expect_err("two too many");
    let texts: Vec<_> = mistakes.iter().map(|mistake| (mistake.line, &*mistake.text)).collect();
    assert_eq!(texts, [(2049, "is one more than the 1024 that there may be")]);
    for (address, words) in [
        ("224.0.0.1", "a multicast address"),
        ("[ff02::1]:3260", "a multicast address"),
        ("255.255.255.255:3260", "the broadcast address"),
    ] {
        let text = format!("[[portal]]\naddress = \"{address}\"\n{}", many(0));
        let mistakes = check(&text).expect_err(address);
        assert!(mistakes[0].text.contains(words), "{mistakes:?}");
        assert!(mistakes[0].text.contains("`ip -br address`"), "{mistakes:?}");
    }
}

const NVME: &str = "[[portal]]\naddress = '192.0.2.1'\n[[portal]]\naddress = '192.0.2.1'\n\
                    transport = 'nvme-tcp'\n[volumes.a]\nbackend = 'null'\nsize = 512\n\
                    [volumes.b]\nbackend = 'null'\nsize = 512\n";

#[test]
fn a_target_over_nvme_is_a_subsystem() {
    let target = "[[target]]\nname = 'iqn.2026-11.l:x'\nprotocols = ['iscsi', 'nvme']\n";
    let of = |more: &str| {
        let config = check(&format!("{NVME}{target}{more}")).unwrap();
        assert_eq!((config.portals.len(), config.nvme.portals.len()), (1, 1));
        assert_eq!(config.nvme.portals[0].address.port(), 4420);
        config.nvme.subsystems.into_iter().next().unwrap()
    };
    let subsystem = of("luns = { 0 = 'a', 6 = 'b' }\n");
    assert_eq!(subsystem.nqn, "nqn.2026-11.l:x");
    assert_eq!(subsystem.namespaces, [(1, 0), (7, 1)]);
    assert_eq!((subsystem.hosts, subsystem.portals), (Hosts::ThisMachine, vec![]));
    let named = of("portals = ['192.0.2.1:3260', '192.0.2.1:4420']\nopen = true\n");
    assert_eq!((named.hosts, named.portals), (Hosts::Everybody, vec![0]));
    // What is for some initiators alone is for no host that is not named.
    let masked = of("luns = { 0 = 'a', 1 = { volume = 'b', initiators = ['iqn.2026-11.l:i'] } }\n");
    assert_eq!(masked.namespaces, [(1, 0)]);
    assert_eq!(of("initiators = ['iqn.2026-11.l:i']\n").hosts, Hosts::Named(vec![]));
    let host = "nqn.2014-08.org.nvmexpress:uuid:0f01fb42-9f7f-4856-b0b3-51e60b8de349";
    let hosts = of(&format!("nqn = 'nqn.2026-11.l:y'\nhosts = ['{host}']\n"));
    let one = Host { nqn: host.into(), ..Host::default() };
    assert_eq!((&*hosts.nqn, hosts.hosts), ("nqn.2026-11.l:y", Hosts::Named(vec![one])));
    const SECRET: &str = "DHHC-1:01:lf3XTpLrEkUvOBmq32MHz+UqbFgRAwl93B6qqCR6T/NCP27i:";
    let proving = of(&format!("hosts = [{{ nqn = '{host}', secret = '{SECRET}' }}]\n"));
    let secret = |text: &str, more: &str| {
        of(&format!("{more}hosts = [{{ nqn = '{host}', secret = '{text}' }}]\n")).hosts
    };
    let other = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:";
    let moved = secret(SECRET, "# A line more.\n");
    assert!(moved != proving.hosts && moved.are(&proving.hosts), "only its place is another one");
    assert!(!secret(other, "").are(&proving.hosts));
    let Hosts::Named(proving) = proving.hosts else { panic!("a host is named") };
    assert!(proving[0].secret.as_ref().is_some_and(|secret| secret.secret().is_ok()));
    assert!(!format!("{proving:?}").contains("lf3X"));
}

#[test]
fn tls_is_said_by_portals_and_hosts() {
    let key = "NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd:";
    let text = |portal: &str, host: &str| {
        format!(
            "[[portal]]\naddress = '192.0.2.1'\ntransport = 'nvme-tcp'\n{portal}[[subsystem]]\n\
             nqn = 'nqn.2026-11.l:s'\nhosts = [{{ nqn = 'nqn.2026-11.l:h'{host} }}]\n"
        )
    };
    let of = |portal: &str, host: &str| check(&text(portal, host)).unwrap().nvme;
    let host = |nvme: &Nvme| match &nvme.subsystems[0].hosts {
        Hosts::Named(hosts) => hosts[0].clone(),
        other => panic!("{other:?}"),
    };
    let plain = of("", "");
    assert!(!plain.needs_tls() && plain.portals[0].tls == Tls::Allowed);
    let keyed = of("", &format!(", tls-key = '{key}'"));
    assert!(keyed.needs_tls() && host(&keyed).tls_required);
    assert!(host(&keyed).tls_key.is_some_and(|key| key.secret().is_ok()));
    let optional = of("tls = 'off'\n", &format!(", tls-key = '{key}', tls = 'allowed'"));
    assert!(optional.portals[0].tls == Tls::Off && !host(&optional).tls_required);
    assert!(of("tls = 'required'\n", "").needs_tls());
    // A host with a secret alone may make a key of TLS by it, or has to.
    let secret = ", secret = 'DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:'";
    let proved = of("", secret);
    assert!(!proved.needs_tls() && !host(&proved).tls_required);
    let sealed = of("", &format!("{secret}, tls = 'required'"));
    assert!(sealed.needs_tls() && host(&sealed).has_to_concatenate());
    let both = of("", &format!("{secret}, tls-key = '{key}'"));
    assert!(host(&both).tls_required && !host(&both).has_to_concatenate());
    names_mistakes(&[
        (&text("", ", tls-key = 'NVMe-1:01:lf3X:'"), "subsystem.hosts.tls-key", "form"),
        (&text("", ", tls-key = 'DHHC-1:01:lf3X:'"), "subsystem.hosts.tls-key", "in secret-file"),
        (&text("", ", secret = 'NVMeTLSkey-1:01:a:'"), "subsystem.hosts.secret", "in tls-key-file"),
        (&text("", ", tls = 'allowed'"), "subsystem.hosts.tls", "no meaning without a key"),
        (&text("tls = 'on'\n", ""), "portal.tls", "must be"),
        ("[[portal]]\naddress = '192.0.2.1'\ntls = 'off'\n", "portal.tls", "iSCSI has no TLS"),
    ]);
}

#[test]
fn mistakes_of_subsystems_are_named() {
    let subsystem = "[[subsystem]]\nnqn = 'nqn.2026-11.l:s'\n";
    names_mistakes(&[
        ("[[subsystem]]\nnqn = 'iqn.2026-11.l:s'\n", "subsystem.nqn", "does not start with 'nqn.'"),
        ("[[subsystem]]\nnamespaces = ['a']\n", "subsystem.nqn", "is missing"),
        (
            "[[subsystem]]\nnqn = 'nqn.2014-08.org.nvmexpress.discovery'\n",
            "subsystem.nqn",
            "every discovery subsystem",
        ),
        (
            &format!("{subsystem}{subsystem}"),
            "subsystem.nqn",
            "is the name of the subsystem of line 13",
        ),
        (
            &format!("{subsystem}namespaces = {{ 0 = 'a' }}\n"),
            "subsystem.namespaces.0",
            "1 to 1024",
        ),
        ("[nvme]\nreferrals = ['192.0.2.1', '192.0.2.1:8009']\n", "nvme.referrals", "twice"),
        ("[nvme]\nreferrals = ['nas']\n", "nvme.referrals", "\"192.0.2.1:8009\""),
        ("[nvme]\nreferrals = ['0.0.0.0']\n", "nvme.referrals", "could connect to"),
        ("[nvme]\nreferrals = '192.0.2.1'\n", "nvme.referrals", "an array"),
        (
            &format!("{subsystem}namespaces = ['c']\n"),
            "subsystem.namespaces.1",
            "there is no volume",
        ),
        (
            &format!("{subsystem}namespaces = ['a', 'a']\n"),
            "subsystem.namespaces.2",
            "namespace 1 of",
        ),
        (
            &format!(
                "{subsystem}hosts = [{{ nqn = 'nqn.2026-11.l:h', secret = 'DHHC-1:01:lf3X:' }}]\n"
            ),
            "subsystem.hosts.secret",
            "length",
        ),
        (
            &format!(
                "{subsystem}hosts = [{{ nqn = 'nqn.2026-11.l:h', controller-secret-env = 'A' }}]\n"
            ),
            "subsystem.hosts.controller-secret-env",
            "no meaning",
        ),
        (&format!("{subsystem}hosts = []\n"), "subsystem.hosts", "/etc/nvme/hostnqn"),
        (&format!("{subsystem}portals = ['192.0.2.1:3260']\n"), "subsystem.portals", "nvme-tcp"),
    ]);
}

/// The notes of a configuration with these tables.
fn notes_of(text: &str) -> Vec<String> {
    check(text).expect(text).notes.iter().map(ToString::to_string).collect()
}

#[test]
fn what_no_host_can_reach_is_noted() {
    let portal = |port: u16, more: &str| {
        format!("[[portal]]\naddress = '192.0.2.1:{port}'\ntransport = 'nvme-tcp'\n{more}")
    };
    let key = "tls-key = 'NVMeTLSkey-1:01:yfA5y7w9H1djYdTd2lm8kSqfjE3Npv1Mq1Bz9V7byVAVpSqd:'";
    let subsystem = |more: &str| format!("[[subsystem]]\nnqn = 'nqn.2026-11.l:s'\n{more}\n");
    let keyed =
        |more: &str| subsystem(&format!("hosts = [{{ nqn = 'nqn.2026-11.l:h', {key}{more} }}]"));
    let (off, required) = ("tls = 'off'\n", "tls = 'required'\n");
    let bare = subsystem("hosts = ['nqn.2026-11.l:h']");
    let iscsi = "[[portal]]\naddress = '192.0.2.1'\n";
    for (text, words) in [
        (format!("{iscsi}{}", subsystem("")), Some("4: nqn.2026-11.l:s: is served over no portal")),
        (subsystem(""), None),
        (portal(4420, "") + &portal(8009, "") + &subsystem(""), None),
        (
            portal(8009, "") + &subsystem(""),
            Some("5: nqn.2026-11.l:s: no host can connect: every portal for NVMe has port 8009"),
        ),
        (portal(8009, "") + &subsystem("portals = ['192.0.2.1:8009']"), None),
        (portal(4420, off) + &portal(4421, "") + &keyed(""), None),
        (
            portal(4420, off) + &portal(8009, "") + &keyed(""),
            Some("subsystem.hosts.tls-key: nqn.2026-11.l:h cannot connect: it has to use TLS"),
        ),
        (
            portal(4420, off) + &keyed(", tls = 'allowed'"),
            Some("7: subsystem.hosts.tls-key: has no effect: every portal"),
        ),
        (portal(4420, required) + &keyed(""), None),
        (portal(4420, required) + &bare, Some("nqn.2026-11.l:h cannot connect: every portal")),
        (portal(4420, required) + &subsystem("open = true"), Some("no host can connect: every")),
        (portal(4420, required) + &portal(4421, "") + &bare, None),
    ] {
        let notes = notes_of(&text);
        assert_eq!(notes.len(), usize::from(words.is_some()), "{text}: {notes:?}");
        assert!(words.is_none_or(|words| notes[0].contains(words)), "{text}: {notes:?}");
    }
}

#[test]
fn portals_of_targets_are_for_their_protocols() {
    let nvme = "[[portal]]\naddress = '192.0.2.2'\ntransport = 'nvme-tcp'\n";
    let iscsi = "[[portal]]\naddress = '192.0.2.1'\n";
    let target = |more: &str| format!("[[target]]\nname = 'iqn.2026-11.l:x'\n{more}\n");
    let both = "protocols = ['iscsi', 'nvme']\n";
    let alone = format!("{iscsi}{nvme}{}", target("portals = ['192.0.2.2:4420']"));
    one(&alone, 8, "target.portals", "names no portal for iSCSI");
    let alone = format!("{iscsi}{nvme}{}", target(&format!("{both}portals = ['192.0.2.2:4420']")));
    one(&alone, 9, "target.portals", "names no portal for iSCSI");
    let named = target("portals = ['192.0.2.1', '192.0.2.2:4420']");
    let notes = notes_of(&format!("{iscsi}{nvme}{named}"));
    assert!(notes[0].starts_with("8: target.portals: has 192.0.2.2:4420, which is"), "{notes:?}");
    let notes = notes_of(&format!("{nvme}{}", target(both)));
    assert!(notes[0].starts_with("4: target: is served over no portal for iSCSI"), "{notes:?}");
    assert_eq!(notes_of(&format!("{iscsi}{nvme}{}", target(both))), [] as [&str; 0]);
    assert_eq!(notes_of(&target(both)), [] as [&str; 0]);
}

#[test]
fn names_of_hosts_may_be_odd_and_those_of_subsystems_may_not() {
    let host = |nqn: &str| format!("[[subsystem]]\nnqn = 'nqn.2026-11.l:s'\nhosts = ['{nqn}']\n");
    for (nqn, words) in [
        ("hostnqn", "does not start with 'nqn.'"),
        ("nqn.2026-11.lab_net:h", "no reverse domain name"),
        ("nqn.2026-11.l", "no ':' and name"),
        ("nqn.2014-08.org.nvmexpress:uuid:h", "does not end with a UUID"),
    ] {
        let notes = notes_of(&host(nqn));
        let whole = format!("3: subsystem.hosts: \"{nqn}\": the NQN ");
        assert!(notes[0].starts_with(&whole) && notes[0].contains(words), "{notes:?}");
        let table = host("x").replace("'x'", &format!("{{ nqn = '{nqn}' }}"));
        assert!(notes_of(&table)[0].starts_with("3: subsystem.hosts.nqn: "), "{nqn}");
    }
    for (nqn, words) in [
        ("nqn.2026-11.l:a b", "has a space"),
        ("nqn.2026-11.l:h ", "has a space"),
        ("iqn.2026-11.l:h", "the name of an iSCSI initiator"),
        ("nqn.2026-11.l:*", "name each host"),
        ("nqn.2014-08.org.nvmexpress.discovery", "of no host"),
    ] {
        one(&host(nqn), 3, "subsystem.hosts", words);
    }
    one(&host(&"n".repeat(224)), 3, "subsystem.hosts", "longer than 223 bytes");
    let notes = notes_of("[[subsystem]]\nnqn = 'nqn.2026-11.l'\n");
    assert!(notes[0].starts_with("2: subsystem.nqn: \"nqn.2026-11.l\": the NQN has no ':'"));
    one("[[subsystem]]\nnqn = 'hostnqn'\n", 2, "subsystem.nqn", "does not start");
    one("[[subsystem]]\nnqn = 'nqn.2026-11.l:*'\n", 2, "subsystem.nqn", "without *");
}

#[test]
fn mistakes_of_targets_over_nvme_are_named() {
    names_mistakes(&[
        (
            "[[target]]\nname = 'iqn.2026-11.l:x'\nhosts = ['nqn.2026-11.l:h']\n",
            "target.hosts",
            "not among the `protocols`",
        ),
        (
            "[[target]]\nname = 'iqn.2026-11.l:x'\nprotocols = ['nvme']\n",
            "target.protocols",
            "must have \"iscsi\"",
        ),
        (
            "[[target]]\nname = 'naa.0123456789abcdef'\nprotocols = ['iscsi', 'nvme']\n",
            "target.nqn",
            "is missing",
        ),
        (
            "[[portal]]\naddress = '192.0.2.2'\ntransport = ['tcp', 'nvme-tcp']\n[[target]]\nname = 'iqn.2026-11.l:x'\n",
            "portal.transport",
            "a portal of its own",
        ),
    ]);
}

/// Each text has a mistake at this key, with these words.
fn names_mistakes(cases: &[(&str, &str, &str)]) {
    for (text, key, words) in cases {
        let mistakes = check(&format!("{NVME}{text}")).expect_err(text);
        let found = mistakes.iter().find(|mistake| mistake.key == *key);
        assert!(found.is_some_and(|mistake| mistake.text.contains(words)), "{text}: {mistakes:?}");
    }
}

/// A gateway of a group, with other lines.
fn group(server: &str, portal: &str, volume: &str, target: &str, group: &str) -> String {
    format!(
        "[server]\n{server}\n[[portal]]\naddress = '192.0.2.1'\n{portal}\n[volumes.a]\n{volume}\n\
         [volumes.b]\nbackend = 'rbd'\nimage = 'rbd://p/b'\n\
         [[target]]\nname = 'iqn.2026-11.l:x'\n{target}\n\
         [group.g]\nrecord = 'rbd://p/g'\ngateway = 2\ntargets = ['iqn.2026-11.l:x']\n{group}\n"
    )
}

#[test]
fn a_gateway_has_a_number_and_a_target_whose_volumes_are_its_groups() {
    let text = group(
        "alua = 'implicit'",
        "tag = 2",
        "backend = 'rbd'\nimage = 'rbd://p/a'",
        "luns = ['b', 'a']",
        "ceph-user = 'lunet'",
    );
    let config = check(&text).unwrap();
    let [read] = &config.groups[..] else { panic!("one group") };
    assert_eq!((&*read.name, read.gateway, read.rank, read.target), ("g", 2, 1, 0));
    assert_eq!((read.place().user_name(), read.place().name.image()), ("lunet", "g"));
    assert!(config.volumes.iter().all(|volume| volume.group.as_deref() == Some("g")));
    // Over NVMe as well, by portals with any tag.
    let text = group(
        "alua = 'implicit'",
        "tag = 2\n[[portal]]\naddress = '192.0.2.1'\ntransport = 'nvme-tcp'",
        "backend = 'rbd'\nimage = 'rbd://p/a'",
        "luns = ['b', 'a']\nprotocols = ['iscsi', 'nvme']",
        "",
    );
    let config = check(&text).unwrap();
    let [subsystem] = &config.nvme.subsystems[..] else { panic!("one subsystem") };
    assert!(config.is_shared(subsystem));
    assert_eq!((&*subsystem.nqn, subsystem.namespaces.len()), ("nqn.2026-11.l:x", 2));
}

#[test]
fn a_gateway_is_reached_by_the_first_portals_of_its_target() {
    let with = |nvme: &str, more: &str| {
        let text = group(
            "alua = 'implicit'",
            &format!("tag = 2\n[[portal]]\naddress = '192.0.2.1'\ntransport = 'nvme-tcp'\n{nvme}"),
            "backend = 'rbd'\nimage = 'rbd://p/a'",
            "luns = ['b', 'a']\nprotocols = ['iscsi', 'nvme']",
            more,
        );
        check(&text).map(|config| (config.groups[0].reach, config.groups[0].reach_nvme))
    };
    let address = |text: &str| Some(text.parse().unwrap());
    let iscsi = address("192.0.2.1:3260");
    assert_eq!(with("", ""), Ok((iscsi, address("192.0.2.1:4420"))));
    // Gateways have no keys of TLS.
    let second = "tls = 'required'\n[[portal]]\naddress = '192.0.2.2'\ntransport = 'nvme-tcp'";
    assert_eq!(with(second, ""), Ok((iscsi, address("192.0.2.2:4420"))));
    assert_eq!(with("", "reach-nvme = 'none'"), Ok((iscsi, None)));
    let named = "reach = 'none'\nreach-nvme = '192.0.2.7:4421'";
    assert_eq!(with("", named), Ok((None, address("192.0.2.7:4421"))));
    let wrong = with("", "reach-nvme = '0.0.0.0:4420'").unwrap_err();
    assert!(wrong[0].text.contains("such as \"192.0.2.11:4420\""), "{wrong:?}");
    // Nor do they speak RDMA.
    let third = "[[portal]]\naddress = '192.0.2.3'\ntransport = 'nvme-rdma'";
    let both = "[[portal]]\naddress = '192.0.2.3'\ntransport = ['nvme-tcp', 'nvme-rdma']";
    let named = "reach-nvme = '192.0.2.3:4420'";
    assert_eq!(with(third, ""), Ok((iscsi, address("192.0.2.1:4420"))));
    assert_eq!(with(both, named), Ok((iscsi, address("192.0.2.3:4420"))));
    let wrong = with(third, named).unwrap_err();
    assert!(wrong[0].text.contains("is a portal for RDMA alone"), "{wrong:?}");
}

#[test]
fn what_gateways_could_differ_in_is_refused() {
    let rbd = "backend = 'rbd'\nimage = 'rbd://p/a'";
    let of = |server: &str, portal: &str, volume: &str, target: &str, more: &str| {
        let text = group(server, portal, volume, target, more);
        let mistakes = check(&text).unwrap_err();
        let line = |mistake: &Mistake| text.lines().nth(mistake.line - 1).unwrap_or_default();
        assert_eq!(mistakes.len(), 1, "{mistakes:?}");
        assert!(!mistakes[0].text.contains('\n'), "{mistakes:?}");
        format!("{} | {}", line(&mistakes[0]), mistakes[0])
    };
    let (alua, tag, luns) = ("alua = 'implicit'", "tag = 2", "luns = ['a', 'b']");
    let other = "[[target]]\nname = 'iqn.2026-11.l:y'\nluns = ['b']";
    let subsystem = "[[subsystem]]\nnqn = 'nqn.2026-11.l:s'\nnamespaces = ['b']";
    let nvme = "tag = 2\n[[portal]]\naddress = '192.0.2.1'\ntransport = 'nvme-tcp'";
    // Whose configuration of Ceph is another one, as long as it is not compared with the group's.
    let same = "backend = 'rbd'\nimage = 'rbd://p/b'";
    let both = "luns = ['a', 'b']\nprotocols = ['iscsi', 'nvme']";
    let with = |key: &str| of(alua, tag, &format!("{rbd}\n{key}"), luns, "");
    for (told, words) in [
        (of("", tag, rbd, luns, ""), "needs `alua = \"implicit\"`"),
        (of(alua, "tag = 1", rbd, luns, ""), "needs `tag = 2`"),
        (of(alua, "tag = 2\ngroup-state = 'standby'", rbd, luns, ""), "`group-state`"),
        (of(alua, tag, "backend = 'memory'\nsize = 512", luns, ""), "needs backend = \"rbd\""),
        (of(alua, tag, rbd, "luns = { 0 = 'a', 2 = 'b' }", ""), "without a gap"),
        (of(alua, tag, rbd, "", ""), "no LUN"),
        (of(alua, tag, rbd, luns, other), "is shown by iqn.2026-11.l:y as well"),
        (of(alua, nvme, rbd, luns, subsystem), "is shown by nqn.2026-11.l:s as well"),
        (of(alua, nvme, rbd, &format!("{both}\nnqn = 'nqn.2026-11.l:y'"), ""), "`nqn` of its own"),
        (
            of(alua, &format!("{nvme}\ngroup-state = 'standby'"), rbd, both, ""),
            "an NVMe portal that",
        ),
        (
            of(alua, tag, &format!("{same}\nceph-conf = '/c'"), luns, "ceph-conf = '/c'"),
            "has already",
        ),
        (with("ceph-user = 'other'"), "leave them out"),
        (with("block-size = 4096"), "cannot have `block-size`"),
        (with("vendor = 'ACME'"), "cannot have `vendor`"),
        (with("read-only = true"), "cannot have `read-only`"),
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    names_mistakes(&[
        (
            "[group.g]\nrecord = 'rbd://p/g'\ngateway = 1\ntargets = []\n",
            "group.g.targets",
            "one target",
        ),
        ("[group.g]\nrecord = 'rbd://p/g'\ngateway = 0\n", "group.g.gateway", "from 1 to"),
        ("[group.g]\nrecord = 'p/g'\n", "group.g.record", "rbd://"),
        (
            "[group.g]\nrecord = 'rbd://p/g.config'\ngateway = 1\n",
            "group.g.record",
            "must not end in",
        ),
        (
            "[group.g]\ntargets = ['iqn.2026-11.l:no']\n",
            "group.g.targets",
            "there is no [[target]]",
        ),
    ]);
}
