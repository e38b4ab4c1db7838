//! From facts, rules and a profile to what should be changed, and why.

mod explain;
mod now;
mod text;

pub use explain::explain;
pub use now::{Now, now, same};
pub(crate) use now::{cpu_paths, module_path, plain, section_of, sysctl_path, zfs_property};
pub use text::write;

use serde::{Deserialize, Serialize};

use crate::expr::{EvalError, Expression, Scope, Value as Cel};
use crate::facts::{Facts, Value, version_num};
use crate::rules::{Choice, Effect, Product, Profile, Rule, Rules, Setting};
use crate::source::Source;

/// What should be changed on a machine, and what not, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What the machine works for.
    pub profile: Profile,
    /// One entry for each rule, or for each thing that a rule ranges over.
    pub items: Vec<Item>,
}

/// What a rule says of this machine, or of one thing in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Id of the rule.
    pub rule: String,
    /// What the rule does.
    pub title: String,
    /// The thing that it is about: `nvme0n1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// What the rule sets; `None` if it only advises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<Setting>,
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
    /// What it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<String>,
    /// What is to be done.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Why.
    pub reason: String,
    /// What may go wrong.
    pub risk: String,
    /// Who says so.
    pub source: String,
    /// From when on it works.
    pub effect: Effect,
    /// Lines of the recipe that this judges.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub recipe: Vec<String>,
}

#[cfg(test)]
impl Item {
    /// A change that can be made while the machine runs, for tests of what is done with plans.
    pub(crate) fn change(rule: &str, setting: Setting, now: Option<String>, wanted: &str) -> Self {
        Self {
            rule: rule.to_owned(),
            title: "a title".to_owned(),
            about: None,
            setting: Some(setting),
            now,
            wanted: Some(wanted.to_owned()),
            verdict: Verdict::Change,
            reason: "A reason.".to_owned(),
            risk: "A risk.".to_owned(),
            source: "me".to_owned(),
            effect: Effect::Live,
            recipe: Vec::new(),
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// It should be changed.
    Change,
    /// It is as it should be.
    Good,
    /// Nothing: the rule does not apply.
    NotApplicable {
        /// Why not.
        because: String,
    },
    /// Nothing that a program should do by itself.
    Advice {
        /// What people should think of.
        advice: String,
    },
}

/// A rule with a mistake in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: rule {rule}: {error}")]
pub struct PlanError {
    /// The file that the rule is in.
    pub file: String,
    /// Id of the rule.
    pub rule: String,
    /// What is wrong.
    pub error: EvalError,
}

impl Plan {
    /// What should be changed.
    pub fn changes(&self) -> impl Iterator<Item = &Item> {
        self.items.iter().filter(|item| item.verdict == Verdict::Change)
    }
}

/// Makes a plan.
///
/// # Errors
/// An expression of a rule does not fit the facts.
pub fn plan(
    source: &dyn Source,
    facts: &Facts,
    rules: &Rules,
    profile: Profile,
    choice: &Choice,
) -> Result<Plan, PlanError> {
    let mut scope = Scope::new(facts);
    scope.set("profile", profile.name());
    let mut items: Vec<Item> = Vec::new();
    for rule in rules.of(facts.system()).filter(|rule| rule.chosen(choice)) {
        let planner = Planner { source, facts, rule, profile, asked_for: rule.asked_for(choice) };
        let wrong = |error| PlanError { file: rule.file.clone(), rule: rule.id.clone(), error };
        items.extend(planner.items(&scope).map_err(wrong)?);
    }
    Ok(Plan { profile, items })
}

/// Looks at one rule.
struct Planner<'a> {
    source: &'a dyn Source,
    facts: &'a Facts,
    rule: &'a Rule,
    profile: Profile,
    /// Whether the rule may set something.
    asked_for: bool,
}

impl Planner<'_> {
    fn items(&self, scope: &Scope<'_>) -> Result<Vec<Item>, EvalError> {
        if let Some(because) = self.other_release() {
            return Ok(vec![self.none(scope, because)?]);
        }
        let Some(each) = &self.rule.each else { return Ok(vec![self.item(scope, None)?]) };
        let elements = match each.list.list(scope) {
            Err(EvalError::Unknown(_)) => Vec::new(),
            elements => elements?,
        };
        let mut items = Vec::new();
        for element in elements {
            let mut inner = scope.inner();
            inner.set(&each.name, element);
            if holds(each.about.as_ref(), &inner)? {
                let label = each.label.say(&inner)?;
                items.push(self.item(&inner, Some(label))?);
            }
        }
        if items.is_empty() {
            let nothing = "this machine has nothing that it is about";
            let because = self.rule.none.as_deref().unwrap_or(nothing);
            items.push(self.none(scope, because.to_owned())?);
        }
        Ok(items)
    }

    /// Why the rule is not for the releases that are here.
    fn other_release(&self) -> Option<String> {
        let zfs = self.facts.zfs.as_ref();
        for (product, range) in &self.rule.releases {
            let (have, name) = match product {
                Product::Kernel => (self.facts.platform.kernel_num, &self.facts.platform.kernel),
                Product::Zfs => match zfs {
                    Some(zfs) => (zfs.version_num, &zfs.version),
                    None => return Some("there is no OpenZFS here".to_owned()),
                },
                Product::TrueNas => match &self.facts.platform.truenas {
                    Some(truenas) => (truenas.version_num, &truenas.version),
                    None => return Some("this is not TrueNAS".to_owned()),
                },
            };
            let (Some(have), Some(name)) = (have, name) else {
                return Some(format!("the release of {product} is not known"));
            };
            let end = |end: &Option<String>| Some((version_num(end.as_deref()?)?, end.clone()?));
            if let Some((_, end)) = end(&range.since).filter(|(since, _)| have < *since) {
                return Some(format!("it is for {product} {end} and later; this is {name}"));
            }
            if let Some((_, end)) = end(&range.until).filter(|(until, _)| have >= *until) {
                return Some(format!("it is for {product} before {end}; this is {name}"));
            }
        }
        None
    }

    /// What the rule says of one thing, or of the machine.
    fn item(&self, scope: &Scope<'_>, about: Option<String>) -> Result<Item, EvalError> {
        let rule = self.rule;
        let mut scope = scope.inner();
        let mut item = self.none(&scope, String::new())?;
        item.about = about;
        let mut absent = false;
        if let Some(set) = &rule.set {
            let setting = set.resolve(&scope)?;
            let told = self.now(&scope, &setting)?;
            absent = told == Now::Absent;
            item.now = match &told {
                Now::Value(value) => Some(value.clone()),
                Now::Unset | Now::Absent => None,
            };
            scope.set("now", cel(item.now.as_deref()));
            item.setting = Some(setting);
        } else {
            scope.set("now", Cel::Null);
        }
        item.reason = rule.reason.say(&scope)?;
        let because = match self.unmet(&scope)? {
            Some(because) => Some(because),
            None if absent => Some("this kernel, module or service has no such setting".to_owned()),
            None => None,
        };
        item.verdict = match because {
            Some(because) => Verdict::NotApplicable { because },
            None => self.verdict(&scope, &mut item)?,
        };
        Ok(item)
    }

    /// What the setting is: by itself, or by the facts.
    fn now(&self, scope: &Scope<'_>, setting: &Setting) -> Result<Now, EvalError> {
        let told = now(self.source, setting);
        let Some(expression) = self.rule.now.as_ref().filter(|_| told == Now::Absent) else {
            return Ok(told);
        };
        match setting_value(expression, scope) {
            Ok(value) => Ok(Now::Value(value)),
            Err(EvalError::Unknown(_)) => Ok(told),
            Err(error) => Err(error),
        }
    }

    /// Why a need of the rule is not met.
    fn unmet(&self, scope: &Scope<'_>) -> Result<Option<String>, EvalError> {
        for need in &self.rule.needs {
            match need.when.holds(scope) {
                Ok(true) => {}
                Ok(false) => return need.otherwise.say(scope).map(Some),
                Err(EvalError::Unknown(_)) => return Ok(Some(unknown(&need.when, scope))),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn verdict(&self, scope: &Scope<'_>, item: &mut Item) -> Result<Verdict, EvalError> {
        if let Some(advice) = &self.rule.advice {
            return Ok(Verdict::Advice { advice: advice.say(scope)? });
        }
        let Some(value) = self.rule.values.get(&self.profile) else {
            let profiles: Vec<&str> =
                self.rule.values.keys().map(|profile| profile.name()).collect();
            let because = format!("it is for the profile {}", profiles.join(" or "));
            return Ok(Verdict::NotApplicable { because });
        };
        let wanted = match setting_value(value, scope) {
            Ok(wanted) => wanted,
            Err(EvalError::Unknown(_)) => {
                return Ok(Verdict::NotApplicable { because: unknown(value, scope) });
            }
            Err(error) => return Err(error),
        };
        let good = item.now.as_deref().is_some_and(|now| same(now, &wanted));
        item.wanted = Some(wanted);
        if !good && !self.asked_for {
            let advice = format!(
                "It is set only if you ask for it: `lunet tune apply --only {}`.",
                self.rule.id
            );
            return Ok(Verdict::Advice { advice });
        }
        Ok(if good { Verdict::Good } else { Verdict::Change })
    }

    /// An item that says that the rule does not apply.
    fn none(&self, scope: &Scope<'_>, because: String) -> Result<Item, EvalError> {
        let rule = self.rule;
        // What the reason says of one thing cannot be said here.
        let reason = match rule.each.is_some() || !because.is_empty() {
            true => rule.reason.source.clone(),
            false => rule.reason.say(&scope.inner()).unwrap_or_default(),
        };
        Ok(Item {
            rule: rule.id.clone(),
            title: rule.title.clone(),
            about: None,
            setting: None,
            now: None,
            wanted: None,
            verdict: Verdict::NotApplicable { because },
            reason,
            risk: rule.risk.clone(),
            source: rule.source.clone(),
            effect: rule.effect,
            recipe: rule.recipe.clone(),
        })
    }
}

/// Whether a condition holds that may be missing; what is not known does not hold.
fn holds(condition: Option<&Expression>, scope: &Scope<'_>) -> Result<bool, EvalError> {
    match condition.map(|condition| condition.holds(scope)) {
        None => Ok(true),
        Some(Err(EvalError::Unknown(_))) => Ok(false),
        Some(held) => held,
    }
}

fn unknown(expression: &Expression, scope: &Scope<'_>) -> String {
    let missing = expression.missing(scope);
    match missing.is_empty() {
        true => format!("`{}` cannot be told from what is known", expression.text()),
        false => format!("{} is not known", missing.join(", ")),
    }
}

/// The value of a setting as expressions see it.
fn cel(now: Option<&str>) -> Cel {
    match now.map(Value::parse) {
        None => Cel::Null,
        Some(Value::Int(number)) => Cel::Int(number),
        Some(Value::List(list)) => list.into(),
        Some(Value::Text(text)) => text.into(),
    }
}

/// The value that an expression gives, as the kernel takes it.
fn setting_value(expression: &Expression, scope: &Scope<'_>) -> Result<String, EvalError> {
    match expression.eval(scope)? {
        Cel::Int(number) => Ok(number.to_string()),
        Cel::String(text) => Ok(text.to_string()),
        Cel::Bool(on) => Ok(if on { "on" } else { "off" }.to_owned()),
        Cel::List(list) => {
            let words = list.iter().map(|word| match word {
                Cel::Int(number) => Ok(number.to_string()),
                _ => Err(EvalError::Wrong(format!("`{}` has no whole numbers", expression.text()))),
            });
            Ok(words.collect::<Result<Vec<_>, _>>()?.join(" "))
        }
        Cel::Null => Err(EvalError::Unknown(expression.text().to_owned())),
        _ => Err(EvalError::Wrong(format!("`{}` is no value of a setting", expression.text()))),
    }
}

#[cfg(test)]
mod tests;
