//! Portals come and go while the server runs.

use std::net::SocketAddr;

use anyhow::Result;
use lunet_api::{Code, Done, Transport};
use lunet_server::Transports;
use toml_edit::{Array, Value};

use super::effects::Consent;
use super::sessions::concerning;
use super::{Manager, Served, done};
use crate::exposure;
use crate::trouble::refuse;
use lunet_config::{Config, DEFAULT_PORTAL, NVME_PORT, Portal};

impl Manager {
    /// Listens at an address from now on.
    pub(super) fn add_portal(
        &self,
        now: &Served,
        address: SocketAddr,
        tag: Option<u16>,
        transport: &[Transport],
    ) -> Result<Done> {
        self.check_listen()?;
        let old = &now.plan.config;
        if address.port() == 0 {
            return refuse(
                Code::Invalid,
                "a portal that is added needs a port: initiators have to find it again",
                "",
            );
        }
        let real = self.handle.configured_portal(address);
        let all = || old.portals.iter().chain(&old.nvme.portals);
        if real.is_some() || all().any(|portal| portal.address == address) {
            return refuse(Code::Exists, format!("there is a portal {address} already"), "");
        }
        if let Some(was) = all().find(|was| overlap(was.address, address)) {
            return refuse(
                Code::NeedsRestart,
                format!(
                    "lunet listens on {}, and cannot on {address} as well, because one of them stands for all addresses",
                    was.address
                ),
                "change `address` in the configuration, and restart lunet",
            );
        }
        // Without any, there is the default one, which goes as soon as one is written down.
        let named = Self::text(now).parse::<toml::Table>()?.contains_key("portal");
        let mut keys = vec![("address", Value::from(address.to_string()))];
        keys.extend(tag.map(|tag| ("tag", Value::from(i64::from(tag)))));
        // All portals with a tag are one group.
        let like = all().find(|portal| portal.tag == tag.unwrap_or(1));
        keys.extend(like.into_iter().flat_map(of_group));
        let words: Array = transport.iter().map(Transport::as_str).collect();
        keys.extend((!words.is_empty()).then(|| ("transport", words.into())));
        let next = self.edited(now, Consent::default(), |editor| {
            if !named {
                let default = ("address", Value::from(DEFAULT_PORTAL.to_string()));
                editor.add_portal(&[default])?;
                for portal in &old.nvme.portals {
                    let words: Array = [Transport::NvmeTcp.as_str()].into_iter().collect();
                    let address = Value::from(portal.address.to_string());
                    editor.add_portal(&[("address", address), ("transport", words.into())])?;
                }
            }
            editor.add_portal(&keys)
        })?;
        check(old, &next.plan.config)?;
        let begins = self.nvme.handle().is_none();
        check_nvme(old, &next.plan.config, !begins)?;
        let warnings = exposure::news(old, &next.plan.config);
        self.commit(now, next, now.open.clone())?;
        let mut done = done(format!("lunet listens on {address}"));
        if !named {
            let nvme = old.nvme.portals.iter().map(|portal| format!(" and {}", portal.address));
            let nvme: String = nvme.collect();
            let (are, were) = if nvme.is_empty() { ("is", "was") } else { ("are", "were") };
            done.notes.push(format!(
                "{DEFAULT_PORTAL}{nvme}, which {are} listened on where nothing else is said, {were} written down too"
            ));
        }
        if transport.is_empty() && address.port() == NVME_PORT {
            let note = "this portal is for iSCSI, and 4420 is the port of NVMe: `lunet portal add` with --transport \
                        nvme-tcp adds one for NVMe";
            done.notes.push(note.to_owned());
        }
        if transport.contains(&Transport::Iser) {
            done.notes.push("iSER on it starts with the next start of lunet".to_owned());
        }
        // The first ones begin with their server.
        if transport.contains(&Transport::NvmeRdma) && !begins {
            done.notes.push("NVMe over RDMA on it starts with the next start of lunet".to_owned());
        }
        done.notes.extend(warnings);
        Ok(done)
    }

    /// Listens at an address no more.
    pub(super) fn remove_portal(
        &self,
        now: &Served,
        address: SocketAddr,
        consent: Consent,
    ) -> Result<Done> {
        self.check_listen()?;
        let config = &now.plan.config;
        let asked = address;
        let address = self.as_configured(now, asked)?;
        if config.nvme.portals.iter().any(|portal| portal.address == address) {
            return self.remove_nvme_portal(now, address, consent);
        }
        let found = config.portals.iter().position(|portal| portal.address == address);
        let Some(at) = found else {
            return refuse(
                Code::NotFound,
                format!("there is no portal {asked}"),
                "`lunet portal list` shows those that there are",
            );
        };
        if config.portals.len() == 1 {
            return refuse(
                Code::LastOne,
                format!("{address} is the only portal, and lunet needs one"),
                "add another one first",
            );
        }
        if let Some(target) = config.targets.iter().find(|target| target.portals.contains(&at)) {
            return refuse(
                Code::Invalid,
                format!("target {} names {address} in its `portals`", target.name),
                "take it out of that first, with `lunet config apply`",
            );
        }
        let next = self.edited(now, consent, |editor| editor.remove_portal(address))?;
        let sessions = next.sessions.clone();
        self.commit(now, next, now.open.clone())?;
        Ok(concerning(done(format!("lunet does not listen on {asked} any more")), sessions))
    }

    /// Listens at an address for NVMe no more.
    fn remove_nvme_portal(
        &self,
        now: &Served,
        address: SocketAddr,
        consent: Consent,
    ) -> Result<Done> {
        if !Self::text(now).parse::<toml::Table>()?.contains_key("portal") {
            return refuse(
                Code::Unsupported,
                format!("{address} is listened on because something is served over NVMe"),
                "write [[portal]] into the configuration, or take \"nvme\" out of `protocols`",
            );
        }
        let next = self.edited(now, consent, |editor| editor.remove_portal(address))?;
        let sessions = next.sessions.clone();
        self.commit(now, next, now.open.clone())?;
        Ok(concerning(done(format!("lunet does not listen on {address} any more")), sessions))
    }

    /// The configured address of a portal that is named by the address that it listens at. They differ if port 0 is
    /// configured.
    ///
    /// # Errors
    /// Several portals are configured alike: an edit of the file cannot say which of them goes.
    fn as_configured(&self, now: &Served, asked: SocketAddr) -> Result<SocketAddr> {
        let portals = &now.plan.config.portals;
        let alike = |address| portals.iter().filter(|portal| portal.address == address).count();
        if alike(asked) > 0 {
            return Ok(asked);
        }
        let configured = self.handle.configured_portal(asked).unwrap_or(asked);
        match alike(configured) {
            0 | 1 => Ok(configured),
            n => refuse(
                Code::Unsupported,
                format!(
                    "{asked} is one of {n} portals that {} writes as {configured}",
                    self.file.display()
                ),
                "take them out of it by hand, then run `lunet config apply`",
            ),
        }
    }

    /// Portals of the command line are not those of the configuration.
    fn check_listen(&self) -> Result<()> {
        if let Some(address) = self.options.listen {
            return refuse(
                Code::Unsupported,
                format!("lunet was started with --listen {address}, which stands for all portals"),
                "write [[portal]] into the configuration, and start lunet without it",
            );
        }
        Ok(())
    }
}

/// Refuses what a running server cannot do with portals.
pub(super) fn check(old: &Config, new: &Config) -> Result<()> {
    for portal in &new.portals {
        let address = portal.address;
        let ways = (portal.tag, portal.transports);
        let same = |was: &&lunet_config::Portal| was.address == address && address.port() != 0;
        match old.portals.iter().find(same) {
            Some(was) if (was.tag, was.transports) != ways => {
                return refuse(
                    Code::NeedsRestart,
                    format!("[[portal]] {address}: tag and transport change at a restart only"),
                    "restart lunet, or take that back",
                );
            }
            Some(_) => continue,
            None => {}
        }
        let known = |was: &lunet_config::Portal| {
            was.address == address && (was.tag, was.transports) == ways
        };
        if portal.transports == Transports::Rdma && !old.portals.iter().any(known) {
            return refuse(
                Code::NeedsRestart,
                format!(
                    "[[portal]] {address}: iSER starts with the next start of lunet, and without TCP nothing would be served there until then"
                ),
                "restart lunet, or add \"tcp\" to its transport",
            );
        }
        if let Some(was) = old.portals.iter().find(|was| overlap(was.address, address)) {
            return refuse(
                Code::NeedsRestart,
                format!(
                    "[[portal]] {address}: it cannot take the place of {} while lunet listens there, because one of them stands for all addresses",
                    was.address
                ),
                "restart lunet, or take that back",
            );
        }
    }
    Ok(())
}

/// Refuses what a running server cannot do with portals for NVMe. `served`: that for NVMe has begun; its devices for RDMA
/// are those of its first portals.
pub(super) fn check_nvme(old: &Config, new: &Config, served: bool) -> Result<()> {
    for portal in &new.nvme.portals {
        let address = portal.address;
        let all = || old.portals.iter().chain(&old.nvme.portals);
        if let Some(was) = all().find(|was| overlap(was.address, address)) {
            return refuse(
                Code::NeedsRestart,
                format!(
                    "[[portal]] {address}: it cannot take the place of {} while lunet listens there, because one of them stands for all addresses",
                    was.address
                ),
                "restart lunet, or take that back",
            );
        }
        let same = |was: &&lunet_config::Portal| was.address == address && address.port() != 0;
        let ways = (portal.tag, portal.transports);
        let was = old.nvme.portals.iter().find(same);
        if served && was.is_none() && portal.transports == Transports::Rdma {
            return refuse(
                Code::NeedsRestart,
                format!(
                    "[[portal]] {address}: NVMe over RDMA starts with the next start of lunet, and without TCP nothing would be served there until then"
                ),
                "restart lunet, or add \"nvme-tcp\" to its transport",
            );
        }
        let other = was.is_some_and(|was| (was.tag, was.transports) != ways);
        if other || old.portals.iter().any(|was| same(&was)) {
            return refuse(
                Code::NeedsRestart,
                format!("[[portal]] {address}: tag and transport change at a restart only"),
                "restart lunet, or take that back",
            );
        }
    }
    Ok(())
}

/// The keys that a portal shares with another one of its group.
fn of_group(like: &Portal) -> impl Iterator<Item = (&'static str, Value)> {
    let optimized = like.group_state == lunet_scsi::alua::AccessState::Optimized;
    let state = lunet_config::state_word(like.group_state);
    let state = (!optimized).then(|| ("group-state", state.into()));
    state.into_iter().chain(like.preferred.then(|| ("preferred", true.into())))
}

/// True if two addresses that are not the same cannot be listened on at once.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    one != other
        && (one.ip().is_unspecified() || other.ip().is_unspecified())
        && one.is_ipv4() == other.is_ipv4()
        && one.port() == other.port()
        && one.port() != 0
}
