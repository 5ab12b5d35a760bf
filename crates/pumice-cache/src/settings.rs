//! Settings of a cache, of a file, and of pages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::mem::Huge;
use pumice_io::{Cached, Engines, Opening};

use super::rule::WriteAhead;

/// How large a cache is, and how much of it may be dirty. Times and amounts are as Linux has them
/// (`vm.dirty_background_ratio`, `vm.dirty_ratio`), but that pages are written back sooner.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Pages of memory, tables included.
    pub frames: usize,
    /// Whether memory is asked for in huge pages.
    pub huge: Huge,
    /// Above this many dirty pages, they are written back in the background.
    pub dirty_background: usize,
    /// Above this many dirty pages, writers are throttled.
    pub dirty_most: usize,
    /// How long a page is dirty at most before it is written back in the background, if the log allows it.
    pub dirty_age: Duration,
    /// The engines that read and write.
    pub engines: Engines,
}

impl Settings {
    /// For a cache of so many pages: a tenth of them dirty before they are written back, two fifths at most, none for
    /// more than five seconds.
    pub fn new(frames: usize) -> Settings {
        Settings {
            frames,
            huge: Huge::Yes,
            dirty_background: frames / 10,
            dirty_most: frames / 5 * 2,
            dirty_age: Duration::from_secs(5),
            engines: Engines::default(),
        }
    }
}

/// How a file is opened.
#[derive(Clone)]
pub struct Options {
    pub(super) opening: Opening,
    pub(super) cached: Cached,
    pub(super) room: u64,
    pub(super) rule: Option<Arc<dyn WriteAhead>>,
    pub(super) checksums: Option<usize>,
}

impl Options {
    /// To be read and written, made if there is none, around the kernel's page cache where that is possible.
    pub fn new() -> Options {
        let (opening, cached) = (Opening::Create, Cached::No);
        Options { opening, cached, room: 0, rule: None, checksums: None }
    }

    /// To be read only; it must be there.
    #[must_use]
    pub fn read_only(self) -> Options {
        Options { opening: Opening::Read, ..self }
    }

    /// It must be there.
    #[must_use]
    pub fn existing(self) -> Options {
        match self.opening {
            Opening::Create => Options { opening: Opening::Write, ..self },
            _ => self,
        }
    }

    /// Through the kernel's page cache.
    #[must_use]
    pub fn buffered(self) -> Options {
        Options { cached: Cached::Yes, ..self }
    }

    /// Keeps addresses for so many bytes, which the file can grow to; else for twice its length, and 1 GiB at least.
    /// A cache has 128 TiB of addresses; each GiB takes 8 KiB of memory, and 2 MiB more where all of it is used.
    #[must_use]
    pub fn room(self, bytes: u64) -> Options {
        Options { room: bytes, ..self }
    }

    /// No page is written before the rule allows it.
    #[must_use]
    pub fn write_ahead(self, rule: Arc<dyn WriteAhead>) -> Options {
        Options { rule: Some(rule), ..self }
    }

    /// Each page has a checksum of its other bytes, and of its number, in the eight bytes from `at` on (a multiple of 8
    /// below 4096). These eight bytes belong to the cache, which overwrites them when a guard for writing ends. A page
    /// that is read from the device and does not have it is [`CacheError::Checksum`](super::CacheError::Checksum),
    /// until it is written whole ([`View::overwrite`](super::View::overwrite)). Pages of zeros need none. The file is
    /// whole pages long, always, and all that open it in this cache ask for the same.
    #[must_use]
    pub fn checksums(self, at: usize) -> Options {
        Options { checksums: Some(at), ..self }
    }

    /// Pages that a file of this length is given addresses for.
    pub(super) fn room_pages(&self, len: u64, is_device: bool) -> usize {
        let bytes = match (is_device, self.room) {
            (true, _) => len,
            (false, 0) => len.saturating_mul(2).max(1 << 30),
            (false, room) => room.max(len),
        };
        bytes.div_ceil(FRAME_SIZE as u64).max(1) as usize
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Options { opening, cached, room, rule, checksums } = self;
        let rule = rule.is_some();
        write!(f, "Options({opening:?}, cached {cached:?}, room {room}, write-ahead {rule}, ")?;
        write!(f, "checksums {checksums:?})")
    }
}

/// The path of a file, kept for errors.
pub(super) fn shared(path: &Path) -> Arc<Path> {
    Arc::from(path)
}
