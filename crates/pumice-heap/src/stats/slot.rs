//! The counters of one process.

use super::split::FreeCounters;
use super::{Event, Owner, Reason, EVENTS};
use pumice_frames::sync::atomic::{AtomicU64, Ordering};

/// Room for settings in a slot; which is which is [`crate::config::Setting`]'s business.
pub const SETTINGS: usize = 16;

/// One process's counters, and the settings that `pumice ctl` changes while it runs.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct CounterSlot {
    /// The process that counts here, as an [`Owner`]'s word; 0 when free.
    pub(super) owner: AtomicU64,
    /// The program's name: 16 bytes, NUL-padded, as in `/proc/PID/comm`.
    pub(super) name: [AtomicU64; 2],
    /// Bytes of this process's share of the pool.
    pub(super) pool_bytes: AtomicU64,
    /// 1 + the number of the reason why nothing is served here; 0 if there is none.
    pub(super) reason: AtomicU64,
    /// Bumped with each change of a setting, so that the helper thread looks.
    settings_version: AtomicU64,
    pub(super) settings: [AtomicU64; SETTINGS],
    pub(super) events: [AtomicU64; EVENTS],
    /// Free memory of its share of the pool.
    pub(super) free: FreeCounters,
}

impl CounterSlot {
    /// Counts `n` events.
    #[doc(hidden)]
    #[inline]
    pub fn add(&self, event: Event, n: u64) {
        self.events[event as usize].fetch_add(n, Ordering::Relaxed);
    }

    /// Reads a counter.
    pub fn get(&self, event: Event) -> u64 {
        self.events[event as usize].load(Ordering::Relaxed)
    }

    /// The process that counts here; its number is 0 for none.
    #[doc(hidden)]
    pub fn owner(&self) -> Owner {
        Owner::from_word(self.owner.load(Ordering::Acquire))
    }

    /// Bytes of this process's share of the pool.
    pub fn pool_bytes(&self) -> u64 {
        self.pool_bytes.load(Ordering::Relaxed)
    }

    /// The program's name, NUL-padded. The program may have written anything there.
    #[doc(hidden)]
    pub fn name(&self) -> [u8; 16] {
        let mut name = [0; 16];
        name[..8].copy_from_slice(&self.name[0].load(Ordering::Relaxed).to_le_bytes());
        name[8..].copy_from_slice(&self.name[1].load(Ordering::Relaxed).to_le_bytes());
        name
    }

    /// Sets the program's name.
    #[doc(hidden)]
    pub fn set_name(&self, name: &[u8]) {
        let mut bytes = [0u8; 16];
        let length = name.len().min(15);
        bytes[..length].copy_from_slice(&name[..length]);
        for (word, half) in self.name.iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(half);
            word.store(u64::from_le_bytes(eight), Ordering::Relaxed);
        }
    }

    /// A setting's raw value.
    #[inline]
    pub(crate) fn setting(&self, index: usize) -> u64 {
        self.settings[index].load(Ordering::Relaxed)
    }

    /// Changes a setting's raw value; [`CounterSlot::settings_version`] tells the helper thread.
    pub(crate) fn set_setting(&self, index: usize, value: u64) {
        self.settings[index].store(value, Ordering::Relaxed);
        // Release: a thread that sees the new version sees the value (pairs with the Acquire below).
        self.settings_version.fetch_add(1, Ordering::Release);
    }

    /// How often settings were changed.
    #[inline]
    pub(crate) fn settings_version(&self) -> u64 {
        self.settings_version.load(Ordering::Acquire)
    }

    /// Why nothing is served in this process, if so.
    #[doc(hidden)]
    pub fn reason(&self) -> Option<Reason> {
        self.reason.load(Ordering::Relaxed).checked_sub(1).map(Reason::from)
    }

    /// Notes why nothing is served in this process.
    #[doc(hidden)]
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u64 + 1, Ordering::Relaxed);
    }
}
