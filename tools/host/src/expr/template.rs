//! Texts with expressions in them: `{nic.name} runs at {gbit(nic.speed_mbit)}`.

use super::{EvalError, Expression, Scope, SyntaxError, Value};

/// A text with expressions in braces; `{{` and `}}` are braces.
#[derive(Debug)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Debug)]
enum Part {
    Text(String),
    Expression(Expression),
}

impl Template {
    /// Reads a text.
    ///
    /// # Errors
    /// An expression in it is not CEL, or a brace stands alone.
    pub fn new(text: &str) -> Result<Self, SyntaxError> {
        let wrong = |what: &str| SyntaxError { expression: text.to_owned(), what: what.to_owned() };
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let (brace, after) = (&rest[at..=at], &rest[at + 1..]);
            if let Some(after) = after.strip_prefix(brace) {
                plain.push_str(brace);
                rest = after;
                continue;
            }
            if brace == "}" {
                return Err(wrong("a closing brace without an opening one"));
            }
            let end = end(after).ok_or_else(|| wrong("an opening brace without a closing one"))?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(Part::Expression(Expression::new(&after[..end])?));
            rest = &after[end + 1..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }

    /// The text with the values in their places.
    ///
    /// # Errors
    /// An expression in it has no value.
    pub fn fill(&self, scope: &Scope<'_>) -> Result<String, EvalError> {
        let mut out = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Expression(expression) => match show(&expression.eval(scope)?) {
                    Some(text) => out.push_str(&text),
                    None => return Err(EvalError::Unknown(expression.text().to_owned())),
                },
            }
        }
        Ok(out)
    }

    /// The CEL expressions of the text.
    pub fn expressions(&self) -> impl Iterator<Item = &Expression> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Expression(expression) => Some(expression),
        })
    }
}

/// Where the brace is that closes: those in quotes and those of maps do not count.
fn end(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0, None);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '{') => depth += 1,
            (None, '}') if depth == 0 => return Some(at),
            (None, '}') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

/// A value as people write it; nothing for what is not known.
pub(super) fn show(value: &Value) -> Option<String> {
    match value {
        Value::Int(number) => Some(number.to_string()),
        Value::UInt(number) => Some(number.to_string()),
        Value::Float(number) => Some(fraction(*number)),
        Value::String(text) => Some(text.to_string()),
        Value::Bool(yes) => Some(if *yes { "yes" } else { "no" }.to_owned()),
        Value::List(list) => {
            let words: Option<Vec<String>> = list.iter().map(show).collect();
            Some(words?.join(", "))
        }
        _ => None,
    }
}

/// Three figures are enough for people.
pub(super) fn fraction(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    let text = format!("{number:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
