//! Reads files of rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::{Each, Effect, Need, Product, Profile, Range, Rule, Rules, SetRule, Setting, Text};
use crate::expr::{Expression, Shape, Template};
use crate::facts::{System, version_num};

/// The rules that come with the program.
const OWN: &[(&str, &str)] = &[
    ("machine.toml", include_str!("../../rules/machine.toml")),
    ("network.toml", include_str!("../../rules/network.toml")),
    ("rdma.toml", include_str!("../../rules/rdma.toml")),
    ("drive.toml", include_str!("../../rules/drive.toml")),
    ("zfs.toml", include_str!("../../rules/zfs.toml")),
    ("target.toml", include_str!("../../rules/target.toml")),
    ("initiator.toml", include_str!("../../rules/initiator.toml")),
    ("measure.toml", include_str!("../../rules/measure.toml")),
    ("freebsd.toml", include_str!("../../rules/freebsd.toml")),
];

/// The longest file of rules in bytes.
const MOST: u64 = 1 << 20;

/// Why rules cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file or folder cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not have the form of rules.
    #[error("{file}: {error}")]
    Form {
        /// Which one.
        file: String,
        /// Where and why.
        error: Box<toml::de::Error>,
    },
    /// An expression or text of a rule is wrong.
    #[error("{file}: rule {rule}: {field}: {error} (in `{text}`)")]
    Expression {
        /// Name of the file with the mistake.
        file: String,
        /// Id of the rule.
        rule: String,
        /// Which of its fields.
        field: &'static str,
        /// The expression or text.
        text: String,
        /// What is wrong with it.
        error: String,
    },
    /// A rule contradicts itself.
    #[error("{file}: rule {rule}: {what}")]
    Rule {
        /// Name of the file with the mistake.
        file: String,
        /// Id of the rule.
        rule: String,
        /// What is wrong with it.
        what: String,
    },
}

/// A file of rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    /// `linux` unless it says `freebsd`.
    #[serde(default)]
    system: System,
    rule: Vec<RawRule>,
}

/// A rule as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    id: String,
    title: String,
    each: Option<String>,
    #[serde(rename = "as")]
    name: Option<String>,
    about: Option<String>,
    label: Option<String>,
    none: Option<String>,
    #[serde(default)]
    releases: BTreeMap<Product, Range>,
    #[serde(default)]
    needs: Vec<RawNeed>,
    set: Option<Setting>,
    now: Option<String>,
    value: Option<RawValue>,
    profiles: Option<Vec<Profile>>,
    advice: Option<String>,
    #[serde(default)]
    opt_in: bool,
    reason: String,
    risk: String,
    source: String,
    checked: Option<String>,
    #[serde(default)]
    effect: Effect,
    #[serde(default)]
    recipe: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNeed {
    when: String,
    otherwise: String,
}

/// One expression for all profiles, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum RawValue {
    One(String),
    Each(BTreeMap<Profile, String>),
}

/// Loads rules, file after file.
pub struct Loader {
    shape: Shape,
    rules: Vec<Rule>,
}

impl Default for Loader {
    fn default() -> Self {
        let shape = Shape::facts().with("profile", Shape::Plain);
        Self { shape, rules: Vec::new() }
    }
}

impl Loader {
    /// The program's own rules.
    pub fn own() -> Result<Rules, LoadError> {
        Self::default().with_own().map(Self::finish)
    }

    /// Adds the program's own rules.
    pub fn with_own(mut self) -> Result<Self, LoadError> {
        for (file, text) in OWN {
            self.text(file, text)?;
        }
        Ok(self)
    }

    /// Adds every `*.toml` of a folder, in the order of their names. A rule that has the name of
    /// one that is there takes its place.
    pub fn with_folder(mut self, folder: &Path) -> Result<Self, LoadError> {
        let wrong = |path: &Path, error| LoadError::Read { path: path.to_owned(), error };
        let entries = fs::read_dir(folder).map_err(|error| wrong(folder, error))?;
        let mut paths = BTreeSet::new();
        for entry in entries {
            let path = entry.map_err(|error| wrong(folder, error))?.path();
            if path.extension().is_some_and(|end| end == "toml") {
                paths.insert(path);
            }
        }
        for path in paths {
            let text = lunet_files::read_text(&path, MOST).map_err(|error| wrong(&path, error))?;
            self.text(&path.display().to_string(), &text)?;
        }
        Ok(self)
    }

    /// All rules that were loaded.
    pub fn finish(self) -> Rules {
        Rules { rules: self.rules }
    }

    /// Adds the rules of a file.
    pub fn text(&mut self, file: &str, text: &str) -> Result<(), LoadError> {
        let raw: RawFile = toml::from_str(text)
            .map_err(|error| LoadError::Form { file: file.to_owned(), error: Box::new(error) })?;
        let (mut seen, system) = (BTreeSet::new(), raw.system);
        for raw in raw.rule {
            let id = raw.id.clone();
            let shape = self.shape.clone();
            let rule = Compiler { file, rule: &id, system, shape }.rule(raw)?;
            if !seen.insert(id.clone()) {
                let what = "there are two of this name in the file".to_owned();
                return Err(LoadError::Rule { file: file.to_owned(), rule: id, what });
            }
            match self.rules.iter_mut().find(|have| have.id == id) {
                Some(have) => *have = rule,
                None => self.rules.push(rule),
            }
        }
        Ok(())
    }
}

/// Compiles one rule.
struct Compiler<'a> {
    file: &'a str,
    rule: &'a str,
    system: System,
    shape: Shape,
}

impl Compiler<'_> {
    fn rule(mut self, raw: RawRule) -> Result<Rule, LoadError> {
        let layer = Path::new(self.file).file_stem().unwrap_or_default().to_string_lossy();
        let each = self.each(&raw)?;
        for range in raw.releases.values() {
            let ends = [&range.since, &range.until];
            if let Some(bad) = ends.into_iter().flatten().find(|end| version_num(end).is_none()) {
                return Err(self.wrong(&format!("`{bad}` is no release")));
            }
        }
        let compile = |text: &str| self.template("set", text);
        let set = raw.set.map(|set| SetRule::compile(set, compile)).transpose()?;
        let now = raw.now.as_ref().map(|text| self.expr("now", text)).transpose()?;
        // What it is now can only be asked once it is known which setting it is.
        self.shape = self.shape.with("now", Shape::Plain);
        let needs = raw.needs.iter().map(|need| {
            Ok(Need {
                when: self.expr("needs.when", &need.when)?,
                otherwise: self.template("needs.otherwise", &need.otherwise)?,
            })
        });
        let needs = needs.collect::<Result<_, LoadError>>()?;
        let values = self.values(raw.value, raw.profiles.as_deref())?;
        if set.is_some() == values.is_empty() {
            return Err(self.wrong("`set` needs a `value`, and a `value` something to set"));
        }
        if raw.opt_in && set.is_none() {
            return Err(self.wrong("`opt_in` belongs to `set`"));
        }
        if set.is_some() == raw.advice.is_some() {
            return Err(self.wrong("it must either `set` something or be `advice`"));
        }
        Ok(Rule {
            layer: layer.into_owned(),
            system: self.system,
            file: self.file.to_owned(),
            each,
            none: raw.none,
            releases: raw.releases,
            needs,
            set,
            now,
            values,
            advice: raw.advice.map(|text| self.template("advice", &text)).transpose()?,
            opt_in: raw.opt_in,
            reason: self.template("reason", &raw.reason)?,
            id: raw.id,
            title: raw.title,
            risk: raw.risk,
            source: raw.source,
            checked: raw.checked,
            effect: raw.effect,
            recipe: raw.recipe,
        })
    }

    /// What it ranges over; from here on its other expressions may name the element.
    fn each(&mut self, raw: &RawRule) -> Result<Option<Each>, LoadError> {
        let Some(list) = &raw.each else {
            if raw.name.is_some() || raw.about.is_some() || raw.label.is_some() {
                return Err(self.wrong("`as`, `about` and `label` belong to `each`"));
            }
            return Ok(None);
        };
        let (Some(name), Some(label)) = (&raw.name, &raw.label) else {
            return Err(self.wrong("`each` needs `as` and `label`"));
        };
        let text = list;
        let list = self.expr("each", text)?;
        let shape = list.check(&self.shape).ok().and_then(|shape| shape.element());
        let Some(element) = shape else {
            return Err(self.error("each", text, "this is no list".to_owned()));
        };
        self.shape = self.shape.clone().with(name, element);
        Ok(Some(Each {
            list,
            name: name.clone(),
            about: raw.about.as_ref().map(|text| self.expr("about", text)).transpose()?,
            label: self.template("label", label)?,
        }))
    }

    fn values(
        &self,
        raw: Option<RawValue>,
        profiles: Option<&[Profile]>,
    ) -> Result<BTreeMap<Profile, Expression>, LoadError> {
        let texts = match raw {
            None if profiles.is_some() => return Err(self.wrong("`profiles` belong to `value`")),
            None => BTreeMap::new(),
            Some(RawValue::Each(texts)) => texts,
            Some(RawValue::One(text)) => {
                let profiles = profiles.unwrap_or(&Profile::ALL).iter();
                profiles.map(|profile| (*profile, text.clone())).collect()
            }
        };
        texts.iter().map(|(profile, text)| Ok((*profile, self.expr("value", text)?))).collect()
    }

    fn expr(&self, field: &'static str, text: &str) -> Result<Expression, LoadError> {
        let expression =
            Expression::new(text).map_err(|error| self.error(field, text, error.what))?;
        let checked = expression.check(&self.shape);
        checked.map_err(|error| self.error(field, text, error.to_string()))?;
        Ok(expression)
    }

    fn template(&self, field: &'static str, text: &str) -> Result<Text, LoadError> {
        let template = Template::new(text).map_err(|error| self.error(field, text, error.what))?;
        for expression in template.expressions() {
            let checked = expression.check(&self.shape);
            checked.map_err(|error| self.error(field, expression.text(), error.to_string()))?;
        }
        Ok(Text { source: text.to_owned(), template })
    }

    fn error(&self, field: &'static str, text: &str, error: String) -> LoadError {
        let (file, rule) = (self.file.to_owned(), self.rule.to_owned());
        LoadError::Expression { file, rule, field, text: text.to_owned(), error }
    }

    fn wrong(&self, what: &str) -> LoadError {
        let (file, rule) = (self.file.to_owned(), self.rule.to_owned());
        LoadError::Rule { file, rule, what: what.to_owned() }
    }
}
