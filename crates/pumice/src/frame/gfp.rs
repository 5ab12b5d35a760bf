//! What a request asks for, under the kernel's names (`include/linux/gfp_types.h`).

bitflags::bitflags! {
    /// What a request for frames wants and what may be done to fulfil it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Gfp: u32 {
        /// The memory must read as zeros. Without it, its content is unknown, and frames that
        /// are not zeroed are preferred, so that clean ones are kept for those who need them.
        const ZERO = 1 << 0;
        /// Reclaim may start I/O.
        const IO = 1 << 1;
        /// Reclaim may call into caches and file systems.
        const FS = 1 << 2;
        /// The caller can wait for reclaim.
        const DIRECT_RECLAIM = 1 << 3;
        /// Background reclaim may be woken.
        const KSWAPD_RECLAIM = 1 << 4;
        /// May use what lies under the minimum watermark: reclaim itself, and its I/O.
        const MEMALLOC = 1 << 5;
        /// The usual request.
        const KERNEL = Self::IO.bits() | Self::FS.bits() | Self::DIRECT_RECLAIM.bits()
            | Self::KSWAPD_RECLAIM.bits();
        /// As [`Gfp::KERNEL`], from within I/O.
        const NOIO = Self::DIRECT_RECLAIM.bits() | Self::KSWAPD_RECLAIM.bits();
        /// As [`Gfp::KERNEL`], from within a cache.
        const NOFS = Self::NOIO.bits() | Self::IO.bits();
        /// Cannot wait.
        const NOWAIT = Self::KSWAPD_RECLAIM.bits();
    }
}
