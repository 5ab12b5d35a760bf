//! The memory of a shared snapshot: filled once, and then nobody can change it. Any number of lessees have it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{fchmod, fcntl_add_seals, fstat, openat, Mode, OFlags, SealFlags, CWD};

use super::file::SlotFile;

/// No writing, no other size, and no seal more.
const SEALS: SealFlags =
    SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

const MODE: Mode = Mode::RUSR.union(Mode::RGRP).union(Mode::ROTH);

/// A sealed memfd, by a descriptor for reading. Its memory is freed when the last lessee and the daemon have let go.
#[derive(Debug)]
pub struct SharedFile {
    descriptor: OwnedFd,
    bytes: u64,
    inode: u64,
}

impl SharedFile {
    /// Seals a file that was made to be shared ([`SlotFile::create_shared`]) and is filled.
    ///
    /// # Errors
    /// `EBUSY` where a mapping can still write to it, or a device; `EPERM` for a slot that was not made so.
    pub fn seal(file: SlotFile) -> io::Result<SharedFile> {
        fcntl_add_seals(&file, SEALS)?;
        // No seal keeps lessees from leaving each other extended attributes, or times. They need the right to write.
        fchmod(&file, MODE)?;
        // With a descriptor that can write some kernels refuse a shared mapping, also one for reading.
        let descriptor = open_again(file.as_fd())?;
        let inode = fstat(&descriptor)?.st_ino;
        Ok(SharedFile { descriptor, bytes: file.bytes(), inode })
    }

    /// The same memory for another, opened anew: those that have a copy of one descriptor have one position, one set of
    /// flags and one lock.
    ///
    /// # Errors
    /// As open(2): `EMFILE` and `ENFILE` where there are too many.
    pub fn share(&self) -> io::Result<SharedFile> {
        Ok(SharedFile { descriptor: open_again(self.as_fd())?, ..*self })
    }

    /// Bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same for all that have the same memory, and for no others as long as one has it.
    pub fn id(&self) -> u64 {
        self.inode
    }
}

fn open_again(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

impl AsFd for SharedFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use std::ptr::null_mut;

    use rustix::mm::{mmap, munmap, MapFlags, ProtFlags};

    use super::*;
    use crate::file::Populating;
    use crate::{PageKind, SnapshotName};

    const BYTES: u64 = 64 << 10;

    fn filled() -> SlotFile {
        let name = SnapshotName::new("web").expect("a name");
        let file = SlotFile::create_shared(name, BYTES, PageKind::Small).expect("a memfd");
        File::from(file.as_fd().try_clone_to_owned().expect("a copy"))
            .write_all_at(&[7; BYTES as usize], 0)
            .expect("written");
        file
    }

    #[test]
    fn nobody_can_change_it() {
        let made = filled();
        let kept = File::from(made.as_fd().try_clone_to_owned().expect("a copy"));
        let shared = SharedFile::seal(made).expect("sealed");
        let path = format!("/proc/self/fd/{}", shared.as_fd().as_raw_fd());
        // Root may.
        let again = File::options().read(true).write(true).open(path);
        let own = File::from(shared.as_fd().try_clone_to_owned().expect("a copy"));
        assert_eq!(own.metadata().expect("a file").mode() & 0o777, 0o444);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        for file in [Some(&kept), again.as_ref().ok(), Some(&own)].into_iter().flatten() {
            assert!(file.write_at(b"x", 0).is_err());
            assert!(file.set_len(0).is_err() && file.set_len(2 * BYTES).is_err());
            assert!(fcntl_add_seals(file, SealFlags::FUTURE_WRITE).is_err());
            // SAFETY: a new mapping at an address of the kernel's choice.
            let mapped =
                unsafe { mmap(null_mut(), BYTES as usize, protection, MapFlags::SHARED, file, 0) };
            assert!(mapped.is_err(), "a shared mapping could write");
            // SAFETY: the same; it is written and read within, and goes.
            unsafe {
                let own = mmap(null_mut(), BYTES as usize, protection, MapFlags::PRIVATE, file, 0);
                let own = own.expect("a private mapping");
                own.cast::<u8>().write_volatile(8);
                assert_eq!(own.cast::<u8>().add(1).read_volatile(), 7);
                munmap(own, BYTES as usize).expect("ours");
            }
        }
        let mut content = [0; BYTES as usize];
        kept.read_exact_at(&mut content, 0).expect("readable");
        assert!(content.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn each_has_a_position_of_its_own() {
        use std::io::Read;
        let shared = SharedFile::seal(filled()).expect("sealed");
        for _ in 0..2 {
            let one = shared.share().expect("opened");
            assert_eq!((one.id(), one.bytes()), (shared.id(), BYTES));
            let mut content = Vec::new();
            File::from(one.descriptor).read_to_end(&mut content).expect("readable");
            assert_eq!(content.len() as u64, BYTES);
        }
    }

    #[test]
    fn it_is_not_sealed_while_somebody_can_write() {
        let made = filled();
        let mapped = Populating::begin(&made, BYTES, PageKind::Small).expect("mapped");
        assert!(SharedFile::seal(made).is_err());
        drop(mapped);
        let slot = SlotFile::create(BYTES, PageKind::Small).expect("a memfd");
        assert!(SharedFile::seal(slot).is_err(), "a slot is its lessee's to write");
    }
}
