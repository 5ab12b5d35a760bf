//! Counts a program's page faults from outside, without slowing it down.
//!
//! The kernel's software event for faults, inherited by the program and all it starts, gives samples
//! of them: the address, and the size of the page that came. Between them lie the mappings that the
//! processes make. Every fault is a sample at first, which adds some 0.3 us to each. Where they come
//! so fast that this would be felt, it ends after a while, and one fault in many, which was sampled
//! all along, stands for the others:
//! ```text
//! EVERY --enough of them, and they come fast--> SOME, from the last of every on
//! ```
//! All are counted, whichever it is.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use perf_event::data::endian::Native;
use perf_event::data::parse::{ParseConfig, Parser};
use perf_event::data::{Comm, Fork, Lost, Mmap2, RecordMetadata, Sample, Visitor};
use perf_event::events::Software;
use perf_event::{Builder, Record, SampleFlag, Sampler};

use super::peaks::Peaks;
use super::spaces::{Area, Counts, Happening, Spaces, ThreadFaults, What};
use crate::run::spawn;

/// Every fault is a sample until there were so many, and then for as long as they come more slowly.
const ENOUGH: u64 = 8_000;
const FAST_PER_S: u64 = 20_000;
/// One in so many is a sample all along; a prime, so that it keeps no step with a program's loops.
const SOME: u64 = 61;
/// Bytes of each processor's ring: the limit on locked memory of unprivileged users lies somewhere between.
const RINGS: [usize; 4] = [4 << 20, 1 << 20, 256 << 10, 64 << 10];
/// How often the rings are emptied: large ones seldom, since the thread that empties them needs a processor...
const PAUSE: Duration = Duration::from_millis(20);
/// ... and smaller ones before they are full.
const SHORT_PAUSE: Duration = Duration::from_millis(5);
const LARGE_RING: usize = 1 << 20;
/// How often it is looked up how much memory processes have.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Samples of different processors are put in order if they are at most so much apart.
const WINDOW_NS: u64 = 200_000_000;
/// `PERF_RECORD_MISC_COMM_EXEC`
const COMM_EXEC: u16 = 1 << 13;

/// The faults seen of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// All minor faults.
    pub all: u64,
    /// Of these, by kind.
    pub counts: Counts,
    /// Of the thread that had most of the faults in served memory.
    pub busiest: ThreadFaults,
    /// Bytes that were touched for the first time, at least, in served memory.
    pub first_bytes: u64,
    /// Whether faults were seen that system calls take, as well as those of the program's own code.
    pub sees_system_calls: bool,
    /// Whether kinds were told apart at all.
    pub is_split: bool,
    /// Records that came faster than they were read.
    pub lost: u64,
}

impl Faults {
    /// Where nothing but their number is known: all may be worth saving.
    pub fn unsplit(all: u64) -> Faults {
        let counts = Counts { small: all, heap_small: all, ..Counts::default() };
        // Of one thread, for all that is known.
        let busiest = ThreadFaults { small: all, huge: 0 };
        Faults { all, counts, busiest, ..Faults::default() }
    }
}

/// The rings that are read of one processor.
struct Rings {
    /// Until some stand for all. Then it is closed: each process that starts would have to be given a copy.
    every: Option<Ring>,
    /// These, and mappings.
    some: Ring,
}

struct Ring {
    sampler: Sampler,
    config: ParseConfig<Native>,
    bytes: usize,
}

/// A watch over what this process starts. It counts nothing of this process itself.
#[derive(Debug)]
pub struct Watch {
    is_over: Arc<AtomicBool>,
    reader: JoinHandle<io::Result<Faults>>,
}

impl Watch {
    /// Begins: of programs started from now on everything is counted from their `exec` on.
    ///
    /// # Errors
    /// As `perf_event_open(2)`: `PermissionDenied` where the machine does not let users count.
    pub fn begin() -> io::Result<Watch> {
        let (rings, sees_system_calls) = match open(true) {
            Ok(rings) => (rings, true),
            Err(_) => (open(false)?, false),
        };
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        // Signals are for the thread that stands in for the program.
        let before = spawn::block_all();
        let reader = thread::Builder::new()
            .name("pumice-faults".into())
            .spawn(move || Reader::new(rings, sees_system_calls).read_until(&over));
        spawn::unblock(&before);
        Ok(Watch { is_over, reader: reader? })
    }

    /// Ends, when the program has ended.
    ///
    /// # Errors
    /// As reading the counters.
    pub fn end(self) -> io::Result<Faults> {
        // Release: the program's faults are in the rings before it is over (pairs with the Acquire).
        self.is_over.store(true, Ordering::Release);
        self.reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader ended early")))
    }
}

fn open(sees_system_calls: bool) -> io::Result<Vec<Rings>> {
    // SAFETY: a plain call: processors that there may be, whether they are on or off.
    let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let mut all = Vec::new();
    for cpu in 0..usize::try_from(count).unwrap_or(1) {
        match open_on(cpu, sees_system_calls) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            opened => all.push(opened?),
        }
    }
    match all.is_empty() {
        true => Err(io::Error::other("there is no processor to count on")),
        false => Ok(all),
    }
}

/// `ENODEV` where the processor is off.
fn open_on(cpu: usize, sees_system_calls: bool) -> io::Result<Rings> {
    let mut builder = Builder::new(Software::PAGE_FAULTS_MIN);
    builder
        .observe_self()
        .one_cpu(cpu)
        .inherit(true)
        .enabled(false)
        .enable_on_exec(true)
        .exclude_kernel(!sees_system_calls)
        .sample(SampleFlag::TID | SampleFlag::TIME | SampleFlag::ADDR)
        .sample(SampleFlag::DATA_PAGE_SIZE)
        .sample_id_all(true);
    let every = open_ring(builder.sample_period(1))?;
    builder.mmap(true).mmap2(true).mmap_data(true).comm(true).comm_exec(true).task(true);
    Ok(Rings { every: Some(every), some: open_ring(builder.sample_period(SOME))? })
}

/// With as large a ring as may be.
fn open_ring(builder: &Builder<'_>) -> io::Result<Ring> {
    let config = ParseConfig::from(*builder.attrs());
    let mut refused = io::Error::other("no size of ring to try");
    for bytes in RINGS {
        match builder.build()?.sampled(bytes) {
            Ok(sampler) => return Ok(Ring { sampler, config, bytes }),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Empties the rings.
struct Reader {
    rings: Vec<Rings>,
    sees_system_calls: bool,
    /// Samples of every fault, and how many there were when the last second began.
    every: u64,
    every_before: (u64, Instant),
    /// The last of every, once only some count.
    switched_ns: Option<u64>,
    /// Samples that were read, and that a sample of another processor may still precede.
    waiting: Vec<Happening>,
    spaces: Spaces,
    peaks: Peaks,
    lost: u64,
}

impl Reader {
    fn new(rings: Vec<Rings>, sees_system_calls: bool) -> Reader {
        Reader {
            rings,
            sees_system_calls,
            every: 0,
            every_before: (0, Instant::now()),
            switched_ns: None,
            waiting: Vec::new(),
            spaces: Spaces::default(),
            peaks: Peaks::default(),
            lost: 0,
        }
    }

    fn read_until(mut self, is_over: &AtomicBool) -> io::Result<Faults> {
        let is_large = |ring: &Ring| ring.bytes >= LARGE_RING;
        let are_large = self.rings.iter().all(|rings| rings.every.as_ref().is_some_and(is_large));
        let pause = if are_large { PAUSE } else { SHORT_PAUSE };
        let mut looked = Instant::now();
        loop {
            // Acquire: see `Watch::end`.
            let is_last = is_over.load(Ordering::Acquire);
            self.drain();
            if looked.elapsed() >= LOOK_PAUSE {
                self.peaks.look();
                looked = Instant::now();
            }
            if self.is_fast() {
                self.switch()?;
            }
            let newest_ns = self.waiting.iter().map(|one| one.time_ns).max().unwrap_or(0);
            self.settle(if is_last { u64::MAX } else { newest_ns.saturating_sub(WINDOW_NS) });
            if is_last {
                break;
            }
            thread::sleep(pause);
        }
        let mut all = 0;
        for rings in &mut self.rings {
            all += rings.some.sampler.as_counter_mut().read()?;
        }
        Ok(Faults {
            all,
            counts: self.spaces.counts().scaled_to(all),
            busiest: self.spaces.busiest_thread(),
            first_bytes: self.peaks.first_bytes(&self.spaces),
            sees_system_calls: self.sees_system_calls,
            is_split: true,
            lost: self.lost,
        })
    }

    /// Whether it is time to be content with some.
    fn is_fast(&mut self) -> bool {
        let (before, since) = self.every_before;
        let (new, elapsed_s) = (self.every - before, since.elapsed().as_secs_f64());
        if elapsed_s >= 1.0 {
            self.every_before = (self.every, Instant::now());
        }
        self.switched_ns.is_none()
            && self.every >= ENOUGH
            && new as f64 > FAST_PER_S as f64 * elapsed_s
    }

    /// From here on some stand for all.
    fn switch(&mut self) -> io::Result<()> {
        for every in self.rings.iter_mut().filter_map(|rings| rings.every.as_mut()) {
            every.sampler.as_counter_mut().disable()?;
        }
        self.drain();
        self.rings.iter_mut().for_each(|rings| rings.every = None);
        let every = self.waiting.iter().filter(|one| one.what.is_sampled_by(1));
        self.switched_ns = every.map(|one| one.time_ns).max().or(Some(0));
        Ok(())
    }

    fn drain(&mut self) {
        for rings in &mut self.rings {
            let every = rings.every.as_mut().map(|ring| (ring, 1));
            for (ring, weight) in every.into_iter().chain([(&mut rings.some, SOME)]) {
                while let Some(record) = ring.sampler.next_record() {
                    match parse(&record, &ring.config, weight) {
                        Some(Parsed::Happening(happening)) => {
                            self.every += u64::from(happening.what.is_sampled_by(1));
                            self.peaks.note(happening.what.pid());
                            self.waiting.push(happening);
                        }
                        Some(Parsed::Lost(lost)) => self.lost += lost,
                        None => {}
                    }
                }
            }
        }
    }

    /// Passes on the events up to a time, in order.
    fn settle(&mut self, until_ns: u64) {
        self.waiting.sort_by_key(|one| one.time_ns);
        let settled = self.waiting.partition_point(|one| one.time_ns <= until_ns);
        let switched_ns = self.switched_ns;
        for Happening { time_ns, what } in self.waiting.drain(..settled) {
            let is_of_some = what.is_sampled_by(SOME);
            // Each fault is counted by one or the other.
            if !is_of_some || switched_ns.is_some_and(|switched_ns| time_ns > switched_ns) {
                self.spaces.note(&what);
            }
        }
    }
}

enum Parsed {
    Happening(Happening),
    Lost(u64),
}

/// `None` for an event that does not matter, or no record at all.
fn parse(record: &Record<'_>, config: &ParseConfig<Native>, weight: u64) -> Option<Parsed> {
    let body = record.to_contiguous();
    let size = u16::try_from(body.len() + 8).ok()?;
    let mut bytes = Vec::with_capacity(usize::from(size));
    bytes.extend_from_slice(&record.ty().to_ne_bytes());
    bytes.extend_from_slice(&record.misc().to_ne_bytes());
    bytes.extend_from_slice(&size.to_ne_bytes());
    bytes.extend_from_slice(&body);
    Parser::new(&bytes[..], config.clone()).parse_record(Keep { weight }).ok()?
}

/// Keeps the needed parts of a record.
struct Keep {
    /// Faults that a sample stands for.
    weight: u64,
}

impl Visitor<'_> for Keep {
    type Output = Option<Parsed>;

    fn visit_unimplemented(self, _: RecordMetadata) -> Option<Parsed> {
        None
    }

    fn visit_sample(self, sample: Sample<'_>, _: RecordMetadata) -> Option<Parsed> {
        happened(
            sample.time()?,
            What::Fault {
                pid: sample.pid()?,
                tid: sample.tid()?,
                at: sample.addr()?,
                page_bytes: sample.data_page_size().unwrap_or(0),
                weight: self.weight,
            },
        )
    }

    fn visit_mmap2(self, map: Mmap2<'_>, metadata: RecordMetadata) -> Option<Parsed> {
        happened(
            metadata.sample_id().time()?,
            What::Map {
                pid: map.pid,
                at: map.addr,
                len: map.len,
                area: Area::of(&map.filename, map.flags, map.len),
            },
        )
    }

    fn visit_fork(self, fork: Fork, _: RecordMetadata) -> Option<Parsed> {
        happened(fork.time, What::Fork { pid: fork.pid, parent: fork.ppid })
    }

    fn visit_comm(self, comm: Comm<'_>, metadata: RecordMetadata) -> Option<Parsed> {
        let is_exec = metadata.misc() & COMM_EXEC != 0;
        let time_ns = metadata.sample_id().time().filter(|_| is_exec)?;
        happened(time_ns, What::Exec { pid: comm.pid })
    }

    fn visit_lost(self, lost: Lost, _: RecordMetadata) -> Option<Parsed> {
        Some(Parsed::Lost(lost.lost))
    }
}

fn happened(time_ns: u64, what: What) -> Option<Parsed> {
    Some(Parsed::Happening(Happening { time_ns, what }))
}
