//! Ways of making engines that go back to what the engine is for.

use std::sync::{Arc, OnceLock};

use pumice::addr::FRAME_SIZE;
use pumice::clear::Clearer;
use pumice::frame::Zone;
use pumice::io::{Engines, Plain};
use pumice::page_table::{Atomic, Rights};
use pumice::reclaim::policy::table;
use pumice::reclaim::{Settings, SwapPager, TwoList, ZoneReclaim};
use pumice::space::{Frames, MemMap, VmSpace};
use pumice::sys::mem::Huge;

use crate::swap;

const FRAMES: usize = 1024;

/// The page for which an engine is made.
static WANTED: OnceLock<(&'static VmSpace<Frames<'static>, Atomic>, usize)> = OnceLock::new();

fn leak<T>(what: T) -> &'static T {
    Box::leak(Box::new(what))
}

#[test]
fn who_makes_an_engine_does_not_wait_for_the_page_that_it_is_for() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let entries = Box::leak(table::<TwoList<'_>>(FRAMES).into_boxed_slice());
        let settings = Settings::of(FRAMES);
        let pager = SwapPager::new(swap(8 * FRAMES), TwoList::new(entries), FRAMES, settings);
        let pager = leak(pager.with_engines(|_| {
            if let Some(&(space, at)) = WANTED.get() {
                let _ = space.enter().map(|task| task.read_at(at, &mut [0; 8]));
            }
            Box::new(Plain::new())
        }));
        let zone = leak(Zone::new(FRAMES * FRAME_SIZE, 2, Huge::No).expect("a zone"));
        let map = leak(MemMap::new(zone, Clearer::detect()).expect("tables"));
        let space = leak(VmSpace::new(map.frames_of(pager), Atomic).expect("frames"));
        let attached = pager.attach(space, || {
            let task = space.enter().expect("frames");
            let at = task.map(2 * FRAMES * FRAME_SIZE, Rights::READ_WRITE).expect("room");
            for page in 0..2 * FRAMES {
                task.write_at(at + page * FRAME_SIZE, &[7; 8]).expect("room");
            }
            let gone = (0..2 * FRAMES).find(|page| task.mapped(at / FRAME_SIZE + page).is_none());
            let at = at + gone.expect("half of them") * FRAME_SIZE;
            assert!(WANTED.set((space, at)).is_ok());
            let mut bytes = [0; 8];
            task.read_at(at, &mut bytes).expect("there");
            assert_eq!(bytes, [7; 8]);
        });
        attached.expect("room");
        done.send(()).expect("somebody waits");
    });
    is_done.recv_timeout(std::time::Duration::from_secs(60)).expect("it ends");
}

/// Names other engines when it goes.
struct Names(Arc<ZoneReclaim<TwoList<'static>>>);

impl Drop for Names {
    fn drop(&mut self) {
        self.0.set_engines(&Engines::default());
    }
}

#[test]
fn engines_that_go_may_name_others() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let entries = Box::leak(table::<TwoList<'_>>(FRAMES).into_boxed_slice());
        let policy = TwoList::new(entries);
        let zone = Arc::new(ZoneReclaim::new(policy, FRAMES, Settings::of(FRAMES)));
        let names = Names(zone.clone());
        zone.set_engines(&Engines::new(move |_| {
            let _ = &names;
            Box::new(Plain::new())
        }));
        zone.set_engines(&Engines::default());
        done.send(()).expect("somebody waits");
    });
    is_done.recv_timeout(std::time::Duration::from_secs(30)).expect("it ends");
}
