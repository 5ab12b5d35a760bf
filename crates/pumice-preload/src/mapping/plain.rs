//! The description of a range in `/proc/self/maps`: whether it is one kind of private anonymous memory, or a segment
//! of shared memory. The kernel may keep one mapping of the program as several, and refuses to move more than one at
//! once.

use core::ffi::c_int;
use core::ops::Range;

use linux_raw_sys::general as linux;
use pumice_frames::sys::{file, raw};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;

/// The protection of a range, if `/proc/self/maps` shows nothing but private anonymous memory there,
/// all of the same protection.
pub(super) fn protection_of(range: &Range<usize>) -> Option<c_int> {
    let file = file::open_read(c"/proc/self/maps").ok()?;
    let (mut at, mut seen) = (range.start, None);
    while at < range.end {
        match query(&file, at) {
            Ok(Some(found)) => {
                let is_other = seen.is_some_and(|seen| seen != found.vma_flags);
                let is_private = found.vma_flags & QUERY_SHARED == 0 && found.inode == 0;
                if found.vma_start as usize > at || is_other || !is_private {
                    return None;
                }
                (at, seen) = (found.vma_end as usize, Some(found.vma_flags));
            }
            Ok(None) => return None,
            Err(_) => return protection_in(&file, range),
        }
    }
    let bits = [linux::PROT_READ, linux::PROT_WRITE, linux::PROT_EXEC];
    let seen = seen?;
    let has = bits.into_iter().enumerate().filter(|&(nth, _)| seen >> nth & 1 != 0);
    Some(has.map(|(_, bit)| bit).sum::<u32>() as c_int)
}

/// `struct procmap_query` of `include/uapi/linux/fs.h`.
#[repr(C)]
struct Query {
    size: u64,
    query_flags: u64,
    address: u64,
    vma_start: u64,
    vma_end: u64,
    /// Bits 0 to 2: readable, writable, executable; then [`QUERY_SHARED`].
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

const QUERY_SHARED: u64 = 8;

/// The mapping that covers an address, or else the next one. It costs the same however many there are; the text has a
/// line for each of them, which takes 100 ms where there are 65,000. `None`: there is none. An error where the kernel
/// does not know the call (before Linux 6.11), or a filter is in force: it may end a process for an `ioctl` that it
/// would not make plain.
fn query(file: &OwnedFd, address: usize) -> Result<Option<Query>, Errno> {
    const PROCMAP_QUERY: usize = 0xc068_6611;
    const COVERING_OR_NEXT: u64 = 0x10;
    let mode = linux_raw_sys::prctl::PR_GET_SECCOMP as usize;
    // SAFETY: it only asks.
    if unsafe { raw::syscall(linux::__NR_prctl, [mode, 0, 0, 0, 0, 0]) } != Ok(0) {
        return Err(Errno::NOSYS);
    }
    // SAFETY: numbers, of which 0 is one.
    let mut query: Query = unsafe { core::mem::zeroed() };
    query.size = size_of::<Query>() as u64;
    query.query_flags = COVERING_OR_NEXT;
    query.address = address as u64;
    let args = [file.as_raw_fd() as usize, PROCMAP_QUERY, (&raw mut query) as usize, 0, 0, 0];
    // SAFETY: the kernel reads and writes as many bytes as `size` says, and writes no name where there is no room.
    match unsafe { raw::syscall(linux::__NR_ioctl, args) } {
        Ok(_) => Ok(Some(query)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Pieces of a segment that are looked for at once.
const MOST_PIECES: usize = 16;

/// The pieces that are left of the segment of System V shared memory that was attached at an address, the first
/// [`MOST_PIECES`] of them, and its inode; `inode` is 0 where any segment will do. As the kernel does, it goes by
/// where in its segment each mapping begins.
pub(crate) fn pieces_of_segment(at: usize, inode: usize) -> (usize, [Range<usize>; MOST_PIECES]) {
    let mut pieces = [const { 0..0 }; MOST_PIECES];
    let (mut inode, mut count) = (inode, 0);
    let _ = each_line(|line| {
        let is_piece = line.is_segment()
            && line.start.checked_sub(at) == Some(line.offset)
            && (inode == 0 || line.inode == inode);
        if is_piece {
            (inode, pieces[count]) = (line.inode, line.start..line.end);
            count += 1;
        }
        count < MOST_PIECES
    });
    (inode, pieces)
}

/// Whether a range is one mapping, as far as it is mapped.
pub(super) fn is_one_mapping(range: &Range<usize>) -> bool {
    let Ok(file) = file::open_read(c"/proc/self/maps") else { return false };
    let is_within = |found: &Query| (found.vma_start as usize) < range.end;
    match query(&file, range.start) {
        Ok(first) => {
            return first.filter(is_within).is_some_and(|first| {
                first.vma_end as usize >= range.end
                    || query(&file, first.vma_end as usize)
                        .is_ok_and(|next| !next.as_ref().is_some_and(is_within))
            });
        }
        Err(_) => drop(file),
    }
    let mut count = 0;
    let read = each_line(|line| {
        count += usize::from(line.start < range.end && line.end > range.start);
        line.start < range.end && count < 2
    });
    read.is_some() && count == 1
}

/// Whether the kernel gives huge pages to memory that nobody has advised.
pub(super) fn come_huge_pages_unasked() -> bool {
    let path = c"/sys/kernel/mm/transparent_hugepage/enabled";
    file::read(path, &mut [0; 64]).is_ok_and(|text| text.starts_with(b"[always]"))
}

/// Advice that a mapping keeps, by the letters that `/proc/self/smaps` has for it.
const KEPT: [(&[u8], u32); 8] = [
    (b" dc", linux::MADV_DONTFORK),
    (b" wf", linux::MADV_WIPEONFORK),
    (b" dd", linux::MADV_DONTDUMP),
    (b" rr", linux::MADV_RANDOM),
    (b" sr", linux::MADV_SEQUENTIAL),
    (b" mg", linux::MADV_MERGEABLE),
    (b" nh", linux::MADV_NOHUGEPAGE),
    (b" hg", linux::MADV_HUGEPAGE),
];
/// The letters of locked memory, and of such that is locked page by page as it comes, with the bit of each.
const LOCKED: [(&[u8], u32); 2] = [(b" lo", 1 << 8), (b" lf", 1 << 9)];

/// Advice that all of a range has been given, and its lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Advice(u32);

impl Advice {
    pub(super) const NONE: Advice = Advice(0);

    fn of_flags(said: &[u8]) -> Advice {
        let has = |letters: &[u8]| said.windows(letters.len()).any(|part| part == letters);
        let kept = KEPT.iter().enumerate().map(|(nth, (letters, _))| (*letters, 1 << nth));
        let given = kept.chain(LOCKED).filter(|(letters, _)| has(letters));
        Advice(given.map(|(_, bit)| bit).sum())
    }

    pub(super) fn each(self) -> impl Iterator<Item = c_int> {
        let is_given = move |nth: &usize| self.0 & 1 << nth != 0;
        (0..KEPT.len()).filter(is_given).map(|nth| KEPT[nth].1 as c_int)
    }

    /// Locks memory as other memory is that is to be copied there, which is locked no more.
    ///
    /// # Errors
    /// `mremap`'s where the kernel locks no more, and the locks are as before.
    ///
    /// # Safety
    /// Both are the caller's.
    pub(super) unsafe fn move_lock(
        self,
        from: &Range<usize>,
        to: &Range<usize>,
    ) -> Result<(), Errno> {
        let [is_locked, on_fault] = LOCKED.map(|(_, bit)| self.0 & bit != 0);
        if !is_locked && !on_fault {
            return Ok(());
        }
        let flags = if on_fault { linux::MLOCK_ONFAULT as usize } else { 0 };
        // SAFETY: as the caller promises.
        let lock = |range: &Range<usize>| unsafe {
            raw::syscall(linux::__NR_mlock2, [range.start, range.len(), flags, 0, 0, 0])
        };
        // SAFETY: as above.
        unsafe { raw::syscall(linux::__NR_munlock, [from.start, from.len(), 0, 0, 0, 0])? };
        lock(to).map(drop).map_err(|_| {
            let _ = lock(from);
            Errno::AGAIN
        })
    }
}

/// The advice that a range has been given; `None` if that can't be read, or differs.
pub(super) fn advice_of(range: &Range<usize>) -> Option<Advice> {
    let file = file::open_read(c"/proc/self/smaps").ok()?;
    let (mut buffer, mut text, mut len) = ([0u8; 1024], [0u8; 256], 0);
    let (mut line, mut is_header) = (Line::new(0..usize::MAX, None), true);
    let (mut is_within, mut found) = (false, None);
    loop {
        let count = rustix::io::read(&file, &mut buffer).ok().filter(|&count| count > 0);
        let Some(count) = count else { return found };
        for &byte in &buffer[..count] {
            if byte != b'\n' {
                // Other lines begin with a capital letter.
                is_header = if len == 0 { !byte.is_ascii_uppercase() } else { is_header };
                if is_header {
                    line.take_byte(byte);
                }
                if len < text.len() {
                    text[len] = byte;
                    len += 1;
                }
                continue;
            }
            let said = &text[..core::mem::take(&mut len)];
            if is_header {
                is_within = line.start < range.end && line.end > range.start;
                if line.start >= range.end {
                    return found;
                }
                line = Line::new(0..usize::MAX, None);
            } else if is_within && said.starts_with(b"VmFlags:") {
                let advice = Advice::of_flags(said);
                if found.is_some_and(|other| other != advice) {
                    return None;
                }
                found = Some(advice);
            }
        }
    }
}

/// Calls `visit` with each line until it says no. `None` if there is no such file.
fn each_line(mut visit: impl FnMut(&Line) -> bool) -> Option<()> {
    let file = file::open_read(c"/proc/self/maps").ok()?;
    let mut buffer = [0u8; 1024];
    let mut line = Line::new(0..usize::MAX, None);
    loop {
        let count = rustix::io::read(&file, &mut buffer).ok().filter(|&count| count > 0);
        let Some(count) = count else { return Some(()) };
        for &byte in &buffer[..count] {
            if byte != b'\n' {
                line.take_byte(byte);
                continue;
            }
            if !visit(&line) {
                return Some(());
            }
            line = Line::new(0..usize::MAX, None);
        }
    }
}

fn protection_in(file: &OwnedFd, range: &Range<usize>) -> Option<c_int> {
    let mut buffer = [0u8; 1024];
    let mut line = Line::new(range.clone(), None);
    loop {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(count) => {
                for &byte in &buffer[..count] {
                    if let Some(answer) = line.take(byte) {
                        return answer;
                    }
                }
            }
        }
    }
}

/// A line of the file, byte by byte: `start-end perms offset device inode path`.
struct Line {
    /// The part of the range that has not been seen yet.
    rest: Range<usize>,
    /// The permissions of the part that was seen.
    seen: Option<[u8; 4]>,
    field: usize,
    at: usize,
    start: usize,
    end: usize,
    permissions: [u8; 4],
    offset: usize,
    inode: usize,
    /// How the path begins.
    path: [u8; 5],
}

impl Line {
    fn new(rest: Range<usize>, seen: Option<[u8; 4]>) -> Line {
        Line {
            rest,
            seen,
            field: 0,
            at: 0,
            start: 0,
            end: 0,
            permissions: [0; 4],
            offset: 0,
            inode: 0,
            path: [0; 5],
        }
    }

    /// Takes the next byte: the answer, when there is one.
    fn take(&mut self, byte: u8) -> Option<Option<c_int>> {
        if byte == b'\n' {
            let answer = self.finish();
            *self = Line::new(self.rest.clone(), self.seen);
            return answer;
        }
        self.take_byte(byte);
        None
    }

    fn take_byte(&mut self, byte: u8) {
        match (self.field, byte) {
            // The addresses are one field, so that permissions are the next.
            (0, b'-') => (self.start, self.end) = (self.end, 0),
            (0..=4, b' ') => (self.field, self.at) = (self.field + 1, 0),
            // Before the path there are as many as fill the line up.
            (5, b' ') if self.at == 0 => {}
            _ => self.take_in_field(byte),
        }
    }

    /// Whether it is System V shared memory, by the name that the kernel gives it.
    fn is_segment(&self) -> bool {
        &self.path == b"/SYSV"
    }

    fn take_in_field(&mut self, byte: u8) {
        let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
        match self.field {
            0 => self.end = self.end << 4 | digit,
            1 if self.at < 4 => self.permissions[self.at] = byte,
            2 => self.offset = self.offset << 4 | digit,
            // Decimal; whether it is 0, and the same as another's, is all that matters.
            4 => self.inode = self.inode << 4 | digit,
            5 if self.at < 5 => self.path[self.at] = byte,
            _ => {}
        }
        self.at += 1;
    }

    fn finish(&mut self) -> Option<Option<c_int>> {
        if self.end <= self.rest.start {
            return None;
        }
        let is_other = self.seen.is_some_and(|seen| seen != self.permissions);
        let is_private = self.permissions[3] == b'p' && self.inode == 0;
        if self.start > self.rest.start || is_other || !is_private {
            return Some(None);
        }
        (self.rest.start, self.seen) = (self.end, Some(self.permissions));
        (self.end >= self.rest.end).then(|| Some(protection(self.permissions)))
    }
}

/// `rwxp` as `mprotect` takes it.
fn protection(permissions: [u8; 4]) -> c_int {
    let bits = [linux::PROT_READ, linux::PROT_WRITE, linux::PROT_EXEC];
    let has = permissions.iter().zip(bits).filter(|(&letter, _)| letter != b'-');
    has.map(|(_, bit)| bit).sum::<u32>() as c_int
}
