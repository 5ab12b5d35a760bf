//! A block device, by loop.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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

/// As [`claim`], of a device that nobody has; a child that another test has just begun may have the last one's
/// descriptor still.
fn claim_at_last(device: &Path) -> std::io::Result<File> {
    let begun = Instant::now();
    loop {
        match claim(device) {
            Err(error) if is_busy(&error) && begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            claimed => return claimed,
        }
    }
}

fn is_busy(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// As mounts and swap do.
fn claim(device: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(device)
}

#[test]
fn a_block_device_is_claimed_while_it_is_open_and_refused_while_another_has_it() {
    let scratch = Scratch::new("claimed");
    std::fs::write(&scratch.0, vec![0; 64 * FRAME]).expect("a file");
    let Some(device) = Loop::over(&scratch.0) else { return };
    let options = Options::new().existing();
    let kept = run(&settings(512), |cache| {
        let claimed = claim_at_last(&device.0).expect("nobody's");
        let error = cache.open(&device.0, &options).expect_err("it is claimed");
        assert!(matches!(error, CacheError::InUse(_)), "{error}");
        cache.open(&device.0, &options.clone().read_only()).expect("only to be read");
        drop(claimed);
        let task = cache.task().expect("room");
        // The first is read only, and stays so until it is closed.
        let file = cache.open(&device.0, &options.clone().read_only()).expect("the same");
        task.close(file).expect("nothing to write");
        for round in 1..4 {
            let file = cache.open(&device.0, &options).expect("nobody's");
            assert!(claim(&device.0).is_err_and(|error| is_busy(&error)), "it is the cache's");
            let view = task.view(&file).expect("room");
            view.write(5).expect("there")[0] = round;
            view.sync().expect("the device is there");
            drop(view);
            task.close(file).expect("the device is there");
            drop(claim_at_last(&device.0).expect("closed"));
        }
        cache.open(&device.0, &options).expect("nobody's")
    })
    .expect("a cache");
    drop(claim_at_last(&device.0).expect("the cache is no more"));
    drop(kept);
    drop(device);
    assert_eq!(std::fs::read(&scratch.0).expect("the file")[5 * FRAME], 3);
}
