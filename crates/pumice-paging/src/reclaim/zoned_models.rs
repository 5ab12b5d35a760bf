//! Two zones that write to one swap, whose spaces come and go, under many random interleavings (shuttle): where it is
//! full, each frees the other's swap cache, while these are read, written, and go themselves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use shuttle::thread;

use super::models::{insist, swap};
use super::policy::table;
use super::settings::Settings;
use super::zone::ZoneReclaim;
use super::{Adaptive, Paging};
use crate::backing::Backing;
use crate::page_table::{Atomic, Rights};
use crate::space::models::{add, word, Model, Shared, FRAMES, PAGE};
use crate::swap::backing::SwapBacking;
use crate::swap::SwapError;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::fake::late::{Device, Faults, Late};
use pumice_io::Engines;

const ITERATIONS: usize = 2000;
/// Pages of each zone's space, and frames for some of them and their tables. Both have more pages than there is room
/// for in the frames, and slots for what is left and one page of each that is on its way.
const PAGES: usize = 8;
const ROOM: usize = 2 + 5;
const SLOTS: u64 = 8;
/// Times that a zone's space is attached.
const ROUNDS: usize = 2;

type ZonePaging = Paging<Adaptive<'static>, &'static SwapBacking>;

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Pages are written, and read after others have gone, so that they are in the swap cache.
fn use_pages(shared: &Shared<Atomic>, model: Model) {
    let task = shared.enter();
    let at = task.map(PAGES * PAGE, Rights::READ_WRITE).expect("room");
    let kept = model.keep_all_but(ROOM);
    for page in 0..PAGES {
        insist(|| add(&task, at + page * PAGE));
    }
    for turn in 0..2 * PAGES {
        task.lru_drain();
        let page = turn * 3 % PAGES;
        assert_eq!(insist(|| word(&task, at + page * PAGE)), 1, "page {page}");
    }
    task.unmap(at, PAGES * PAGE).expect("aligned");
    model.give_back(kept);
}

/// Whether swap was full.
fn scenario() -> bool {
    let bytes = Mutex::new(vec![0; (SLOTS as usize + 1) * FRAME_SIZE]);
    let device = Arc::new(Device { bytes, faults: Mutex::new(Faults::default()) });
    let engines = Engines::new(move |_| Box::new(Late::new(&device)));
    let backing = leak(SwapBacking::new(swap(SLOTS), &engines));
    let pagers: [&'static ZonePaging; 2] = [(); 2].map(|()| {
        let policy = Adaptive::new(Box::leak(table::<Adaptive<'_>>(FRAMES).into_boxed_slice()));
        let settings = Settings::of(FRAMES).with_most_pages(ROOM - 3);
        let reclaim = Arc::new(ZoneReclaim::new(policy, FRAMES, settings));
        reclaim.set_engines(&engines);
        leak(Paging::on(reclaim, backing))
    });
    let kswapds = pagers.map(|pager| thread::spawn(move || pager.zone().kswapd()));
    let users = pagers.map(|pager| {
        thread::spawn(move || {
            for _ in 0..ROUNDS {
                let model = Model::paged_by(pager);
                let shared = Shared::<Atomic>::over(model);
                pager.attach(shared.space, || use_pages(&shared, model)).expect("room");
                shared.end();
            }
        })
    });
    users.into_iter().for_each(|user| user.join().expect("no panic"));
    pagers.iter().for_each(|pager| pager.stop());
    kswapds.into_iter().for_each(|kswapd| kswapd.join().expect("no panic"));
    assert_eq!(backing.swap().usage().1, 0, "slots were lost");
    let caches = backing.swap_caches().expect("its pages keep slots");
    assert_eq!(format!("{caches:?}"), "SwapCaches(0)");
    let error = backing.take_error();
    assert!(matches!(error, None | Some(SwapError::Full { .. })), "{error:?}");
    error.is_some()
}

#[test]
fn shuttle_two_zones_on_a_full_swap() {
    let fulls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&fulls);
    let count = move || {
        // Relaxed: read when all have ended.
        counted.fetch_add(usize::from(scenario()), Ordering::Relaxed);
    };
    shuttle::check_random(count, ITERATIONS);
    let fulls = fulls.load(Ordering::Relaxed);
    eprintln!("swap was full in {fulls} of {ITERATIONS}");
    assert!(fulls > ITERATIONS / 10, "it has been about something");
}
