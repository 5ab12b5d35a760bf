//! A cache from its beginning to its end.

use std::sync::Arc;

use super::error::{CacheError, Result};
use super::fill::Fills;
use super::settings::Settings;
use super::table::Files;
use super::Cache;
use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::error::Error;
use pumice_frames::frame::Zone;
use pumice_frames::sys::cpu;
use pumice_frames::sys::thread::Maker;
use pumice_io::sync::atomic::Ordering;
use pumice_io::sync::RwLock;
use pumice_paging::page_table::Atomic;
use pumice_paging::reclaim::{
    policy, Adaptive, Paging, Policy, Settings as ReclaimSettings, ZoneReclaim,
};
use pumice_paging::space::{MemMap, VmSpace};

/// Frames of a cache that has some to spare.
const LARGE: usize = 4096;

/// Makes a cache, which is there while `work` runs. Dirty pages are synced then, for which a log that pages wait for
/// has to go on, or to say that it has failed. A child that `work` makes by `fork` does not use the cache, and ends by
/// `exec` or `_exit`: where it returns from `work`, or panics in it, it is ended.
///
/// # Errors
/// [`CacheError::Memory`] and [`CacheError::Space`] without memory for it; those of
/// [`CacheTask::sync_all`](super::CacheTask::sync_all) at the end; [`CacheError::Held`] for a page whose guard for
/// writing was forgotten.
pub fn run<R>(settings: &Settings, work: impl FnOnce(&Cache<'_>) -> R) -> Result<R> {
    let bytes = settings.frames.checked_mul(FRAME_SIZE);
    let bytes = bytes.and_then(|bytes| bytes.checked_next_multiple_of(BLOCK_SIZE));
    let frames = bytes.ok_or(CacheError::Memory(Error::OutOfFrames))? / FRAME_SIZE;
    let files = Files::new(settings);
    let entries = policy::try_table::<Adaptive<'_>>(frames);
    let mut entries = entries.ok_or(CacheError::Memory(Error::OutOfFrames))?;
    let reclaim = ZoneReclaim::new(Adaptive::new(&mut entries), frames, reclaim_settings(frames));
    let reclaim = Arc::new(reclaim);
    reclaim.set_engines(&settings.engines);
    let paging = Paging::on(reclaim.clone(), &files);
    let zone = Zone::new(frames * FRAME_SIZE, cpu::count(), settings.huge);
    let zone = zone.map_err(CacheError::Memory)?;
    let fills = RwLock::default();
    // After the zone, so dropped before it.
    let _reads = EndReads(&fills);
    let map = MemMap::new(&zone, Clearer::detect()).map_err(CacheError::Memory)?;
    let space = VmSpace::for_files(map.frames_of(&paging), Atomic)?;
    let counts = || reclaim.counts();
    let cache = Cache { space: &space, files: &files, reclaim: &counts, fills: &fills };
    paging.attach(&space, || with_threads(&cache, &reclaim, work))?
}

/// Files come and go in runs, many pages at a time: so `kswapd` takes more at once, and sleeps half as often.
fn reclaim_settings(frames: usize) -> ReclaimSettings {
    let mut settings = ReclaimSettings::of(frames);
    if frames >= LARGE {
        settings.watermarks.high = 2 * settings.watermarks.low;
        settings.swap_cluster_max *= 2;
    }
    settings
}

/// Waits for reads that are still in flight when a cache ends: those of tasks that were forgotten, into frames.
struct EndReads<'r>(&'r RwLock<Vec<Arc<Fills>>>);

impl Drop for EndReads<'_> {
    fn drop(&mut self) {
        let fills = self.0.read();
        fills.iter().for_each(|fills| fills.end());
    }
}

/// Ends a child made by `fork`: it has none of the cache's threads, and would wait for them for ever.
fn refuse_child(maker: Maker) {
    if !maker.is_here() {
        eprintln!(
            "pumice: a child made by fork can't end its parent's cache: end it by exec or _exit"
        );
        std::process::abort();
    }
}

/// Does the work beside the threads that reclaim and write back.
fn with_threads<R, P: Policy + Send>(
    cache: &Cache<'_>,
    reclaim: &ZoneReclaim<P>,
    work: impl FnOnce(&Cache<'_>) -> R,
) -> Result<R> {
    /// Ends the threads, however the work ends.
    struct Stop<'s, P: Policy>(&'s Files, &'s ZoneReclaim<P>, Maker);
    impl<P: Policy> Drop for Stop<'_, P> {
        fn drop(&mut self) {
            // Before any lock, which a thread may have had that there is not here.
            refuse_child(self.2);
            self.0.flusher().stop();
            self.0.wake_flusher.notify_all();
            self.0.flush_due.notify_all();
            self.0.flushed.notify_all();
            self.1.stop();
        }
    }
    std::thread::scope(|scope| {
        let maker = Maker::here();
        let stop = Stop(cache.files, reclaim, maker);
        scope.spawn(|| reclaim.kswapd());
        scope.spawn(|| cache.flush_devices_in_background());
        let flusher = scope.spawn(|| cache.flush_in_background());
        let result = work(cache);
        refuse_child(maker);
        cache.files.is_ending.store(true, Ordering::Relaxed);
        let synced = cache.task().and_then(|task| task.sync_all());
        drop(stop);
        // Neither panics; where there were no frames for the flusher, all was synced here.
        let _ = flusher.join();
        synced.map(|()| result)
    })
}
