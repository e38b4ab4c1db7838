//! A figure and its spread, of few rounds.

/// The middle, the least and the greatest of the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    median: f64,
    least: f64,
    greatest: f64,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (&least, &greatest) = (values.first()?, values.last()?);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            1 => values[middle],
            _ => (values[middle - 1] + values[middle]) / 2.0,
        };
        Some(Spread { median, least, greatest })
    }

    /// The middle.
    pub fn median(self) -> f64 {
        self.median
    }

    /// For tables of large counts.
    pub fn thousands(self) -> String {
        let Spread { median, least, greatest } = self;
        format!("{:.0}k ({:.0}k-{:.0}k)", median / 1e3, least / 1e3, greatest / 1e3)
    }

    /// For tables of ratios.
    pub fn ratio(self) -> String {
        let Spread { median, least, greatest } = self;
        format!("{median:.2} ({least:.2}-{greatest:.2})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let spread =
            |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.median, s.least, s.greatest));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }
}
