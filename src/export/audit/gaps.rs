//! Distances, kept in bounded memory however many there are.

/// How many bins stand for a factor of ten: a percentile is right to 5 %.
const FINE: f64 = 50.0;
/// The smallest distance that is told from none, as a power of ten.
const LEAST: f64 = -12.0;
const BINS: usize = 16 * 50;

/// How far pairs of numbers lie apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gaps {
    count: u64,
    sum: f64,
    max: f64,
    /// How many there are of each size; the first bin is for those that are next to none.
    bins: Vec<u64>,
}

impl Default for Gaps {
    fn default() -> Self {
        Self { count: 0, sum: 0.0, max: 0.0, bins: vec![0; BINS + 1] }
    }
}

impl Gaps {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "clamped to the bins, which are few"
    )]
    pub(super) fn add(&mut self, gap: f64) {
        self.count += 1;
        self.sum += gap;
        self.max = self.max.max(gap);
        let bin = ((gap.log10() - LEAST) * FINE).ceil().clamp(0.0, BINS as f64) as usize;
        self.bins[bin] += 1;
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// The mean; 0 of none.
    #[expect(clippy::cast_precision_loss, reason = "a mean of so many needs no more")]
    pub(super) fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / self.count as f64 }
    }

    pub(super) fn max(&self) -> f64 {
        self.max
    }

    /// What `part` (0 to 1) of all are not above.
    #[expect(clippy::cast_precision_loss, reason = "ranks of so many need no more")]
    pub(super) fn percentile(&self, part: f64) -> f64 {
        let mut below = 0;
        for (bin, count) in self.bins.iter().enumerate() {
            below += count;
            if below > 0 && below as f64 >= part * self.count as f64 {
                return match bin {
                    0 => 0.0,
                    // All that is larger than the bins tell.
                    BINS => self.max,
                    _ => 10f64.powf(bin as f64 / FINE + LEAST).min(self.max),
                };
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_a_twentieth() {
        let mut gaps = Gaps::default();
        for at in 1..=1000 {
            gaps.add(f64::from(at) / 1000.0);
        }
        assert_eq!((gaps.count(), gaps.max()), (1000, 1.0));
        assert!((gaps.mean() - 0.5005).abs() < 1e-12);
        for part in [0.5, 0.9, 0.99, 0.999] {
            let found = gaps.percentile(part);
            assert!((part..part * 1.05).contains(&found), "{part}: {found}");
        }
        assert!((gaps.percentile(1.0) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn none_and_nothing_are_zero() {
        let mut gaps = Gaps::default();
        assert_eq!((gaps.mean(), gaps.percentile(0.5), gaps.max()), (0.0, 0.0, 0.0));
        gaps.add(0.0);
        gaps.add(f64::MAX);
        assert_eq!((gaps.percentile(0.5), gaps.percentile(1.0)), (0.0, f64::MAX));
    }
}
