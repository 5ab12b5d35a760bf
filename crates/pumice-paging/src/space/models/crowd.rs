//! Readers that are counted aside: in models, all but the first of a page.

use super::*;

/// One reader stays, others come to a crowd and leave it.
#[cfg(loom)]
mod loom_models {
    use super::*;
    use loom::thread;

    /// A page that this thread reads all the while, what both threads do with it, and then none of them.
    fn beside_a_reader(
        one: fn(&Region<'_, Model, Atomic>),
        two: fn(&Region<'_, Model, Atomic>),
        after: fn(&Task<'_, Model, Atomic>, usize),
    ) {
        loom::model(move || {
            let shared = Shared::<Atomic>::new();
            let task = shared.enter();
            let at = task.map(2 * PAGE, Rights::READ_WRITE).expect("room");
            task.fault(at, Access::Write).expect("mapped");
            let other = shared.enter();
            {
                let region = task.region(at).expect("mapped");
                let guard = region.read(0).expect("mapped");
                let thread = thread::spawn(move || {
                    if let Ok(region) = other.region(at) {
                        two(&region);
                    }
                });
                one(&region);
                thread.join().expect("no panic");
                assert_eq!(guard[0], 0, "held all the while");
            }
            after(&task, at);
            drop(task);
            shared.end();
        });
    }

    fn read(region: &Region<'_, Model, Atomic>) {
        if let Ok(guard) = region.read(0) {
            assert_eq!(guard[0], 0);
        }
    }

    fn writes(task: &Task<'_, Model, Atomic>, at: usize) {
        drop(task.region(at).expect("mapped").try_write(0).expect("nobody reads any more"));
    }

    #[test]
    fn loom_two_join_a_crowd_and_leave_it() {
        beside_a_reader(read, read, writes);
    }

    #[test]
    fn loom_a_crowd_and_unmap() {
        let unmap = |region: &Region<'_, Model, Atomic>| {
            region.task().unmap(region.start(), PAGE).expect("aligned");
            assert!(region.read(0).is_err());
        };
        beside_a_reader(unmap, read, |task, at| {
            assert!(task.fault(at, Access::Read).is_err());
            assert_eq!(task.space().anon_rss(), 0);
        });
    }

    #[test]
    fn loom_a_crowd_and_a_writer() {
        let write = |region: &Region<'_, Model, Atomic>| {
            assert!(region.try_write(0).is_err());
        };
        beside_a_reader(read, write, writes);
    }
}

/// Crowds of two pages come and go, in one record after the other, beside writers, `fork` and `unmap`.
#[cfg(shuttle)]
#[test]
fn shuttle_crowds_writers_fork_and_unmap() {
    use shuttle::thread;

    let scenario = || {
        let shared = Shared::<Atomic>::new();
        let task = shared.enter();
        let at = task.map(3 * PAGE, Rights::READ_WRITE).expect("room");
        set(&task, at, 0).expect("mapped");
        set(&task, at + PAGE, 0).expect("mapped");
        drop(task);
        let readers: Vec<_> = (0..2)
            .map(|thread| {
                let task = shared.enter();
                thread::spawn(move || {
                    let Ok(region) = task.region(at) else { return };
                    for round in 0..3 {
                        let page = (thread + round) % 2;
                        let guards: Vec<_> = (0..3).map(|_| region.read(page)).collect();
                        let mut seen = guards.iter().flatten().map(|guard| guard[0]);
                        let first = seen.next();
                        assert!(seen.all(|byte| Some(byte) == first), "written under guards");
                    }
                })
            })
            .collect();
        let other = shared.enter();
        let other = thread::spawn(move || {
            add(&other, at).expect("mapped");
            let child = other.fork().expect("nobody writes");
            assert_eq!(word(&child.enter().expect("room"), at), Ok(1));
            drop(child);
            add(&other, at).expect("mapped");
            other.unmap(at + PAGE, 2 * PAGE).expect("aligned");
            assert!(word(&other, at + PAGE).is_err());
        });
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        other.join().expect("no panic");
        let task = shared.enter();
        assert_eq!(word(&task, at), Ok(2));
        assert_eq!(shared.space.anon_rss(), 1);
        drop(task);
        shared.end();
    };
    shuttle::check_random(scenario, 3000);
}
