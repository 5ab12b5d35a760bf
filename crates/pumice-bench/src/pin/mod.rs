//! `pumice bench pin`: pinning memory, fresh against leased.
//!
//! `registered` are io_uring's registered buffers, a real long-term pin as devices do it; `mlock` is the call.
//! The clock runs from nothing (no mapping, no lease) until all is pinned. Ways take turns; a
//! slot's daemon has populated before, and runs for its turn only. Then pools of memory that stays
//! pinned: [`pools`].

mod pools;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::time::Instant;

use clap::Args;
use pumice_accel::cuda::Cuda;
use pumice_slots::{Client, LeaseRequest, PageKind};
use rustix::mm::{madvise, mlock, mmap, mmap_anonymous, munmap, Advice, MapFlags, ProtFlags};
use serde_json::json;

use super::arguments::size_in_steps;
use super::harness::{figures, in_turns, Output, OutputArgs, WarmUp};
use super::registry::machines::PIN;
use super::registry::Row;
use super::sizes;
use super::slot_daemon::{HugetlbPool, SlotDaemon};
use crate::names::named;
use pumice_command::statistics::Ratio;
use pumice_command::Failure;

const ALIGNMENT: usize = 2 << 20;
const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);
/// The longest buffer that io_uring registers.
const BUFFER_BYTES: usize = 1 << 30;

/// Options of `pumice bench pin`.
#[derive(Args, Debug)]
pub struct PinArgs {
    /// Memory to pin (can be repeated, or separated by commas); 1, 2, 4 and 8 GiB, as far as they fit, if not
    /// given
    #[arg(long, value_name = "SIZE", value_delimiter = ',',
          value_parser = size_in_steps(2 << 20, "a size is such as 512M or 4G, in steps of 2M"))]
    sizes: Vec<u64>,
    /// Only these kinds of pages: 4k, thp or hugetlb-2m (can be repeated, or separated by commas)
    #[arg(long, value_name = "KIND", value_delimiter = ',', value_parser = pages)]
    pages: Vec<PageKind>,
    /// Rounds; each pins once in every way
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Only pools of memory that stays pinned, registered with the first NVIDIA GPU, against its driver's own
    #[arg(long)]
    cuda: bool,
    #[command(flatten)]
    output: OutputArgs,
}

named! {
    /// How memory is pinned.
    enum Pin {
        Registered = "registered",
        Mlock = "mlock",
    }
}

const KINDS: [PageKind; 3] = [PageKind::Small, PageKind::Thp, PageKind::Hugetlb2M];

/// How many times faster, and the ends of the interval.
const FASTER: [&str; 3] = ["times_faster", "times_faster_low", "times_faster_high"];

/// Runs the experiment and prints its table.
pub fn pin(options: &PinArgs) -> Result<(), Failure> {
    let sizes = sizes::that_fit(&options.sizes)?;
    let mut output = Output::create(&options.output, &PIN.plots[0])?;
    if options.cuda {
        let gpu = Cuda::open().map_err(|missing| {
            Failure::system(format!("no GPU to pin memory for: {missing}; leave out --cuda"))
        })?;
        pools::pools(&sizes, options.rounds, Some(&gpu), &mut output)?;
        return output.finish();
    }
    output.begin(&PIN.tables[0]);
    for &bytes in &sizes {
        let is_meant = |kind: &PageKind| options.pages.is_empty() || options.pages.contains(kind);
        for pages in KINDS.into_iter().filter(is_meant) {
            // Fresh memory and the slot take turns, so the pool holds one of them.
            let _pool = match pages.is_hugetlb().then(|| HugetlbPool::with_free(bytes)) {
                Some(None) => {
                    output.line(["", pages.name(), &format!("{} MiB", bytes >> 20), "skipped"]);
                    continue;
                }
                pool => pool.flatten(),
            };
            for pin in Pin::ALL {
                output.show(measure(options, bytes, pages, pin)?)?;
            }
        }
    }
    pools::pools(&sizes, options.rounds, None, &mut output)?;
    output.finish()
}

fn measure(options: &PinArgs, bytes: u64, pages: PageKind, pin: Pin) -> Result<Row, Failure> {
    let len = bytes as usize;
    let measured = in_turns(1, options.rounds as usize, WarmUp::Round, |_, _| {
        let fresh_s = time(pin, len, || map_fresh(len, pages))
            .map_err(|error| refused(pin, bytes, &error))?;
        let (daemon, _, populate_s) = SlotDaemon::ready(bytes, pages)?;
        let mut lease = None;
        let leased = || {
            let new = Client::new(daemon.socket()).lease(&LeaseRequest::new(bytes));
            let new = new.map_err(|error| io::Error::other(error.to_string()))?;
            let mapped = map_shared(new.file(), len);
            lease = Some(new);
            mapped
        };
        let slot_s = time(pin, len, leased).map_err(|error| refused(pin, bytes, &error))?;
        Ok([fresh_s, slot_s, populate_s])
    })?;
    let [fresh, slot, populate] = [0, 1, 2].map(|it| figures(&measured[0], |round| round[it]));
    let faster = Ratio::within_rounds(&fresh, &slot);
    let keys =
        json!({"experiment": "slot", "bytes": bytes, "pin": pin.name(), "pages": pages.name()});
    Ok(Row::of(keys)
        .sampled("fresh_s", fresh)
        .sampled("slot_s", slot)
        .interval(FASTER, faster)
        .median("populate_s", &populate))
}

fn refused(pin: Pin, bytes: u64, error: &io::Error) -> Failure {
    refused_as(pin.name(), bytes, error)
}

fn refused_as(what: &str, bytes: u64, error: &dyn std::fmt::Display) -> Failure {
    let mib = bytes >> 20;
    Failure::system(format!("{what} of {mib} MiB is refused: {error}; try 'ulimit -l unlimited'"))
}

/// Seconds to map and pin; all is undone after.
fn time(pin: Pin, len: usize, map: impl FnOnce() -> io::Result<Mapping>) -> io::Result<f64> {
    let ring = io_uring::IoUring::new(2)?;
    let started = Instant::now();
    let mapping = map()?;
    match pin {
        Pin::Mlock => {
            // SAFETY: locking changes no content of the mapping, which is ours.
            unsafe { mlock(mapping.at.cast(), len)? };
        }
        Pin::Registered => {
            let buffers: Vec<_> = (0..len)
                .step_by(BUFFER_BYTES)
                .map(|from| libc::iovec {
                    iov_base: mapping.at.wrapping_add(from).cast(),
                    iov_len: BUFFER_BYTES.min(len - from),
                })
                .collect();
            // SAFETY: the mapping outlives the registration, and nothing is read or written.
            unsafe { ring.submitter().register_buffers(&buffers)? };
        }
    }
    let took = started.elapsed();
    // A ring that is closed goes later, and what it pins with it.
    if pin == Pin::Registered {
        ring.submitter().unregister_buffers()?;
    }
    drop(mapping);
    Ok(took.as_secs_f64())
}

/// Memory, aligned for huge pages.
struct Mapping {
    at: *mut u8,
    start: *mut u8,
    reserved: usize,
}

impl Mapping {
    fn reserve(len: usize) -> io::Result<Mapping> {
        let reserved = len + ALIGNMENT;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start =
            unsafe { mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let start = start.cast::<u8>();
        let at = start.wrapping_add(start.align_offset(ALIGNMENT));
        Ok(Mapping { at, start, reserved })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the reservation is this value's own, with all that is mapped in it.
        let _ = unsafe { munmap(self.start.cast(), self.reserved) };
    }
}

fn map_fresh(len: usize, pages: PageKind) -> io::Result<Mapping> {
    let mapping = Mapping::reserve(len)?;
    let at = mapping.at.cast();
    let huge = if pages.is_hugetlb() { MapFlags::HUGETLB } else { MapFlags::empty() };
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | huge;
    // SAFETY: the range lies within a reservation of ours.
    unsafe {
        mmap_anonymous(at, len, PROTECTION, flags)?;
        match pages {
            PageKind::Small => madvise(at, len, Advice::LinuxNoHugepage)?,
            PageKind::Thp => madvise(at, len, Advice::LinuxHugepage)?,
            PageKind::Hugetlb2M | PageKind::Hugetlb1G => {}
        }
    }
    Ok(mapping)
}

fn map_shared(file: &File, len: usize) -> io::Result<Mapping> {
    let mapping = Mapping::reserve(len)?;
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range lies within a reservation of ours.
    unsafe { mmap(mapping.at.cast(), len, PROTECTION, flags, file.as_fd(), 0)? };
    Ok(mapping)
}

fn pages(text: &str) -> Result<PageKind, String> {
    let kind = PageKind::parse(text).filter(|kind| KINDS.contains(kind));
    kind.ok_or_else(|| format!("kinds of pages here are {}", KINDS.map(PageKind::name).join(", ")))
}
