//! How far it is, on a terminal in two lines of 80 columns, or line by line for whoever watches a job: nothing where
//! nobody looks.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::Duration;

use crate::bench::Step;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunet_config::place::PROGRESS_VARIABLE;
use lunet_config::units;

/// Finer than a screen shows.
const PARTS: u64 = 10_000;
/// Redraws each second at the most.
const PER_SECOND: u8 = 5;

/// A bar on standard error.
pub enum Bar {
    /// Drawn again and again.
    Drawn(ProgressBar),
    /// A line for each step; the step before.
    Lines(RefCell<String>),
}

impl Bar {
    /// Shown from the first step on.
    pub fn new() -> Self {
        if std::env::var_os(PROGRESS_VARIABLE).is_some_and(|how| how == "lines") {
            return Self::Lines(RefCell::default());
        }
        let bar = ProgressBar::with_draw_target(
            Some(PARTS),
            ProgressDrawTarget::stderr_with_hz(PER_SECOND),
        );
        let style = ProgressStyle::with_template("{wide_msg}\n[{bar:36}] {percent:>3} %  {prefix}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("##."));
        }
        Self::Drawn(bar)
    }

    /// Where it is, with the rate of the last run of this kind and the time that is left.
    pub fn show(&self, step: &Step) {
        let done = step.done.clamp(0.0, 1.0);
        match self {
            Self::Drawn(bar) => {
                bar.set_prefix(left(step));
                bar.set_message(step.what.clone());
                bar.set_position((done * PARTS as f64) as u64);
            }
            Self::Lines(before) if *before.borrow() != step.what => {
                let percent = done * 100.0;
                let _ = writeln!(io::stderr(), "{percent:.0} %: {}, {}", step.what, left(step));
                before.borrow_mut().clone_from(&step.what);
            }
            Self::Lines(_) => {}
        }
    }

    /// Leaves the line to what follows.
    pub fn clear(&self) {
        if let Self::Drawn(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Below what runs, of which a narrow terminal cuts the end.
fn left(step: &Step) -> String {
    let left = Duration::from_secs(step.left_s.max(0.0).round() as u64);
    let rate = step.rate.map_or_else(String::new, |rate| format!(", last {rate:.0} MiB/s"));
    format!("{} left{rate}", units::duration(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_says_how_long_and_how_fast() {
        let mut step = Step {
            what: "round 2 of 6: /tank, 4k random reads, depth 32".into(),
            done: 0.3,
            left_s: 80.4,
            rate: Some(812.3),
        };
        assert_eq!(left(&step), "1 min 20 s left, last 812 MiB/s");
        step.rate = None;
        assert_eq!(left(&step), "1 min 20 s left");
    }
}
