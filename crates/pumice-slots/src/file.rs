//! A slot's file: made, sealed, populated, ended. The order is the [module](super)'s.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{null_mut, NonNull};
use std::sync::Arc;

use rustix::fs::{
    fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat, ftruncate, memfd_create, readlinkat,
    MemfdFlags, OFlags, SealFlags, CWD,
};
use rustix::io::Errno;
use rustix::mm::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

use super::pages::PageKind;
use super::snapshot::SnapshotName;
use pumice_frames::sys::mem;

/// Set when the file is made, and all it ever has (`F_SEAL_EXEC` comes from `MFD_NOEXEC_SEAL`).
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SEAL);
/// The size of a transparent huge page.
const HUGE_BYTES: usize = 2 << 20;
const SMALL_BYTES: usize = 4 << 10;
/// Bytes that one call makes huge pages of: each call first drains the per-CPU lists of every processor, which
/// disturbs the programs there, and waits for it.
const COLLAPSE_BYTES: usize = 16 << 20;
/// Failures in a row to make a huge page, after which a slot's rest is populated in small ones.
const COLLAPSE_PATIENCE: u32 = 8;

/// A memfd whose size can never grow again, and which nobody can seal further.
#[derive(Debug)]
pub struct SlotFile {
    descriptor: OwnedFd,
    bytes: u64,
    inode: Inode,
    owner: u32,
    snapshot: Option<SnapshotName>,
}

/// The name of its file, for people; that of a snapshot comes after a colon.
const NAME: &str = "pumice-slot";

/// The identity of a file: device and number.
type Inode = (u64, u64);

impl SlotFile {
    /// Makes a file without memory.
    ///
    /// # Errors
    /// As memfd_create(2); `InvalidInput` where `bytes` is 0 or no multiple of the pages' granule.
    pub fn create(bytes: u64, pages: PageKind) -> io::Result<SlotFile> {
        SlotFile::create_for(None, bytes, pages)
    }

    /// Makes the file of a shared snapshot, which is sealed once it is filled
    /// ([`SharedFile::seal`](super::shared::SharedFile::seal)).
    ///
    /// # Errors
    /// As [`SlotFile::create`].
    pub fn create_shared(
        snapshot: SnapshotName,
        bytes: u64,
        pages: PageKind,
    ) -> io::Result<SlotFile> {
        SlotFile::make(Some(snapshot), bytes, pages, SealFlags::GROW)
    }

    /// Makes the file of a slot that gets a snapshot's content, and says the snapshot by its name from then on.
    ///
    /// # Errors
    /// As [`SlotFile::create`].
    pub fn create_for(
        snapshot: Option<SnapshotName>,
        bytes: u64,
        pages: PageKind,
    ) -> io::Result<SlotFile> {
        SlotFile::make(snapshot, bytes, pages, SEALS)
    }

    fn make(
        snapshot: Option<SnapshotName>,
        bytes: u64,
        pages: PageKind,
        seals: SealFlags,
    ) -> io::Result<SlotFile> {
        if bytes == 0 || bytes % pages.granule() != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let kind = match pages {
            PageKind::Small | PageKind::Thp => MemfdFlags::empty(),
            PageKind::Hugetlb2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageKind::Hugetlb1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        };
        let flags = kind | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let name = match snapshot {
            Some(snapshot) => format!("{NAME}:{snapshot}"),
            None => NAME.to_owned(),
        };
        let name = CString::new(name)?;
        // Linux before 6.3 does not know NOEXEC_SEAL.
        let descriptor = match memfd_create(&name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => memfd_create(&name, flags)?,
            made => made?,
        };
        ftruncate(&descriptor, bytes)?;
        fcntl_add_seals(&descriptor, seals)?;
        let status = fstat(&descriptor)?;
        let inode = (status.st_dev, status.st_ino);
        Ok(SlotFile { descriptor, bytes, inode, owner: status.st_uid, snapshot })
    }

    /// The slot behind a descriptor that came from somebody else. The descriptor is given back if it is
    /// none: its maker can make closing it take any time.
    ///
    /// # Errors
    /// The descriptor.
    pub fn adopt(descriptor: OwnedFd) -> Result<SlotFile, OwnedFd> {
        // Asking for seals is answered by the kernel alone, whatever file it is. One more than a slot has
        // could forbid the truncation at the end, and so does a descriptor that can't write.
        let sealed =
            fcntl_get_seals(&descriptor).is_ok_and(|seals| seals - SealFlags::EXEC == SEALS);
        let writes =
            || fcntl_getfl(&descriptor).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDWR);
        if !sealed || !writes() {
            return Err(descriptor);
        }
        // Only memfds have these seals, so this is memory.
        match fstat(&descriptor) {
            Ok(status) if status.st_size > 0 => {
                let inode = (status.st_dev, status.st_ino);
                let (bytes, owner) = (status.st_size as u64, status.st_uid);
                let snapshot = snapshot_of(&descriptor);
                Ok(SlotFile { descriptor, bytes, inode, owner, snapshot })
            }
            _ => Err(descriptor),
        }
    }

    /// Whether an open file is a slot, of whichever daemon. A program can make a file of its own that looks like one.
    pub fn is_one(file: impl AsFd) -> bool {
        let file = file.as_fd();
        fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SEALS))
            && rest_of_name(file).is_some()
    }

    /// Whether both are of one file.
    pub fn is_same_file(&self, other: &SlotFile) -> bool {
        self.inode == other.inode
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The user that made it, unless root has given it away since: nobody else can.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The snapshot whose content it was made for.
    pub fn snapshot(&self) -> Option<SnapshotName> {
        self.snapshot
    }

    /// Ends it: its memory goes back to the kernel, pages of it that are mapped raise SIGBUS.
    ///
    /// # Errors
    /// As ftruncate(2); no seal forbids it.
    pub fn end(self) -> io::Result<()> {
        Ok(ftruncate(&self.descriptor, 0)?)
    }

    /// Its descriptor, the file as it is.
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }
}

/// The snapshot that a slot's name says. Nobody but its maker could give it the name.
fn snapshot_of(file: &OwnedFd) -> Option<SnapshotName> {
    SnapshotName::new(rest_of_name(file.as_fd())?.strip_prefix(':')?)
}

/// The part of a slot's name that follows [`NAME`]; `None` if it has another name.
fn rest_of_name(file: BorrowedFd<'_>) -> Option<String> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let link = readlinkat(CWD, path, Vec::new()).ok()?;
    let name = link.to_str().ok()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    let rest = name.strip_prefix(NAME)?;
    (rest.is_empty() || rest.starts_with(':')).then(|| rest.to_owned())
}

impl AsFd for SlotFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A slot's file on its way to being populated.
#[derive(Debug)]
pub struct Populating {
    mapping: Arc<Mapping>,
    pages: PageKind,
    done: usize,
    huge_bytes: u64,
    collapse_failures: u32,
}

impl Populating {
    /// Maps the file.
    ///
    /// # Errors
    /// As mmap(2); `ENOMEM` where the hugetlb pool has not as many pages left.
    pub fn begin(file: impl AsFd, bytes: u64, pages: PageKind) -> io::Result<Populating> {
        let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mapping = Arc::new(Mapping::new(file.as_fd(), len, pages.alignment() as usize)?);
        Ok(Populating { mapping, pages, done: 0, huge_bytes: 0, collapse_failures: 0 })
    }

    /// Populates up to `batch_bytes` more, rounded up to whole pages, and returns how many bytes that
    /// were: 0 when all is done.
    ///
    /// # Errors
    /// As `MADV_POPULATE_WRITE` in madvise(2).
    pub fn step(&mut self, batch_bytes: usize) -> io::Result<usize> {
        let from = self.done;
        let rounded = batch_bytes.max(1).checked_next_multiple_of(self.pages.alignment() as usize);
        let to = from.saturating_add(rounded.unwrap_or(usize::MAX)).min(self.mapping.len);
        if self.pages == PageKind::Thp {
            while self.done < to {
                let len = COLLAPSE_BYTES.min(to - self.done);
                self.populate_thp(len)?;
                self.done += len;
            }
        } else {
            self.mapping.populate(from, to - from)?;
            self.done = to;
        }
        Ok(to - from)
    }

    /// Huge pages, or small ones where there is none. A single small page and then `MADV_COLLAPSE`, which
    /// fills holes with zeros itself, takes a third of the time of populating all small ones first, and of
    /// the memory that is in use meanwhile.
    fn populate_thp(&mut self, len: usize) -> io::Result<()> {
        let huge_len = len - len % HUGE_BYTES;
        let end = self.done + huge_len;
        let mut is_huge = false;
        if huge_len > HUGE_BYTES && self.collapse_failures == 0 {
            for at in (self.done..end).step_by(HUGE_BYTES) {
                self.mapping.populate(at, SMALL_BYTES)?;
            }
            is_huge = self.mapping.collapse(self.done, huge_len).is_ok();
        }
        if is_huge {
            self.huge_bytes += huge_len as u64;
        } else {
            // One by one; those that are huge already are found to be so at once.
            for at in (self.done..end).step_by(HUGE_BYTES) {
                self.populate_huge(at)?;
            }
        }
        match len - huge_len {
            0 => Ok(()),
            rest => self.mapping.populate(end, rest),
        }
    }

    fn populate_huge(&mut self, at: usize) -> io::Result<()> {
        if self.collapse_failures < COLLAPSE_PATIENCE {
            self.mapping.populate(at, SMALL_BYTES)?;
            if self.mapping.collapse(at, HUGE_BYTES).is_ok() {
                self.collapse_failures = 0;
                self.huge_bytes += HUGE_BYTES as u64;
                return Ok(());
            }
            self.collapse_failures += 1;
        }
        self.mapping.populate(at, HUGE_BYTES)
    }

    /// The part that is populated, to be given content while the rest is populated. The mapping goes with the last of
    /// both.
    pub(crate) fn populated(&self) -> Populated {
        Populated { mapping: Arc::clone(&self.mapping), len: self.done as u64 }
    }

    /// Bytes that are populated.
    pub fn done_bytes(&self) -> u64 {
        self.done as u64
    }

    /// Bytes of those that `MADV_COLLAPSE` put in huge pages.
    pub fn huge_bytes(&self) -> u64 {
        self.huge_bytes
    }
}

/// The populated part of a slot that nobody else has yet.
#[derive(Debug)]
pub(crate) struct Populated {
    mapping: Arc<Mapping>,
    len: u64,
}

impl Populated {
    /// Reads from a file, `len` bytes at most, from the same place there as here. Returns how many bytes came.
    pub(crate) fn read_from(&mut self, file: &OwnedFd, at: u64, len: u64) -> io::Result<u64> {
        let to = self.part(at, at.checked_add(len).ok_or(io::ErrorKind::InvalidInput)?)?;
        let offset = i64::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes within the mapping, to which there is no reference.
        let read = unsafe { libc::pread64(file.as_raw_fd(), to.cast(), len as usize, offset) };
        u64::try_from(read).map_err(|_| io::Error::last_os_error())
    }

    /// Writes zeros.
    pub(crate) fn clear(&mut self, from: u64, to: u64) -> io::Result<()> {
        let part = self.part(from, to)?;
        // SAFETY: within the mapping, to which there is no reference. Only one thread gives a slot its content, and the
        // file has not been given away.
        unsafe { part.write_bytes(0, (to - from) as usize) };
        Ok(())
    }

    fn part(&self, from: u64, to: u64) -> io::Result<*mut u8> {
        if from > to || to > self.len {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(self.mapping.at.as_ptr().wrapping_add(from as usize))
    }
}

/// A shared mapping of a whole file, aligned. No reference to its memory is made; a snapshot's content goes there.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned, and any thread may unmap it.
unsafe impl Send for Mapping {}
// SAFETY: through `&` the kernel populates and collapses, and never changes content.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, len: usize, alignment: usize) -> io::Result<Mapping> {
        let reserved = len.checked_add(alignment).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE)? }
                .cast::<u8>();
        let before = start.align_offset(alignment);
        let at = start.wrapping_add(before);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the range lies within what was just reserved, which nobody else knows.
        let mapped = unsafe {
            mmap(at.cast(), len, protection, MapFlags::SHARED | MapFlags::FIXED, file, 0)
        };
        // The reservation's ends, or all of it. Failing leaves addresses reserved, no more.
        // SAFETY: these are the reservation's own pages that the file does not lie on.
        unsafe {
            if mapped.is_err() {
                let _ = munmap(start.cast(), reserved);
            } else {
                if before > 0 {
                    let _ = munmap(start.cast(), before);
                }
                let end = len.next_multiple_of(SMALL_BYTES);
                if before + end < reserved {
                    let _ = munmap(at.wrapping_add(end).cast(), reserved - before - end);
                }
            }
        }
        let at = NonNull::new(mapped?.cast()).ok_or(io::ErrorKind::Other)?;
        Ok(Mapping { at, len })
    }

    fn populate(&self, from: usize, len: usize) -> io::Result<()> {
        // SAFETY: within the mapping, which has no reader: faulting in changes nothing that is seen.
        unsafe { mem::populate_shared(self.at.as_ptr().wrapping_add(from), len)? };
        Ok(())
    }

    fn collapse(&self, from: usize, len: usize) -> Result<(), Errno> {
        // SAFETY: within the mapping. Collapsing keeps contents.
        unsafe { mem::collapse(self.at.as_ptr().wrapping_add(from), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { munmap(self.at.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn populated(bytes: u64, pages: PageKind) -> SlotFile {
        let file = SlotFile::create(bytes, pages).expect("a memfd");
        let mut populating = Populating::begin(&file, bytes, pages).expect("mapped");
        while populating.step(1 << 20).expect("populated") > 0 {}
        assert_eq!(populating.done_bytes(), bytes);
        file
    }

    #[test]
    fn all_of_it_is_there_and_zero() {
        for (bytes, pages) in [
            (64 << 10, PageKind::Small),
            (4 << 20, PageKind::Thp),
            ((4 << 20) + 4096, PageKind::Thp),
            (4096, PageKind::Thp),
        ] {
            let file = std::fs::File::from(populated(bytes, pages).into_descriptor());
            let blocks = fstat(&file).expect("a file").st_blocks as u64;
            assert!(blocks * 512 >= bytes, "{pages}: {blocks} blocks");
            let mut content = vec![1; bytes as usize];
            file.read_exact_at(&mut content, 0).expect("readable");
            assert!(content.iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn nobody_grows_or_seals_it() {
        let file = populated(64 << 10, PageKind::Small);
        let kept = std::fs::File::from(file.as_fd().try_clone_to_owned().expect("a copy"));
        assert!(kept.set_len(128 << 10).is_err());
        assert!(fcntl_add_seals(&kept, SealFlags::SHRINK).is_err());
        assert!(kept.write_at(b"x", 0).is_ok());
        file.end().expect("truncated");
        assert!(kept.set_len(4096).is_err());
        assert!(kept.write_at(b"x", 0).is_err());
        assert_eq!(kept.metadata().expect("a file").len(), 0);
    }

    #[test]
    fn only_slots_are_adopted() {
        let file = populated(64 << 10, PageKind::Small);
        assert_eq!(SlotFile::adopt(file.into_descriptor()).expect("a slot").bytes(), 64 << 10);
        let other = std::fs::File::open("/dev/null").expect("there");
        assert!(SlotFile::adopt(other.into()).is_err());
        let unsealed = memfd_create(c"x", MemfdFlags::ALLOW_SEALING).expect("a memfd");
        assert!(SlotFile::adopt(unsealed).is_err());
        for more in [SealFlags::SHRINK, SealFlags::WRITE] {
            let forged = memfd_create(c"x", MemfdFlags::ALLOW_SEALING).expect("a memfd");
            ftruncate(&forged, 4096).expect("has a size");
            fcntl_add_seals(&forged, SEALS | more).expect("sealed");
            assert!(SlotFile::adopt(forged).is_err(), "{more:?} would forbid its end");
        }
        let file = populated(64 << 10, PageKind::Small);
        let path = format!("/proc/self/fd/{}", file.descriptor.as_raw_fd());
        let reads = std::fs::File::open(path).expect("opens");
        assert!(SlotFile::adopt(reads.into()).is_err(), "a descriptor for reading can't truncate");
        let kept = file.as_fd().try_clone_to_owned().expect("a copy");
        file.end().expect("truncated");
        assert!(SlotFile::adopt(kept).is_err(), "it has ended");
    }

    #[test]
    fn slots_are_told_from_other_files_in_memory() {
        for snapshot in [None, SnapshotName::new("web")] {
            let file = SlotFile::create_for(snapshot, 4096, PageKind::Small).expect("a memfd");
            assert!(SlotFile::is_one(&file));
        }
        for (name, seals) in
            [(c"pumice-slot", SealFlags::GROW), (c"pumice-slots", SEALS), (c"vm", SEALS)]
        {
            let other = memfd_create(name, MemfdFlags::ALLOW_SEALING).expect("a memfd");
            fcntl_add_seals(&other, seals).expect("sealed");
            assert!(!SlotFile::is_one(&other), "{name:?}");
        }
    }

    #[test]
    fn an_adopted_slot_says_its_snapshot() {
        let name = SnapshotName::new("web-1.2");
        for snapshot in [None, name] {
            let file = SlotFile::create_for(snapshot, 4096, PageKind::Small).expect("a memfd");
            let adopted = SlotFile::adopt(file.into_descriptor()).expect("a slot");
            assert_eq!(adopted.snapshot(), snapshot);
        }
    }

    #[test]
    fn odd_sizes_are_refused() {
        for (bytes, pages) in
            [(0, PageKind::Small), (100, PageKind::Small), (4096, PageKind::Hugetlb2M)]
        {
            assert!(SlotFile::create(bytes, pages).is_err());
        }
    }
}
