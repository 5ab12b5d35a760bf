//! How long accesses took: counts in buckets a sixteenth of their value wide.

/// Buckets for each doubling.
const STEPS: u32 = 16;
const BUCKETS: usize = (u64::BITS * STEPS) as usize;

/// See the module's top.
#[derive(Clone, Debug)]
pub struct Waits {
    counts: Vec<u64>,
    longest_ns: u64,
}

impl Default for Waits {
    /// None.
    fn default() -> Waits {
        Waits { counts: vec![0; BUCKETS], longest_ns: 0 }
    }
}

impl Waits {
    /// One more.
    pub fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Those of another thread as well.
    pub fn merge(&mut self, other: &Waits) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The longest, in microseconds.
    pub fn longest_us(&self) -> f64 {
        self.longest_ns as f64 / 1e3
    }

    /// The longest wait of so many in a hundred, in microseconds, to within a sixteenth.
    pub fn percentile_us(&self, percent: f64) -> f64 {
        let wanted = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (upper_end(bucket).min(self.longest_ns)) as f64 / 1e3;
            }
        }
        self.longest_us()
    }
}

/// The place of a value: its highest bit, and the four below it.
fn bucket(ns: u64) -> usize {
    if ns < u64::from(STEPS) {
        return ns as usize;
    }
    let doubling = ns.ilog2() - STEPS.ilog2();
    (doubling * STEPS) as usize + (ns >> doubling) as usize
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let steps = STEPS as usize;
    if bucket < 2 * steps {
        return bucket as u64;
    }
    let doubling = bucket / steps - 1;
    let step = (bucket % steps + steps) as u64;
    ((step + 1) << doubling) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_in_their_buckets() {
        let mut last = 0;
        for ns in (0..5000).chain([1 << 20, (1 << 20) + 1, 123_456_789, 1 << 40]) {
            let bucket = bucket(ns);
            assert!(bucket >= last && bucket < BUCKETS, "{ns}");
            assert!(upper_end(bucket) >= ns, "{ns}");
            assert!(bucket == 0 || upper_end(bucket - 1) < ns, "{ns}");
            last = bucket;
        }
    }

    #[test]
    fn percentiles() {
        let mut waits = Waits::default();
        for us in 1..=1000 {
            waits.add(us * 1000);
        }
        assert!((waits.percentile_us(50.0) / 500.0 - 1.0).abs() < 0.07);
        assert!((waits.percentile_us(99.0) / 990.0 - 1.0).abs() < 0.07);
        assert_eq!((waits.longest_us(), waits.count()), (1000.0, 1000));
        let mut both = Waits::default();
        both.merge(&waits);
        both.add(2_000_000);
        assert_eq!((both.longest_us(), both.count()), (2000.0, 1001));
        assert_eq!(Waits::default().percentile_us(99.0), 0.0);
    }
}
