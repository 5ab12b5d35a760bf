//! The flags of a request, under the kernel's names (`include/linux/gfp_types.h`).

crate::flags! {
    /// The wishes of a request for frames, and the means that are allowed to fulfil it.
    pub struct Gfp: u32 {
        /// The memory must read as zeros. Without it, its content is unknown, and frames that are not zeroed are
        /// preferred, so that clean ones are kept for requests that need them.
        const ZERO = 1 << 0;
        /// Reclaim may start I/O.
        const IO = 1 << 1;
        /// Reclaim may call into caches and file systems.
        const FS = 1 << 2;
        /// The caller can wait for reclaim.
        const DIRECT_RECLAIM = 1 << 3;
        /// Background reclaim may be woken.
        const KSWAPD_RECLAIM = 1 << 4;
        /// May use the frames below the min watermark: reclaim itself, and its I/O.
        const MEMALLOC = 1 << 5;
        /// Only above the low watermark; reclaim is not woken.
        const ABOVE_LOW = 1 << 6;
        /// The usual request.
        const KERNEL = Gfp::NOFS.0 | Gfp::FS.0;
        /// As [`Gfp::KERNEL`], from within I/O.
        const NOIO = Gfp::DIRECT_RECLAIM.0 | Gfp::KSWAPD_RECLAIM.0;
        /// As [`Gfp::KERNEL`], from within a cache.
        const NOFS = Gfp::NOIO.0 | Gfp::IO.0;
        /// Cannot wait.
        const NOWAIT = Gfp::KSWAPD_RECLAIM.0;
    }
}

/// Bits that each say that a zone is not to be used, so that a request that says nothing may use all.
const OTHER_ZONES: u32 = 0xff << FIRST_ZONE;
const FIRST_ZONE: u32 = 24;

impl Gfp {
    /// Zones of a space over several that a request can name.
    pub const MOST_ZONES: usize = 8;

    /// The flags that hold for a request if any of its scopes says so; the other flags need all of its scopes.
    #[doc(hidden)]
    pub const IF_ANY: Gfp = Gfp::from_bits_retain(Gfp::MEMALLOC.bits() | OTHER_ZONES);

    /// From none but these zones, in a space over several: a bit for each, in their order.
    #[must_use]
    pub const fn within(self, zones: u8) -> Gfp {
        Gfp::from_bits_retain(self.bits() | (!zones as u32) << FIRST_ZONE)
    }

    /// Whether it may be served from a zone.
    #[doc(hidden)]
    pub const fn may_use(self, zone: usize) -> bool {
        zone < Gfp::MOST_ZONES && self.bits() >> FIRST_ZONE & 1 << zone == 0
    }
}
