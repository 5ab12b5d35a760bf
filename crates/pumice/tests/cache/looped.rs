//! A block device, by loop.

use std::path::{Path, PathBuf};
use std::process::Command;

use pumice::cache::{run, CacheError, Options};
use pumice::io::Way;

use super::*;

/// A loop device, given back with this.
struct Loop(PathBuf);

impl Loop {
    /// `None`, with a word why, where there are none or they are not ours to set up.
    fn over(file: &Path) -> Option<Loop> {
        let output = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
                Some(Loop(path.into()))
            }
            Ok(output) => {
                eprintln!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                eprintln!("skipped: no losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_is_a_file_that_has_its_length() {
    const PAGES: usize = 2048;
    let scratch = Scratch::new("loop");
    std::fs::write(&scratch.0, vec![0; PAGES * FRAME]).expect("a file");
    let Some(device) = Loop::over(&scratch.0) else { return };
    run(&settings(512), |cache| {
        let file = cache.open(&device.0, &Options::new().existing()).expect("a device");
        assert!(matches!(file.way(), Way::Direct { .. }), "{:?}", file.way());
        assert_eq!(file.len() as usize, PAGES * FRAME);
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        for page in 0..PAGES {
            fill(&mut view.write(page).expect("there"), page as u64 + 1);
        }
        assert!(matches!(view.write_or_grow(PAGES), Err(CacheError::Resize { .. })));
        assert!(matches!(view.set_len(5), Err(CacheError::Resize { .. })));
        view.sync().expect("the device is there");
        for page in (0..PAGES).rev() {
            assert_eq!(step_of(&view.read(page).expect("there")), page as u64 + 1);
        }
    })
    .expect("a cache");
    drop(device);
    let bytes = std::fs::read(&scratch.0).expect("the file");
    for (nth, page) in bytes.chunks_exact(FRAME).enumerate() {
        assert_eq!(step_of(page.try_into().expect("a page")), nth as u64 + 1);
    }
}
