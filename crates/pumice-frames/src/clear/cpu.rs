//! The processor's engines under one type: a value of it exists only where it can run.

use core::fmt;

#[cfg(target_arch = "aarch64")]
use super::dc_zva;
use super::detect::Features;
use super::engine::{Engine, Lost, Piece, PieceState};
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{clzero, stosb, stream_avx2, stream_avx512};

/// Whether an engine's stores go through the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Through it: the memory is near afterwards, and something else no longer is.
    Through,
    /// Around it: straight to memory, and nothing is evicted.
    Around,
    /// The processor decides.
    Either,
}

/// An engine of this processor.
///
/// Invariant: values are made by [`CpuEngine::available`] alone, so the processor supports what
/// the engine uses.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuEngine(Instructions);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Stosb,
    #[cfg(target_arch = "x86_64")]
    StreamAvx512,
    #[cfg(target_arch = "x86_64")]
    StreamAvx2,
    #[cfg(target_arch = "x86_64")]
    Clzero,
    #[cfg(target_arch = "aarch64")]
    DcZva {
        granule: u16,
    },
    Portable,
}

impl CpuEngine {
    /// Runs everywhere.
    pub const PORTABLE: CpuEngine = CpuEngine(Instructions::Portable);

    /// The most engines that [`CpuEngine::available`] yields.
    pub const MAX: usize = 5;

    /// The engines that the processor supports; [`CpuEngine::PORTABLE`] is always there and comes last.
    pub fn available() -> impl Iterator<Item = CpuEngine> + Clone {
        Self::supported_by(Features::detect())
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn supported_by(features: Features) -> impl Iterator<Item = CpuEngine> + Clone {
        let kinds = [
            Some(Instructions::Stosb),
            features.avx512.then_some(Instructions::StreamAvx512),
            features.avx2.then_some(Instructions::StreamAvx2),
            features.clzero.then_some(Instructions::Clzero),
            Some(Instructions::Portable),
        ];
        kinds.into_iter().flatten().map(CpuEngine)
    }

    #[cfg(target_arch = "aarch64")]
    pub(super) fn supported_by(features: Features) -> impl Iterator<Item = CpuEngine> + Clone {
        let zva = features.zva_bytes.map(|granule| Instructions::DcZva { granule });
        [zva, Some(Instructions::Portable)].into_iter().flatten().map(CpuEngine)
    }

    /// Its name in reports and in `PUMICE_CLEAR`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Stosb => "stosb",
            #[cfg(target_arch = "x86_64")]
            Instructions::StreamAvx512 => "avx512-nt",
            #[cfg(target_arch = "x86_64")]
            Instructions::StreamAvx2 => "avx2-nt",
            #[cfg(target_arch = "x86_64")]
            Instructions::Clzero => "clzero",
            #[cfg(target_arch = "aarch64")]
            Instructions::DcZva { .. } => "dc-zva",
            Instructions::Portable => "portable",
        }
    }

    /// Whether its stores go through the cache.
    pub const fn path(self) -> Path {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Instructions::Stosb => Path::Through,
            #[cfg(target_arch = "x86_64")]
            Instructions::StreamAvx512 | Instructions::StreamAvx2 | Instructions::Clzero => {
                Path::Around
            }
            #[cfg(target_arch = "aarch64")]
            Instructions::DcZva { .. } => Path::Either,
            Instructions::Portable => Path::Either,
        }
    }

    /// Zeroes `len` bytes, at any alignment. Other processors read zeros after they were told of it.
    ///
    /// # Safety
    /// The range is writable and nobody else uses it.
    #[inline]
    pub unsafe fn clear(self, at: *mut u8, len: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.clear_unfenced(at, len) };
        self.fence();
    }

    /// # Safety
    /// As for [`CpuEngine::clear`]; and [`CpuEngine::fence`] comes before anybody is told.
    #[inline]
    unsafe fn clear_unfenced(self, at: *mut u8, len: usize) {
        // SAFETY: the caller vouches for the range; that this value exists, for the processor.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Instructions::Stosb => stosb::clear(at, len),
                #[cfg(target_arch = "x86_64")]
                Instructions::StreamAvx512 => stream_avx512::clear(at, len),
                #[cfg(target_arch = "x86_64")]
                Instructions::StreamAvx2 => stream_avx2::clear(at, len),
                #[cfg(target_arch = "x86_64")]
                Instructions::Clzero => clzero::clear(at, len),
                #[cfg(target_arch = "aarch64")]
                Instructions::DcZva { granule } => dc_zva::clear(at, len, granule.into()),
                Instructions::Portable => portable::clear(at, len),
            }
        }
    }

    /// Puts weakly ordered stores before all later ones: a release store, which is what tells
    /// others that memory is zero, does not hold them back by itself on x86.
    #[inline]
    fn fence(self) {
        #[cfg(target_arch = "x86_64")]
        if self.path() == Path::Around {
            // SAFETY: SFENCE is part of SSE, which x86-64 always has.
            unsafe { core::arch::x86_64::_mm_sfence() };
        }
    }
}

impl fmt::Debug for CpuEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// SAFETY: each piece is zeroed whole, by this thread, and fenced, before it is settled.
unsafe impl Engine for CpuEngine {
    fn name(&self) -> &'static str {
        CpuEngine::name(*self)
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
            let (at, len) = piece.remaining();
            // SAFETY: the caller vouches for the piece's memory, and sees its new state only
            // after the fence below.
            unsafe {
                self.clear_unfenced(at, len);
                piece.settle_zeroed();
            }
        }
        // One fence for the batch: at 4 KiB a fence each would cost as much as the clearing.
        self.fence();
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> Result<(), Lost> {
        Ok(())
    }
}
