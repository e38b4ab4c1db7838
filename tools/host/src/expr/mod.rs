//! Expressions over facts, in CEL (the Common Expression Language): rules and checks are made of
//! them.
//!
//! Every field of [`Facts`] is a variable: `memory.total_bytes > 64 * GiB`. What is not known is
//! `null`, and an expression that needs it has no value: [`EvalError::Unknown`], which is neither
//! true nor false. Whole numbers and fractions do not mix: `double(x) * 1.5`.
//!
//! Beside CEL's own functions there are those of the table in `functions.rs`, and the constants
//! `KiB`, `MiB`, `GiB` and `TiB`.

mod check;
mod functions;
mod ranges;
mod shape;
mod template;

use std::fmt;

use cel::objects::Key;
use cel::{Context, ExecutionError, IdedExpr, Program};

pub use cel::Value;
pub use check::CheckError;
pub(crate) use functions::{iec, is_public, rate};
pub use shape::{Shape, sample};
pub use template::Template;

use crate::facts::Facts;

/// An expression that could be read.
pub struct Expression {
    text: String,
    /// As it was written.
    program: Program,
    /// As it is executed: what it ranges over has an order.
    ordered: IdedExpr,
}

/// An expression that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{expression}`: {what}")]
pub struct SyntaxError {
    /// The expression, or the text with expressions in it.
    pub expression: String,
    /// What is wrong, and where.
    pub what: String,
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// It needs a fact that is not known.
    #[error("not known: {0}")]
    Unknown(String),
    /// It makes no sense, whatever the facts: a mistake in it.
    #[error("{0}")]
    Wrong(String),
}

/// The variables that an expression can speak of.
pub struct Scope<'a>(Context<'a>);

impl Scope<'_> {
    /// The facts, the functions and the constants.
    pub fn new(facts: &Facts) -> Self {
        let mut context = Context::default();
        functions::add(&mut context);
        context.add_function(ranges::RANGE, ranges::range);
        for (name, power) in [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)] {
            context.add_variable_from_value(name, Value::Int(1 << power));
        }
        if let Ok(Value::Map(map)) = cel::to_value(facts) {
            for (name, value) in map.map.iter() {
                if let Key::String(name) = name {
                    context.add_variable_from_value(name.as_str(), value.clone());
                }
            }
        }
        Self(context)
    }

    /// A scope that also knows what is set in it; this one stays as it is.
    pub fn inner(&self) -> Scope<'_> {
        Scope(self.0.new_inner_scope())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.0.add_variable_from_value(name, value);
    }
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// It is not CEL.
    pub fn new(text: &str) -> Result<Self, SyntaxError> {
        let wrong = |what: String| SyntaxError { expression: text.trim().to_owned(), what };
        let program = Program::compile(text).map_err(|errors| wrong(errors.to_string()))?;
        let mut ordered = program.expression().clone();
        ranges::in_order(&mut ordered);
        Ok(Self { text: text.trim().to_owned(), program, ordered })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it gives, if every name in it is one of `names`: a misspelt fact is found here, and
    /// not on the first machine that has it.
    ///
    /// # Errors
    /// A name is not there.
    pub fn check(&self, names: &Shape) -> Result<Shape, CheckError> {
        check::check(self.program.expression(), names)
    }

    /// The facts in it that are not known.
    pub fn missing(&self, scope: &Scope<'_>) -> Vec<String> {
        let mut paths = Vec::new();
        check::paths(self.program.expression(), &mut paths);
        let unknown = |path: &&IdedExpr| matches!(scope.0.resolve(path), Ok(Value::Null) | Err(_));
        paths.into_iter().filter(unknown).filter_map(check::path).collect()
    }

    /// What it comes to.
    ///
    /// # Errors
    /// It needs what is not known, or makes no sense.
    pub fn eval(&self, scope: &Scope<'_>) -> Result<Value, EvalError> {
        scope.0.resolve(&self.ordered).map_err(|error| why(&self.text, error))
    }

    /// Whether it holds.
    ///
    /// # Errors
    /// As [`Self::eval`]; its value is neither true nor false.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, EvalError> {
        match self.eval(scope)? {
            Value::Bool(holds) => Ok(holds),
            Value::Null => Err(EvalError::Unknown(self.text.clone())),
            other => Err(EvalError::Wrong(format!(
                "`{}` is neither true nor false: {}",
                self.text,
                template::show(&other).unwrap_or_default()
            ))),
        }
    }

    /// The values of a list.
    ///
    /// # Errors
    /// As [`Self::eval`]; its value is no list.
    pub fn list(&self, scope: &Scope<'_>) -> Result<Vec<Value>, EvalError> {
        match self.eval(scope)? {
            Value::List(list) => Ok(list.to_vec()),
            Value::Null => Err(EvalError::Unknown(self.text.clone())),
            _ => Err(EvalError::Wrong(format!("`{}` is no list", self.text))),
        }
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

/// Tells what is not known from what is wrong. A field of `null` and a name that a map does not
/// have are not known; so is everything that is done with `null`.
fn why(text: &str, error: ExecutionError) -> EvalError {
    use ExecutionError as E;
    let null = |values: &[&Value]| values.iter().any(|value| matches!(value, Value::Null));
    let unknown = match &error {
        // `null` where true or false is wanted comes as this one.
        E::NoSuchKey(_) | E::IndexOutOfBounds(_) | E::NoSuchOverload => true,
        E::ValuesNotComparable(a, b)
        | E::UnsupportedBinaryOperator(_, a, b)
        | E::UnsupportedIndex(a, b) => null(&[a, b]),
        E::UnsupportedTargetType { target } | E::NotSupportedAsMethod { target, .. } => {
            null(&[target])
        }
        E::UnsupportedUnaryOperator(_, value) | E::UnsupportedMapIndex(value) => null(&[value]),
        E::UnexpectedType { got, .. } => got.contains("Null") || got.contains("null"),
        E::FunctionError { message, .. } => {
            message.contains("Null") || message == functions::UNKNOWN
        }
        _ => false,
    };
    let what = match &error {
        E::NoSuchKey(name) => format!("{name} in `{text}`"),
        _ => format!("`{text}`"),
    };
    match unknown {
        true => EvalError::Unknown(what),
        false => EvalError::Wrong(format!("`{text}`: {error}")),
    }
}

#[cfg(test)]
mod tests;
