//! Batches of pages that came in: of each page that is in memory at the end the pager was told, and where it is, if
//! all threads have told what they had.

use loom::thread;

use super::*;

/// Two things that threads do to a region of two pages, of which each then tells.
fn race(prepare: Step, one: Step, two: Step) {
    loom::model(move || {
        let shared = Shared::<Atomic>::paged();
        let task = shared.enter();
        let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
        prepare(&task, at);
        let other = shared.enter();
        // A task that ends tells what it has.
        let thread = thread::spawn(move || two(&other, at));
        one(&task, at);
        task.lru_drain();
        thread.join().expect("no panic");
        let told = shared.model.0.disk.as_ref().expect("a paged model").told();
        let mut present = 0;
        let next = task.scan_present(0, |page| {
            present += 1;
            assert!(told.contains(&page), "{page:?} was not told of: {told:?}");
        });
        assert!(present == shared.space.anon_rss() && next > 0);
        drop(task);
        shared.end();
    });
}

fn add_to_both(task: &Task<'_, Model, Atomic>, at: usize) {
    add(task, at).expect("mapped");
    add(task, at + PAGE).expect("mapped");
}

fn add_and_out(task: &Task<'_, Model, Atomic>, at: usize) {
    add(task, at).expect("mapped");
    swap_out(task, at);
}

#[test]
fn loom_batches_of_two_that_fault() {
    race(nothing, add_to_both, add_to_both);
}

#[test]
fn loom_batches_beside_swap_out() {
    race(nothing, add_to_both, add_and_out);
}

#[test]
fn loom_batches_of_pages_that_come_back() {
    let prepare = |task: &Task<'_, Model, Atomic>, at: usize| {
        add_to_both(task, at);
        assert!(swap_out(task, at));
    };
    race(prepare, add_to_both, add_to_both);
}

#[test]
fn loom_batches_beside_unmap() {
    let add = |task: &Task<'_, Model, Atomic>, at: usize| {
        try_add(task, at);
        add(task, at + PAGE).expect("mapped");
    };
    race(nothing, add, unmap_one);
}
