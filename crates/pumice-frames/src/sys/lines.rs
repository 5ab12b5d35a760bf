//! Files read line by line through a small buffer, for those that may be long.

use core::ffi::CStr;
use rustix::fd::OwnedFd;
use rustix::io::{self, Errno};

use super::file;

/// An open file's lines, without their ends. A line longer than the buffer comes in pieces.
#[derive(Debug)]
pub struct Lines<'b> {
    file: OwnedFd,
    buffer: &'b mut [u8],
    /// The text that was read and not yet returned.
    start: usize,
    end: usize,
}

impl<'b> Lines<'b> {
    /// Opens a file, to be read through `buffer`.
    pub fn open(path: &CStr, buffer: &'b mut [u8]) -> Result<Lines<'b>, Errno> {
        Ok(Lines { file: file::open_read(path)?, buffer, start: 0, end: 0 })
    }

    /// The next line; `None` at the end, and where reading fails.
    pub fn next_line(&mut self) -> Option<&[u8]> {
        let mut searched = self.start;
        loop {
            let unseen = self.buffer.get(searched..self.end)?;
            let newline = unseen.iter().position(|&byte| byte == b'\n');
            let (stop, next) = match newline {
                Some(offset) => (searched + offset, searched + offset + 1),
                None => {
                    searched = self.end;
                    if self.start > 0 {
                        self.buffer.copy_within(self.start..self.end, 0);
                        (searched, self.end) = (searched - self.start, self.end - self.start);
                        self.start = 0;
                    }
                    let full = self.end == self.buffer.len();
                    if !full && self.fill() {
                        continue;
                    }
                    if self.end == self.start {
                        return None;
                    }
                    (self.end, self.end)
                }
            };
            let line = self.start..stop;
            self.start = next;
            return self.buffer.get(line);
        }
    }

    /// Reads more. `false` at the end.
    fn fill(&mut self) -> bool {
        let Some(room) = self.buffer.get_mut(self.end..) else { return false };
        loop {
            match io::read(&self.file, &mut *room) {
                Ok(read) => {
                    self.end += read;
                    return read > 0;
                }
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_std_reads() {
        let path = std::env::temp_dir().join(format!("pumice-lines-{}", std::process::id()));
        let text = "one\n\nthree is longer\nno end";
        std::fs::write(&path, text).expect("a temporary file");
        let name = std::ffi::CString::new(path.to_str().expect("a plain path")).expect("no NUL");
        for size in 16..64 {
            let mut buffer = vec![0; size];
            let mut lines = Lines::open(&name, &mut buffer).expect("it was just written");
            let mut seen = Vec::new();
            while let Some(line) = lines.next_line() {
                seen.push(String::from_utf8(line.to_vec()).expect("text"));
            }
            assert_eq!(seen, text.lines().collect::<Vec<_>>(), "buffer of {size}");
        }
        std::fs::remove_file(&path).expect("it is there");
    }
}
