//! How far it is, on a terminal in two lines of 80 columns: nothing where nobody looks.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lunet::bench::Step;
use lunet::units;

/// Finer than a screen shows.
const PARTS: u64 = 10_000;
/// Redraws each second at the most.
const PER_SECOND: u8 = 5;

/// A bar on standard error.
pub struct Bar(ProgressBar);

impl Bar {
    /// Shown from the first step on.
    pub fn new() -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(PARTS),
            ProgressDrawTarget::stderr_with_hz(PER_SECOND),
        );
        let style = ProgressStyle::with_template("{wide_msg}\n[{bar:36}] {percent:>3} %  {prefix}");
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("##."));
        }
        Self(bar)
    }

    /// Where it is, with the rate of the last run of this kind and the time that is left.
    pub fn show(&self, step: &Step) {
        self.0.set_prefix(left(step));
        self.0.set_message(step.what.clone());
        self.0.set_position((step.done.clamp(0.0, 1.0) * PARTS as f64) as u64);
    }

    /// Leaves the line to what follows.
    pub fn clear(&self) {
        self.0.finish_and_clear();
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
