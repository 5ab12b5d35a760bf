//! A file larger than its cache: written in order, changed, read in order and at random, and what each costs.
//!
//! `cargo run --release --example cache -- FILE [--frames N] [--times N] [--seconds N] [--threads N]` makes FILE, with
//! `times` as many pages as the cache has, and prints a line for each way of going through it: MB/s, the process's
//! processor time for each page, all of its threads included, and requests. `pumice bench io` compares with the kernel;
//! this shows how it is used, and is for a profiler to look at.

use std::path::Path;
use std::time::{Duration, Instant};

use pumice::addr::FRAME_SIZE;
use pumice::cache::{self, Advice, Cache, CacheError, File, Options, Settings, View};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Pages that a thread has on their way at a time.
const AHEAD: usize = 128;
/// Pages asked for by one call.
const BATCH: usize = 64;

/// The work to do.
struct Plan {
    frames: usize,
    times: usize,
    threads: usize,
    seconds: f64,
}

/// Steele, Lea and Flood's SplitMix64.
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn arguments() -> Result<(String, Plan), Failed> {
    let mut plan = Plan { frames: 32 << 10, times: 4, threads: 1, seconds: 3.0 };
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("give a FILE that may be written")?;
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} of what?"))?;
        match name.as_str() {
            "--frames" => plan.frames = value.parse()?,
            "--times" => plan.times = value.parse()?,
            "--threads" => plan.threads = value.parse()?,
            "--seconds" => plan.seconds = value.parse()?,
            _ => return Err(format!("there is no {name}").into()),
        }
    }
    Ok((file, plan))
}

fn main() -> Result<(), Failed> {
    let (file, plan) = arguments()?;
    println!(
        "{:24} {:>8} {:>11} {:>10} {:>9} {:>7}",
        "", "MB/s", "pages/s", "CPU-us/pg", "pages/rq", "stalls"
    );
    cache::run(&Settings::new(plan.frames), |cache| measure(cache, Path::new(&file), &plan))?
}

fn measure(cache: &Cache<'_>, path: &Path, plan: &Plan) -> Result<(), Failed> {
    let file = cache.open(path, &Options::new())?;
    println!("{:?}", file.way());
    let pages = plan.frames * plan.times;
    let task = cache.task()?;
    let view = task.view(&file)?;
    view.set_len(0)?;
    view.allocate((pages * FRAME_SIZE) as u64)?;
    timed(cache, "sequential out", || {
        for page in 0..pages {
            view.overwrite(page, &[page as u8 | 1; FRAME_SIZE])?;
        }
        view.sync().map(|()| pages)
    })?;
    timed(cache, "rewrite", || {
        for page in 0..pages {
            let mut page = view.write(page)?;
            page[0] = page[1];
        }
        view.sync().map(|()| pages)
    })?;
    timed(cache, "sequential in", || {
        (0..pages).try_for_each(|page| look(&view, page)).map(|()| pages)
    })?;
    timed(cache, "backwards", || {
        (0..pages).rev().try_for_each(|page| look(&view, page)).map(|()| pages)
    })?;
    for threads in [1, plan.threads.max(2)] {
        let name = format!("random, {threads} ahead");
        timed(cache, &name, || at_random(cache, &file, plan, threads, true))?;
        let name = format!("random, {threads} threads");
        timed(cache, &name, || at_random(cache, &file, plan, threads, false))?;
    }
    Ok(())
}

fn look(view: &View<'_, '_>, page: usize) -> Result<(), CacheError> {
    let bytes = view.read(page)?;
    assert_eq!(bytes[FRAME_SIZE / 2], page as u8 | 1);
    Ok(())
}

/// Threads read pages at random, each of them with others on their way if `is_ahead`: how many they read.
fn at_random(
    cache: &Cache<'_>,
    file: &File,
    plan: &Plan,
    threads: usize,
    is_ahead: bool,
) -> Result<usize, CacheError> {
    let end = Instant::now() + Duration::from_secs_f64(plan.seconds);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as u64)
            .map(|thread| {
                let file = file.clone();
                scope.spawn(move || -> Result<usize, CacheError> {
                    let task = cache.task()?;
                    let view = task.view(&file)?;
                    view.advise(0..0, Advice::Random);
                    let page = |nth: usize| mix(thread << 40 | nth as u64) as usize % view.pages();
                    let (mut asked, mut read, mut batch) = (0, 0, Vec::new());
                    while Instant::now() < end {
                        if is_ahead && asked < read + AHEAD {
                            batch.clear();
                            batch.extend((asked..asked + BATCH).map(page));
                            asked += view.prefetch(&batch);
                        }
                        for _ in 0..BATCH {
                            look(&view, page(read))?;
                            read += 1;
                        }
                        asked = asked.max(read);
                    }
                    Ok(read)
                })
            })
            .collect();
        let mut all = 0;
        for thread in threads {
            all += thread.join().expect("it does not panic")?;
        }
        Ok(all)
    })
}

/// Does `work`, which says how many pages it went through, and prints what it cost.
fn timed(
    cache: &Cache<'_>,
    name: &str,
    work: impl FnOnce() -> Result<usize, CacheError>,
) -> Result<(), Failed> {
    let before = cache.counts();
    let (start, cpu) = (Instant::now(), processor_time());
    let pages = work()? as f64;
    let (wall, cpu) = (start.elapsed().as_secs_f64(), processor_time() - cpu);
    let now = cache.counts();
    let moved = (now.read - before.read + now.written - before.written) as f64;
    let requests =
        now.read_requests - before.read_requests + now.write_requests - before.write_requests;
    println!(
        "{name:24} {:8.0} {:11.0} {:10.2} {:9.1} {:7}",
        pages * FRAME_SIZE as f64 / wall / 1e6,
        pages / wall,
        cpu.as_secs_f64() * 1e6 / pages,
        moved / requests.max(1) as f64,
        now.allocstall - before.allocstall,
    );
    Ok(())
}
