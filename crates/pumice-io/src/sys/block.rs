//! Files and block devices, read and written at an offset straight from memory.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{
    self, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags,
};
use rustix::io::Errno;

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sys::raw::{number, syscall};

/// Which way data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// To be read; it must be there.
    Read,
    /// To be read and written; it must be there.
    Write,
    /// To be read and written; made if there is none.
    Create,
}

/// Opens a file, around the page cache if `direct`.
///
/// # Errors
/// The kernel's error: `EINVAL` where the file system does no direct I/O.
pub fn open(path: &Path, opening: Opening, direct: bool) -> Result<OwnedFd, Errno> {
    let around = if direct { OFlags::DIRECT } else { OFlags::empty() };
    let access = match opening {
        Opening::Read => OFlags::RDONLY,
        Opening::Write => OFlags::RDWR,
        Opening::Create => OFlags::RDWR | OFlags::CREATE,
    };
    let flags = access | OFlags::CLOEXEC | around;
    if opening == Opening::Read {
        // To open a pipe to read it waits for a writer. Without waiting nothing is opened that somebody has a lease of.
        let named = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        is_device(&fs::fstat(&named)?)?;
        // Another file may have the name by now.
        match fs::open(proc_path(&named), flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
            opened => return opened,
        }
    }
    fs::open(path, flags, Mode::RUSR | Mode::WUSR)
}

/// A name by which an open file is opened anew, also if its own is gone, where there is `/proc`.
fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// The alignment that direct I/O wants of addresses, and of offsets and lengths; `None` where the kernel does not say.
///
/// A file system that does not do it for this file says 0 (statx(2), `STATX_DIOALIGN`).
pub fn direct_alignment(file: &OwnedFd) -> Option<(u32, u32)> {
    let stat = fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let is_said = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    is_said.then_some((stat.stx_dio_mem_align, stat.stx_dio_offset_align))
}

/// Whether a file's bytes are in memory only: such a file system takes `O_DIRECT` and does nothing about it.
pub fn is_in_memory(file: &OwnedFd) -> bool {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    const RAMFS_MAGIC: u32 = 0x8584_58f6;
    matches!(file_system(file), Some(TMPFS_MAGIC | RAMFS_MAGIC))
}

/// Whether a file lies on a server whose locks are mandatory, also for other descriptors of the process that has them
/// (flock(2), "CIFS details").
fn has_mandatory_locks(file: &OwnedFd) -> bool {
    const SMB_MAGIC: u32 = 0x517B;
    const CIFS_MAGIC: u32 = 0xFF53_4D42;
    const SMB2_MAGIC: u32 = 0xFE53_4D42;
    matches!(file_system(file), Some(SMB_MAGIC | CIFS_MAGIC | SMB2_MAGIC))
}

/// The number of a file's file system, where the kernel says it (statfs(2)).
fn file_system(file: &OwnedFd) -> Option<u32> {
    // The number's width is the architecture's; it has 32 bits.
    #[allow(clippy::unnecessary_cast)]
    fs::fstatfs(file).ok().map(|stat| stat.f_type as u32)
}

/// Which file it is: no two that are there at a time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    /// The device it lies on; of a block device 0.
    device: u64,
    /// Its inode; of a block device which one it is.
    inode: u64,
}

impl FileId {
    /// Of the file that has a name now.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn at(path: &Path) -> Result<FileId, Errno> {
        Ok(id_of(&fs::stat(path)?))
    }
}

/// See [`FileId`].
///
/// # Errors
/// The kernel's error.
pub fn id(file: &OwnedFd) -> Result<FileId, Errno> {
    Ok(id_of(&fs::fstat(file)?))
}

fn id_of(stat: &fs::Stat) -> FileId {
    // Of one block device there may be many nodes.
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => FileId { device: 0, inode: stat.st_rdev },
        _ => FileId { device: stat.st_dev, inode: stat.st_ino },
    }
}

/// Has a file to itself, as far as others ask: whether it has now. A file system that knows no locks lets everybody
/// have it, as does one whose locks would keep this program's other descriptors from reading and writing.
///
/// The lock is the open file's (flock(2)), which a write in flight keeps open when its process has been killed. The
/// next holder finds all that the last one wrote, and nothing is written behind its back.
///
/// # Errors
/// The kernel's error.
pub fn try_lock(file: &OwnedFd) -> Result<bool, Errno> {
    if has_mandatory_locks(file) {
        return Ok(true);
    }
    loop {
        match fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Leaves a file that [`try_lock`] has to the next, where nothing is being written to it any more.
pub fn unlock(file: &OwnedFd) {
    // There is nothing to be done about an error: then it goes with the last descriptor.
    let _ = fs::flock(file, FlockOperation::Unlock);
}

/// Claims a block device, as mounts and swap do: while the descriptor is open, nobody else can (open(2), `O_EXCL`).
/// `None` where `/proc` can't be had, by which a device is opened anew whatever became of its name.
///
/// # Errors
/// `EBUSY` for one that is claimed; else what the kernel says.
pub fn try_claim(device: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    match fs::open(proc_path(device), OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty())
    {
        Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => Ok(None),
        claimed => claimed.map(Some),
    }
}

/// Makes a file so long, or so short.
///
/// # Errors
/// The kernel's error.
pub fn set_len(file: &OwnedFd, len: u64) -> Result<(), Errno> {
    fs::ftruncate(file, len)
}

/// Waits until the writes are on the device, and all metadata needed to find them: the length, too.
///
/// # Errors
/// The kernel's error.
pub fn sync_data(file: &OwnedFd) -> Result<(), Errno> {
    fs::fdatasync(file)
}

/// Whether it is a block device, and its length in bytes.
///
/// # Errors
/// The kernel's error; `EINVAL` for anything but a file or a block device.
pub fn extent(file: &OwnedFd) -> Result<(bool, u64), Errno> {
    let stat = fs::fstat(file)?;
    match is_device(&stat)? {
        false => Ok((false, stat.st_size as u64)),
        true => Ok((true, fs::seek(file, SeekFrom::End(0))?)),
    }
}

fn is_device(stat: &fs::Stat) -> Result<bool, Errno> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(false),
        FileType::BlockDevice => Ok(true),
        _ => Err(Errno::INVAL),
    }
}

/// Makes a file so long at least, with its blocks there if the file system can do that. Nobody else changes its length.
///
/// # Errors
/// The kernel's error: `ENOSPC` where there is no room. It is as long as it was, and has given back all that it was
/// given beyond that.
pub fn allocate(file: &OwnedFd, len: u64) -> Result<(), Errno> {
    let (_, now) = extent(file)?;
    let allocated = match preallocate(len, |end, from, len| fallocate(file, end, from, len)) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) if len <= now => Ok(()),
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => fs::ftruncate(file, len),
        Err(errno) => Err(errno),
    };
    allocated.inspect_err(|_| {
        // The first error is reported, not the one of the clean-up.
        let _ = fs::ftruncate(file, now);
    })
}

/// The fate of the end of a file that is given blocks beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It stays where it is.
    Stays,
    /// It lies after the last block.
    Moves,
}

/// Has blocks behind the first `len` bytes of a file, by asking [`fallocate`] for pieces of it. The file is as long
/// as it was; or so long at least, where the file system has no blocks beyond a file's end, as NFS. Where that fails,
/// some may be there.
///
/// # Errors
/// The kernel's error: `EOPNOTSUPP` where the file system can't.
pub fn preallocate(
    len: u64,
    mut ask: impl FnMut(End, u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let (mut end, mut done, mut most) = (End::Stays, 0, len);
    while done < len {
        let piece = most.min(len - done);
        match ask(end, done, piece) {
            Ok(()) => done += piece,
            // tmpfs gives all of a piece back that a signal comes upon: one that is small enough is done between two.
            Err(Errno::INTR) => most = (piece / 2).max(FRAME_SIZE as u64),
            Err(Errno::OPNOTSUPP) if end == End::Stays => end = End::Moves,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Has blocks behind `len` bytes of a file from an offset on.
///
/// # Errors
/// The kernel's error.
pub fn fallocate(file: &OwnedFd, end: End, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = match end {
        End::Stays => FallocateFlags::KEEP_SIZE,
        End::Moves => FallocateFlags::empty(),
    };
    fs::fallocate(file, flags, offset, len)
}

/// A frame of a scattered request: an `iovec`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Piece {
    at: *mut u8,
    len: usize,
}

// SAFETY: an address; the requests that it is in say who owns the memory.
unsafe impl Send for Piece {}

impl Piece {
    /// The frame at `at`.
    #[doc(hidden)]
    pub const fn frame(at: NonNull<u8>) -> Piece {
        Piece { at: at.as_ptr(), len: FRAME_SIZE }
    }

    /// Where it is.
    pub const fn at(&self) -> *mut u8 {
        self.at
    }

    /// How long it is: a frame, but in lists that were joined.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// The same memory in as few pieces as may be: those that follow one another in memory are one.
    pub(super) fn join(pieces: &[Piece], into: &mut Vec<Piece>) {
        into.clear();
        for piece in pieces {
            match into.last_mut() {
                Some(last) if last.at.wrapping_add(last.len) == piece.at => last.len += piece.len,
                _ => into.push(*piece),
            }
        }
    }
}

/// One `pread` or `pwrite`.
///
/// No reference is made of the bytes: they may be memory that its owner takes back meanwhile.
///
/// # Errors
/// The kernel's error.
///
/// # Safety
/// The `len` bytes at `at` are there; to be read into, they are the caller's.
pub unsafe fn transfer(
    direction: Direction,
    file: BorrowedFd<'_>,
    (at, len): (*mut u8, usize),
    offset: u64,
) -> Result<usize, Errno> {
    let call = match direction {
        Direction::Read => number::__NR_pread64,
        Direction::Write => number::__NR_pwrite64,
    };
    // SAFETY: the caller's promise.
    unsafe { syscall(call, [file.as_raw_fd() as usize, at as usize, len, offset as usize, 0, 0]) }
}

/// One `preadv` or `pwritev`.
///
/// # Errors
/// The kernel's error.
///
/// # Safety
/// There are `count` pieces at `pieces`, of which [`transfer`] says what must hold.
pub unsafe fn transfer_pieces(
    direction: Direction,
    file: BorrowedFd<'_>,
    (pieces, count): (*const Piece, usize),
    offset: u64,
) -> Result<usize, Errno> {
    let call = match direction {
        Direction::Read => number::__NR_preadv,
        Direction::Write => number::__NR_pwritev,
    };
    // The offset's upper half, on 64 bits, is not looked at.
    let args = [file.as_raw_fd() as usize, pieces as usize, count, offset as usize, 0, 0];
    // SAFETY: the caller's promise.
    unsafe { syscall(call, args) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// The calls that a kernel was asked for and did.
    type Done = Vec<(End, u64, u64)>;

    /// The calls to a kernel that knows only some ways, and interrupts those that are longer than `most`.
    fn asked(len: u64, most: u64, knows: &[End]) -> (Result<(), Errno>, Done) {
        let mut done = Vec::new();
        let result = preallocate(len, |end, offset, len| {
            if !knows.contains(&end) {
                return Err(Errno::OPNOTSUPP);
            } else if len > most {
                return Err(Errno::INTR);
            }
            done.push((end, offset, len));
            Ok(())
        });
        (result, done)
    }

    #[test]
    fn what_becomes_a_pipe_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("pumice-block-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [name, file, pipe] = ["name", "file", "pipe"].map(|name| folder.join(name));
        std::fs::write(&file, "text").expect("a file");
        fs::mknodat(fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
        std::fs::hard_link(&file, &name).expect("a link");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    for from in [&pipe, &file] {
                        let link = folder.join("link");
                        std::fs::hard_link(from, &link).expect("a link");
                        std::fs::rename(&link, &name).expect("another file");
                    }
                }
            });
            for _ in 0..3000 {
                match open(&name, Opening::Read, false) {
                    Ok(opened) => assert_eq!(extent(&opened), Ok((false, 4))),
                    Err(errno) => assert_eq!(errno, Errno::INVAL),
                }
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let _ = std::fs::remove_dir_all(&folder);
    }

    #[test]
    fn blocks_are_had_in_pieces_where_signals_come_and_by_the_way_there_is() {
        const MIB: u64 = 1 << 20;
        let both = [End::Stays, End::Moves];
        assert_eq!(asked(0, 1, &both), (Ok(()), vec![]));
        assert_eq!(asked(5 * MIB, u64::MAX, &both), (Ok(()), vec![(End::Stays, 0, 5 * MIB)]));
        for (knows, way) in [(&both[..], End::Stays), (&both[1..], End::Moves)] {
            let (result, done) = asked(5 * MIB + 7, MIB, knows);
            assert_eq!(result, Ok(()));
            let mut next = 0;
            for (end, offset, len) in done {
                assert_eq!((end, offset), (way, next));
                next += len;
            }
            assert_eq!(next, 5 * MIB + 7);
        }
        assert_eq!(asked(MIB, MIB, &[]), (Err(Errno::OPNOTSUPP), vec![]));
    }
}
