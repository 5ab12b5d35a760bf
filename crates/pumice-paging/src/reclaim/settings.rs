//! Settings of reclaim, which can be changed at any time.

use std::time::Duration;

use super::policy::Tunables;
use pumice_frames::frame::Watermarks;

/// See the module's top. Each field's default and the reason for it stand beside it; [`Settings::of`] makes them. Those
/// that only tests set are hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Free frames. Below low (four times the square root of all, a 16th at most) `kswapd` begins. It ends at high
    /// (half as many again), so that it works in batches and not for each page. Below min (an eighth of low, 16 at
    /// least) the allocating thread does direct reclaim, and the remaining frames are the reserve. Free frames hold no
    /// page, so they are to be few. But they have to last for requests while `kswapd` writes, and tables and the lists
    /// of threads come out of them. These needs grow with the machine, not with the memory (the kernel takes a square
    /// root as well).
    pub watermarks: Watermarks,
    /// Pages that may be in memory, also where more frames are free: above this, pages go until a 16th less are there.
    /// All, by default.
    #[doc(hidden)]
    pub most_pages: usize,
    /// `SWAP_CLUSTER_MAX`, 32: pages chosen at a time, and written by one request at most. As in the kernel; 128 KiB
    /// is where a request's length begins to tell on devices here. 64 at most.
    #[doc(hidden)]
    pub swap_cluster_max: usize,
    /// Pages that are being written at most, 128, by all reclaimers together. More of them would not be written sooner,
    /// and reads would wait behind them: with 4,096, one read of a thousand took 12 ms and more; with 128 it took 2 to
    /// 4, as on the idle device.
    #[doc(hidden)]
    pub most_leaving: usize,
    /// `vm_mapped_ratio`: how many *mapped* pages ([`Task::mapped`](crate::space::Task::mapped)) reclaim meets at the
    /// inactive list's tail, rolls over and counts for each page that it is to free, before it walks page tables
    /// for pages to unmap (`swap_out`); a tenth of those it looks at count as many in any case. `None`: the policy's
    /// own. That is 100 for two lists, as in 2.4, which had no reverse mapping. It is 0 for the adaptive policy:
    /// reclaim knows a frame's page here, so a page that was chosen is unmapped at once, and the policy's knowledge of
    /// it decides, not its place in a table.
    #[doc(hidden)]
    pub vm_mapped_ratio: Option<usize>,
    /// The policy's own settings.
    pub policy: Tunables,
    /// `vfs_cache_pressure`, 100: the share of a shrinker's cache that is asked for, in percent of the share of the
    /// pages in memory that was scanned. With 0 it is asked only where no page is left to go.
    #[doc(hidden)]
    pub cache_pressure_percent: u32,
    /// How long `kswapd` pauses when it could evict nothing, 20 ms; twice as long each time, up to 64 times that, for
    /// as long as no thread asks.
    #[doc(hidden)]
    pub pause: Duration,
}

impl Settings {
    /// For a zone of `frames` frames.
    pub const fn of(frames: usize) -> Settings {
        let (most, burst) = (frames / 16, 4 * frames.isqrt());
        let low = if most < burst { most } else { burst };
        let low = if low > 48 { low } else { 48 };
        let min = if low / 8 > 16 { low / 8 } else { 16 };
        Settings {
            watermarks: Watermarks { min, low, high: low + low / 2 },
            most_pages: usize::MAX,
            swap_cluster_max: 32,
            most_leaving: 128,
            vm_mapped_ratio: None,
            policy: Tunables::DEFAULT,
            cache_pressure_percent: 100,
            pause: Duration::from_millis(20),
        }
    }

    /// With room for so many pages only.
    #[doc(hidden)]
    #[must_use]
    pub const fn with_most_pages(self, most_pages: usize) -> Settings {
        Settings { most_pages, ..self }
    }

    /// The same with values that make sense.
    pub(super) fn checked(self) -> Settings {
        let Watermarks { min, low, high } = self.watermarks;
        let (low, high) = (low.max(min), high.max(low).max(min));
        Settings {
            watermarks: Watermarks { min, low, high },
            swap_cluster_max: self.swap_cluster_max.clamp(1, 64),
            most_leaving: self.most_leaving.max(1),
            cache_pressure_percent: self.cache_pressure_percent.min(10_000),
            policy: self.policy.checked(),
            ..self
        }
    }
}
