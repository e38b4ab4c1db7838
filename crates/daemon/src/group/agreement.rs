//! What a configuration and the record of a group have to agree on, and the record of a new one.

use std::io;

use lunet_front_iscsi::FAMILIES;
use lunet_gateway::{Contents, GatewayId, Port, Record, Reserved, Sanitize, Volume};
use lunet_scsi::Designator;

use crate::identity::{self, Machine};
use crate::live::Manager;
use lunet_config::{self as config, Config, Group, image_of};

/// What the configuration of this gateway says of a group.
pub(super) struct Expected {
    target: String,
    gateway: u16,
    /// All gateways have one configuration: the owner has the record follow it.
    shared: bool,
    /// By LUN.
    volumes: Vec<config::Volume>,
}

impl Expected {
    pub(super) fn new(config: &Config, group: &Group) -> Self {
        let target = &config.targets[group.target];
        let volumes = target.luns.iter().map(|(_, at)| config.volumes[*at].clone()).collect();
        Self { target: target.name.clone(), gateway: group.gateway, shared: group.shared, volumes }
    }

    /// What the configuration in force says of a group.
    pub(super) fn now(manager: &Manager, group: &str) -> Option<Self> {
        let now = manager.now();
        let config = &now.plan.config;
        let found = config.groups.iter().find(|one| one.name == group)?;
        Some(Self::new(config, found))
    }

    /// Says in one sentence what of a record is otherwise here.
    pub(super) fn agrees(&self, record: &Record) -> Result<(), String> {
        if record.target != self.target {
            return Err(format!("its target is {}, and here it is {}", record.target, self.target));
        }
        let own = port(self.gateway);
        if !record.ports.contains(&own) {
            return Err(format!(
                "it has no gateway {} (`lunet group grow` at its owner adds it)",
                self.gateway
            ));
        }
        let kept = &record.contents.volumes;
        let images = |all: Vec<String>| all.join(", ");
        let theirs: Vec<String> = kept.iter().map(|volume| volume.image.clone()).collect();
        let ours: Vec<String> = self.volumes.iter().map(image).collect();
        if theirs != ours && !self.shared {
            return Err(format!("its images are {}, and here {}", images(theirs), images(ours)));
        }
        let mut both = kept.iter().filter_map(|kept| Some((self.of_image(&kept.image)?, kept)));
        both.try_for_each(|(volume, kept)| agree(volume, kept))
    }

    fn of_image(&self, name: &str) -> Option<&config::Volume> {
        self.volumes.iter().find(|volume| image(volume) == name)
    }

    /// The volumes of a record in its order, with the names that it gives them; `None` for one that is none of the
    /// configuration's any more, or not yet.
    pub(super) fn identified(&self, record: &Record) -> Vec<Option<config::Volume>> {
        let identified = |kept: &Volume| {
            let volume = self.of_image(&kept.image)?;
            let (naa, serial) = (Some(designator(&kept.naa)?), Some(kept.serial.clone()));
            Some(config::Volume { naa, serial, ..volume.clone() })
        };
        record.contents.volumes.iter().map(identified).collect()
    }

    /// What the owner, which serves those volumes, is to have the record contain instead of that, with new names for new
    /// volumes; `None` if nothing else. A volume that has left the group and comes back is another one for initiators, as nobody
    /// knows what was written to its image meanwhile: one that the configuration has again before it has left the record leaves
    /// that first.
    ///
    /// # Errors
    /// The operating system has no random numbers.
    pub(super) fn wanted(
        &self,
        contents: &Contents,
        served: &[config::Volume],
    ) -> io::Result<Option<Vec<Volume>>> {
        let recorded = |name: &str| contents.volumes.iter().any(|kept| kept.image == name);
        let is_served = |name: &str| served.iter().any(|volume| image(volume) == name);
        let comes = |volume: &&config::Volume| {
            let name = image(volume);
            !recorded(&name) || is_served(&name)
        };
        let volumes: Vec<_> = self.volumes.iter().filter(comes).collect();
        let same = volumes.len() == contents.volumes.len()
            && volumes.iter().all(|volume| recorded(&image(volume)));
        if !self.shared || same {
            return Ok(None);
        }
        let machine = Machine::unkept()?;
        Ok(Some(volumes.into_iter().map(|volume| named(&machine, volume)).collect()))
    }
}

fn agree(volume: &config::Volume, kept: &Volume) -> Result<(), String> {
    let name = &volume.name;
    let Some(naa) = designator(&kept.naa) else {
        return Err(format!("the NAA designator of {} is none", kept.image));
    };
    if volume.naa.is_some_and(|own| own != naa) {
        return Err(format!("it calls {} {naa}, and volume {name} has another `naa`", kept.image));
    }
    if volume.serial.as_ref().is_some_and(|own| *own != kept.serial) {
        let serial = &kept.serial;
        return Err(format!(
            "the serial number of {} is {serial}, and volume {name} has another",
            kept.image
        ));
    }
    let reserved = kept.reserved.saved(&FAMILIES);
    reserved.map(drop).map_err(|error| format!("the reservations of {}: {error}", kept.image))
}

/// The one target port of a gateway: the portals with its number as their tag.
fn port(gateway: u16) -> Port {
    Port { gateway: GatewayId(gateway), group: gateway, relative: gateway }
}

/// The image of a volume, as records have it.
fn image(volume: &config::Volume) -> String {
    image_of(volume).map(lunet_backends::rbd::ImageName::plain).unwrap_or_default()
}

/// An NAA designator of a record, which has zeroes behind a short one.
fn designator(naa: &[u8; 16]) -> Option<Designator> {
    let (short, rest) = naa.split_at(8);
    match naa[0] >> 4 {
        6 => Designator::naa(naa),
        _ if rest.iter().all(|byte| *byte == 0) => Designator::naa(short),
        _ => None,
    }
}

/// A volume that comes into a group, as it is called here.
fn named(machine: &Machine, volume: &config::Volume) -> Volume {
    let identity = identity::of_volume(machine, volume);
    let mut naa = [0; 16];
    naa.iter_mut().zip(&*identity.naa).for_each(|(to, from)| *to = *from);
    Volume {
        image: image(volume),
        // The cluster says these.
        id: String::new(),
        bytes: 0,
        naa,
        serial: identity.serial,
        reserved: Reserved::default(),
        modes: Vec::new(),
        sanitize: Sanitize::None,
    }
}

/// The record of a new group with so many gateways, whose volumes are called as they are here.
pub(super) fn record_of(
    config: &Config,
    group: &Group,
    machine: &Machine,
    secret: [u8; 32],
    gateways: u16,
) -> Record {
    let Expected { target, volumes, .. } = Expected::new(config, group);
    let volumes = volumes.iter().map(|volume| named(machine, volume)).collect();
    let ports = (1..=gateways).map(port).collect();
    Record::new(&target, secret, ports, Contents { volumes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunet_config::check;

    fn configured(more: &str, group: &str) -> Config {
        let text = format!(
            "[server]\nalua = 'implicit'\n[[portal]]\naddress = '127.0.0.1'\ntag = 2\n\
             [volumes.a]\nbackend = 'rbd'\nimage = 'rbd://p/a'\n{more}\n\
             [volumes.b]\nbackend = 'rbd'\nimage = 'rbd://p/n/b'\n\
             [[target]]\nname = 'iqn.2026-11.l:x'\nluns = ['a', 'b']\n\
             [group.g]\nrecord = 'rbd://p/g'\ngateway = 2\ntargets = ['iqn.2026-11.l:x']\n{group}"
        );
        check(&text).unwrap()
    }

    fn machine() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        identity::machine(dir.path()).unwrap()
    }

    #[test]
    fn a_new_record_agrees_with_its_configuration_and_names_the_volumes_of_others() {
        let config = configured("", "");
        let record = record_of(&config, &config.groups[0], &machine(), [7; 32], 3);
        assert_eq!(record.check(), Ok(()));
        let expected = Expected::new(&config, &config.groups[0]);
        assert_eq!(expected.agrees(&record), Ok(()));
        let volumes = expected.identified(&record);
        let other = machine();
        for (volume, kept) in volumes.iter().flatten().zip(&record.contents.volumes) {
            let identity = identity::of_volume(&other, volume);
            assert_eq!((&*identity.naa, &identity.serial), (&kept.naa[..], &kept.serial));
        }
    }

    #[test]
    fn what_is_otherwise_is_told() {
        let config = configured("", "");
        let machine = machine();
        let record = record_of(&config, &config.groups[0], &machine, [7; 32], 3);
        let why = |config: &Config, record: &Record| {
            Expected::new(config, &config.groups[0]).agrees(record).unwrap_err()
        };
        let few = record_of(&config, &config.groups[0], &machine, [7; 32], 1);
        assert!(why(&config, &few).starts_with("it has no gateway 2 (`lunet group grow`"));
        let mut other = record.clone();
        other.contents.volumes.reverse();
        assert_eq!(why(&config, &other), "its images are p/n/b, p/a, and here p/a, p/n/b");
        let other = Record { target: "iqn.2026-11.l:y".into(), ..record.clone() };
        assert!(why(&config, &other).contains("its target is iqn.2026-11.l:y"));
        let named = configured("naa = '6001405abcdef0123456789abcdef012'", "");
        assert!(why(&named, &record).contains("another `naa`"));
        let named = configured("serial = '7'", "");
        assert!(why(&named, &record).contains("the serial number of p/a is"));
        let mut broken = record;
        broken.contents.volumes[1].naa = [1; 16];
        assert!(why(&config, &broken).contains("the NAA designator of p/n/b is none"));
    }

    #[test]
    fn short_designators_have_zeroes_behind_them() {
        let mut naa = [0; 16];
        naa[0] = 0x30;
        naa[7] = 9;
        assert_eq!(designator(&naa).map(|found| found.len()), Some(8));
        naa[15] = 1;
        assert_eq!(designator(&naa), None);
        naa[0] = 0x60;
        assert_eq!(designator(&naa).map(|found| found.len()), Some(16));
    }
}
