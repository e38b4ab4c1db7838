//! Features: what the host sets and reads.

use super::pages::{FEATURES, NAMESPACE_FEATURES, Source};
use super::setup::Kind;
use super::state::{Answer, Controller, whole_units};
use crate::command::{ALL_NAMESPACES, Completion};
use crate::feature::{Feature, MASK_ALL, Queues, Select};
use crate::status::Status;
use alloc::vec;
use core::time::Duration;

/// Length of the data of Host Behavior Support, in bytes.
const BEHAVIOR_LEN: usize = 512;
/// Host Identifier: the identifier has 128 bits.
const EXTENDED: u32 = 1;

/// Capabilities: the feature can be changed.
const CHANGEABLE: u64 = 1 << 2;
/// Capabilities: the feature is one of a namespace.
const OF_NAMESPACE: u64 = 1 << 1;

/// The composite temperature that is over the threshold at the start: 0x157 kelvins.
const THRESHOLD: u32 = 0x157;

const INVALID: Status = Status::INVALID_FIELD.no_retry();

fn with(value: u32) -> Answer {
    Answer::Complete(Completion::with(u64::from(value)))
}

/// What can be done with a feature.
fn capabilities(feature: Feature) -> u64 {
    match feature {
        Feature::Queues | Feature::Events | Feature::KeepAlive | Feature::HostBehavior => {
            CHANGEABLE
        }
        Feature::ReservationMask | Feature::ReservationPersistence => CHANGEABLE | OF_NAMESPACE,
        _ => 0,
    }
}

impl Controller {
    /// The feature with this identifier, if the controller has it.
    fn feature(&self, fid: u8) -> Result<Feature, Status> {
        let feature = Feature::from_code(fid).ok_or(INVALID)?;
        let has = match self.setup.kind {
            Kind::Io => FEATURES.contains(&feature) || NAMESPACE_FEATURES.contains(&feature),
            Kind::Discovery => matches!(feature, Feature::Events | Feature::KeepAlive),
        };
        if has { Ok(feature) } else { Err(INVALID) }
    }

    /// The NSID that a feature may have.
    fn check_namespace(feature: Feature, nsid: u32, source: &impl Source) -> Result<(), Status> {
        let of_namespace = NAMESPACE_FEATURES.contains(&feature);
        match (of_namespace, nsid) {
            (false, 0 | ALL_NAMESPACES) => Ok(()),
            (false, _) => Err(Status::NOT_OF_NAMESPACE.no_retry()),
            // All masks can be set at once.
            (true, ALL_NAMESPACES) if feature == Feature::ReservationMask => Ok(()),
            (true, nsid) if source.namespace(nsid).is_some() => Ok(()),
            (true, _) => Err(Status::INVALID_NAMESPACE.no_retry()),
        }
    }

    pub(super) fn set_feature(
        &mut self,
        fid: u8,
        save: bool,
        value: u32,
        nsid: u32,
        data: &[u8],
        source: &impl Source,
    ) -> Answer {
        let checked = self.feature(fid).and_then(|feature| {
            if save {
                return Err(Status::NOT_SAVEABLE.no_retry());
            }
            Self::check_namespace(feature, nsid, source).map(|()| feature)
        });
        let feature = match checked {
            Ok(feature) => feature,
            Err(status) => return status.into(),
        };
        match feature {
            Feature::Queues => match Queues::decode(value) {
                Some(wanted) => {
                    let queues = wanted.submission.min(wanted.completion);
                    self.queues = queues.min(self.setup.max_queues).max(1);
                    with(self.queue_count())
                }
                None => INVALID.into(),
            },
            Feature::Events => {
                self.events.enabled = value & self.setup.events();
                Answer::Complete(Completion::SUCCESS)
            }
            Feature::KeepAlive => {
                self.kato = whole_units(Duration::from_millis(u64::from(value)));
                Answer::Complete(Completion::SUCCESS)
            }
            Feature::HostBehavior if data.len() != BEHAVIOR_LEN => {
                Status::DATA_LENGTH.no_retry().into()
            }
            // Nothing of it changes what the controller does.
            Feature::HostBehavior => Answer::Complete(Completion::SUCCESS),
            Feature::ReservationMask => self.set_mask(nsid, value, source),
            Feature::ReservationPersistence => {
                Answer::Persistence { nsid, set: Some(value & 1 != 0) }
            }
            // It is the one of the Connect.
            Feature::HostId => Status::SEQUENCE.no_retry().into(),
            _ if value == self.constant(feature) => Answer::Complete(Completion::SUCCESS),
            _ => Status::NOT_CHANGEABLE.no_retry().into(),
        }
    }

    fn set_mask(&mut self, nsid: u32, mask: u32, source: &impl Source) -> Answer {
        if mask & !MASK_ALL != 0 {
            return INVALID.into();
        }
        if nsid != ALL_NAMESPACES {
            self.masks.insert(nsid, mask);
            return Answer::Complete(Completion::SUCCESS);
        }
        let mut last = 0;
        while let Some(nsid) = source.next_namespace(last) {
            self.masks.insert(nsid, mask);
            last = nsid;
        }
        Answer::Complete(Completion::SUCCESS)
    }

    pub(super) fn get_feature(
        &self,
        fid: u8,
        select: u8,
        value: u32,
        nsid: u32,
        source: &impl Source,
    ) -> Answer {
        let checked = self.feature(fid).and_then(|feature| {
            let select = Select::from_code(select).ok_or(INVALID)?;
            Self::check_namespace(feature, nsid, source).map(|()| (feature, select))
        });
        match checked {
            Ok((feature, Select::Current)) => self.current(feature, value, nsid),
            // Nothing is saved, so what is saved is the default.
            Ok((feature, Select::Default | Select::Saved)) => with(self.default_of(feature)),
            Ok((feature, Select::Capabilities)) => {
                Answer::Complete(Completion::with(capabilities(feature)))
            }
            Err(status) => status.into(),
        }
    }

    fn current(&self, feature: Feature, value: u32, nsid: u32) -> Answer {
        match feature {
            Feature::Queues => with(self.queue_count()),
            Feature::Events => with(self.events.enabled),
            Feature::KeepAlive => with(u32::try_from(self.kato.as_millis()).unwrap_or(u32::MAX)),
            Feature::HostBehavior => Answer::Data(vec![0; BEHAVIOR_LEN]),
            // One of 64 bits is not what the host has given.
            Feature::HostId if value & EXTENDED == 0 => Status::HOST_ID_FORMAT.no_retry().into(),
            Feature::HostId => Answer::Data(self.setup.host_id.to_vec()),
            Feature::ReservationMask if nsid == ALL_NAMESPACES => INVALID.into(),
            Feature::ReservationMask => with(self.masks.get(&nsid).copied().unwrap_or(0)),
            Feature::ReservationPersistence => Answer::Persistence { nsid, set: None },
            _ => with(self.constant(feature)),
        }
    }

    fn default_of(&self, feature: Feature) -> u32 {
        match feature {
            Feature::Queues => {
                let queues = self.setup.max_queues.max(1);
                Queues { submission: queues, completion: queues }.encode()
            }
            _ => self.constant(feature),
        }
    }

    /// The value of a feature that cannot be changed; 0 for the others.
    fn constant(&self, feature: Feature) -> u32 {
        match feature {
            Feature::WriteCache => 1,
            Feature::Temperature => THRESHOLD,
            _ => 0,
        }
    }

    fn queue_count(&self) -> u32 {
        let queues = self.queues.max(1);
        Queues { submission: queues, completion: queues }.encode()
    }
}
