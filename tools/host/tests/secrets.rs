//! No secret gets into facts or into a captured tree.

use lunet_host::facts::facts;
use lunet_host::source::{Recorder, Source, Tree};

/// Wherever a machine that has everything keeps a secret, this word is planted.
const PLANTED: &str = "hunter2hunter2";

const MACHINE: &str = r#"
/proc/sys/kernel/osrelease: 6.6.44-production+truenas
/proc/cmdline: root=ZFS=boot-pool rd.iscsi.password=PLANTED netroot=iscsi:joe:PLANTED@10.0.0.1::::iqn quiet
/etc/version: 24.10.2
/sys/class/dmi/id/product_name: Server
/sys/class/dmi/id/product_serial: PLANTED
/etc/iscsi/iscsid.conf:
| node.session.auth.authmethod = CHAP
| node.session.auth.username = joe
| node.session.auth.password = PLANTED
| node.session.auth.password_in = PLANTED
| discovery.sendtargets.auth.password=PLANTED
| node.session.queue_depth = 32
/etc/ceph/ceph.conf:
| [client]
| key = PLANTED
| rbd_plugins = pwl_cache
/etc/sysctl.d/a.conf:
| net.core.rmem_max = 1
| # api_key=PLANTED
| x.secret=PLANTED
/etc/modprobe.d/a.conf: options thing token=PLANTED size=3
/sys/kernel/scst_tgt/targets/iscsi/iqn.a/tid: 1
/sys/kernel/scst_tgt/targets/iscsi/iqn.a/IncomingUser:
| joe PLANTED
| [key]
/sys/kernel/scst_tgt/targets/iscsi/iqn.a/OutgoingUser: joe PLANTED
/sys/kernel/config/target/iscsi/iqn.b/tpgt_1/enable: 1
/sys/kernel/config/target/iscsi/iqn.b/tpgt_1/attrib/authentication: 1
/sys/kernel/config/target/iscsi/iqn.b/tpgt_1/auth/password: PLANTED
/sys/kernel/config/target/iscsi/iqn.b/tpgt_1/acls/iqn.c/auth/password_mutual: PLANTED
/sys/kernel/config/target/iscsi/iqn.b/tpgt_1/acls/iqn.c/auth/authenticate_target: 1
/sys/kernel/config/nvmet/subsystems/nqn.a/attr_allow_any_host: 0
/sys/kernel/config/nvmet/subsystems/nqn.a/attr_serial: PLANTED
/sys/kernel/config/nvmet/subsystems/nqn.a/allowed_hosts/: nqn.h
/sys/kernel/config/nvmet/hosts/nqn.h/dhchap_key: DHHC-1:00:PLANTED:
/sys/kernel/config/nvmet/hosts/nqn.h/dhchap_ctrl_key: DHHC-1:00:PLANTED:
/sys/class/nvme/nvme0/transport: pcie
/sys/class/nvme/nvme0/serial: PLANTED
/sys/class/nvme/nvme0/dhchap_secret: DHHC-1:00:PLANTED:
/sys/block/nvme0n1 -> ../devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1
/sys/block/nvme0n1/wwid: PLANTED
/sys/block/nvme0n1/size: 8
/sys/block/dm-0/dm/uuid: mpath-PLANTED
$ nvme id-ctrl -o json /dev/nvme0
| {"sn":"PLANTED","subnqn":"nqn:PLANTED","wctemp":350,"psds":[]}
$ nvme id-ns -o json /dev/nvme0n1
| {"nguid":"PLANTED","eui64":"PLANTED","flbas":0,"lbafs":[{"ms":0,"ds":12,"rp":0}]}
$ nvme smart-log -o json /dev/nvme0
| broken {"sn": "PLANTED"
$ dmesg
| usb 1-1: SerialNumber: PLANTED
| nvme nvme0: I/O 1 QID 1 timeout, aborting
| systemd[1]: started with PLANTED
$ dmidecode -t memory
| Memory Device
| 	Size: 32 GB
| 	Serial Number: PLANTED
| 	Asset Tag: PLANTED
$ ip -d -j addr
| [{"ifname":"eth0","address":"PLANTED","addr_info":[{"local":"10.0.0.1","prefixlen":24}]}]
$ midclt call system.advanced.config
| {"kernel_extra_options":"quiet","sed_passwd":"PLANTED","motd":"PLANTED"}
$ midclt call initshutdownscript.query
| [{"when":"POSTINIT","command":"curl -u joe:PLANTED http://x","comment":"PLANTED","enabled":true},
| {"when":"POSTINIT","command":"sysctl -w a=1 && login --password PLANTED --token=PLANTED","enabled":true}]
$ midclt call tunable.query
| [{"type":"SYSCTL","var":"a.b","value":"1","comment":"PLANTED","enabled":true}]
$ midclt call iscsi.global.sessions
| [{"initiator":"iqn.c","initiator_addr":"10.0.0.2","iser":true,"chap":"PLANTED"}]
$ multipath -ll
| mpatha (PLANTED) dm-0 A,b
| size=1G features='0' hwhandler='0' wp=rw
$ lunet config show --socket /srv/d/lunet.sock
| [[target]]
| name = "iqn.l"
| [[target.user]]
| secret = "PLANTED"
| secret-file = "/etc/PLANTED"
$ lunet target list --json --socket /srv/d/lunet.sock
| [{"name": "iqn.l", "luns": []}]
$ ss -tlnHp
| LISTEN 0 1 0.0.0.0:3260 0.0.0.0:* users:(("lunet",pid=7,fd=1))
/proc/7/cwd -> /srv
/proc/7/cmdline:
| lunet
| serve
| --data
| d
"#;

fn machine() -> Tree {
    Tree::parse(&MACHINE.replace("PLANTED", PLANTED)).unwrap()
}

#[test]
fn no_secret_gets_into_a_captured_tree() {
    let machine = machine();
    let recorder = Recorder::new(&machine);
    let found = facts(&recorder);
    let tree = recorder.into_tree();
    let told: Vec<String> =
        tree.to_text().lines().filter(|line| line.contains(PLANTED)).map(str::to_owned).collect();
    assert!(told.is_empty(), "{told:#?}");
    // It was read all the same, and what is left of it tells the same.
    assert_eq!(facts(&tree), found);
    assert_eq!(facts(&machine), found, "facts do not depend on being recorded");
    let auth: Vec<_> = found.targets.iter().map(|t| t.auth.as_deref().unwrap()).collect();
    assert_eq!(auth, ["mutual-chap", "mutual-chap", "dhchap", "chap"]);
    let iscsi = found.initiators.open_iscsi.unwrap();
    assert_eq!(iscsi.settings.len(), 2, "{:?}", iscsi.settings);
    assert_eq!(found.dmesg.hits.len(), 1);
}

#[test]
fn no_secret_gets_into_facts() {
    let text = serde_json::to_string_pretty(&facts(&machine())).unwrap();
    let told: Vec<&str> = text.lines().filter(|line| line.contains(PLANTED)).collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[test]
fn what_is_recorded_is_masked_whoever_asks() {
    let machine = machine();
    let recorder = Recorder::new(&machine);
    for name in machine.entries() {
        match name.strip_prefix("$ ") {
            None => drop(recorder.read(&name)),
            Some(line) => {
                let words: Vec<&str> = line.split(' ').collect();
                let command = lunet_host::source::Command::new(words[0], &words[1..]);
                recorder.run(&command);
            }
        }
    }
    let text = recorder.into_tree().to_text();
    let told: Vec<&str> = text.lines().filter(|line| line.contains(PLANTED)).collect();
    assert!(told.is_empty(), "{told:#?}");
}
