//! How far a zone's free memory may sink, and the reclaim that is called then.

use super::super::gfp::Gfp;
use crate::addr::Pfn;

/// Free memory levels, in frames, as the kernel's watermarks. Below `low` background reclaim is woken and works up to
/// `high`. Below `min` only reclaiming threads get frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermarks {
    /// Below this, requests do direct reclaim.
    pub min: usize,
    /// Below this, background reclaim is woken.
    pub low: usize,
    /// At this, it stops.
    pub high: usize,
}

impl Watermarks {
    /// The level of so many free frames.
    #[doc(hidden)]
    pub const fn pressure(&self, free: usize) -> Pressure {
        if free < self.min {
            Pressure::Min
        } else if free < self.low {
            Pressure::Low
        } else if free < self.high {
            Pressure::High
        } else {
            Pressure::None
        }
    }
}

/// How far free memory has sunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Pressure {
    /// At the high watermark or above.
    None,
    /// Between low and high: background reclaim goes on if it runs.
    High,
    /// Below low: it starts.
    Low,
    /// Below min: requests do direct reclaim.
    Min,
}

/// The interface that reclaim implements. It knows the watermarks, and how much is free.
///
/// # Safety
/// It is asked while a thread's list of frames is being filled: it uses no task of a space or cache whose thread may be
/// the caller.
pub unsafe trait Reclaim: Sync {
    /// The number of its first frame, in a space over several zones.
    fn first(&self) -> Pfn {
        Pfn(0)
    }

    /// Whether free memory is short.
    fn pressure(&self) -> Pressure;

    /// So many more requests were served elsewhere since free memory is short here. Nobody reports that pages were
    /// unmapped. So reclaim that was passed over often counts free memory anew.
    fn passed_over(&self, _requests: usize) {}

    /// Wakes background reclaim.
    fn wake(&self);

    /// Frees frames for a request, as its flags allow, and says how many are to be had: with none, there will be none.
    fn reclaim(&self, gfp: Gfp, frames: usize) -> usize;

    /// Frames that were admitted were not to be had: nobody took them.
    fn give_back(&self, _frames: usize) {}

    /// Whether a request for so many frames may be served as things are, without reclaim of its own. A caller that is
    /// told so takes them, or gives them back.
    fn admits(&self, gfp: Gfp, _frames: usize) -> bool {
        let pressure = self.pressure();
        if pressure >= Pressure::Low && gfp.contains(Gfp::KSWAPD_RECLAIM) {
            self.wake();
        }
        pressure < Pressure::Min || gfp.contains(Gfp::MEMALLOC)
    }
}

impl core::fmt::Debug for dyn Reclaim + '_ {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Reclaim")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    std::thread_local! {
        static WOKEN: Cell<usize> = const { Cell::new(0) };
    }

    /// A zone with so many free frames, and nothing to reclaim.
    struct Free(usize);

    // SAFETY: it only counts.
    unsafe impl Reclaim for Free {
        fn pressure(&self) -> Pressure {
            Watermarks { min: 1024, low: 1536, high: 2048 }.pressure(self.0)
        }
        fn wake(&self) {
            WOKEN.set(WOKEN.get() + 1);
        }
        fn reclaim(&self, _: Gfp, _: usize) -> usize {
            0
        }
    }

    #[test]
    fn watermarks_decide_who_gets_the_rest() {
        assert!(Free(1536).admits(Gfp::KERNEL, 1));
        assert_eq!(WOKEN.get(), 0, "there is enough");
        assert!(Free(1024).admits(Gfp::KERNEL, 1));
        assert!(!Free(1023).admits(Gfp::KERNEL, 1));
        assert!(Free(0).admits(Gfp::KERNEL | Gfp::MEMALLOC, 1));
        assert_eq!(WOKEN.get(), 3);
    }
}
