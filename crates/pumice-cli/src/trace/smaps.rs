//! The mappings of a process, as `/proc/PID/smaps` lists them (proc_pid_smaps(5)).

use std::io::{self, BufRead};

/// A mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    /// `rw-p` and the like.
    pub rights: [u8; 4],
    /// Memory of it that is there.
    pub rss_bytes: u64,
    /// Whether any of that was touched since this was cleared.
    pub is_referenced: bool,
    /// A file's, or memory that can be shared.
    pub is_file: bool,
    /// It must be left as it is: the main stack, the kernel's own pages, devices, huge pages of hugetlbfs, memory that
    /// is registered with userfaultfd. Requests of userfaultfd fail on more than one mapping.
    pub is_special: bool,
    /// It is left out of core files.
    pub is_no_dump: bool,
}

/// Flags of mappings that must be left as they are; the last three are of userfaultfd.
const SPECIAL: [&[u8]; 8] = [b"io", b"pf", b"ht", b"mm", b"sl", b"um", b"uw", b"ui"];

impl Mapping {
    /// Whether it would be one with the mapping after it, but for the core files.
    pub fn goes_on_in(&self, next: &Mapping) -> bool {
        self.end == next.start
            && self.is_no_dump != next.is_no_dump
            && (self.rights, self.is_file) == (next.rights, next.is_file)
    }
}

/// Calls `each` for every mapping.
///
/// # Errors
/// As reading: `PermissionDenied` of a process with other rights than ours.
pub fn read(mut text: impl BufRead, mut each: impl FnMut(&Mapping)) -> io::Result<()> {
    let mut line = Vec::with_capacity(256);
    let mut mapping = Mapping::default();
    loop {
        line.clear();
        if text.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        // Fields begin with a capital, and addresses with none.
        if !line.first().is_some_and(u8::is_ascii_uppercase) {
            mapping = heading(&line).unwrap_or_default();
        } else if let Some(kib) = line.strip_prefix(b"Rss:") {
            mapping.rss_bytes = number(kib, 10).saturating_mul(1024);
        } else if let Some(kib) = line.strip_prefix(b"Referenced:") {
            mapping.is_referenced = number(kib, 10) > 0;
        } else if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            for flag in flags.split(u8::is_ascii_whitespace) {
                mapping.is_no_dump |= flag == b"dd";
                mapping.is_special |= SPECIAL.contains(&flag);
            }
            // The last field of each.
            each(&mapping);
        }
    }
}

/// `start-end rights offset device inode path`.
fn heading(line: &[u8]) -> Option<Mapping> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let range = fields.next()?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let rights = fields.next().and_then(|rights| rights.try_into().ok()).unwrap_or_default();
    let inode = fields.nth(2)?;
    let name = fields.next().unwrap_or_default();
    Some(Mapping {
        start: number(&range[..dash], 16),
        end: number(&range[dash + 1..], 16),
        rights,
        is_file: inode != b"0",
        is_special: name.starts_with(b"[stack") || name.starts_with(b"[v") || name == b"[uprobes]",
        ..Mapping::default()
    })
}

fn number(text: &[u8], radix: u32) -> u64 {
    let text = text.trim_ascii();
    let digits = text.iter().map_while(|&byte| char::from(byte).to_digit(radix));
    digits.fold(0, |sum, digit| sum.wrapping_mul(radix.into()).wrapping_add(digit.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
00400000-00401000 r-xp 00000000 08:01 42                                 /bin/a b
Size:                  4 kB
Rss:                   4 kB
Referenced:            0 kB
VmFlags: rd ex mr mw me dw
7f0000000000-7f0000200000 rw-p 00000000 00:00 0
Rss:                2048 kB
Referenced:           16 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac dd
7f0000200000-7f0000300000 rw-p 00000000 00:00 0
Rss:                   8 kB
Referenced:            8 kB
VmFlags: rd wr mr mw me um
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  12 kB
VmFlags: rd wr
";

    #[test]
    fn mappings_are_read() {
        let mut all = Vec::new();
        read(TEXT.as_bytes(), |mapping| all.push(*mapping)).expect("text");
        let [text, memory, filled, stack] = all[..] else { panic!("{all:?}") };
        assert!(text.is_file && !text.is_referenced && !text.is_special && text.rss_bytes == 4096);
        assert_eq!((text.start, text.end), (0x40_0000, 0x40_1000));
        assert!(!memory.is_file && memory.is_referenced && memory.is_no_dump);
        assert_eq!((memory.rss_bytes, &memory.rights), (2 << 20, b"rw-p"));
        assert!(filled.is_special && memory.goes_on_in(&filled) && !text.goes_on_in(&memory));
        assert!(stack.is_special && !stack.is_referenced);
    }

    #[test]
    fn own_mappings_are_read() {
        let file = std::fs::File::open("/proc/self/smaps").expect("there is one");
        let mut bytes = 0;
        read(io::BufReader::new(file), |mapping| bytes += mapping.rss_bytes).expect("text");
        assert!(bytes > 1 << 16);
    }
}
