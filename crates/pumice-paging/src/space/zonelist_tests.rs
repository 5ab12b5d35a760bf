//! Zones whose numbers follow each other, and whose memory does not.

use core::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::{Access, MemMap, VmSpace, ZonedFrames, Zonelist};
use crate::page_table::pager::{Evicted, LruPage, Page, Pager, ReadFailed, ReadResult, SpaceId};
use crate::page_table::tables::FrameList;
use crate::page_table::{Atomic, FrameSource, Rights, Tables};
use pumice_frames::addr::{Order, Pfn, BLOCK_FRAMES, BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::{Gfp, Pressure, Reclaim, Zone};
use pumice_frames::sys::mem::Huge;

/// Addresses of a slot of the first level.
const SLOT: usize = 1 << 30;

/// A zone from which nothing is reclaimed. One that is short is asked after the others.
struct Fixed {
    first: usize,
    is_short: AtomicBool,
}

// SAFETY: it only answers.
unsafe impl Reclaim for Fixed {
    fn first(&self) -> Pfn {
        Pfn(self.first)
    }
    fn pressure(&self) -> Pressure {
        // Relaxed: one thread's.
        if self.is_short.load(Ordering::Relaxed) {
            Pressure::Low
        } else {
            Pressure::None
        }
    }
    fn wake(&self) {}
    fn reclaim(&self, _: Gfp, _: usize) -> usize {
        0
    }
}

struct Nobody;

// SAFETY: it uses no task.
unsafe impl Pager for Nobody {
    fn lru_add(&self, _: SpaceId, _: &[LruPage]) {}
    fn swap_in(&self, _: SpaceId, _: usize, _: Evicted, _: &mut Page) -> ReadResult {
        Err(ReadFailed)
    }
    fn swapped_in(&self, _: SpaceId, _: LruPage, _: Evicted, _: Rights) {}
    fn free(&self, _: SpaceId, _: Evicted) {}
}

/// Frames of zones of so many blocks, each zone's numbers `gap` after the one's before it.
fn with_zones(blocks: &[usize], gap: usize, work: impl FnOnce(ZonedFrames<'_>, &[Fixed])) {
    let zones: Vec<Zone> = blocks
        .iter()
        .map(|blocks| Zone::new(blocks * BLOCK_SIZE, 1, Huge::No).expect("a zone"))
        .collect();
    let map = |zone| {
        let clearer = Clearer::detect();
        // The zero page is not among the first two frames.
        let order = Order::new(1).expect("small");
        let pair = Zone::get(zone, 0, Gfp::KERNEL, order, &clearer).expect("frames");
        let map = MemMap::new(zone, clearer).expect("tables");
        // SAFETY: it was got above.
        unsafe { zone.put(pair.as_ptr()) }.expect("got above");
        map
    };
    let maps: Vec<MemMap<'_>> = zones.iter().map(map).collect();
    let mut first = 0;
    let reclaim: Vec<Fixed> = zones
        .iter()
        .map(|zone| {
            let fixed = Fixed { first, is_short: AtomicBool::new(false) };
            first += zone.capacity_frames() + gap;
            fixed
        })
        .collect();
    let members: Vec<_> =
        maps.iter().zip(&reclaim).map(|(map, reclaim)| (map, reclaim as &dyn Reclaim)).collect();
    let zonelist = Zonelist::new(&members, &Nobody).expect("in order");
    work(zonelist.frames(), &reclaim);
}

/// Takes every frame but one pair on each side of the border between two zones.
fn leave_the_border(source: ZonedFrames<'_>, border: usize) -> Vec<Pfn> {
    let mut all: Vec<Pfn> = core::iter::from_fn(|| source.get_run(1)).collect();
    let mut list = source.list();
    all.retain(|frame| {
        let is_kept = !(border - 2..border + 2).contains(&frame.0);
        if !is_kept {
            list.put(*frame);
        }
        is_kept
    });
    list.flush();
    all
}

/// The program of the review: a region whose tables of the middle level are the last frames of one zone and the first
/// ones of another, used as if the second lay behind the first.
#[test]
fn a_row_of_tables_ends_where_its_zone_does() {
    with_zones(&[3, 5], 0, |source, reclaim| {
        let border = reclaim[1].first;
        let space = VmSpace::new(source, Atomic).expect("frames");
        let task = space.enter().expect("frames");
        // The table that the pairs' entries are in.
        space.tables.populate_middle(0..1).expect("frames");
        let kept = leave_the_border(source, border);
        for slot in 1..3 {
            // The last pair of the first zone, then the first one of the second.
            space.tables.populate_middle(slot..slot + 1).expect("two pairs");
        }
        assert!(source.get_run(1).is_none());
        kept.into_iter().for_each(|frame| source.put_run(frame));
        for granule in BLOCK_FRAMES..3 * BLOCK_FRAMES {
            check_row(&space.tables, granule, 1..3);
        }
        let at = task.map(2 * SLOT, Rights::READ_WRITE).expect("addresses");
        assert_eq!(at, SLOT);
        let region = task.region(at).expect("mapped");
        for page in [0, SLOT / FRAME_SIZE - 1, SLOT / FRAME_SIZE, 2 * SLOT / FRAME_SIZE - 1] {
            region.write(page).expect("frames")[7] = 9;
            assert_eq!(region.read(page).expect("there")[7], 9);
            region.fault(page, Access::Write).expect("there");
        }
    });
}

/// If a row says where a granule's entry is, it is where it is.
fn check_row(
    tables: &Tables<ZonedFrames<'_>, Atomic>,
    granule: usize,
    slots: core::ops::Range<usize>,
) {
    let Some(row) = tables.middle_row(slots) else { return };
    // SAFETY: the granule is of the slots, and only its address is looked at.
    let by_row = unsafe { row.middle(granule) };
    let by_walk = tables.middle(granule).expect("populated");
    assert!(core::ptr::eq(by_row.pmdp, by_walk.pmdp), "granule {granule}");
    assert!(core::ptr::eq(by_row.vma, by_walk.vma), "granule {granule}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// A row is where its tables are, wherever they come from.
    #[test]
    fn rows_are_where_their_tables_are(
        blocks in prop::collection::vec(1usize..4, 2..5),
        gap in prop_oneof![Just(0usize), 1usize..4],
        steps in prop::collection::vec((0usize..12, 1usize..4, 0usize..4, any::<bool>()), 1..24),
        drain in any::<bool>(),
    ) {
        with_zones(&blocks, gap, |source, reclaim| {
            let tables = Tables::new(source, Atomic).expect("frames");
            let border = reclaim[1].first;
            let mut kept = Vec::new();
            tables.populate_middle(0..1).expect("frames");
            if drain {
                kept = leave_the_border(source, border);
            }
            for (slot, count, short, frees) in steps {
                for (zone, reclaim) in reclaim.iter().enumerate() {
                    reclaim.is_short.store(zone == short, Ordering::Relaxed);
                }
                let _ = tables.populate_middle(slot..slot + count);
                if frees {
                    kept.pop().into_iter().for_each(|frame| source.put_run(frame));
                }
            }
            for start in 0..14 {
                for end in start + 1..15 {
                    for slot in start..end {
                        check_row(&tables, slot * BLOCK_FRAMES, start..end);
                        check_row(&tables, (slot + 1) * BLOCK_FRAMES - 1, start..end);
                    }
                }
            }
            kept.into_iter().for_each(|frame| source.put_run(frame));
        });
    }

    /// Of frames that are said to lie side by side, each lies a frame's size after the one before it.
    #[test]
    fn side_by_side_is_within_a_zone(
        blocks in prop::collection::vec(1usize..4, 1..5),
        gap in 0usize..3,
        first in 0usize..16 * BLOCK_FRAMES,
        frames in 1usize..2 * BLOCK_FRAMES,
    ) {
        with_zones(&blocks, gap, |source, reclaim| {
            let last = Pfn(first + frames - 1);
            let is_run = source.are_side_by_side(Pfn(first), frames);
            let capacity = |zone: usize| blocks[zone] * BLOCK_FRAMES;
            let inside = |zone: &Fixed, blocks: usize| {
                zone.first <= first && last.0 < zone.first + blocks
            };
            let by_model = reclaim.iter().enumerate().any(|(zone, of)| inside(of, capacity(zone)));
            assert_eq!(is_run, by_model, "{first} {frames}");
            if is_run {
                let bytes = |frame| source.bytes(frame).as_ptr() as usize;
                assert_eq!(bytes(last) - bytes(Pfn(first)), (frames - 1) * FRAME_SIZE);
            }
        });
    }
}
