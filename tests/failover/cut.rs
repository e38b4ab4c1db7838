//! An owner that initiators reach, and that does not reach the cluster: it lives in a network of its own, with a wire to
//! each.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::ceph::another;
use lunet_e2e::process::{Running, leashed, output};
use lunet_e2e::wire::scsi::{read16, write16};
use lunet_e2e::wire::{Login, Session};

use crate::load::Load;
use crate::world::{
    BLOCK, GOOD, Group, PATIENCE, TARGET, ask, becomes, long, seconds, told, until,
};

fn ip(words: &str) -> Result<String> {
    output(Command::new("ip").args(words.split(' ')), PATIENCE)
}

/// A network of an owner, with wires to this one.
struct Network {
    holder: Running,
    /// What it has of its wires here: one to the cluster, one to initiators, and one that only has an address.
    wires: [String; 3],
    /// Each wire's addresses here and there.
    addresses: [[String; 2]; 3],
}

impl Network {
    /// `None` where this cannot be done, which is said.
    fn new() -> Result<Option<Self>> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can lay wires between networks");
            return Ok(None);
        }
        let mut command = leashed(None);
        command.args(["unshare", "--net", "sh", "-c", "echo there; exec sleep 3600"]);
        let holder = Running::spawn(&mut command)?;
        let there = |text: &str| text.contains("there").then_some(());
        let ready = holder.stdout.find(Instant::now() + PATIENCE, there);
        ready.context("there is no network of its own")?;
        let me = std::process::id();
        let wires = ["c", "i", "h"].map(|kind| format!("ln{kind}{me}"));
        let address =
            |at: u32| format!("198.{}.{}.{}", 18 + me / 4096 % 2, me / 16 % 256, me % 16 * 16 + at);
        let addresses = [0, 4, 8].map(|wire| [1, 2].map(|end| address(wire + end)));
        let network = Self { holder, wires, addresses };
        network.lay()?;
        Ok(Some(network))
    }

    fn lay(&self) -> Result<()> {
        let pid = self.holder.pid();
        self.inside("ip link set lo up")?;
        for (wire, [here, there]) in self.wires.iter().zip(&self.addresses) {
            ip(&format!("link add {wire} type veth peer name {wire} netns {pid}"))?;
            ip(&format!("addr add {here}/30 dev {wire}"))?;
            ip(&format!("link set {wire} up"))?;
            if *here != self.home() {
                self.inside(&format!("ip addr add {there}/30 dev {wire}"))?;
                self.inside(&format!("ip link set {wire} up"))?;
            }
        }
        let via = &self.addresses[0][0];
        self.inside(&format!("ip route add {}/32 via {via}", self.home())).map(drop)
    }

    /// An address of this machine, which goes when the network does. It is there whatever happens to the wire to the
    /// cluster.
    fn home(&self) -> &str {
        &self.addresses[2][0]
    }

    /// Where initiators reach whoever lives there.
    fn portal(&self) -> String {
        format!("{}:3260", self.addresses[1][1])
    }

    /// What comes before a command in that network.
    fn entrance(&self) -> Vec<String> {
        vec!["nsenter".to_owned(), format!("--net=/proc/{}/ns/net", self.holder.pid())]
    }

    fn inside(&self, words: &str) -> Result<String> {
        let entrance = self.entrance();
        let mut command = Command::new(&entrance[0]);
        output(command.args(&entrance[1..]).args(words.split(' ')), PATIENCE)
    }

    /// Nothing gets through to the cluster or back, and nobody is told.
    fn cut(&self) -> Result<()> {
        ip(&format!("link set {} down", self.wires[0])).map(drop)
    }

    fn mend(&self) -> Result<()> {
        ip(&format!("link set {} up", self.wires[0])).map(drop)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for wire in &self.wires {
            // The other end goes with it.
            drop(ip(&format!("link delete {wire}")));
        }
    }
}

#[test]
fn an_owner_cut_from_the_cluster_answers_nothing_and_lets_nothing_land() -> Result<()> {
    if !long() {
        return Ok(());
    }
    let Some(network) = Network::new()? else { return Ok(()) };
    let Some(ceph) = another(Some(network.home())) else { return Ok(()) };
    let mut group = Group::new(&ceph, "cut")?;
    group.portals[0] = network.portal();
    let entrance = network.entrance();
    let entrance: Vec<&str> = entrance.iter().map(String::as_str).collect();
    let one = group.configured(1, group.config(1, "", "")).by(&entrance).start()?;
    becomes(&one, "owner")?;
    let two = group.serve(2)?;
    becomes(&two, "standby")?;
    let mut load = Load::start(&group, 2)?;
    network.cut()?;
    let cut = Instant::now();
    becomes(&two, "owner")?;
    load.goes_on()?;
    seconds("owner cut from the cluster, longest time without a write", load.pause_since(cut));
    load.rest()?;
    // It still has what hosts sent, and hosts reach it: with the writes that it could not carry out, and with new ones.
    let mut late = Session::open(&Login {
        initiator: "iqn.x:late",
        patience: Duration::from_secs(2),
        ..Login::new(&group.portals[0], TARGET)
    });
    let mut told_nothing = true;
    if let Ok(session) = &mut late {
        for cdb in [read16(0, 8), write16(0, 8)] {
            let (expected, data) =
                if cdb[0] == 0x88 { (8 * BLOCK, vec![]) } else { (0, vec![7; 8 * BLOCK]) };
            // Silence, a lost connection, or an answer that it does not serve.
            if let Ok(answer) = ask(session, &cdb, expected, &data) {
                told_nothing &= answer.status != GOOD;
            }
        }
    }
    ensure!(told_nothing, "an owner without its cluster has served something");
    network.mend()?;
    let mended = Instant::now();
    becomes(&one, "standby")?;
    seconds("wire mended, until the former owner is a standby", mended.elapsed());
    load.is_on(&group)?;
    load.resume()?;
    until("it owns the group again", || {
        two.command(&["group", "move", "vms", "1"])?;
        Ok(told(&one)?["state"] == "owner")
    })?;
    load.goes_on()?;
    load.finish(&group)
}
