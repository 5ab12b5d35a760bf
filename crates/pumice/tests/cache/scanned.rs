//! A scan through a file ten times the memory, while a working set is used: it goes on being in memory.

use pumice::cache::{run, Options, View};

use super::*;

const FRAMES: usize = 2048;
const HOT: usize = FRAMES / 2;
/// Uses of the working set for each page that is scanned. (A device of 1 GB/s brings 250,000 pages a second in;
/// memory is used ten times as often, mostly.)
const USES: usize = 4;

/// Uses `times` pages of the working set at random: how many were in memory, of a hundred.
fn hits(view: &View<'_, '_>, times: usize, seed: u64, mut then: impl FnMut()) -> f64 {
    let mut hits = 0;
    for time in 0..times {
        let page = mix(seed + time as u64) as usize % HOT;
        hits += usize::from(view.translate(page).is_some());
        drop(view.read(page).expect("there"));
        then();
    }
    hits as f64 * 100.0 / times as f64
}

fn scan_passes_by(name: &str, is_written: bool) {
    let (hot, scanned) = (Scratch::new(&format!("{name}-hot")), Scratch::new(name));
    std::fs::write(&hot.0, vec![1; HOT * FRAME]).expect("a file");
    std::fs::write(&scanned.0, vec![2; 10 * FRAMES * FRAME]).expect("a file");
    run(&settings(FRAMES), |cache| {
        let (hot, scanned) =
            (cache.open(&hot.0, &Options::new()), cache.open(&scanned.0, &Options::new()));
        let task = cache.task().expect("room");
        let hot = task.view(&hot.expect("the file")).expect("room");
        let scanned = task.view(&scanned.expect("the file")).expect("room");
        hits(&hot, 20 * HOT, 1, || ());
        let before = hits(&hot, 10 * HOT, 2, || ());
        let (mut uses, mut next) = (0, 0);
        let during = hits(&hot, 10 * FRAMES * USES, 3, || {
            uses += 1;
            if uses % USES != 0 {
                return;
            }
            match is_written {
                true => scanned.write(next).expect("there")[0] = next as u8,
                false => assert_eq!(scanned.read(next).expect("there")[7], 2),
            }
            next += 1;
        });
        let after = hits(&hot, 10 * HOT, 4, || ());
        eprintln!("{name}: hits {before:.1} % before, {during:.1} % during, {after:.1} % after");
        assert!(before > 99.0 && during > 95.0 && after > 95.0);
    })
    .expect("a cache");
}

#[test]
fn a_scan_that_reads_passes_by() {
    scan_passes_by("scan-read", false);
}

#[test]
fn a_scan_that_writes_passes_by() {
    scan_passes_by("scan-written", true);
}
