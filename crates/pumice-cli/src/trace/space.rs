//! An address space: its watched pages, and the looks at them.
//!
//! ```text
//! unknown --is there, is of the share, and made a mapping of its own--> watched --touched, cleared--> watched
//! watched --unmapped, or the program changed its mapping, or the share shrank--> unknown
//! ```
//! The advice that makes a page a mapping is taken back when the page is watched no more, but only where it was given
//! here and the page would be one with a neighbour again. Pages that a program keeps out of core files for itself, such
//! as secrets between guard pages, stay so. A copy made by `fork` has its parent's advised pages.
//!
//! A page that comes is touched in that interval, if it is no file's: the kernel maps neighbours of a touched page of a
//! file, too. Of these a touch counts from the next interval on.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use libc::pid_t;
use pumice_command::share::{Share, SPACE_BITS};

use super::advise::{advise, map, unmap};
use super::identity::{live_thread, Identity};
use super::inject::{NotStopped, Process, Stopped, Tracees};
use super::smaps::{self, Mapping};

/// Pages of the kernel.
pub const SMALL_BYTES: u64 = 4096;
/// Memory that goes makes the processors forget all translations of a space if it is more than 33 pages
/// (`tlb_single_page_flush_ceiling`).
const FLUSH_BYTES: u64 = 64 * SMALL_BYTES;
/// Where the kernel can't list the pages of a mapping that are there, none larger than this is looked through.
const LARGEST_BYTES: u64 = 64 << 30;

/// A page to watch.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    page: u64,
    is_touched: bool,
}

/// See the module's top. Pages are numbered by their address, in pages of the trace.
#[derive(Debug)]
pub struct Space {
    pid: pid_t,
    pub identity: Identity,
    number: u64,
    page_bytes: u64,
    process: Process,
    watched: HashSet<u64>,
    /// Pages that were made a mapping here, and still look so.
    advised: HashSet<u64>,
    wanted: Vec<Wanted>,
    touched: Vec<u64>,
    /// Mappings that were looked through: their end and their memory then.
    known: HashMap<u64, (u64, u64)>,
    mappings: usize,
}

/// The effects of a look.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// A thread of the program was stopped so long.
    pub stopped: Duration,
    /// Whether one could be stopped where this was needed.
    pub could_not_stop: bool,
    /// Whether the process executed a program while a thread of it was traced.
    pub has_executed: bool,
    /// Whether the limit on mappings was reached.
    pub is_full: bool,
}

impl Space {
    /// `None` if its process can't be watched. `parent` is the process that started it.
    pub fn of(
        pid: pid_t,
        child: pid_t,
        tracees: &Rc<Tracees>,
        parent: Option<&Space>,
        (number, page_bytes): (u64, u64),
    ) -> Option<Space> {
        let identity = Identity::of(pid)?;
        let process = Process::of(pid, child, tracees)?;
        File::open(proc_file(pid, "smaps")?).ok()?;
        let copied = parent.filter(|parent| identity.is_copy_of(parent.identity));
        Some(Space {
            pid,
            identity,
            number,
            page_bytes,
            process,
            watched: HashSet::new(),
            advised: copied.map(|parent| parent.advised.clone()).unwrap_or_default(),
            wanted: Vec::new(),
            touched: Vec::new(),
            known: HashMap::new(),
            mappings: 0,
        })
    }

    /// Whether its process still has this memory.
    pub fn is_current(&self) -> bool {
        Identity::of(self.pid) == Some(self.identity) && self.process.is_there()
    }

    /// Pages that are watched, and that should be.
    pub fn pages(&self) -> usize {
        self.watched.len() + self.wanted.len()
    }

    /// Reads which watched pages were touched, and finds pages to watch. `None` if the process is gone.
    pub fn read(&mut self, share: Share) -> Option<()> {
        let file = File::open(proc_file(self.pid, "smaps")?).ok()?;
        let pagemap = File::open(proc_file(self.pid, "pagemap")?).ok()?;
        let (before, known) = (std::mem::take(&mut self.watched), std::mem::take(&mut self.known));
        let advised = std::mem::take(&mut self.advised);
        self.wanted.clear();
        self.touched.clear();
        self.mappings = 0;
        let (mut present, mut last) = (Vec::new(), Mapping::default());
        let read = smaps::read(BufReader::with_capacity(1 << 16, file), |mapping| {
            self.mappings += 1;
            let one = |mapping: &Mapping| {
                let page = mapping.start / self.page_bytes;
                let is_one = mapping.end.wrapping_sub(page * self.page_bytes) == self.page_bytes;
                (is_one && mapping.start % self.page_bytes == 0).then_some(page)
            };
            if last.goes_on_in(mapping) {
                let pages = [&last, mapping].into_iter().filter(|it| it.is_no_dump).filter_map(one);
                self.advised.extend(pages.filter(|page| advised.contains(page)));
            }
            last = *mapping;
            if mapping.is_special {
                return;
            }
            if let Some(page) = one(mapping).filter(|&page| share.has(page)) {
                if mapping.rss_bytes > 0 || before.contains(&page) {
                    self.watched.insert(page);
                }
                if mapping.is_referenced {
                    self.touched.push(page);
                }
            } else if mapping.rss_bytes > 0 && !mapping.is_no_dump {
                let state = (mapping.end, mapping.rss_bytes);
                self.known.insert(mapping.start, state);
                if known.get(&mapping.start) != Some(&state) {
                    present.clear();
                    find_present(&pagemap, mapping, &mut present);
                    self.want(mapping, &present, share);
                }
            }
        });
        read.ok()
    }

    /// Pages of the share that lie in the mapping as a whole, and of which some memory is there.
    fn want(&mut self, mapping: &Mapping, present: &[(u64, u64)], share: Share) {
        let first = mapping.start.div_ceil(self.page_bytes);
        let end = mapping.end / self.page_bytes;
        let mut next = first;
        for &(from, to) in present {
            let from = (from / self.page_bytes).max(next);
            let to = to.div_ceil(self.page_bytes).min(end);
            let is_touched = mapping.is_referenced && !mapping.is_file;
            let pages = (from..to).filter(|&page| share.has(page));
            self.wanted.extend(pages.map(|page| Wanted { page, is_touched }));
            next = to.max(next);
        }
    }

    /// Of the pages that are or should be watched, only those of this share.
    pub fn keep(&mut self, share: Share) {
        self.wanted.retain(|wanted| share.has(wanted.page));
        self.touched.retain(|&page| share.has(page));
        self.watched.retain(|&page| share.has(page));
    }

    /// Begins the next interval: clears the notes of touches, and has pages watched, or watched no more.
    pub fn begin_next(&mut self, most_mappings: usize, can_flush: CanFlush) -> Done {
        let mut done = Done::default();
        let cleared = proc_file(self.pid, "clear_refs")
            .and_then(|path| OpenOptions::new().write(true).open(path).ok());
        if let Some(mut file) = cleared {
            let _ = file.write_all(b"1");
            if can_flush == CanFlush::ByClearing {
                let _ = file.write_all(b"4");
            }
        }
        let gone: Vec<u64> = self.advised.difference(&self.watched).copied().collect();
        if gone.is_empty() && self.wanted.is_empty() && can_flush == CanFlush::ByClearing {
            return done;
        }
        let before = Instant::now();
        // Another program may have been executed since: it must not be touched.
        let stopped = match self.process.stop() {
            Err(NotStopped::HasExecuted) => {
                done.has_executed = true;
                None
            }
            stopped => stopped.ok().filter(|_| Identity::of(self.pid) == Some(self.identity)),
        };
        let Some(mut stopped) = stopped else {
            // It is tried again at the next look.
            done.could_not_stop = !self.wanted.is_empty();
            self.known.clear();
            self.wanted.clear();
            return done;
        };
        let address = |page: u64| page * self.page_bytes;
        let addresses: Vec<u64> = gone.iter().map(|&page| address(page)).collect();
        advise(&mut stopped, &addresses, self.page_bytes, libc::MADV_DODUMP);
        gone.iter().for_each(|page| {
            self.advised.remove(page);
        });
        // One mapping becomes three.
        let room = most_mappings.saturating_sub(self.mappings) / 2;
        done.is_full = room < self.wanted.len();
        self.wanted.truncate(room);
        let wanted: Vec<u64> = self.wanted.iter().map(|wanted| address(wanted.page)).collect();
        let results = advise(&mut stopped, &wanted, self.page_bytes, libc::MADV_DONTDUMP);
        for (wanted, _) in self.wanted.iter().zip(results).filter(|&(_, result)| result == 0) {
            self.watched.insert(wanted.page);
            self.advised.insert(wanted.page);
            if wanted.is_touched {
                self.touched.push(wanted.page);
            }
        }
        self.wanted.clear();
        if can_flush == CanFlush::ByMapping {
            flush(&mut stopped);
        }
        drop(stopped);
        done.stopped = before.elapsed();
        done
    }

    /// The pages touched, by the numbers that they have in the trace.
    pub fn touched(&self) -> impl Iterator<Item = u64> + '_ {
        self.touched.iter().map(|page| self.number << SPACE_BITS | page)
    }
}

/// A file about the memory of a process.
fn proc_file(pid: pid_t, name: &str) -> Option<String> {
    live_thread(pid).map(|tid| format!("/proc/{tid}/{name}"))
}

/// How processors are made to forget their copies of the notes, which they would not write again otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CanFlush {
    /// By a second write to `clear_refs`, which does nothing else where the kernel has no soft-dirty bits.
    ByClearing,
    /// By mapping some pages in the program and taking them away again.
    ByMapping,
}

impl CanFlush {
    /// On this machine.
    pub fn here() -> CanFlush {
        // A page that was just written to is soft-dirty, if there is such a thing.
        let page = Box::new([1_u8; 2 * SMALL_BYTES as usize]);
        let at = std::hint::black_box(&raw const *page) as u64 + SMALL_BYTES;
        let mut word = [0; 8];
        let read = File::open("/proc/self/pagemap")
            .and_then(|pagemap| pagemap.read_exact_at(&mut word, at / SMALL_BYTES * 8));
        let is_soft_dirty = u64::from_ne_bytes(word) & 1 << 55 != 0;
        match read.is_ok() && !is_soft_dirty {
            true => CanFlush::ByClearing,
            false => CanFlush::ByMapping,
        }
    }
}

/// Maps some memory and takes it away again.
fn flush(stopped: &mut Stopped<'_>) {
    if let Some(at) = map(stopped, FLUSH_BYTES, libc::PROT_READ, libc::MAP_POPULATE) {
        unmap(stopped, at, FLUSH_BYTES);
    }
}

/// Of a mapping, the addresses between which there is memory.
fn find_present(pagemap: &File, mapping: &Mapping, found: &mut Vec<(u64, u64)>) {
    if scan_present(pagemap, mapping, found).is_none() {
        found.clear();
        if mapping.end - mapping.start <= LARGEST_BYTES {
            read_present(pagemap, mapping, found);
        }
    }
}

/// `struct page_region` (`linux/fs.h`).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: u64 = 0xC060_6610;
const PAGE_IS_PRESENT: u64 = 1 << 3;

/// `None` where the kernel can't (before 6.7).
fn scan_present(pagemap: &File, mapping: &Mapping, found: &mut Vec<(u64, u64)>) -> Option<()> {
    let mut regions = [PageRegion::default(); 256];
    let mut start = mapping.start;
    while start < mapping.end {
        let mut argument = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: mapping.end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: PAGE_IS_PRESENT,
            return_mask: PAGE_IS_PRESENT,
            ..ScanArg::default()
        };
        // SAFETY: the argument and the regions that it names are valid for the call.
        let count =
            unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut argument) };
        let regions = regions.get(..usize::try_from(count).ok()?)?;
        found.extend(regions.iter().map(|region| (region.start, region.end)));
        if argument.walk_end <= start {
            break;
        }
        start = argument.walk_end;
    }
    Some(())
}

fn read_present(pagemap: &File, mapping: &Mapping, found: &mut Vec<(u64, u64)>) {
    let mut words = vec![0; 1 << 16];
    let mut at = mapping.start;
    while at < mapping.end {
        let pages = ((mapping.end - at) / SMALL_BYTES).min(words.len() as u64 / 8) as usize;
        let Ok(read) = pagemap.read_at(&mut words[..pages * 8], at / SMALL_BYTES * 8) else {
            return;
        };
        if read < 8 {
            return;
        }
        for word in words[..read / 8 * 8].chunks_exact(8) {
            // The last of eight bytes in the machine's order, x86-64's, has the bit `present`.
            if word[7] & 0x80 != 0 {
                match found.last_mut() {
                    Some((_, end)) if *end == at => *end += SMALL_BYTES,
                    _ => found.push((at, at + SMALL_BYTES)),
                }
            }
            at += SMALL_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_are_there_are_found_both_ways() {
        let file = File::open("/proc/self/pagemap").expect("there is one");
        let len = 4096 * SMALL_BYTES;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory =
            unsafe { libc::mmap(std::ptr::null_mut(), len as usize, rights, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        for page in [3_usize, 4, 700, 4095] {
            // SAFETY: within the mapping.
            unsafe { memory.cast::<u8>().add(page * SMALL_BYTES as usize).write_volatile(1) };
        }
        let start = memory as u64;
        let mapping = Mapping { start, end: start + len, ..Mapping::default() };
        let is_in = |found: &[(u64, u64)], page: u64| {
            let at = start + page * SMALL_BYTES;
            found.iter().any(|&(from, to)| from <= at && at < to)
        };
        for find in [scan_or_skip, read_present] {
            let mut found = Vec::new();
            find(&file, &mapping, &mut found);
            assert!([3, 4, 700, 4095].iter().all(|&page| is_in(&found, page)), "{found:?}");
        }
        // SAFETY: the mapping of above.
        unsafe { libc::munmap(memory, len as usize) };
    }

    fn scan_or_skip(file: &File, mapping: &Mapping, found: &mut Vec<(u64, u64)>) {
        if scan_present(file, mapping, found).is_none() {
            eprintln!("skipped: no PAGEMAP_SCAN here");
            found.push((mapping.start, mapping.end));
        }
    }
}
