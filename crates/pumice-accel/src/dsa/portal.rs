//! How a descriptor reaches the device: a page that is mapped, a call, or a device in software.

use super::descriptor::Descriptor;

/// The fate of a descriptor that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// The device has it.
    Taken,
    /// Its queue is full: later, perhaps.
    Busy,
    /// The device is gone.
    Broken,
}

/// Where descriptors go.
///
/// # Safety
/// The device behind it writes only where its descriptors say: a fill to its destination and record,
/// a batch to the records of its list and its own.
pub unsafe trait Portal: Sync {
    /// Hands a descriptor over. All stores before are the device's to see.
    ///
    /// # Safety
    /// The memory that the descriptor has the device read and write is the caller's, and stays so until its record
    /// says that it came to an end.
    unsafe fn hand_over(&self, descriptor: &Descriptor) -> Handover;

    /// Entries that the queue has; `None` where the device itself says whether there is room.
    fn entries(&self) -> Option<u32>;

    /// Descriptors in a batch at most; less than 2 for none.
    fn most_in_batch(&self) -> usize;

    /// Bytes of a fill at most.
    fn most_bytes(&self) -> u32;
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
pub use hardware::Hardware;

/// There is none.
#[cfg(all(not(target_arch = "x86_64"), not(any(loom, shuttle))))]
#[derive(Debug)]
pub enum Hardware {}

// SAFETY: there is none.
#[cfg(all(not(target_arch = "x86_64"), not(any(loom, shuttle))))]
unsafe impl Portal for Hardware {
    unsafe fn hand_over(&self, _descriptor: &Descriptor) -> Handover {
        match *self {}
    }

    fn entries(&self) -> Option<u32> {
        match *self {}
    }

    fn most_in_batch(&self) -> usize {
        match *self {}
    }

    fn most_bytes(&self) -> u32 {
        match *self {}
    }
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
mod hardware {
    use core::ffi::CStr;
    use core::ptr::null_mut;

    use rustix::fd::OwnedFd;
    use rustix::fs::{open, Mode, OFlags};
    use rustix::io::{write, Errno};
    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

    use super::{Descriptor, Handover, Portal};
    use crate::dsa::queues::{Mode as QueueMode, WorkQueue};
    use crate::sys::enqueue::{enqcmd, movdir64b};
    use pumice_frames::addr::FRAME_SIZE;
    use pumice_frames::sync::atomic::{AtomicUsize, Ordering};
    use pumice_frames::sync::spin_loop;
    use pumice_frames::sys::thread::Maker;

    /// How often a full shared queue is asked, a moment apart.
    const TRIES: u32 = 64;

    /// A work queue's portal. The kernel drains the queue and ends it when the file is closed.
    #[derive(Debug)]
    pub struct Hardware {
        queue: WorkQueue,
        submission: Submission,
        maker: Maker,
        _file: OwnedFd,
    }

    #[derive(Debug)]
    enum Submission {
        /// The portal, mapped; and where in it the next descriptor goes: the device takes stores to
        /// different lines faster.
        Mapped { at: *mut u8, next: AtomicUsize },
        /// Where the kernel hands no portal out to the unprivileged (since Linux 6.10, for the
        /// processors of CVE-2024-21823), it takes descriptors by `write`, but no batches.
        Written,
    }

    // SAFETY: the portal's page belongs to this value, and takes stores from any thread.
    unsafe impl Send for Hardware {}
    // SAFETY: as above.
    unsafe impl Sync for Hardware {}

    impl Hardware {
        /// Opens the queue's device, and maps its portal.
        ///
        /// # Errors
        /// The kernel's.
        pub fn open(device: &CStr, queue: WorkQueue) -> Result<Hardware, Errno> {
            let file = open(device, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let mapped = unsafe {
                mmap(null_mut(), FRAME_SIZE, ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
            };
            let submission = match mapped {
                Ok(at) => Submission::Mapped { at: at.cast(), next: AtomicUsize::new(0) },
                Err(Errno::PERM) => Submission::Written,
                Err(errno) => return Err(errno),
            };
            Ok(Hardware { queue, submission, maker: Maker::here(), _file: file })
        }
    }

    // SAFETY: the device is as the architecture specification says.
    unsafe impl Portal for Hardware {
        unsafe fn hand_over(&self, descriptor: &Descriptor) -> Handover {
            let Submission::Mapped { at, next } = &self.submission else {
                return match write(&self._file, &descriptor.bytes()) {
                    Ok(64) => Handover::Taken,
                    Err(Errno::AGAIN | Errno::INTR) => Handover::Busy,
                    _ => Handover::Broken,
                };
            };
            // Relaxed: any line will do.
            let offset = next.fetch_add(size_of::<Descriptor>(), Ordering::Relaxed) % FRAME_SIZE;
            let at = at.wrapping_add(offset);
            if self.queue.mode == QueueMode::Dedicated {
                // SAFETY: within the portal; the engine opens it only where the processor has this.
                unsafe { movdir64b(at, descriptor) };
                return Handover::Taken;
            }
            for _ in 0..TRIES {
                // SAFETY: as above.
                if unsafe { enqcmd(at, descriptor) } {
                    return Handover::Taken;
                }
                spin_loop();
            }
            Handover::Busy
        }

        fn entries(&self) -> Option<u32> {
            let counts = self.queue.mode == QueueMode::Dedicated
                || matches!(self.submission, Submission::Written);
            counts.then_some(self.queue.entries)
        }

        fn most_in_batch(&self) -> usize {
            match self.submission {
                Submission::Mapped { .. } => self.queue.most_in_batch,
                Submission::Written => 0,
            }
        }

        fn most_bytes(&self) -> u32 {
            self.queue.most_bytes
        }
    }

    impl Drop for Hardware {
        fn drop(&mut self) {
            // The kernel keeps portals from children.
            if !self.maker.is_here() {
                return;
            }
            if let Submission::Mapped { at, .. } = self.submission {
                // SAFETY: the mapping is this value's own.
                let _ = unsafe { munmap(at.cast(), FRAME_SIZE) };
            }
        }
    }
}
