//! Discovery of NVMe over TCP is announced by mDNS: with a real Avahi on a bus of its own, in a network of its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lunet_e2e::data::scratch;
use lunet_e2e::fuse::is_root;
use lunet_e2e::server::lunet_binary;

/// For all that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// A network namespace with an address that others could reach, a bus, and room for Avahi. All ends with it.
struct Lab {
    dir: tempfile::TempDir,
    /// Its process keeps the namespace.
    bus: Child,
    others: Vec<Child>,
}

impl Drop for Lab {
    fn drop(&mut self) {
        for child in self.others.iter_mut().chain([&mut self.bus]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={dir}/bus</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*" eavesdrop="true"/>
<allow eavesdrop="true"/></policy></busconfig>"#;

impl Lab {
    fn new() -> Result<Self> {
        let dir = scratch("lunet-announce-")?;
        let place = dir.path().to_str().context("UTF-8")?.to_owned();
        fs::write(dir.path().join("bus.conf"), BUS.replace("{dir}", &place))?;
        let network = "ip link set lo up && ip link add v0 type veth peer name v1 && ip link set v0 up && ip link set v1 up && \
                       ip addr add 192.0.2.10/24 dev v0 && exec dbus-daemon --nofork --nopidfile --config-file";
        let script = format!("{network} {place}/bus.conf");
        let bus = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "unshare", "--net", "--mount", "sh", "-c", &script])
            .spawn()?;
        let lab = Self { dir, bus, others: Vec::new() };
        lab.within(|| Ok(lab.path("bus").exists()), "the bus")?;
        Ok(lab)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program in the namespace, on the bus.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        let network = format!("--net=/proc/{}/ns/net", self.bus.id());
        command.args(["--pdeathsig", "KILL", "--", "nsenter", &network]).arg(program);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", self.path("bus").display()));
        command
    }

    fn avahi(&mut self) -> Result<()> {
        let config = self.path("avahi.conf");
        fs::write(
            &config,
            "[server]\nhost-name=lab\nuse-ipv6=no\nenable-dbus=yes\n[publish]\npublish-workstation=no\n",
        )?;
        // Its file with the process number is of the whole machine: in a file system of its own.
        let script = format!(
            "mount -t tmpfs none /run && exec avahi-daemon -f {} --no-drop-root --no-chroot --no-rlimits",
            config.display()
        );
        let mut command = self.command(Path::new("unshare"));
        let log = fs::File::create(self.path("avahi.log"))?;
        let child =
            command.args(["--mount", "sh", "-c", &script]).stdout(Stdio::null()).stderr(log);
        self.others.push(child.spawn()?);
        Ok(())
    }

    fn end_last(&mut self) -> Result<()> {
        let mut child = self.others.pop().context("there is one")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// What is announced: `SERVICE;ADDRESS;PORT;TXT`, resolved.
    fn browse(&self) -> Result<Vec<String>> {
        let out =
            self.command(Path::new("avahi-browse")).args(["-trp", "_nvme-disc._tcp"]).output()?;
        let text = String::from_utf8(out.stdout)?;
        let found = text.lines().filter(|line| line.starts_with("=;v0;"));
        Ok(found.map(|line| line.split(';').skip(3).collect::<Vec<_>>().join(";")).collect())
    }

    fn within(&self, done: impl Fn() -> Result<bool>, what: &str) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done()? {
            ensure!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn count_is(&self, count: usize, what: &str) -> Result<()> {
        self.within(|| Ok(self.browse()?.len() == count), what)
    }
}

#[test]
fn discovery_is_announced_as_long_as_it_is_served() -> Result<()> {
    if !is_root() {
        eprintln!("skipped: only root makes networks");
        return Ok(());
    }
    let mut lab = Lab::new()?;
    let file = lab.path("lunet.toml");
    let portal = |address: &str| {
        format!("[[portal]]\naddress = \"{address}\"\ntransport = [\"nvme-tcp\"]\n")
    };
    let text = |announce: bool, portals: &[&str]| {
        let portals: String = portals.iter().map(|address| portal(address)).collect();
        format!(
            "[nvme]\nannounce = {announce}\n{portals}[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n\
             [[target]]\nname = \"iqn.2026-11.local.lunet:t\"\nprotocols = [\"iscsi\", \"nvme\"]\nluns = [\"a\"]\n"
        )
    };
    let all = ["192.0.2.10:4420", "192.0.2.10:8009", "127.0.0.1:4420"];
    fs::write(&file, text(true, &all))?;
    // Avahi is not there yet, which does no harm.
    let data = lab.path("data");
    let mut serve = lab.command(&lunet_binary()?);
    serve.arg("serve").arg("--config").arg(&file).arg("--data").arg(&data);
    let log = lab.path("lunet.log");
    let server = serve.stdout(Stdio::null()).stderr(fs::File::create(&log)?).spawn()?;
    lab.others.push(server);
    let logged = |words: &str| Ok(fs::read_to_string(&log)?.contains(words));
    lab.within(|| logged("is not announced by mDNS"), "a line in the log")?;
    lab.avahi()?;
    lab.count_is(2, "both portals that others reach")?;
    let found = lab.browse()?.join("\n");
    for words in [
        "192.0.2.10;4420;",
        "192.0.2.10;8009;",
        "p=tcp",
        "NQN=nqn.2014-08.org.nvmexpress.discovery",
    ] {
        ensure!(found.contains(words), "{words}: {found}");
    }
    // A restart of Avahi.
    lab.end_last()?;
    lab.avahi()?;
    lab.count_is(2, "again after a restart of Avahi")?;
    // A portal goes, then all of it.
    let ask = |words: &[&str]| -> Result<()> {
        let out = lab.command(&lunet_binary()?).args(words).arg("--data").arg(&data).output()?;
        ensure!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        Ok(())
    };
    ask(&["portal", "remove", "192.0.2.10:8009"])?;
    lab.count_is(1, "the portal that is left")?;
    fs::write(&file, text(false, &all[..2]))?;
    ask(&["config", "apply"])?;
    lab.count_is(0, "switched off")?;
    fs::write(&file, text(true, &all[..2]))?;
    ask(&["config", "apply"])?;
    lab.count_is(2, "switched on")?;
    // The server ends.
    let mut avahi = lab.others.pop().context("Avahi")?;
    lab.end_last()?;
    let gone = lab.count_is(0, "the server is gone");
    avahi.kill()?;
    avahi.wait()?;
    gone
}
