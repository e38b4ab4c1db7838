//! What `lunet serve` says when it serves: where, and how to attach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use lunet_config::{Config, Reach, is_for_discovery};

/// A path to a logical unit: portal, target and LUN.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LunPath<'c> {
    portal: SocketAddr,
    target: &'c str,
    lun: u16,
    /// Who may log in to the target.
    reach: Reach,
    /// Its volume is served.
    served: bool,
}

impl LunPath<'_> {
    /// The URL that libiscsi, QEMU and libvirt understand.
    fn url(&self) -> String {
        format!("iscsi://{}/{}/{}", self.portal, self.target, self.lun)
    }
}

/// The text for standard output: first a line with the first logical unit's URL, then the others, those that are not
/// served last, then how to attach. `portals` are the addresses in use, in the order of the configuration; `unserved` says
/// which volumes are not served. The second list of addresses is that for NVMe.
pub fn text(
    config: &Config,
    (portals, nvme): (&[SocketAddr], &[SocketAddr]),
    unserved: impl Fn(&str) -> bool,
) -> String {
    let mut paths = paths(config, portals, &unserved);
    paths.sort_by_key(|path| !path.served);
    let version = env!("CARGO_PKG_VERSION");
    let Some((first, others)) = paths.split_first() else {
        let listening: Vec<String> =
            portals.iter().chain(nvme).map(SocketAddr::to_string).collect();
        let over_nvme = over_nvme(config, nvme, unserved);
        let without = if over_nvme.is_some() { "" } else { ", with no LUN" };
        let listening = listening.join(", ");
        let over_nvme = over_nvme.unwrap_or_default();
        return format!("lunet {version} is ready on {listening}{without}\n{over_nvme}");
    };
    let mark = if first.served { "" } else { " (not served)" };
    let mut out = format!("lunet {version} is ready: {}{mark}\n", first.url());
    for path in others {
        let word = if path.served { "and" } else { "not served:" };
        out.push_str(&format!("  {word} {}\n", path.url()));
    }
    let over_nvme = over_nvme(config, nvme, unserved).unwrap_or_default();
    out.push_str(&attach(first, &over_nvme));
    out
}

/// How to attach the first namespace that is served over NVMe, and what it is.
fn over_nvme(
    config: &Config,
    portals: &[SocketAddr],
    unserved: impl Fn(&str) -> bool,
) -> Option<String> {
    let served = |(_, at): &&(u32, usize)| !unserved(&config.volumes[*at].name);
    let mut all = config.nvme.subsystems.iter();
    let (subsystem, nsid) =
        all.find_map(|subsystem| Some((subsystem, subsystem.namespaces.iter().find(served)?.0)))?;
    let leads = |portal: &&SocketAddr| !is_for_discovery(**portal);
    let portal = match subsystem.portals.first() {
        Some(at) => portals.get(*at),
        None => portals.iter().find(leads),
    };
    let portal = reachable(*portal?);
    let (nqn, host, port) = (&subsystem.nqn, portal.ip(), portal.port());
    Some(format!(
        "  nvme-cli    nvme discover -t tcp -a {host} -s {port}
              nvme connect -t tcp -a {host} -s {port} -n {nqn}
              (NVMe over TCP: namespace {nsid}; docs/nvme.md)
"
    ))
}

/// Every logical unit, over the first portal of its target.
fn paths<'c>(
    config: &'c Config,
    portals: &[SocketAddr],
    unserved: &impl Fn(&str) -> bool,
) -> Vec<LunPath<'c>> {
    let mut out = Vec::new();
    for target in &config.targets {
        let portal = portals.get(target.portals.first().copied().unwrap_or(0));
        let Some(portal) = portal.copied().map(reachable) else { continue };
        let reach = target.reach();
        let path = |(lun, at): &(u16, usize)| {
            let served = !unserved(&config.volumes[*at].name);
            LunPath { portal, target: &target.name, lun: *lun, reach, served }
        };
        out.extend(target.luns.iter().map(path));
    }
    out
}

/// An address that this machine can connect to: nobody can connect to 'all addresses'.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn attach(path: &LunPath<'_>, over_nvme: &str) -> String {
    let LunPath { portal, target, lun, reach, served: _ } = path;
    let (url, host, port) = (path.url(), portal.ip(), portal.port());
    // A hypervisor of its own cannot come to this machine's loopback address.
    let (from_afar, mut elsewhere) = match host.is_loopback() {
        true => (
            format!("ADDRESS:{port}"),
            format!(
                "\nOther machines need a portal that they can reach: --listen ADDRESS:{port}, or \
                 [[portal]]\nin lunet.toml."
            ),
        ),
        false => (portal.to_string(), String::new()),
    };
    elsewhere.push_str(match reach {
        Reach::Named => "\nNot everybody may log in to this target: see docs/access.md.\n",
        Reach::Everybody => "\nAnyone who can reach a portal can read and write the volumes.\n",
        Reach::ThisMachine => {
            "\nThis target is for this machine alone, until access rules let others in:\n\
             lunet target allow, or open = true for everybody (docs/access.md).\n"
        }
    });
    format!(
        "
Attach it from
  QEMU        -drive file={url},format=raw,if=virtio
  libvirt     <disk type='network' device='disk'>
                <driver name='qemu' type='raw'/>
                <source protocol='iscsi' name='{target}/{lun}'>
                  <host name='{host}' port='{port}'/>
                </source>
                <target dev='vda' bus='virtio'/>
              </disk>
  open-iscsi  iscsiadm -m discovery -t sendtargets -p {portal}
              iscsiadm -m node -T {target} -p {portal} --login
{over_nvme}  ESXi        esxcli iscsi adapter discovery sendtarget add --adapter=vmhba64 --address={from_afar}
              esxcli storage core adapter rescan --adapter=vmhba64
{elsewhere}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    #[test]
    fn each_lun_has_a_url_and_the_first_is_in_the_first_line() {
        let config = check(
            "[[portal]]\naddress = '0.0.0.0:0'\n[[portal]]\naddress = '[2001:db8::1]:7'\n\
             [volumes.a]\nbackend = 'null'\nsize = 512\n[volumes.b]\nbackend = 'null'\nsize = 512\n\
             [[target]]\nname = 'iqn.2026-11.l:x'\nluns = { 3 = 'a', 9 = 'b' }\n\
             [[target]]\nname = 'iqn.2026-11.l:y'\nluns = ['a']\nportals = ['[2001:db8::1]:7']\n",
        )
        .unwrap();
        let portals = ["0.0.0.0:40000", "[2001:db8::1]:7"].map(|text| text.parse().unwrap());
        let said =
            |unserved: &[&str]| text(&config, (&portals, &[]), |name| unserved.contains(&name));
        let lost = said(&["a"]);
        let lines: Vec<&str> = lost.lines().take(3).collect();
        assert!(
            lines[0].ends_with(" is ready: iscsi://127.0.0.1:40000/iqn.2026-11.l:x/9"),
            "{lost}"
        );
        assert_eq!(lines[1], "  not served: iscsi://127.0.0.1:40000/iqn.2026-11.l:x/3");
        assert_eq!(lines[2], "  not served: iscsi://[2001:db8::1]:7/iqn.2026-11.l:y/0");
        let first = said(&["a", "b"]).lines().next().unwrap().to_owned();
        assert!(first.ends_with(":x/3 (not served)"), "{first}");
        let text = said(&[]);
        let mut lines = text.lines();
        let first = lines.next().unwrap();
        assert!(first.ends_with(" is ready: iscsi://127.0.0.1:40000/iqn.2026-11.l:x/3"), "{first}");
        assert_eq!(lines.next(), Some("  and iscsi://127.0.0.1:40000/iqn.2026-11.l:x/9"));
        assert_eq!(lines.next(), Some("  and iscsi://[2001:db8::1]:7/iqn.2026-11.l:y/0"));
        assert!(text.contains("-p 127.0.0.1:40000 --login"), "{text}");
        assert!(text.contains("Other machines"), "{text}");
        // What the others are told to do leads to the port that they would find.
        assert!(
            text.contains("--listen ADDRESS:40000") && text.contains("--address=ADDRESS:40000")
        );
        assert!(!text.contains("3260"), "{text}");
    }

    #[test]
    fn it_says_who_may_log_in() {
        let file = "[volumes.a]\nbackend = 'null'\nsize = 512\n\
                    [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a']\n";
        let user = "[[target.user]]\nname = 'a'\nsecret-env = 'A'\n";
        for (more, words) in [
            ("", "This target is for this machine alone"),
            ("open = true\n", "Anyone who can reach a portal can read and write"),
            (user, "Not everybody may log in"),
        ] {
            let config = check(&format!("{file}{more}")).unwrap();
            for portal in ["192.0.2.1:3260", "127.0.0.1:3260"] {
                let said = super::text(&config, (&[portal.parse().unwrap()], &[]), |_| false);
                assert!(said.contains(words), "{said}");
            }
        }
    }

    #[test]
    fn targets_without_luns_are_served_too() {
        let config = check("[[target]]\nname = 'iqn.2026-11.l:x'\n").unwrap();
        let text = text(&config, (&["192.0.2.1:3260".parse().unwrap()], &[]), |_| false);
        assert!(text.contains("ready on 192.0.2.1:3260, with no LUN"), "{text}");
    }

    #[test]
    fn what_is_served_over_nvme_can_be_connected_to() {
        let config = check(
            "[[portal]]\naddress = '0.0.0.0'\ntransport = 'nvme-tcp'\n\
             [volumes.a]\nbackend = 'null'\nsize = 512\n\
             [[subsystem]]\nnqn = 'nqn.2026-11.l:x'\nnamespaces = { 7 = 'a' }\n",
        )
        .unwrap();
        let portals = [config.nvme.portals[0].address];
        let said = text(&config, (&[], &portals), |_| false);
        let connect = "nvme connect -t tcp -a 127.0.0.1 -s 4420 -n nqn.2026-11.l:x\n";
        assert!(said.contains(" is ready on 0.0.0.0:4420\n") && said.contains(connect), "{said}");
        assert!(said.contains("namespace 7"), "{said}");
        assert!(!text(&config, (&[], &portals), |_| true).contains("nvme connect"));
    }
}
