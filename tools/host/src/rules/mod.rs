//! Rules: what a machine should be set to, when, and why. They are data, in files that people can
//! read; conditions and values are expressions over facts.

mod load;
mod setting;

pub use load::{LoadError, Loader};
pub use setting::{SetRule, Setting};

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::expr::{EvalError, Expression, Scope, Template};
use crate::facts::System;

/// What the machine works for.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Large sequential reads and writes: media, backup.
    Throughput,
    /// Databases: small random I/O, and writes that must be stable before they are answered.
    Latency,
    /// Virtual machines: some of each.
    #[default]
    Mixed,
}

impl Profile {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Throughput, Self::Latency, Self::Mixed];

    /// The word for it on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Mixed => "mixed",
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The word names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no profile `{0}`: throughput, latency or mixed")]
pub struct UnknownProfile(String);

impl std::str::FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(text: &str) -> Result<Self, UnknownProfile> {
        Self::ALL
            .into_iter()
            .find(|profile| profile.name() == text)
            .ok_or_else(|| UnknownProfile(text.to_owned()))
    }
}

/// From when on a changed setting works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// At once.
    #[default]
    Live,
    /// When its module is loaded, or its session made, the next time.
    Reload,
    /// After the machine has been started again.
    Reboot,
}

impl Effect {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Live => "at once",
            Self::Reload => "when its module is loaded or its session made anew",
            Self::Reboot => "after a reboot",
        }
    }
}

/// What has releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Product {
    /// Linux.
    Kernel,
    /// OpenZFS.
    Zfs,
    /// TrueNAS SCALE.
    TrueNas,
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "Linux",
            Self::Zfs => "OpenZFS",
            Self::TrueNas => "TrueNAS",
        })
    }
}

/// Since and until which release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The first release that it is for.
    pub since: Option<String>,
    /// The first release that it is not for any more.
    pub until: Option<String>,
}

/// A text with expressions in it.
#[derive(Debug)]
pub struct Text {
    /// As it was written.
    pub source: String,
    template: Template,
}

impl Text {
    /// With the values in their places.
    ///
    /// # Errors
    /// A value is not known, or an expression is wrong.
    pub fn fill(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        self.template.fill(scope)
    }

    /// The same; as it was written if something in it is not known.
    ///
    /// # Errors
    /// An expression is wrong.
    pub fn say(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        match self.template.fill(scope) {
            Err(EvalError::Unknown(_)) => Ok(self.source.clone()),
            said => said,
        }
    }

    /// The CEL expressions of the text, for the check of the facts that they name.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.template.expressions()
    }
}

/// Something that must be so for a rule to apply.
#[derive(Debug)]
pub struct Need {
    /// The rule applies if this is true.
    pub when: Expression,
    /// Why the rule does not apply otherwise.
    pub otherwise: Text,
}

/// What a rule ranges over.
#[derive(Debug)]
pub struct Each {
    /// The rule is evaluated for each element of this list.
    pub list: Expression,
    /// The name of an element in the rule's other expressions.
    pub name: String,
    /// Which elements it is about.
    pub about: Option<Expression>,
    /// What an element is called.
    pub label: Text,
}

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// `drive.scheduler`.
    pub id: String,
    /// Its file's name: `drive`.
    pub layer: String,
    /// The system that it is for.
    pub system: System,
    /// The file that it comes from.
    pub file: String,
    /// What it does, in a few words.
    pub title: String,
    /// What it ranges over, if over something.
    pub each: Option<Each>,
    /// Why it does not apply if there is nothing that it is about.
    pub none: Option<String>,
    /// Releases that it is for.
    pub releases: BTreeMap<Product, Range>,
    /// What must be so.
    pub needs: Vec<Need>,
    /// What it sets; nothing if it only advises.
    pub set: Option<SetRule>,
    /// What it is now, by the facts, where it cannot be read itself (in a captured tree).
    pub now: Option<Expression>,
    /// To what, by profile. A profile that is not here leaves the setting as it is.
    pub values: BTreeMap<Profile, Expression>,
    /// What it advises, if it does not set anything: when this is right, and why not.
    pub advice: Option<Text>,
    /// Whether it sets something only if the choice names it itself; otherwise it advises to.
    pub opt_in: bool,
    /// Why, in a sentence.
    pub reason: Text,
    /// What may go wrong.
    pub risk: String,
    /// Who says so.
    pub source: String,
    /// Year and month in which the source was last read: `2026-11`.
    pub checked: Option<String>,
    /// From when on it works.
    pub effect: Effect,
    /// The lines of the recipe that it judges.
    pub recipe: Vec<String>,
}

/// Rules from several files.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// Which rules are meant.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Only these; all if there are none.
    pub only: Vec<String>,
    /// And not these.
    pub except: Vec<String>,
}

impl Rules {
    /// All rules, layer by layer.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// Those for a system.
    pub fn of(&self, system: System) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.system == system)
    }

    /// Finds a rule by its id.
    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// The names in the choice that stand for no rule and no layer.
    pub fn strangers<'a>(&self, choice: &'a Choice) -> Vec<&'a str> {
        let known = |name: &str| self.rules.iter().any(|rule| rule.is(name));
        let names = choice.only.iter().chain(&choice.except).map(String::as_str);
        names.filter(|name| !known(name)).collect()
    }
}

impl Rule {
    /// Whether this name means the rule: its own, or its layer's.
    pub fn is(&self, name: &str) -> bool {
        self.id == name || self.layer == name
    }

    /// Whether the choice leaves it in.
    pub fn chosen(&self, choice: &Choice) -> bool {
        let any = |names: &[String]| names.iter().any(|name| self.is(name));
        (choice.only.is_empty() || any(&choice.only)) && !any(&choice.except)
    }

    /// Whether it may set something: it is not to be asked for, or it was.
    pub fn asked_for(&self, choice: &Choice) -> bool {
        !self.opt_in || choice.only.contains(&self.id)
    }

    /// Whether it never sets anything.
    pub fn only_advises(&self) -> bool {
        self.set.is_none()
    }
}

#[cfg(test)]
mod tests;
