//! Signs that somebody beside the process may hold its pages: pipes, sockets, asynchronous I/O, devices.
//!
//! No system call tells which pages are held, and they are held also after `munmap`. So the question is whether a
//! process *can* have such pages. The shim sees most calls that make it possible. The rest is here: code with system
//! calls of its own leaves traces in `/proc`. The keeper looks for them on its passes, since it has a table of
//! descriptors, a stack and time of its own. It looks at some descriptors on each pass, and once a second at the
//! mappings.
//!
//! | trace | where | holder |
//! |---|---|---|
//! | `anon_inode:[io_uring]` | descriptors, mappings | io_uring |
//! | `/[aio] (deleted)` | mappings | libaio |
//! | `/dev/vfio`, `/dev/infiniband`, GPUs, other devices | descriptors, mappings | the device |
//! | `libaio.so`, `liburing.so` and such | mappings | their caller |

use core::ffi::CStr;

use rustix::fs::{self, Mode, OFlags, RawDir};

use pumice_frames::sync::atomic::{AtomicU64, Ordering};
use pumice_frames::sys::{file, thread};

/// Descriptors looked at in one pass.
const MOST_DESCRIPTORS: usize = 256;
const MAPPINGS_PAUSE_NS: u64 = 1_000_000_000;

/// The signs in the path of a mapping or a descriptor that pages may be held. Each is matched anywhere, and begins with
/// a byte of which a path has few.
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

/// The position of the scan. Relaxed: only the keeper looks.
#[derive(Debug)]
pub(super) struct Pins {
    /// Descriptors seen in this round.
    seen: AtomicU64,
    /// When the mappings were looked at last; 0 is never.
    mappings_ns: AtomicU64,
}

impl Pins {
    pub(super) fn new() -> Pins {
        Pins { seen: AtomicU64::new(0), mappings_ns: AtomicU64::new(0) }
    }

    /// In a fork's child: nobody has looked at its descriptors and mappings.
    pub(super) fn forget(&self) {
        self.seen.store(0, Ordering::Relaxed);
        self.mappings_ns.store(0, Ordering::Relaxed);
    }

    /// Whether there is a sign. Called by a thread with a table of descriptors of its own: the files that are looked
    /// at are those of the process's first thread.
    pub(super) fn are_possible(&self) -> bool {
        let (now_ns, last_ns) = (thread::now_ns(), self.mappings_ns.load(Ordering::Relaxed));
        let are_mappings_due = last_ns == 0 || now_ns - last_ns >= MAPPINGS_PAUSE_NS;
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

fn is_sign_at(folder: &rustix::fd::OwnedFd, name: &CStr) -> bool {
    let mut buffer = [const { core::mem::MaybeUninit::uninit() }; 128];
    // A longer path begins alike: it is a file's.
    fs::readlinkat_raw(folder, name, &mut buffer).is_ok_and(|(path, _)| has_sign(path))
}

/// Whether a holder of pages may be behind a descriptor, by its link in `/proc`.
pub fn is_held_by_other(link: &CStr) -> bool {
    let mut buffer = [const { core::mem::MaybeUninit::uninit() }; 128];
    fs::readlinkat_raw(fs::CWD, link, &mut buffer).is_ok_and(|(path, _)| has_sign(path))
}

fn has_sign(path: &[u8]) -> bool {
    let may_begin = |at: &usize| matches!(path[*at], b'/' | b'[');
    let has_sign_at = |at: usize| SIGNS.iter().any(|sign| path[at..].starts_with(sign));
    (0..path.len()).filter(may_begin).any(has_sign_at)
}

fn in_mappings() -> bool {
    let Ok(maps) = file::open_read(c"/proc/self/maps") else { return false };
    // A sign may lie across two readings: the end of one, where it could begin, is kept.
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
        assert!(SIGNS.iter().all(|sign| has_sign(sign)));
        for harmless in [&b"/dev/null"[..], b"/home/me/libaio.c", b"pipe:[12]", b"socket:[7]", b""]
        {
            assert!(!has_sign(harmless));
        }
    }

    #[test]
    fn looking_goes_round() {
        let pins = Pins::new();
        for _ in 0..3 {
            pins.are_possible();
            pins.forget();
        }
    }
}
