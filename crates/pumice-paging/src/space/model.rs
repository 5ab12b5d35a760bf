//! Spaces against a model that is plainly right: a map from page to its rights and its first word.

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::disk::Disk;
use super::*;
use crate::page_table::pager::Evicted;
use crate::page_table::{Emulated, Rights};
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::mem::Huge;

const PAGE: usize = FRAME_SIZE;
/// Pages of a region at most, and how far beyond its start accesses go: three tables and a little.
const REACH: usize = 1600;

#[derive(Clone, Debug)]
enum Step {
    Map {
        pages: usize,
        rights: Rights,
        is_huge: bool,
    },
    Unmap {
        region: usize,
        from: usize,
        pages: usize,
    },
    Protect {
        region: usize,
        from: usize,
        pages: usize,
        rights: Rights,
    },
    Write {
        region: usize,
        page: usize,
        value: u64,
    },
    Read {
        region: usize,
        page: usize,
    },
    Fault {
        region: usize,
        page: usize,
    },
    /// Takes a page out, if it is there: to swap, or to where a shadow stands for it.
    SwapOut {
        region: usize,
        page: usize,
    },
    /// Goes on in a child, and afterwards compares the parent.
    Fork,
}

fn rights() -> impl Strategy<Value = Rights> {
    prop_oneof![4 => Just(Rights::READ_WRITE), 1 => Just(Rights::READ), 1 => Just(Rights::empty())]
}

fn step() -> impl Strategy<Value = Step> {
    let page = || prop_oneof![0usize..8, 500usize..520, 0usize..REACH];
    let pages = || prop_oneof![1usize..8, 1usize..1200];
    let region = || 0usize..6;
    prop_oneof![
        2 => (pages(), rights(), prop::bool::weighted(0.25))
            .prop_map(|(pages, rights, is_huge)| Step::Map { pages, rights, is_huge }),
        2 => (region(), page(), pages())
            .prop_map(|(region, from, pages)| Step::Unmap { region, from, pages }),
        2 => (region(), page(), pages(), rights())
            .prop_map(|(region, from, pages, rights)| Step::Protect { region, from, pages, rights }),
        8 => (region(), page(), any::<u64>())
            .prop_map(|(region, page, value)| Step::Write { region, page, value }),
        4 => (region(), page()).prop_map(|(region, page)| Step::Read { region, page }),
        4 => (region(), page()).prop_map(|(region, page)| Step::Fault { region, page }),
        6 => (region(), page()).prop_map(|(region, page)| Step::SwapOut { region, page }),
        1 => Just(Step::Fork),
    ]
}

/// The model of a space: for each page that is mapped its rights and its first word.
#[derive(Clone, Debug, Default)]
struct Model {
    pages: BTreeMap<usize, (Rights, u64)>,
    /// Starts of the regions.
    regions: Vec<usize>,
}

impl Model {
    fn address(&self, region: usize, page: usize) -> usize {
        match self.regions.len() {
            0 => page * PAGE,
            count => self.regions[region % count] + page * PAGE,
        }
    }

    fn allows(&self, address: usize, needed: Rights) -> bool {
        self.pages.get(&(address / PAGE)).is_some_and(|page| page.0.contains(needed))
    }
}

type Space<'f, T> = VmSpace<Frames<'f>, T>;

/// All pages there are, and their neighbours.
fn compare<T: TableOps>(task: &Task<'_, Frames<'_>, T>, model: &Model) {
    for (&page, &(rights, word)) in &model.pages {
        let mut bytes = [0; 8];
        let read = task.read_at(page * PAGE, &mut bytes);
        assert_eq!(read.is_ok(), rights.contains(Rights::READ), "{read:?}");
        if read.is_ok() {
            assert_eq!(u64::from_ne_bytes(bytes), word, "page {page:#x}");
        }
        for neighbour in [page - 1, page + 1] {
            let is_mapped = model.allows(neighbour * PAGE, Rights::READ);
            let settled = task.fault(neighbour * PAGE, Access::Read);
            assert_eq!(settled.is_ok(), is_mapped, "{neighbour:#x} {settled:?}");
        }
    }
}

fn run<T: TableOps + Default>(
    space: &Space<'_, T>,
    disk: &Disk,
    model: &mut Model,
    steps: &[Step],
) {
    let task = space.enter().expect("frames");
    for (index, step) in steps.iter().enumerate() {
        match *step {
            Step::Map { pages, rights, is_huge } => {
                let at = match is_huge {
                    true => task.map_huge(pages * PAGE, rights),
                    false => task.map(pages * PAGE, rights),
                };
                let at = at.expect("room");
                for page in at / PAGE..at / PAGE + pages {
                    assert_eq!(model.pages.insert(page, (rights, 0)), None, "mapped twice");
                }
                model.regions.push(at);
            }
            Step::Unmap { region, from, pages } => {
                let at = model.address(region, from);
                task.unmap(at, pages * PAGE).expect("aligned");
                model.pages.retain(|&page, _| !(at / PAGE..at / PAGE + pages).contains(&page));
            }
            Step::Protect { region, from, pages, rights } => {
                let at = model.address(region, from);
                let result = task.protect(at, pages * PAGE, rights);
                let mut range = at / PAGE..at / PAGE + pages;
                let all = range.all(|page| match model.pages.get_mut(&page) {
                    Some(mapped) => {
                        mapped.0 = rights;
                        true
                    }
                    None => false,
                });
                assert_eq!(result.is_ok(), all, "{result:?}");
            }
            Step::Write { region, page, value } => {
                let at = model.address(region, page);
                let written = task.write_at(at, &value.to_ne_bytes());
                assert_eq!(written.is_ok(), model.allows(at, Rights::WRITE), "{written:?}");
                if let (Ok(()), Some(page)) = (written, model.pages.get_mut(&(at / PAGE))) {
                    page.1 = value;
                }
            }
            Step::Read { region, page } => {
                let at = model.address(region, page);
                let mut bytes = [0; 8];
                let read = task.read_at(at, &mut bytes);
                assert_eq!(read.is_ok(), model.allows(at, Rights::READ), "{read:?}");
                if read.is_ok() {
                    assert_eq!(
                        Some(&u64::from_ne_bytes(bytes)),
                        model.pages.get(&(at / PAGE)).map(|page| &page.1)
                    );
                }
            }
            Step::Fault { region, page } => {
                let at = model.address(region, page);
                let settled = task.fault(at, Access::Write);
                assert_eq!(settled.is_ok(), model.allows(at, Rights::WRITE), "{settled:?}");
            }
            Step::SwapOut { region, page } => {
                let page = model.address(region, page) / PAGE;
                let to = if page % 3 == 0 { Evicted::Shadow } else { Evicted::Swapped };
                disk.swap_out(&task, page, to);
            }
            Step::Fork => {
                let child = task.fork().expect("frames");
                let mut childs = model.clone();
                run(&child, disk, &mut childs, &steps[index + 1..]);
                break;
            }
        }
    }
    compare(&task, model);
}

/// All steps in a space of their own; afterwards, not a frame may be missing.
fn check<T: TableOps + Default>(steps: &[Step]) {
    let zone = Zone::new(64 << 20, 2, Huge::No).expect("address space");
    let disk = Disk::default();
    let map = MemMap::new(&zone, Clearer::detect()).expect("frames").with_pager(&disk);
    let space = VmSpace::new(map.frames(), T::default()).expect("frames");
    run(&space, &disk, &mut Model::default(), steps);
    drop(space);
    assert_eq!(disk.used(), 0, "slots were lost");
    drop(map);
    // SAFETY: nothing is taken out or given back.
    let ledger = unsafe { zone.ledger() };
    ledger.join_all();
    assert_eq!(ledger.free_blocks(), ledger.grown(), "frames were lost");
    zone.unmap().expect("mapped");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn spaces_agree_with_a_map(steps in prop::collection::vec(step(), 1..60)) {
        check::<Atomic>(&steps);
    }

    #[test]
    fn emulated_spaces_agree_too(steps in prop::collection::vec(step(), 1..30)) {
        check::<Emulated>(&steps);
    }
}
