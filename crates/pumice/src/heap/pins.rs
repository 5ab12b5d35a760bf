//! Signs that somebody beside the process may hold its pages: pipes, sockets, asynchronous I/O, devices.
//!
//! No system call tells which pages those are, and they are held after `munmap`. So whether a process *can* have any
//! is what matters. The shim sees most calls that make it possible. Here is the rest: code that makes system calls
//! itself leaves traces in `/proc`. The keeper looks there on each of its passes, and while it sleeps or has not
//! started, a thread that frees does: every 100 ms at some of the descriptors, and once a second at the mappings.
//!
//! | trace | where | who holds |
//! |---|---|---|
//! | `anon_inode:[io_uring]` | descriptors, mappings | io_uring |
//! | `/[aio] (deleted)` | mappings | libaio |
//! | `/dev/vfio`, `/dev/infiniband`, GPUs, other devices | descriptors, mappings | the device |
//! | `libaio.so`, `liburing.so` and such | mappings | what is loaded to be used |

use core::ffi::CStr;

use rustix::fs::{self, Mode, OFlags, RawDir};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sys::{file, thread};

/// Descriptors looked at in one pass.
const MOST_DESCRIPTORS: usize = 256;
const DESCRIPTORS_PAUSE_NS: u64 = 100_000_000;
const MAPPINGS_PAUSE_NS: u64 = 1_000_000_000;

/// What is in the path of a mapping or a descriptor where pages may be held. Each is matched anywhere.
const SIGNS: [&[u8]; 17] = [
    b"[io_uring]",
    b"/[aio]",
    b"/dev/vfio",
    b"/dev/infiniband/",
    b"/dev/nvidia",
    b"/dev/kfd",
    b"/dev/dri/",
    b"/dev/dax",
    b"/dev/accel",
    b"/dev/video",
    b"/dev/vhost-net",
    b"/libaio.so",
    b"/liburing.so",
    b"/liburing-ffi.so",
    b"/libibverbs.so",
    b"/libcuda.so",
    b"/libhsa-runtime",
];

/// Where looking has come to. Relaxed: two threads that look at once do so twice.
#[derive(Debug)]
pub(super) struct Pins {
    /// Descriptors seen in this round.
    seen: AtomicU64,
    /// When each was looked at last; 0 is never.
    descriptors_ns: AtomicU64,
    mappings_ns: AtomicU64,
}

impl Pins {
    pub(super) fn new() -> Pins {
        let never = || AtomicU64::new(0);
        Pins { seen: AtomicU64::new(0), descriptors_ns: never(), mappings_ns: never() }
    }

    /// In a fork's child: nobody has looked at its descriptors and mappings.
    pub(super) fn forget(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.descriptors_ns.store(0, Ordering::Relaxed);
        self.mappings_ns.store(0, Ordering::Relaxed);
    }

    /// Whether the last look was long ago.
    pub(super) fn is_look_due(&self) -> bool {
        is_due(&self.descriptors_ns, thread::coarse_now_ns(), DESCRIPTORS_PAUSE_NS)
    }

    /// Whether there is a sign.
    pub(super) fn are_possible(&self) -> bool {
        let now_ns = thread::coarse_now_ns();
        self.descriptors_ns.store(now_ns, Ordering::Relaxed);
        let are_mappings_due = is_due(&self.mappings_ns, now_ns, MAPPINGS_PAUSE_NS);
        if are_mappings_due {
            self.mappings_ns.store(now_ns, Ordering::Relaxed);
        }
        self.in_descriptors() || are_mappings_due && in_mappings()
    }

    fn in_descriptors(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(folder) = fs::open(c"/proc/self/fd", flags, Mode::empty()) else { return false };
        let mut buffer = [const { core::mem::MaybeUninit::uninit() }; 4096];
        let mut entries = RawDir::new(&folder, &mut buffer);
        let (skip, mut index, mut found) = (self.seen.load(Ordering::Relaxed) as usize, 0, false);
        while let Some(Ok(entry)) = entries.next() {
            index += 1;
            if index <= skip || entry.file_name().to_bytes().starts_with(b".") {
                continue;
            }
            found = is_sign_at(&folder, entry.file_name());
            if found || index >= skip + MOST_DESCRIPTORS {
                self.seen.store(index as u64, Ordering::Relaxed);
                return found;
            }
        }
        self.seen.store(0, Ordering::Relaxed);
        found
    }
}

fn is_due(last_ns: &AtomicU64, now_ns: u64, pause_ns: u64) -> bool {
    let last_ns = last_ns.load(Ordering::Relaxed);
    last_ns == 0 || now_ns.saturating_sub(last_ns) >= pause_ns
}

fn is_sign_at(folder: &rustix::fd::OwnedFd, name: &CStr) -> bool {
    let mut buffer = [const { core::mem::MaybeUninit::uninit() }; 128];
    // A longer path begins alike: it is a file's.
    fs::readlinkat_raw(folder, name, &mut buffer).is_ok_and(|(path, _)| has_sign(path))
}

/// Whether who may hold pages is behind a descriptor, by its link in `/proc`.
pub fn is_held_by_other(link: &CStr) -> bool {
    let mut buffer = [const { core::mem::MaybeUninit::uninit() }; 128];
    fs::readlinkat_raw(fs::CWD, link, &mut buffer).is_ok_and(|(path, _)| has_sign(path))
}

fn has_sign(path: &[u8]) -> bool {
    SIGNS.iter().any(|sign| path.windows(sign.len()).any(|window| window == *sign))
}

fn in_mappings() -> bool {
    let Ok(maps) = file::open_read(c"/proc/self/maps") else { return false };
    // A sign may lie across two readings: what it could begin in is kept.
    const KEPT: usize = 32;
    let mut buffer = [0u8; 4096];
    let mut kept = 0;
    loop {
        match rustix::io::read(&maps, &mut buffer[kept..]) {
            Ok(0) | Err(_) => return false,
            Ok(count) => {
                let end = kept + count;
                if has_sign(&buffer[..end]) {
                    return true;
                }
                kept = KEPT.min(end);
                buffer.copy_within(end - kept..end, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_found_anywhere() {
        assert!(has_sign(b"anon_inode:[io_uring]") && has_sign(b"x /[aio] (deleted)"));
        assert!(has_sign(b"/usr/lib/libaio.so.1.0.1") && has_sign(b"/dev/vfio/12"));
        for harmless in [&b"/dev/null"[..], b"/home/me/libaio.c", b"pipe:[12]", b"socket:[7]", b""]
        {
            assert!(!has_sign(harmless));
        }
    }

    #[test]
    fn looking_goes_round() {
        let pins = Pins::new();
        for _ in 0..3 {
            assert!(pins.is_look_due());
            pins.are_possible();
            pins.forget();
        }
    }
}
