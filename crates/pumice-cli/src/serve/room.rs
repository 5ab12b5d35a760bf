//! Whether there is memory for another slot, so that populating one never makes the machine short.

use std::fs;

use pumice::slots::PageKind;

use crate::memory;

/// What is left to others at least, and the share of the machine's memory that is.
const RESERVE_BYTES: u64 = 64 << 20;
const RESERVE_SHARE: u64 = 50;

/// Whether a slot can be had now, or why not.
pub fn check(bytes: u64, pages: PageKind, may_grow: bool) -> Result<(), String> {
    match pages {
        PageKind::Small | PageKind::Thp => check_memory(bytes),
        PageKind::Hugetlb2M | PageKind::Hugetlb1G => check_hugetlb(bytes, pages, may_grow),
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
fn check_hugetlb(bytes: u64, pages: PageKind, may_grow: bool) -> Result<(), String> {
    let page_bytes = pages.granule();
    let folder = format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page_bytes >> 10);
    let read = |name: &str| {
        let text = fs::read_to_string(format!("{folder}/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let need = bytes / page_bytes;
    let free = || Some(read("free_hugepages")?.saturating_sub(read("resv_hugepages")?));
    let Some(before) = free() else {
        return Err(format!("this machine has no {pages} pages; choose others with --pages"));
    };
    if before >= need {
        return Ok(());
    }
    let all = read("nr_hugepages").unwrap_or(0);
    let command = format!("echo {} > {folder}/nr_hugepages", all + need - before);
    if may_grow
        && fs::write(format!("{folder}/nr_hugepages"), (all + need - before).to_string()).is_ok()
    {
        if free() >= Some(need) {
            return Ok(());
        }
        // What the kernel could not make whole is of no use.
        let _ = fs::write(format!("{folder}/nr_hugepages"), all.to_string());
        return Err(format!("the kernel has no {need} {pages} pages in one piece each"));
    }
    Err(format!("the kernel's pool has {before} free {pages} pages of {need}; try '{command}'"))
}
