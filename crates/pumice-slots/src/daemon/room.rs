//! Whether there is memory for another slot, so that populating one never makes the machine short.

use std::fs;
use std::sync::Arc;

use crate::PageKind;
use parking_lot::{Mutex, MutexGuard};

use crate::memory;

/// The least memory left to others, in bytes, and as a share (one part in so many) of the machine's memory.
const RESERVE_BYTES: u64 = 64 << 20;
const RESERVE_SHARE: u64 = 50;

/// Whether the kernel's hugetlb pool may be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// It keeps its size.
    Fixed,
    /// Pages that it lacks are asked for.
    Grows,
}

/// Memory promised to slots that are being populated, and pages added to the kernel's pools. A thread that
/// looks how much is free holds the lock until its share is counted, so that no two take the same.
#[derive(Debug, Default)]
pub struct Room(Mutex<Taken>);

#[derive(Debug, Default)]
struct Taken {
    /// Bytes that slots on their way have yet to populate.
    promised: u64,
    /// Pages added to the pools of 2 MiB and of 1 GiB.
    grown: [u64; 2],
    /// Nothing more is given.
    is_over: bool,
}

/// Room for a slot: the part not populated yet is given up when it is dropped.
#[derive(Debug)]
pub struct Promise {
    room: Arc<Room>,
    left: u64,
}

impl Promise {
    /// So much more is populated, and no longer free.
    pub fn keep(&mut self, bytes: u64) {
        let kept = bytes.min(self.left);
        self.left -= kept;
        let mut taken = self.room.lock();
        taken.promised = taken.promised.saturating_sub(kept);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.keep(u64::MAX);
    }
}

impl Room {
    /// Nobody takes or gives up room meanwhile.
    #[cfg(test)]
    pub fn hold(&self) -> impl Drop + '_ {
        self.lock()
    }

    /// Bytes that slots on their way have yet to populate.
    #[cfg(test)]
    pub fn promised(&self) -> u64 {
        self.lock().promised
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock()
    }

    /// Makes a slot's file if there is room for it, or says why not.
    pub fn take<T>(
        self: &Arc<Room>,
        bytes: u64,
        pages: PageKind,
        pool: Pool,
        make: impl FnOnce() -> Result<T, String>,
    ) -> Result<(T, Promise), String> {
        let mut taken = self.lock();
        if taken.is_over {
            return Err("the daemon is ending".to_owned());
        }
        // A hugetlb file's mapping reserves its pages with the kernel; nobody does that for others.
        let left = match pages {
            PageKind::Small | PageKind::Thp => {
                check_memory(bytes, memory::free_bytes(), taken.promised)?;
                bytes
            }
            PageKind::Hugetlb2M | PageKind::Hugetlb1G => {
                check_hugetlb(bytes, pages, pool, &mut taken)?;
                0
            }
        };
        let made = make()?;
        taken.promised += left;
        Ok((made, Promise { room: Arc::clone(self), left }))
    }

    /// Takes added pages back from the kernel's pools: pages in use go when their slots do. Nothing is
    /// given from now on.
    pub fn end(&self) {
        let mut taken = self.lock();
        taken.is_over = true;
        for pages in [PageKind::Hugetlb2M, PageKind::Hugetlb1G] {
            let grown = std::mem::take(&mut taken.grown[index(pages)]);
            let all = read(pages, "nr_hugepages").filter(|_| grown > 0);
            // A process that may not lower the pool could not have raised it either.
            let _ = all.map(|all| {
                fs::write(file(pages, "nr_hugepages"), all.saturating_sub(grown).to_string())
            });
        }
    }
}

fn index(pages: PageKind) -> usize {
    usize::from(pages == PageKind::Hugetlb1G)
}

/// Whether so many bytes can be taken of those that are free, if that is known.
fn check_memory(bytes: u64, free: Option<u64>, promised: u64) -> Result<(), String> {
    let Some(free) = free else { return Ok(()) };
    let free = free.saturating_sub(promised);
    let reserve = RESERVE_BYTES.max(memory::available_bytes() / RESERVE_SHARE);
    if free < bytes.saturating_add(reserve) {
        let mib = |bytes: u64| bytes >> 20;
        return Err(format!(
            "{} MiB are free, and {} MiB must stay free for others",
            mib(free),
            mib(reserve)
        ));
    }
    Ok(())
}

/// Looks whether the pool has pages that are neither used nor promised, and asks for more if it may.
fn check_hugetlb(bytes: u64, pages: PageKind, pool: Pool, taken: &mut Taken) -> Result<(), String> {
    let need = bytes / pages.granule();
    let free =
        || Some(read(pages, "free_hugepages")?.saturating_sub(read(pages, "resv_hugepages")?));
    let Some(before) = free() else {
        return Err(format!("this machine has no {pages} pages; choose others with --pages"));
    };
    if before >= need {
        return Ok(());
    }
    let all = read(pages, "nr_hugepages").unwrap_or(0);
    let (wanted, file) = (all.saturating_add(need - before), file(pages, "nr_hugepages"));
    if pool == Pool::Fixed {
        return Err(format!(
            "the kernel's pool has {before} free {pages} pages of {need}; try 'echo {wanted} > {file}', \
             or --grow-hugetlb"
        ));
    }
    // The kernel would take them from all others, and swap those out.
    let bytes = (need - before).saturating_mul(pages.granule());
    check_memory(bytes, memory::machine_free_bytes(), taken.promised)?;
    fs::write(&file, wanted.to_string())
        .map_err(|error| format!("the kernel's pool can't be raised: {file}: {error}"))?;
    if free() >= Some(need) {
        // The pages by which it really rose: others may change it too.
        let now = read(pages, "nr_hugepages").unwrap_or(all);
        taken.grown[index(pages)] += now.saturating_sub(all).min(need - before);
        return Ok(());
    }
    // Fewer pages than the slot needs are of no use.
    let _ = fs::write(&file, all.to_string());
    Err(format!("the kernel can't make {need} {pages} pages of the memory that is free"))
}

fn file(pages: PageKind, name: &str) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", pages.granule() >> 10)
}

fn read(pages: PageKind, name: &str) -> Option<u64> {
    fs::read_to_string(file(pages, name)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_not_raised_by_memory_that_is_not_free() {
        let pages = PageKind::Hugetlb2M;
        let (Some(before), Some(_)) = (read(pages, "nr_hugepages"), memory::free_bytes()) else {
            return eprintln!("skipped: no hugetlb pages, or nobody knows how much is free");
        };
        let room = Arc::new(Room::default());
        let why = room.take(1 << 50, pages, Pool::Grows, || Ok(())).expect_err("there is no room");
        assert!(why.contains("must stay free"), "{why}");
        assert_eq!(read(pages, "nr_hugepages"), Some(before));
    }

    #[test]
    fn what_is_promised_is_not_promised_twice() {
        let room = Arc::new(Room::default());
        let Some(free) = memory::free_bytes() else { return };
        let most = free / 8 * 5;
        let take = || room.take(most, PageKind::Small, Pool::Fixed, || Ok(()));
        let (_, mut promise) = take().expect("there is room for one");
        assert!(take().is_err(), "and for no second");
        // Populated, it would not be free any more; here it is.
        promise.keep(most - 1);
        assert_eq!(room.lock().promised, 1);
        drop(promise);
        assert_eq!(room.lock().promised, 0);
        assert!(room
            .take(most, PageKind::Small, Pool::Fixed, || Err::<(), _>(String::new()))
            .is_err());
        assert_eq!(room.lock().promised, 0, "what was not made takes nothing");
        room.end();
        assert!(room.take(4096, PageKind::Small, Pool::Fixed, || Ok(())).is_err());
    }
}
