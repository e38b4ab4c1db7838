//! Checks as files have them.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{derived, peer, watch};
use crate::expr::{CheckError as NameError, Expression, Shape, SyntaxError, Template};
use crate::facts::System;
use crate::probe::Probe;
use crate::probe::nvme::NvmeProbe;

/// The files that come with lunet, one for each layer.
const FILES: &[(&str, &str)] = &[
    ("block.toml", include_str!("../../checks/block.toml")),
    ("disk-health.toml", include_str!("../../checks/disk-health.toml")),
    ("pools.toml", include_str!("../../checks/pools.toml")),
    ("links.toml", include_str!("../../checks/links.toml")),
    ("paths.toml", include_str!("../../checks/paths.toml")),
    ("served.toml", include_str!("../../checks/served.toml")),
    ("processor.toml", include_str!("../../checks/processor.toml")),
    ("tcp.toml", include_str!("../../checks/tcp.toml")),
    ("hardware.toml", include_str!("../../checks/hardware.toml")),
    ("kernel-log.toml", include_str!("../../checks/kernel-log.toml")),
    ("rdma.toml", include_str!("../../checks/rdma.toml")),
    ("iser.toml", include_str!("../../checks/iser.toml")),
    ("nfs.toml", include_str!("../../checks/nfs.toml")),
    ("ceph.toml", include_str!("../../checks/ceph.toml")),
    ("nic.toml", include_str!("../../checks/nic.toml")),
    ("drives.toml", include_str!("../../checks/drives.toml")),
    ("zfs.toml", include_str!("../../checks/zfs.toml")),
    ("memory-cpu.toml", include_str!("../../checks/memory-cpu.toml")),
    ("target.toml", include_str!("../../checks/target.toml")),
    ("initiator.toml", include_str!("../../checks/initiator.toml")),
    ("sysctl.toml", include_str!("../../checks/sysctl.toml")),
    ("freebsd-network.toml", include_str!("../../checks/freebsd-network.toml")),
    ("freebsd-storage.toml", include_str!("../../checks/freebsd-storage.toml")),
    ("freebsd-target.toml", include_str!("../../checks/freebsd-target.toml")),
    ("freebsd-system.toml", include_str!("../../checks/freebsd-system.toml")),
];

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Data, or the service, may be lost.
    Risk,
    /// It costs speed.
    Slow,
    /// Worth knowing.
    Note,
}

/// As pages show it.
impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Risk => "RISK",
            Self::Slow => "SLOW",
            Self::Note => "NOTE",
        })
    }
}

/// One check.
#[derive(Debug)]
pub struct Check {
    /// Its name: `nic-one-queue`.
    pub id: String,
    /// Its layer: `nic`.
    pub layer: String,
    /// The system that it is for.
    pub system: System,
    /// What it is about, in a few words.
    pub title: String,
    /// How bad its findings are.
    pub severity: Severity,
    /// The list that it ranges over.
    pub each: Option<Expression>,
    /// What one of the list is called in the expressions.
    pub name: String,
    /// Whether it has any business with one of the list.
    pub applies: Option<Expression>,
    /// What the other expressions use by name.
    pub lets: Vec<(String, Expression)>,
    /// What one of the list is called in pages.
    pub about: Option<Template>,
    /// What it looked at.
    pub looked: Template,
    /// Whether there is something to say.
    pub when: Expression,
    /// What it found.
    pub found: Template,
    /// Why that matters.
    pub why: Template,
    /// How to fix it.
    pub fix: Template,
    /// Where the cause is described: a specification, a source file, an issue, a guide.
    pub source: Option<String>,
    /// Of a check of two looks: those of one look whose findings it confirms or calls old.
    pub tells: Vec<String>,
}

/// A check as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    id: String,
    title: String,
    severity: Severity,
    each: Option<String>,
    #[serde(rename = "as")]
    name: Option<String>,
    applies: Option<String>,
    /// `name = expression`, in the order in which they are worked out.
    #[serde(default, rename = "let")]
    lets: Vec<String>,
    about: Option<String>,
    looked: String,
    when: String,
    found: String,
    why: String,
    fix: String,
    source: Option<String>,
    #[serde(default)]
    tells: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    layer: String,
    /// `linux` unless it says `freebsd`.
    #[serde(default)]
    system: System,
    check: Vec<Written>,
}

/// Why checks cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The file is not in the form of checks.
    #[error("{file}: {error}")]
    Form {
        /// Name of the file with the mistake.
        file: String,
        /// What is wrong.
        error: String,
    },
    /// An expression or text cannot be read.
    #[error("{file}: check {id}: {part}: {error}")]
    Syntax {
        /// Name of the file with the mistake.
        file: String,
        /// Id of the check.
        id: String,
        /// Which part of it.
        part: &'static str,
        /// What is wrong.
        error: SyntaxError,
    },
    /// An expression names what is not there on any machine.
    #[error("{file}: check {id}: {part}: {error}")]
    Name {
        /// Name of the file with the mistake.
        file: String,
        /// Id of the check.
        id: String,
        /// Which part of it.
        part: &'static str,
        /// What is not there.
        error: NameError,
    },
    /// Two checks have the same name.
    #[error("{file}: there are two checks of the name {id}")]
    Twice {
        /// The file with the second one.
        file: String,
        /// Id that two checks have.
        id: String,
    },
}

/// All checks.
#[derive(Debug)]
pub struct Checks {
    checks: Vec<Check>,
    ids: BTreeSet<String>,
    /// What expressions may name.
    names: Shape,
}

/// None yet, of machines.
impl Default for Checks {
    fn default() -> Self {
        let names = derived::names(Shape::facts());
        Self { checks: Vec::new(), ids: BTreeSet::new(), names }
    }
}

impl Checks {
    /// Those that come with lunet.
    ///
    /// # Errors
    /// Never, unless a file that comes with lunet is wrong.
    pub fn embedded() -> Result<Self, CheckError> {
        let mut checks = Self::default();
        for (file, text) in FILES {
            checks.add(file, text)?;
        }
        Ok(checks)
    }

    /// Those of a target over the network.
    ///
    /// # Errors
    /// As [`Self::embedded`].
    pub fn of_targets() -> Result<Self, CheckError> {
        let names = Shape::facts().with("probe", Shape::of::<Probe>());
        let mut checks = Self { names, ..Self::default() };
        checks.add("url.toml", include_str!("../../checks/url.toml"))?;
        Ok(checks)
    }

    /// Those of two looks at a machine.
    ///
    /// # Errors
    /// As [`Self::embedded`].
    pub fn of_watching() -> Result<Self, CheckError> {
        let mut checks = Self { names: watch::names(), ..Self::default() };
        checks.add("watch.toml", include_str!("../../checks/watch.toml"))?;
        Ok(checks)
    }

    /// Those of a target and an initiator together.
    ///
    /// # Errors
    /// As [`Self::embedded`].
    pub fn of_pairs() -> Result<Self, CheckError> {
        let mut checks = Self { names: peer::names(), ..Self::default() };
        checks.add("peer.toml", include_str!("../../checks/peer.toml"))?;
        Ok(checks)
    }

    /// Those of NVMe subsystems that are looked at over the network.
    ///
    /// # Errors
    /// As [`Self::embedded`].
    pub fn of_subsystems() -> Result<Self, CheckError> {
        let names = Shape::facts().with("nvme", Shape::of::<NvmeProbe>());
        let mut checks = Self { names, ..Self::default() };
        checks.add("nvme-url.toml", include_str!("../../checks/nvme-url.toml"))?;
        Ok(checks)
    }

    /// Adds those of a file.
    ///
    /// # Errors
    /// The file is not in the form of checks, or an expression in it is not CEL.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), CheckError> {
        let form = |error: toml::de::Error| CheckError::Form {
            file: file.to_owned(),
            error: error.to_string(),
        };
        let read: File = toml::from_str(text).map_err(form)?;
        for written in read.check {
            if !self.ids.insert(written.id.clone()) {
                return Err(CheckError::Twice { file: file.to_owned(), id: written.id });
            }
            let check = check(file, &read.layer, read.system, written)?;
            self.names(file, &check)?;
            self.checks.push(check);
        }
        Ok(())
    }

    /// Looks for names that are not there: a misspelt fact would only be unknown for ever.
    fn names(&self, file: &str, check: &Check) -> Result<(), CheckError> {
        let wrong = |part| {
            let (file, id) = (file.to_owned(), check.id.clone());
            move |error| CheckError::Name { file, id, part, error }
        };
        let mut names = self.names.clone();
        if let Some(each) = &check.each {
            let list = each.check(&names).map_err(wrong("each"))?;
            names = names.with(&check.name, list.element().unwrap_or(Shape::Plain));
        }
        if let Some(applies) = &check.applies {
            applies.check(&names).map_err(wrong("applies"))?;
        }
        for (name, expression) in &check.lets {
            let shape = expression.check(&names).map_err(wrong("let"))?;
            names = names.with(name, shape);
        }
        check.when.check(&names).map_err(wrong("when"))?;
        let texts = [
            ("looked", &check.looked),
            ("found", &check.found),
            ("why", &check.why),
            ("fix", &check.fix),
        ];
        let about = check.about.iter().map(|about| ("about", about));
        for (part, text) in texts.into_iter().chain(about) {
            for expression in text.expressions() {
                expression.check(&names).map_err(wrong(part))?;
            }
        }
        Ok(())
    }

    /// One after the other, by layer.
    pub fn iter(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter()
    }

    /// Those for a system.
    pub fn of(&self, system: System) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.system == system)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.checks.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.checks.is_empty()
    }
}

/// Reads the expressions of a check.
fn check(file: &str, layer: &str, system: System, written: Written) -> Result<Check, CheckError> {
    let id = written.id;
    let syntax = |part| {
        let (file, id) = (file.to_owned(), id.clone());
        move |error| CheckError::Syntax { file, id, part, error }
    };
    let expression = |part, text: &str| Expression::new(text).map_err(syntax(part));
    let template = |part, text: &str| Template::new(text.trim()).map_err(syntax(part));
    let mut lets = Vec::new();
    for line in &written.lets {
        let (name, text) = line.split_once('=').unwrap_or((line, ""));
        lets.push((name.trim().to_owned(), expression("let", text)?));
    }
    Ok(Check {
        layer: layer.to_owned(),
        system,
        title: written.title,
        severity: written.severity,
        each: written.each.map(|text| expression("each", &text)).transpose()?,
        name: written.name.unwrap_or_else(|| "it".to_owned()),
        applies: written.applies.map(|text| expression("applies", &text)).transpose()?,
        lets,
        about: written.about.map(|text| template("about", &text)).transpose()?,
        looked: template("looked", &written.looked)?,
        when: expression("when", &written.when)?,
        found: template("found", &written.found)?,
        why: template("why", &written.why)?,
        fix: template("fix", &written.fix)?,
        source: written.source,
        tells: written.tells,
        id,
    })
}
