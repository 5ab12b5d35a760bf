//! A thread that has asked for pages and is stopped, or gets no processor: the kernel tells nobody else what it has
//! read for it. A thread that wants one of these pages, or has them go, does not wait for that thread.

use super::scan::{file_of, Stage, FRAMES};
use super::scan_io::{on_device, Device, GoesOn, Told};
use super::*;
use crate::fill::DEPTH;
use pumice_paging::reclaim::Adaptive;

/// Has a thread ask for pages of a file and stop then, while the work is done, and go on afterwards.
fn beside_a_stopped_thread(
    name: &str,
    asked: std::ops::Range<usize>,
    work: impl FnOnce(&Stage<'_, '_, Adaptive<'_>>, &View<'_, '_>),
) {
    let (scratch, device) = (file_of(name, 2048), Device::new());
    on_device(&device, |stage| {
        let file = stage.open(&scratch);
        let task = stage.cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.advise(0..0, Advice::Random);
        std::thread::scope(|scope| {
            let (file, cache, device) = (&file, stage.cache, &*device);
            device.tell(Told::Stop(DEPTH as u32));
            let goes_on = GoesOn(device);
            let (is_done, done) = std::sync::mpsc::channel::<()>();
            let stopped = scope.spawn(move || {
                let task = cache.task().expect("room");
                let view = task.view(file).expect("room");
                let (pages, mut arrived) = (asked.collect::<Vec<_>>(), Vec::new());
                assert_eq!(view.request(&pages), pages.len());
                let _ = done.recv();
                view.arrived(pages.len(), &mut arrived).expect("it goes on");
                arrived.sort_unstable();
                assert_eq!(arrived, pages, "it is told of all of them, once");
            });
            device.wait_until_kept(1);
            work(stage, &view);
            drop(goes_on);
            drop(is_done);
            stopped.join().expect("no panic");
        });
        drop(view);
        task.close(file).expect("nobody else has it");
        assert_eq!(stage.cache.counts().resident, 0);
    });
}

#[test]
fn who_wants_a_page_that_a_stopped_thread_has_asked_for_reads_it() {
    beside_a_stopped_thread("stopped-read", 100..164, |stage, view| {
        check(&view.try_read(120).expect("nobody writes to it"), 120, 1);
        for page in [100, 163, 120, 121] {
            check(&view.read(page).expect("there"), page, 1);
        }
        fill(&mut view.write(130).expect("there"), 130, 2);
        assert_eq!(view.request(&[140, 141]), 2);
        let mut arrived = Vec::new();
        view.arrived(2, &mut arrived).expect("they come");
        arrived.sort_unstable();
        assert_eq!(arrived, [140, 141]);
        check(&view.read(130).expect("there"), 130, 2);
        // As many as there are frames for come and go meanwhile.
        stage.read(view, 500..500 + 2 * FRAMES);
        view.sync().expect("the device is there");
        check(&view.read(130).expect("there"), 130, 2);
    });
}

#[test]
fn who_cuts_a_file_off_does_not_wait_for_a_stopped_thread() {
    beside_a_stopped_thread("stopped-cut", 200..210, |_, view| {
        view.set_len(205 * FRAME_SIZE as u64).expect("shorter");
        assert!(matches!(view.read(207), Err(CacheError::PastEnd { .. })));
        check(&view.read(204).expect("there"), 204, 1);
        view.set_len(300 * FRAME_SIZE as u64).expect("longer");
        assert_eq!(view.read(207).expect("there")[..], [0; FRAME_SIZE]);
    });
}
