//! Whether there is memory for another slot, so that populating one never makes the machine short.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use pumice::slots::PageKind;

use crate::memory;

/// What is left to others at least, and the share of the machine's memory that is.
const RESERVE_BYTES: u64 = 64 << 20;
const RESERVE_SHARE: u64 = 50;

/// Whether the kernel's hugetlb pool may be raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// It has what it has.
    Fixed,
    /// Pages that it lacks are asked for.
    Grows,
}

/// Pages that were added to the kernel's pools, of 2 MiB and of 1 GiB. Relaxed: numbers, read at the end.
#[derive(Debug, Default)]
pub struct Grown([AtomicU64; 2]);

impl Grown {
    fn count(&self, pages: PageKind) -> &AtomicU64 {
        &self.0[usize::from(pages == PageKind::Hugetlb1G)]
    }

    /// Takes them back: those in use go when their slots do.
    pub fn give_back(&self) {
        for pages in [PageKind::Hugetlb2M, PageKind::Hugetlb1G] {
            let grown = self.count(pages).swap(0, Ordering::Relaxed);
            let all = read(pages, "nr_hugepages").filter(|_| grown > 0);
            // Who may not any more could not have raised it either.
            let _ = all.map(|all| {
                fs::write(file(pages, "nr_hugepages"), all.saturating_sub(grown).to_string())
            });
        }
    }
}

/// Whether a slot can be had now, or why not.
pub fn check(bytes: u64, pages: PageKind, pool: Pool, grown: &Grown) -> Result<(), String> {
    match pages {
        PageKind::Small | PageKind::Thp => check_memory(bytes),
        PageKind::Hugetlb2M | PageKind::Hugetlb1G => check_hugetlb(bytes, pages, pool, grown),
    }
}

fn check_memory(bytes: u64) -> Result<(), String> {
    let Some(free) = memory::free_bytes() else { return Ok(()) };
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
fn check_hugetlb(bytes: u64, pages: PageKind, pool: Pool, grown: &Grown) -> Result<(), String> {
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
    let (wanted, file) = (all + need - before, file(pages, "nr_hugepages"));
    if pool == Pool::Fixed {
        return Err(format!(
            "the kernel's pool has {before} free {pages} pages of {need}; try 'echo {wanted} > {file}', \
             or --grow-hugetlb"
        ));
    }
    fs::write(&file, wanted.to_string())
        .map_err(|error| format!("the kernel's pool can't be raised: {file}: {error}"))?;
    if free() >= Some(need) {
        grown.count(pages).fetch_add(need - before, Ordering::Relaxed);
        return Ok(());
    }
    // What the kernel could not make whole is of no use.
    let _ = fs::write(&file, all.to_string());
    Err(format!("the kernel can't make {need} {pages} pages of the memory that is free"))
}

fn file(pages: PageKind, name: &str) -> String {
    format!("/sys/kernel/mm/hugepages/hugepages-{}kB/{name}", pages.granule() >> 10)
}

fn read(pages: PageKind, name: &str) -> Option<u64> {
    fs::read_to_string(file(pages, name)).ok()?.trim().parse().ok()
}
