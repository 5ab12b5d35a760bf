//! Whether a range is plain memory: private, anonymous, readable and writable. The kernel may
//! keep as several mappings what to the program is one, and refuses to move more than one at once.

use core::ops::Range;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};

/// Whether `/proc/self/maps` shows nothing but plain memory in a range.
pub(super) fn is_plain(range: &Range<usize>) -> bool {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    match rustix::fs::open(c"/proc/self/maps", flags, Mode::empty()) {
        Ok(file) => is_plain_in(&file, range),
        Err(_) => false,
    }
}

fn is_plain_in(file: &OwnedFd, range: &Range<usize>) -> bool {
    let mut buffer = [0u8; 1024];
    let mut line = Line::new(range.clone());
    loop {
        match rustix::io::read(file, &mut buffer) {
            Ok(0) | Err(_) => return false,
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
    /// What has not been seen yet of the range.
    rest: Range<usize>,
    field: usize,
    at: usize,
    start: usize,
    end: usize,
    inode: usize,
    is_plain: bool,
}

impl Line {
    const PERMISSIONS: &'static [u8] = b"rw-p";

    fn new(rest: Range<usize>) -> Line {
        Line { rest, field: 0, at: 0, start: 0, end: 0, inode: 0, is_plain: true }
    }

    /// Takes the next byte: the answer, when there is one.
    fn take(&mut self, byte: u8) -> Option<bool> {
        if byte == b'\n' {
            let answer = self.finish();
            *self = Line::new(self.rest.clone());
            return answer;
        }
        if self.field < 5 && (byte == b' ' || (byte == b'-' && self.field == 0)) {
            // The two addresses count as one field less than they are, so that permissions are 1.
            (self.start, self.end) =
                if byte == b'-' { (self.end, 0) } else { (self.start, self.end) };
            self.field += usize::from(byte == b' ');
            self.at = 0;
            return None;
        }
        let digit = (byte as char).to_digit(16).unwrap_or(0) as usize;
        match self.field {
            0 => self.end = self.end << 4 | digit,
            1 => self.is_plain &= Self::PERMISSIONS.get(self.at) == Some(&byte),
            4 => self.inode = self.inode << 4 | digit,
            _ => {}
        }
        self.at += 1;
        None
    }

    fn finish(&mut self) -> Option<bool> {
        if self.end <= self.rest.start {
            return None;
        }
        if self.start > self.rest.start || !self.is_plain || self.inode != 0 {
            return Some(false);
        }
        self.rest.start = self.end;
        (self.end >= self.rest.end).then_some(true)
    }
}
