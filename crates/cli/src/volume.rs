//! `lunet volume`

use std::path::PathBuf;
use std::process::ExitCode;

use crate::control::Client;
use crate::tables;
use anyhow::{Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use lunet_api::{Change, NewVolume, VolumeLimits};
use lunet_config as config;
use lunet_config::units::{self, Grain};

use super::{Ask, Forced, Sure, answer, complete, width};

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// List volumes
    List(Ask),
    /// Create a volume, in the configuration file too
    Create(Box<Create>),
    /// Grow a volume; omit SIZE for a block device that has grown
    Resize {
        /// Volume
        #[arg(add = complete::volume())]
        name: String,
        /// New size, such as 20GiB
        #[arg(value_name = "SIZE", value_parser = volume_size)]
        size: Option<u64>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Limit what is done with a volume in a second, set its share of the storage, or lift both
    Limit(Limit),
    /// Reopen the storage of a volume after a failed write-back, so that it can be flushed again
    Reopen {
        /// Volume
        #[arg(add = complete::volume())]
        name: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Create the file of a volume again, empty, after it was lost
    Recreate {
        /// Volume
        #[arg(add = complete::volume())]
        name: String,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        ask: Ask,
    },
    /// Accept the file or device that has replaced a volume's own, as it is
    Adopt {
        /// Volume
        #[arg(add = complete::volume())]
        name: String,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        ask: Ask,
    },
    /// Delete a volume with its LUNs and its data, or a snapshot
    Delete {
        /// Volume, or NAME@SNAPSHOT
        #[arg(add = complete::volume(), value_name = "NAME[@SNAPSHOT]")]
        name: String,
        /// Keep the data
        #[arg(long)]
        keep_data: bool,
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        with: Forced,
    },
    /// Take a snapshot of a volume
    Snapshot {
        /// Volume, and the name of the snapshot
        #[arg(add = complete::volume(), value_name = "NAME@SNAPSHOT", value_parser = with_snapshot)]
        name: (String, String),
        #[command(flatten)]
        ask: Ask,
    },
    /// List the snapshots of a volume, or of all
    Snapshots {
        /// Volume
        #[arg(add = complete::volume())]
        name: Option<String>,
        #[command(flatten)]
        ask: Ask,
    },
    /// Create a volume from the content of another one, or of a snapshot
    Clone {
        /// Volume or snapshot to copy
        #[arg(add = complete::volume(), value_name = "NAME[@SNAPSHOT]")]
        source: String,
        /// Name of the new volume
        new: String,
        #[command(flatten)]
        ask: Ask,
    },
    /// Roll a volume back to a snapshot; later writes are lost
    Rollback {
        /// Volume and snapshot
        #[arg(add = complete::volume(), value_name = "NAME@SNAPSHOT", value_parser = with_snapshot)]
        name: (String, String),
        #[command(flatten)]
        sure: Sure,
        #[command(flatten)]
        with: Forced,
    },
}

/// How much may be done with a volume, and its share of its storage.
#[derive(Args)]
pub struct Limits {
    /// Operations per second; `none` for no limit
    #[arg(long, value_name = "NUMBER|none", value_parser = number)]
    iops: Option<u64>,
    /// Bytes per second, such as 200MiB; `none` for no limit
    #[arg(long, value_name = "SIZE|none", value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// What was not used of so long a time may be used at once [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = burst)]
    burst: Option<u64>,
    /// Its share of the storage, compared with other volumes on the same, 1 to 1000; `none` for the default, 100
    #[arg(long, value_name = "NUMBER|none", value_parser = number)]
    weight: Option<u64>,
    /// Volumes on the same storage without a target give way if it takes longer, such as 2ms; `none` for no target
    #[arg(long, value_name = "TIME|none", value_parser = target)]
    latency_target: Option<u64>,
}

impl From<Limits> for VolumeLimits {
    fn from(limits: Limits) -> Self {
        let Limits { iops, bandwidth, burst, weight, latency_target } = limits;
        Self {
            iops,
            bytes_per_s: bandwidth,
            burst_ms: burst,
            weight,
            latency_target_us: latency_target,
        }
    }
}

/// `lunet volume limit`
#[derive(Args)]
pub struct Limit {
    /// Volume
    #[arg(add = complete::volume())]
    name: String,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    ask: Ask,
}

impl Limit {
    fn run(self) -> Result<ExitCode> {
        let Self { name, limits, ask } = self;
        ask.change(Change::LimitVolume { name, limits: limits.into() })
    }
}

/// `lunet volume create`
#[derive(Args)]
pub struct Create {
    /// Name of the volume
    name: String,
    /// Size, such as 10GiB; omit it for an existing file or image and for a block device
    #[arg(long, value_name = "SIZE", value_parser = volume_size, allow_hyphen_values = true)]
    size: Option<u64>,
    /// Where the blocks are stored
    #[arg(long, value_enum, default_value_t = Backend::File)]
    backend: Backend,
    /// File or device [default: NAME.img in the data directory]
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Image of Ceph, rbd://POOL[/NAMESPACE]/IMAGE; --size makes a new one
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// User of its cluster, without `client.` [default: admin]
    #[arg(long, value_name = "NAME", requires = "image")]
    ceph_user: Option<String>,
    /// File that says where its cluster is [default: /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE", requires = "image")]
    ceph_conf: Option<PathBuf>,
    /// File with the user's key [default: by that configuration]
    #[arg(long, value_name = "FILE", requires = "image")]
    ceph_keyring: Option<PathBuf>,
    /// Allocate space as it is written (the default)
    #[arg(long, conflicts_with = "full")]
    thin: bool,
    /// Allocate all space now
    #[arg(long)]
    full: bool,
    /// Logical block size, 512 or 4096
    #[arg(long, value_name = "BYTES")]
    block_size: Option<u32>,
    /// Refuse writes
    #[arg(long)]
    read_only: bool,
    /// `off`: a write is on stable storage before it is acknowledged, for hosts that never flush (ESXi)
    #[arg(long, value_enum, default_value_t = WriteCache::On, value_name = "on|off")]
    write_cache: WriteCache,
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    ask: Ask,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Backend {
    File,
    Block,
    Rbd,
    Memory,
    Null,
}

impl Backend {
    /// The size to make such a volume of.
    fn sized(self, size: Option<u64>) -> Result<Option<u64>> {
        match (self, size) {
            (Self::Block, Some(_)) => bail!("a block device has the size that it has: omit --size"),
            (_, size) => Ok(size),
        }
    }
}

impl From<Backend> for lunet_api::Backend {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::File => Self::File,
            Backend::Block => Self::Block,
            Backend::Rbd => Self::Rbd,
            Backend::Memory => Self::Memory,
            Backend::Null => Self::Null,
        }
    }
}

impl Create {
    /// The volume to make, and who is asked.
    fn volume(self) -> Result<(NewVolume, Ask)> {
        let new = NewVolume {
            name: self.name,
            backend: self.backend.into(),
            size: self.backend.sized(self.size)?,
            path: self.path,
            image: self.image,
            ceph_user: self.ceph_user,
            ceph_conf: self.ceph_conf,
            ceph_keyring: self.ceph_keyring,
            full: self.full,
            block_size: self.block_size,
            read_only: self.read_only,
            write_through: self.write_cache == WriteCache::Off,
            naa: None,
            limits: self.limits.into(),
        };
        Ok((new, self.ask))
    }
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum WriteCache {
    On,
    Off,
}

pub fn run(command: VolumeCommand) -> Result<ExitCode> {
    match command {
        VolumeCommand::List(ask) => {
            answer(&ask, Client::volumes, |all| tables::volumes(all, width()))
        }
        VolumeCommand::Snapshots { name, ask } => {
            answer(&ask, |client| client.snapshots(name), |all| tables::snapshots(all))
        }
        VolumeCommand::Create(new) => {
            let (new, ask) = new.volume()?;
            ask.change(Change::CreateVolume(new))
        }
        VolumeCommand::Resize { name, size, ask } => {
            ask.change(Change::ResizeVolume { name, size })
        }
        VolumeCommand::Limit(limit) => limit.run(),
        VolumeCommand::Reopen { name, ask } => ask.change(Change::ReopenVolume { name }),
        VolumeCommand::Recreate { name, sure, ask } => {
            sure.meant(&format!(
                "serves zeroes as volume {name} in place of the data that it had"
            ))?;
            ask.change(Change::RecreateVolume { name })
        }
        VolumeCommand::Adopt { name, sure, ask } => {
            sure.meant(&format!("serves what is there now as volume {name}"))?;
            ask.change(Change::AdoptVolume { name })
        }
        VolumeCommand::Delete { name, keep_data, sure, with } => {
            let change = deletion(name, keep_data, &sure, &with)?;
            with.ask.change(change)
        }
        VolumeCommand::Snapshot { name: (volume, snapshot), ask } => {
            ask.change(Change::CreateSnapshot { volume, snapshot })
        }
        VolumeCommand::Clone { source, new, ask } => {
            let (volume, snapshot) = match with_snapshot(&source) {
                Ok((volume, snapshot)) => (volume, Some(snapshot)),
                Err(_) => (source, None),
            };
            ask.change(Change::CloneVolume { volume, snapshot, name: new, naa: None })
        }
        VolumeCommand::Rollback { name: (volume, snapshot), sure, with } => {
            let what = format!(
                "takes volume {volume} back to {snapshot} and drops what was written since"
            );
            there(sure.yes, &with.ask.place, &volume, Some(&snapshot))?;
            sure.meant(&what)?;
            with.ask.change(Change::Rollback { volume, snapshot, force: with.force })
        }
    }
}

/// What `volume delete` asks for, if it is there and meant: a volume, or a snapshot by `VOLUME@SNAPSHOT`.
fn deletion(name: String, keep_data: bool, sure: &Sure, with: &Forced) -> Result<Change> {
    let (place, force) = (&with.ask.place, with.force);
    if let Ok((volume, snapshot)) = with_snapshot(&name) {
        there(sure.yes, place, &volume, Some(&snapshot))?;
        sure.meant(&format!("deletes the snapshot {name}"))?;
        return Ok(Change::DeleteSnapshot { volume, snapshot });
    }
    if !keep_data {
        there(sure.yes, place, &name, None)?;
        sure.meant(&format!("deletes volume {name} and its data"))?;
    }
    Ok(Change::DeleteVolume { name, keep_data, force })
}

/// Before it is asked whether something is meant: refuses what is not there. The server refuses it otherwise.
fn there(yes: bool, place: &super::Where, volume: &str, snapshot: Option<&str>) -> Result<()> {
    if yes {
        return Ok(());
    }
    // An error if there is no such volume.
    let all = place.client()?.snapshots(Some(volume.to_owned()))?;
    let Some(snapshot) = snapshot else { return Ok(()) };
    let names = || all.iter().map(|one| one.snapshot.as_str());
    if names().all(|name| name != snapshot) {
        let list = format!("lunet volume snapshots {volume}");
        let near = config::near_or_list(snapshot, names(), &list);
        bail!("there is no snapshot {volume}@{snapshot}{near}");
    }
    Ok(())
}

/// 0 stands for none.
fn number(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => text.parse().map_err(|_| "write a number, such as 5000, or none".to_owned()),
    }
}

/// 0 stands for none.
fn bandwidth(text: &str) -> Result<u64, String> {
    match text {
        "none" => Ok(0),
        text => config::limits::parse_bandwidth(text),
    }
}

/// In microseconds; 0 stands for none.
fn target(text: &str) -> Result<u64, String> {
    if text == "none" {
        return Ok(0);
    }
    Ok(units::parse_whole(text, Grain::Microsecond)?)
}

/// In milliseconds.
fn burst(text: &str) -> Result<u64, String> {
    Ok(units::parse_whole(text, Grain::Millisecond)?)
}

/// The size of a volume. A number alone is one of bytes, which few mean.
fn volume_size(text: &str) -> Result<u64, String> {
    let bytes = units::parse_size(text)?;
    if bytes < 512 {
        let meant = if text.bytes().all(|byte| byte.is_ascii_digit()) && bytes > 0 {
            format!("; did you mean {text}GiB?")
        } else {
            String::new()
        };
        return Err(format!("the smallest volume has 512 bytes{meant}"));
    }
    Ok(bytes)
}

fn with_snapshot(text: &str) -> Result<(String, String), String> {
    let parts =
        text.split_once('@').filter(|(name, snapshot)| !name.is_empty() && !snapshot.is_empty());
    let (name, snapshot) =
        parts.ok_or("write the volume and the snapshot as NAME@SNAPSHOT".to_owned())?;
    Ok((name.to_owned(), snapshot.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{burst, target, volume_size};

    #[test]
    fn a_number_alone_is_asked_about() {
        assert_eq!(volume_size("1GiB"), Ok(1 << 30));
        assert_eq!(volume_size("512"), Ok(512));
        assert!(volume_size("10").unwrap_err().ends_with("did you mean 10GiB?"));
        assert!(volume_size("10B").unwrap_err().ends_with("has 512 bytes"));
        assert!(volume_size("-5G").unwrap_err().contains("sizes are positive"));
    }

    #[test]
    fn times_are_kept_or_refused() {
        assert_eq!((burst("12ms"), target("1.5ms")), (Ok(12), Ok(1500)));
        for (error, unit) in
            [(burst("12345us"), "milliseconds"), (target("1500ns"), "microseconds")]
        {
            let error = error.expect_err("it would be rounded");
            assert!(error.contains(&format!("write whole {unit}")), "{error}");
        }
    }
}
