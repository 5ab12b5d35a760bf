//! `pumice bench frame`: the cost of getting and putting frames.
//!
//! The ledger alone: no memory behind the frames is touched. Beside its rows stands the cost of
//! one uncontended compare-and-swap in the same rounds, since that is what the shared paths
//! consist of, and it differs fivefold between processors. `pcp` rows are a thread's own lists
//! ([`Pcp`]), the others the shared ledger. A peer is any frame allocator behind the four C
//! functions of [`Peer`]; LLFree's own C implementation takes a dozen lines of glue.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Args;
use libloading::Library;
use pumice_frames::addr::{Pfn, BLOCK_FRAMES, BLOCK_SIZE};
use pumice_frames::frame::ledger::Want;
use pumice_frames::frame::zone::ZoneMemory;
use pumice_frames::frame::{Ledger, Native, Pcp, Zone};
use pumice_frames::sys::mem::{Huge, Os};
use serde_json::json;

use super::harness::{Output, OutputArgs};
use super::registry::processes::FRAME;
use super::registry::Row;
use pumice_command::statistics::median;
use pumice_command::{Explain, Failure};

/// Blocks of the zone: 2 GiB.
const BLOCKS: usize = 1024;
/// Frames got and put in bulk.
const BULK: usize = 400_000;
/// Runs of 75 frames got and put.
const RUNS: usize = 4_000;
/// Frames of such a run.
const RUN_FRAMES: usize = 75;
/// Whole blocks got at once.
const WHOLE_BLOCKS: usize = 64;
const ROUNDS: usize = 9;

/// Options of `pumice bench frame`.
#[derive(Args, Debug)]
pub struct FrameArgs {
    #[command(flatten)]
    output: OutputArgs,
    /// Measure the frame allocator in this shared library beside ours: it exports
    /// pumice_peer_new(frames, cores), _get(handle, core), _put(handle, core, frame), _free(handle)
    #[arg(long, value_name = "LIBRARY")]
    peer: Option<PathBuf>,
}

type PeerNew = unsafe extern "C" fn(usize, usize) -> *mut u8;
type PeerGet = unsafe extern "C" fn(*mut u8, usize) -> isize;
type PeerPut = unsafe extern "C" fn(*mut u8, usize, isize) -> i32;
type PeerFree = unsafe extern "C" fn(*mut u8);

/// Another frame allocator.
struct Peer {
    handle: *mut u8,
    get: PeerGet,
    put: PeerPut,
    free: PeerFree,
    /// Has the functions.
    _library: Library,
}

// SAFETY: peers are allocators for many threads; that is what they are asked to be here.
unsafe impl Sync for Peer {}

impl Peer {
    fn load(path: &Path) -> Result<Peer, Failure> {
        let refuse = |error: libloading::Error| {
            Failure::usage(format!("can't use {} as a peer: {error}", path.display()))
        };
        // SAFETY: running the library's initialisers is what the user asks for; the signatures are documented.
        unsafe {
            let library = Library::new(path).map_err(refuse)?;
            let new = *library.get::<PeerNew>(b"pumice_peer_new").map_err(refuse)?;
            let get = *library.get::<PeerGet>(b"pumice_peer_get").map_err(refuse)?;
            let put = *library.get::<PeerPut>(b"pumice_peer_put").map_err(refuse)?;
            let free = *library.get::<PeerFree>(b"pumice_peer_free").map_err(refuse)?;
            // As documented: frames and cores.
            let handle = new(BLOCKS * BLOCK_FRAMES, 2);
            if handle.is_null() {
                return Err(Failure::usage(format!("{} made no allocator", path.display())));
            }
            Ok(Peer { handle, get, put, free, _library: library })
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: the handle came from this library and is used no more.
        unsafe { (self.free)(self.handle) };
    }
}

fn ledger(zone: &Zone) -> &Ledger<Native, ZoneMemory<Os, ()>> {
    // SAFETY: the zone is this experiment's alone, and nobody touches its memory.
    unsafe { zone.ledger() }
}

/// An allocator of single frames, as one thread uses it.
trait Frames {
    fn get(&mut self) -> usize;
    fn put(&mut self, frame: usize);
}

/// The shared ledger, as processor `cpu`.
struct Shared<'z>(&'z Zone, usize);

impl Frames for Shared<'_> {
    #[inline]
    fn get(&mut self) -> usize {
        ledger(self.0).get_frame(self.1, Want::Zeroed).expect("the zone is larger").0 .0
    }

    #[inline]
    fn put(&mut self, frame: usize) {
        // As after use and scrubbing, so that every round finds zeroed frames.
        ledger(self.0).put_zeroed_frame(Pfn(frame)).expect("allocated");
    }
}

impl<G: pumice_frames::frame::Geometry, B: pumice_frames::frame::ledger::Backing> Frames
    for Pcp<'_, G, B>
{
    #[inline]
    fn get(&mut self) -> usize {
        Pcp::get(self).expect("the zone is larger").0 .0
    }

    #[inline]
    fn put(&mut self, frame: usize) {
        Pcp::put(self, Pfn(frame)).expect("allocated");
    }
}

/// A peer, as core `1`.
struct Other<'p>(&'p Peer, usize);

impl Frames for Other<'_> {
    #[inline]
    fn get(&mut self) -> usize {
        // SAFETY: a live handle and one of the cores it was made for.
        let frame = unsafe { (self.0.get)(self.0.handle, self.1) };
        usize::try_from(frame).expect("the peer is larger")
    }

    #[inline]
    fn put(&mut self, frame: usize) {
        // SAFETY: as above, for a frame it gave.
        unsafe { (self.0.put)(self.0.handle, self.1, frame as isize) };
    }
}

/// Nanoseconds for each of `count` operations.
fn time(count: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn get_all(frames: &mut impl Frames, into: &mut [usize]) {
    for slot in into {
        *slot = frames.get();
    }
}

fn put_all(frames: &mut impl Frames, from: &[usize]) {
    for &frame in from {
        frames.put(frame);
    }
}

/// Bulk get and put, pairs, and puts from another thread.
fn singles(
    mut frames: impl Frames,
    mut elsewhere: impl Frames + Send,
    held: &mut [usize],
) -> [f64; 4] {
    let get = time(held.len(), || get_all(&mut frames, held));
    let put = time(held.len(), || put_all(&mut frames, held));
    let pair = time(held.len(), || {
        for _ in 0..held.len() {
            let frame = black_box(frames.get());
            frames.put(frame);
        }
    });
    get_all(&mut frames, held);
    let held = &*held;
    let far = std::thread::scope(|scope| {
        let far = scope.spawn(move || time(held.len(), || put_all(&mut elsewhere, held)));
        far.join().expect("no panic")
    });
    [get, put, pair, far]
}

/// Gets where 95 % is taken and the free frames lie at random.
fn nearly_full(mut frames: impl Frames, free: usize) -> f64 {
    let mut got = vec![0; free * 8 / 10];
    let taken = time(got.len(), || get_all(&mut frames, &mut got));
    put_all(&mut frames, &got);
    taken
}

/// Bulk gets of two threads at once, each with frames of its own making: the slower one's.
fn two_threads<F: Frames>(frames: impl Fn(usize) -> F + Sync) -> f64 {
    let half = &|cpu| {
        let (mut frames, mut held) = (frames(cpu), vec![0; BULK / 2]);
        let taken = time(held.len(), || get_all(&mut frames, &mut held));
        put_all(&mut frames, &held);
        taken
    };
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|cpu| scope.spawn(move || half(cpu)));
        threads.map(|thread| thread.join().expect("no panic")).into_iter().fold(0.0, f64::max)
    })
}

fn compare_and_swap() -> f64 {
    let word = AtomicU64::new(0);
    time(BULK, || {
        for _ in 0..BULK {
            let seen = black_box(&word).load(Ordering::Relaxed);
            let next = seen + 1;
            let _ = word.compare_exchange(seen, next, Ordering::AcqRel, Ordering::Relaxed);
        }
    })
}

/// Makes every free frame zeroed again.
fn scrub(zone: &Zone) {
    for block in 0..ledger(zone).grown() {
        ledger(zone).join(block);
        if let Some(word) = ledger(zone).claim_block(block, |word| !word.zeroed()) {
            ledger(zone).release_block(block, word.with_zeroed(true));
        }
    }
}

fn runs(zone: &Zone) -> [f64; 2] {
    let mut held = Vec::with_capacity(RUNS);
    let get = time(RUNS, || {
        for _ in 0..RUNS {
            let run = ledger(zone).get_run(0, RUN_FRAMES, 1, Want::Zeroed);
            held.push(run.expect("the zone is larger").range.start);
        }
    });
    let put = time(RUNS, || {
        for &start in &held {
            ledger(zone).put_run(start, |_, word| word).expect("allocated");
        }
    });
    [get, put]
}

fn whole_blocks(zone: &Zone) -> [f64; 2] {
    let count = BLOCKS / WHOLE_BLOCKS;
    let mut held = Vec::with_capacity(count);
    let get = time(count, || {
        for _ in 0..count {
            let run = ledger(zone).get_blocks(WHOLE_BLOCKS, 0, 1, |word| word.zeroed());
            held.push(run.expect("the zone is larger").range.start);
        }
    });
    let put = time(count, || {
        for &start in &held {
            ledger(zone).put_run(start, |_, word| word.with_zeroed(true)).expect("allocated");
        }
    });
    [get, put]
}

fn new_zone() -> Result<Zone, Failure> {
    let zone = Zone::new(BLOCKS * BLOCK_SIZE, 2, Huge::No);
    let zone = zone.and_then(|zone| zone.grow(BLOCKS).map(|()| zone));
    zone.or_fail("can't make a zone")
}

/// Fills an allocator, then frees one frame in twenty at random; how many that were.
fn fill(frames: &mut impl Frames) -> usize {
    let mut held = vec![0; BLOCKS * BLOCK_FRAMES - 8 * BLOCK_FRAMES];
    get_all(frames, &mut held);
    let free = held.len() / 20;
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for _ in 0..free {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let frame = held.swap_remove((state >> 33) as usize % held.len());
        frames.put(frame);
    }
    free
}

/// Runs the experiment and prints its table.
pub fn frame(options: &FrameArgs) -> Result<(), Failure> {
    let mut output = Output::create(&options.output, &FRAME.plots[0])?;
    let peer = options.peer.as_deref().map(Peer::load).transpose()?;
    let full_peer = options.peer.as_deref().map(Peer::load).transpose()?;
    let (zone, full) = (new_zone()?, new_zone()?);
    let free = fill(&mut Shared(&full, 0));
    let peer_free = full_peer.as_ref().map(|peer| fill(&mut Other(peer, 0)));
    let mut samples = Operations::default();
    let mut held = vec![0; BULK];
    for _ in 0..ROUNDS {
        samples.ours("compare-and-swap", compare_and_swap());
        let names = ["get", "put", "get and put", "put from another thread"];
        samples.all(names, singles(Shared(&zone, 0), Shared(&zone, 1), &mut held));
        if let Some(peer) = &peer {
            samples.peers(names, singles(Other(peer, 0), Other(peer, 1), &mut held));
        }
        scrub(&zone);
        let names = ["pcp get", "pcp put", "pcp get and put", "pcp put from another thread"];
        let pcp = |cpu| Pcp::new(ledger(&zone), cpu, Want::Zeroed);
        samples.all(names, singles(pcp(0), pcp(1), &mut held));
        scrub(&zone);
        samples.ours("get, 95 % full", nearly_full(Shared(&full, 0), free));
        samples.ours("pcp get, 95 % full", {
            let mut got = vec![0; free * 8 / 10];
            let mut list = Pcp::new(ledger(&full), 0, Want::Zeroed);
            let taken = time(got.len(), || get_all(&mut list, &mut got));
            drop(list);
            put_all(&mut Shared(&full, 0), &got);
            taken
        });
        if let (Some(peer), Some(free)) = (&full_peer, peer_free) {
            samples.peer("get, 95 % full", nearly_full(Other(peer, 0), free));
        }
        samples.ours("get, two threads", two_threads(|cpu| Shared(&zone, cpu)));
        scrub(&zone);
        samples.ours("pcp get, two threads", two_threads(pcp));
        scrub(&zone);
        if let Some(peer) = &peer {
            samples.peer("get, two threads", two_threads(|core| Other(peer, core)));
        }
        samples.all(["get 75 frames", "put 75 frames"], runs(&zone));
        scrub(&zone);
        samples.all(["get 64 blocks", "put 64 blocks"], whole_blocks(&zone));
    }
    samples.report(&mut output)?;
    output.finish()
}

/// The times of every operation, ours and the peer's, in the order of first mention.
#[derive(Default)]
struct Operations {
    rows: Vec<(&'static str, Vec<f64>, Vec<f64>)>,
}

impl Operations {
    fn row(&mut self, name: &'static str) -> &mut (&'static str, Vec<f64>, Vec<f64>) {
        let at = self.rows.iter().position(|row| row.0 == name).unwrap_or_else(|| {
            self.rows.push((name, Vec::new(), Vec::new()));
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    fn ours(&mut self, name: &'static str, ns: f64) {
        self.row(name).1.push(ns);
    }

    fn peer(&mut self, name: &'static str, ns: f64) {
        self.row(name).2.push(ns);
    }

    fn all<const N: usize>(&mut self, names: [&'static str; N], ns: [f64; N]) {
        names.into_iter().zip(ns).for_each(|(name, ns)| self.ours(name, ns));
    }

    fn peers<const N: usize>(&mut self, names: [&'static str; N], ns: [f64; N]) {
        names.into_iter().zip(ns).for_each(|(name, ns)| self.peer(name, ns));
    }

    fn report(self, output: &mut Output) -> Result<(), Failure> {
        output.begin(&FRAME.tables[0]);
        for (operation, ours, peers) in self.rows {
            let peer_ns = (!peers.is_empty()).then(|| median(&peers));
            let row = Row::of(json!({
                "operation": operation,
                "best_ns": ours.iter().copied().fold(f64::NAN, f64::min),
                "peer_ns": peer_ns,
                "ratio_to_peer": peer_ns.map(|peer| median(&ours) / peer),
            }));
            output.show(row.sampled("ns", ours))?;
        }
        Ok(())
    }
}
