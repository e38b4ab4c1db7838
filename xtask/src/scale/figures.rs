//! What was measured, and which bounds are broken.

use std::fmt::Write as _;

use anyhow::{Result, ensure};

/// What a figure may be.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// Whatever it is.
    None,
    /// The run fails beyond.
    AtMost(f64),
}

struct Figure {
    what: String,
    value: f64,
    unit: &'static str,
    how: String,
    bound: Bound,
}

impl Figure {
    fn broken(&self) -> Option<String> {
        match self.bound {
            Bound::AtMost(most) if self.value > most => Some(format!(
                "{}: {} {}, and {most} is the bound",
                self.what,
                number(self.value),
                self.unit
            )),
            _ => None,
        }
    }
}

/// All figures of a run, in the order in which they came.
#[derive(Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Takes one in, and shows it to whoever waits.
    pub fn add(&mut self, what: &str, value: f64, unit: &'static str, how: &str, bound: Bound) {
        eprintln!("{what}: {} {unit}", number(value));
        self.0.push(Figure { what: what.to_owned(), value, unit, how: how.to_owned(), bound });
    }

    /// For the page.
    pub fn table(&self) -> String {
        let mut table = "| what | figure | how |\n|---|---|---|\n".to_owned();
        for Figure { what, value, unit, how, .. } in &self.0 {
            let _ = writeln!(table, "| {what} | {} {unit} | {how} |", number(*value));
        }
        table
    }

    /// Fails with all bounds that are broken.
    pub fn verdict(&self) -> Result<()> {
        let broken: Vec<String> = self.0.iter().filter_map(Figure::broken).collect();
        ensure!(broken.is_empty(), "beyond their bounds:\n{}", broken.join("\n"));
        Ok(())
    }
}

/// Three digits that mean something.
fn number(value: f64) -> String {
    let digits = if value == value.trunc() {
        0
    } else {
        (2 - value.abs().max(1e-3).log10().floor() as i32).clamp(0, 5) as usize
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [12_345.6, 12.34, 1.234, 0.012_34].map(number),
            ["12346", "12.3", "1.23", "0.0123"]
        );
        assert_eq!(number(10_000.0), "10000");
    }

    #[test]
    fn a_broken_bound_fails_the_run() {
        let mut figures = Figures::default();
        figures.add("one", 3.0, "s", "", Bound::AtMost(3.0));
        assert!(figures.verdict().is_ok());
        figures.add("two", 3.5, "s", "", Bound::AtMost(3.0));
        let told = figures.verdict().map_err(|error| error.to_string());
        assert_eq!(told, Err("beyond their bounds:\ntwo: 3.50 s, and 3 is the bound".to_owned()));
    }
}
