//! A region larger than its frames, used by threads at random: paging by itself.
//!
//! `cargo run --release --example paging -- FILE [--frames N] [--times N] [--threads LIST] [--seconds N] [--zipf S]
//! [--rounds N] [--reads] [--sequential]` makes a swap area in FILE and prints a line for each number of threads:
//! accesses and pages brought in a second, processor time a page brought in (the process's, all of its threads), and
//! how long accesses took. `pumice bench reclaim` compares with the kernel; this is for a profiler to look at.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::io::Cached;
use pumice::page_table::{Atomic, Rights};
use pumice::reclaim::{policy, Adaptive, Policy};
use pumice::reclaim::{Settings, SwapPager};
use pumice::space::{Frames, MemMap, VmSpace};
use pumice::swap::Swap;
use pumice::sys::mem::Huge;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The work to do.
struct Plan {
    frames: usize,
    times: usize,
    threads: Vec<usize>,
    seconds: f64,
    rounds: usize,
    /// Of the distribution; 0 for a uniform one.
    zipf: f64,
    is_reading: bool,
    is_sequential: bool,
}

/// Zipf's distribution (Gray and others, "Quickly generating billion-record synthetic databases", 1994).
#[derive(Clone, Copy)]
struct Zipf {
    pages: f64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    fn new(pages: usize, theta: f64) -> Zipf {
        let zeta_of = |n: usize| (1..=n).map(|k| (k as f64).powf(-theta)).sum::<f64>();
        let (zeta, pages) = (zeta_of(pages), pages as f64);
        let eta = (1.0 - (2.0 / pages).powf(1.0 - theta)) / (1.0 - zeta_of(2) / zeta);
        Zipf { pages, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    fn rank(&self, uniform: f64) -> usize {
        let scaled = uniform * self.zeta;
        if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5f64.powf(self.theta) {
            1
        } else {
            let rank = self.pages * (self.eta * uniform - self.eta + 1.0).powf(self.alpha);
            (rank as usize).min(self.pages as usize - 1)
        }
    }
}

/// Steele, Lea and Flood's SplitMix64.
fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Times, by buckets an eighth of a power of two wide.
struct Times([u64; 64 * 8]);

impl Times {
    fn add(&mut self, time: Duration) {
        let nanos = (time.as_nanos() as u64).max(8);
        let power = nanos.ilog2();
        self.0[power as usize * 8 + (nanos >> (power - 3)) as usize % 8] += 1;
    }

    /// Microseconds that `part` of all were not longer than.
    fn quantile(&self, part: f64) -> f64 {
        let all: u64 = self.0.iter().sum();
        let mut left = ((all as f64 * part) as u64).min(all.saturating_sub(1));
        for (bucket, &count) in self.0.iter().enumerate() {
            if left < count {
                let base = 2f64.powi(bucket as i32 / 8);
                return base * (1.0 + (bucket % 8 + 1) as f64 / 8.0) / 1e3;
            }
            left -= count;
        }
        0.0
    }
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn arguments() -> Result<(String, Plan), Failed> {
    let mut plan = Plan {
        frames: 1 << 17,
        times: 4,
        threads: vec![1, 2, 8, 32],
        seconds: 5.0,
        rounds: 1,
        zipf: 0.0,
        is_reading: false,
        is_sequential: false,
    };
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which file is to be the swap area?")?;
    while let Some(name) = arguments.next() {
        if name == "--reads" {
            plan.is_reading = true;
            continue;
        }
        if name == "--sequential" {
            plan.is_sequential = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} of what?"))?;
        match name.as_str() {
            "--frames" => plan.frames = value.parse()?,
            "--times" => plan.times = value.parse()?,
            "--threads" => {
                plan.threads = value.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--seconds" => plan.seconds = value.parse()?,
            "--rounds" => plan.rounds = value.parse()?,
            "--zipf" => plan.zipf = value.parse()?,
            _ => return Err(format!("there is no {name}").into()),
        }
    }
    Ok((file, plan))
}

fn main() -> Result<(), Failed> {
    let (file, plan) = arguments()?;
    let pages = plan.frames * plan.times;
    let swap = Swap::create(Path::new(&file), ((pages * 2 + 64) * FRAME_SIZE) as u64, Cached::No)?;
    let mut table = policy::table::<Adaptive<'_>>(plan.frames);
    let adaptive = Adaptive::new(&mut table);
    let pager = SwapPager::new(swap, adaptive, plan.frames, Settings::of(plan.frames));
    let zone = Zone::new(plan.frames * FRAME_SIZE, 2, Huge::No)?;
    let map = MemMap::new(&zone, Clearer::detect())?.with_pager(&pager);
    let space = VmSpace::new(map.frames(), Atomic)?;
    std::thread::scope(|scope| {
        let kswapd = scope.spawn(|| pager.kswapd(&space));
        let done = measure(&plan, &pager, &space, pages);
        pager.stop();
        kswapd.join().expect("it does not panic")?;
        done
    })
}

fn measure<P: Policy + Send>(
    plan: &Plan,
    pager: &SwapPager<P>,
    space: &VmSpace<Frames<'_>, Atomic>,
    pages: usize,
) -> Result<(), Failed> {
    let task = space.enter()?;
    let at = task.map(pages * FRAME_SIZE, Rights::READ_WRITE)?;
    let region = task.region(at)?;
    for page in 0..pages {
        region.write(page)?.fill(page as u8 | 1);
    }
    drop(region);
    println!("threads accesses/s pages-in/s CPU-us/page  p50-us  p99-us p99.9-us   max-us  out/in out/write stalls");
    let counts = (0..plan.rounds).flat_map(|_| &plan.threads);
    for (nth, &threads) in counts.enumerate() {
        let before = pager.counts();
        let (start, cpu) = (Instant::now(), processor_time());
        let times = run(plan, space, at, pages, (threads, nth))?;
        let (wall, cpu) = (start.elapsed(), processor_time() - cpu);
        let now = pager.counts();
        let came = (now.pswpin - before.pswpin).max(1) as f64;
        println!(
            "{threads:7} {:10.0} {:10.0} {:11.1} {:7.1} {:7.0} {:8.0} {:8.0} {:7.2} {:9.1} {:6}",
            times.0.iter().sum::<u64>() as f64 / wall.as_secs_f64(),
            came / wall.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / came,
            times.quantile(0.5),
            times.quantile(0.99),
            times.quantile(0.999),
            times.quantile(1.0),
            (now.pswpout - before.pswpout) as f64 / came,
            (now.pswpout - before.pswpout) as f64 / (now.writes - before.writes).max(1) as f64,
            now.allocstall - before.allocstall,
        );
    }
    println!("{:?}", pager.counts());
    Ok(())
}

fn run(
    plan: &Plan,
    space: &VmSpace<Frames<'_>, Atomic>,
    at: usize,
    pages: usize,
    (threads, nth): (usize, usize),
) -> Result<Times, Failed> {
    let is_over = AtomicBool::new(false);
    let zipf = Zipf::new(pages, if plan.zipf > 0.0 { plan.zipf } else { 0.5 });
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let is_over = &is_over;
                scope.spawn(move || -> Result<Times, Failed> {
                    let task = space.enter()?;
                    let region = task.region(at)?;
                    let mut times = Times([0; 64 * 8]);
                    let mut state = mix((nth * 64 + thread) as u64 + 1);
                    let mut next = 0;
                    let mut last = Instant::now();
                    // Relaxed: when it is seen does not matter.
                    while !is_over.load(Ordering::Relaxed) {
                        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                        let random = mix(state);
                        let page = if plan.is_sequential {
                            // Its share of the region, round and round.
                            next += 1;
                            pages / threads * thread + next % (pages / threads)
                        } else if plan.zipf > 0.0 {
                            let rank = zipf.rank((random >> 11) as f64 / (1u64 << 53) as f64);
                            mix(rank as u64) as usize % pages
                        } else {
                            random as usize % pages
                        };
                        if plan.is_reading {
                            std::hint::black_box(region.read(page)?[random as usize >> 52]);
                        } else {
                            region.write(page)?[random as usize >> 52] = random as u8;
                        }
                        let now = Instant::now();
                        times.add(now - last);
                        last = now;
                    }
                    Ok(times)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs_f64(plan.seconds));
        is_over.store(true, Ordering::Relaxed);
        let mut all = Times([0; 64 * 8]);
        for worker in workers {
            let times = worker.join().expect("it does not panic")?;
            all.0.iter_mut().zip(times.0).for_each(|(sum, count)| *sum += count);
        }
        Ok(all)
    })
}
