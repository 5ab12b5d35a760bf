//! A file that is larger than any memory: a sparse one of a tebibyte.

use std::fs::File;
use std::os::unix::fs::FileExt;

use pumice::cache::{run, CacheError, Options};

use super::*;

const LEN: u64 = 1 << 40;
/// Its tables take 8 MiB; the rest is for its pages.
const FRAMES: usize = 8192;

#[test]
fn a_file_of_a_tebibyte_is_used_at_both_ends() {
    let scratch = Scratch::new("large");
    let file = File::create_new(&scratch.0).expect("a file");
    if let Err(error) = file.set_len(LEN) {
        return eprintln!("skipped: no files so long: {error}");
    }
    let last = LEN as usize / FRAME - 1;
    let pages = [0, 1, 67_108_863, 67_108_864, last / 2, last - 1, last];
    run(&settings(FRAMES), |cache| {
        let file = cache.open(&scratch.0, &Options::new().room(LEN)).expect("addresses");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for (step, &page) in pages.iter().enumerate() {
            assert_eq!(step_of(&view.read(page).expect("a hole")), 0);
            fill(&mut view.write(page).expect("a frame"), step as u64 + 1);
        }
        view.sync().expect("written");
        for (step, &page) in pages.iter().enumerate() {
            assert_eq!(step_of(&view.read(page).expect("there")), step as u64 + 1);
        }
        assert!(view.read(last + 1).is_err());
    })
    .expect("a cache");
    let file = File::open(&scratch.0).expect("it is there");
    assert_eq!(file.metadata().expect("open").len(), LEN);
    for (step, &page) in pages.iter().enumerate() {
        let mut bytes = [0; FRAME];
        file.read_exact_at(&mut bytes, (page * FRAME) as u64).expect("written");
        assert_eq!(step_of(&bytes), step as u64 + 1);
    }
}

#[test]
fn more_frames_than_there_is_memory_are_an_error() {
    for frames in [1 << 40, 1 << 50, usize::MAX / FRAME, usize::MAX] {
        let made = run(&settings(frames), |_| ());
        assert!(matches!(made, Err(CacheError::Memory(_))), "{frames}: {made:?}");
    }
}
