//! Swap on devices, and where there is no room.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::Clearer;
use pumice_frames::frame::Zone;
use pumice_frames::sys::{cpu, mem::Huge};
use pumice_io::Cached;
use pumice_paging::page_table::{Atomic, Rights};
use pumice_paging::reclaim::policy::table;
use pumice_paging::reclaim::Adaptive;
use pumice_paging::reclaim::{Settings, SwapPager};
use pumice_paging::space::{Frames, MemMap, Region, VmError, VmSpace};
use pumice_paging::swap::{Swap, SwapError};
use rustix::io::Errno;
use tempfile::TempDir;

use super::pattern::{describe, fill, version, Ending, Scratch};

const FRAMES: usize = 1024;
const PAGES: usize = 4 * FRAMES;
const MIB: u64 = 1 << 20;

/// A program's answer, or why there is none.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}", said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A file system that is mounted for a test.
struct Mounted(TempDir);

impl Mounted {
    fn mount(name: &str, arguments: &[&str]) -> Result<Mounted, String> {
        let folder = tempfile::Builder::new().prefix(&format!("pumice-{name}-")).tempdir();
        let folder = folder.map_err(|error| error.to_string())?;
        let at = folder.path().to_string_lossy();
        run("mount", &[arguments, &[&*at]].concat())?;
        Ok(Mounted(folder))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = run("umount", &[&self.0.path().to_string_lossy()]);
    }
}

/// A block device over a file.
struct LoopDevice(PathBuf);

impl LoopDevice {
    fn over(file: &Path) -> Result<LoopDevice, String> {
        let device = run("losetup", &["--find", "--show", &file.to_string_lossy()])?;
        Ok(LoopDevice(PathBuf::from(device)))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = run("losetup", &["--detach", &self.0.to_string_lossy()]);
    }
}

/// A file of so many bytes, of which none are there.
fn sparse_file(path: &Path, bytes: u64) {
    File::create(path).and_then(|file| file.set_len(bytes)).expect("a file");
}

/// A region of [`PAGES`] pages on [`FRAMES`] frames with this swap.
fn with_region<R>(
    swap: Swap,
    work: impl FnOnce(&SwapPager<Adaptive<'_>>, &Region<'_, Frames<'_>, Atomic>) -> R,
) -> R {
    let mut entries = table::<Adaptive<'_>>(FRAMES);
    let policy = Adaptive::new(&mut entries);
    let pager = SwapPager::new(swap, policy, FRAMES, Settings::of(FRAMES));
    let zone_bytes = (FRAMES * FRAME_SIZE).next_multiple_of(BLOCK_SIZE);
    let zone = Zone::new(zone_bytes, cpu::count(), Huge::No).expect("a zone");
    let map = MemMap::new(&zone, Clearer::detect()).expect("tables").with_pager(&pager);
    let space = VmSpace::new(map.frames(), Atomic).expect("frames");
    std::thread::scope(|scope| {
        let kswapd = scope.spawn(|| pager.kswapd(&space));
        let ending = Ending(&pager);
        let task = space.enter().expect("a task");
        let at = task.map(PAGES * FRAME_SIZE, Rights::READ_WRITE).expect("addresses");
        let done = work(&pager, &task.region(at).expect("mapped"));
        drop(ending);
        kswapd.join().expect("no panic").expect("a task");
        done
    })
}

/// Writes pages one after the other, as far as they go, has `meanwhile` change something, goes on, and looks at all
/// of them. How far they went at first, and why no further.
fn write_all(swap: Swap, meanwhile: impl FnOnce()) -> (usize, Option<SwapError>) {
    with_region(swap, |pager, region| {
        let write = |page: usize| match region.write(page) {
            Ok(mut guard) => {
                fill(&mut guard, page, 1);
                true
            }
            Err(error) => {
                assert!(matches!(error, VmError::OutOfFrames(_)), "{error}");
                false
            }
        };
        let first = (0..PAGES).find(|&page| !write(page)).unwrap_or(PAGES);
        let why = pager.take_error();
        if first < PAGES {
            // Pages in memory can be used all the same.
            let guard = region.read(first - 1).expect("the last one");
            assert_eq!(version(&guard, first - 1), Some(1));
        }
        meanwhile();
        for page in first..PAGES {
            assert!(write(page), "page {page}: {:?}", pager.take_error());
        }
        for page in 0..PAGES {
            let guard = region.read(page);
            let guard = guard.unwrap_or_else(|error| panic!("{error}: {:?}", pager.take_error()));
            assert!(version(&guard, page) == Some(1), "{}", describe(&guard, page, 1));
        }
        (first, why)
    })
}

#[test]
fn a_loop_device_is_swap() {
    let scratch = Scratch::new("loop");
    sparse_file(&scratch.0, 32 * MIB);
    match LoopDevice::over(&scratch.0) {
        Ok(device) => {
            let too_large = Swap::create(&device.0, 33 * MIB, Cached::No);
            assert!(
                matches!(too_large, Err(SwapError::Open { errno: Errno::NOSPC, .. })),
                "{too_large:?}"
            );
            let swap = Swap::create(&device.0, 32 * MIB, Cached::No).expect("a device");
            let (written, why) = write_all(swap, || ());
            assert!(written == PAGES && why.is_none(), "{written} {why:?}");
        }
        Err(why) => eprintln!("skipped: no loop device ({why})"),
    }
}

#[test]
fn a_swap_file_that_does_not_fit_says_so() {
    let tmpfs = match Mounted::mount("small", &["-t", "tmpfs", "-o", "size=4M", "tmpfs"]) {
        Ok(tmpfs) => tmpfs,
        Err(why) => return eprintln!("skipped: no tmpfs ({why})"),
    };
    for cached in [Cached::No, Cached::Yes] {
        let swap = Swap::create(&tmpfs.0.path().join("swap"), 32 * MIB, cached);
        let is_full = matches!(swap, Err(SwapError::Open { errno: Errno::NOSPC, .. }));
        assert!(is_full, "{swap:?}");
    }
    // One that does is used as far as it goes, and what does not fit is told.
    let swap = Swap::create(&tmpfs.0.path().join("small-swap"), 2 * MIB, Cached::No).expect("room");
    assert_eq!(swap.usage(), (511, 0));
}

/// A file system that can't say before that there is no room (ext2 has no `fallocate`): writes fail in the middle.
/// Pages that can't go stay; when there is room, all goes on.
#[test]
fn a_disk_that_fills_up_and_has_room_again() {
    let image = Scratch::new("image");
    sparse_file(&image.0, 48 * MIB);
    let path = image.0.to_string_lossy().into_owned();
    let mounted = run("mkfs.ext2", &["-q", "-F", "-m", "0", &path])
        .and_then(|_| Mounted::mount("ext2", &["-o", "loop", &path]));
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(why) => return eprintln!("skipped: no file system in a file ({why})"),
    };
    let filler = mounted.0.path().join("filler");
    fs::write(&filler, vec![1; (38 * MIB) as usize]).expect("room");
    let swap =
        Swap::create(&mounted.0.path().join("swap"), 32 * MIB, Cached::No).expect("no blocks yet");
    let (written, why) = write_all(swap, || fs::remove_file(&filler).expect("it is there"));
    assert!((FRAMES..3 * FRAMES).contains(&written), "{written} {why:?}");
    assert!(matches!(why, Some(SwapError::Write { errno: Errno::NOSPC, .. })), "{why:?}");
}

/// A device that says of writes that they are done which are not (the kernel's loop device, where its file's disk is
/// full): a reader of such a page is told; no page has other bytes than were written.
#[test]
fn a_device_that_loses_writes_is_found_out() {
    let tmpfs = match Mounted::mount("full", &["-t", "tmpfs", "-o", "size=4M", "tmpfs"]) {
        Ok(tmpfs) => tmpfs,
        Err(why) => return eprintln!("skipped: no tmpfs ({why})"),
    };
    let file = tmpfs.0.path().join("disk");
    sparse_file(&file, 32 * MIB);
    let device = match LoopDevice::over(&file) {
        Ok(device) => device,
        Err(why) => return eprintln!("skipped: no loop device ({why})"),
    };
    let swap = Swap::create(&device.0, 32 * MIB, Cached::No).expect("a device");
    with_region(swap, |pager, region| {
        let written = fill_up(region);
        assert!((FRAMES..PAGES).contains(&written), "{written}");
        let _ = pager.take_error();
        // Each of those that find no frame waits for some writes to fail: not all of them.
        for page in (0..written).step_by(5) {
            match region.read(page) {
                Ok(guard) => {
                    assert!(version(&guard, page) == Some(1), "{}", describe(&guard, page, 1))
                }
                Err(error) => {
                    let is_typed =
                        matches!(error, VmError::ReadFailed(_) | VmError::OutOfFrames(_));
                    assert!(is_typed && pager.take_error().is_some(), "{error}");
                }
            }
        }
    });
    drop(device);
}

/// Writes pages for as long as there is room. Returns how many.
fn fill_up(region: &Region<'_, Frames<'_>, Atomic>) -> usize {
    (0..)
        .take_while(|&page| {
            let guard = region.write(page);
            guard.map(|mut guard| fill(&mut guard, page, 1)).is_ok()
        })
        .count()
}

/// Swap that is too small ends in an error for threads that want more, and only for them.
#[test]
fn a_full_swap_leaves_what_is_there() {
    let path = Scratch::new("full-swap");
    let swap = Swap::create(&path.0, 2 * MIB, Cached::No).expect("a file");
    with_region(swap, |pager, region| {
        let written = fill_up(region);
        assert!(matches!(pager.take_error(), Some(SwapError::Full { slots: 511 })));
        let check = |page: usize| {
            region.read(page).map(|guard| {
                assert!(version(&guard, page) == Some(1), "{}", describe(&guard, page, 1));
            })
        };
        // Of two places that a page could be in, memory and swap, one is free when it comes: the reserve.
        for page in 0..written {
            check(page).expect("it is somewhere");
        }
        // A thread that gives memory back has room for something else, and the rest is there.
        let given = FRAMES / 4;
        region.task().unmap(region.start(), given * FRAME_SIZE).expect("whole pages");
        for page in written..written + FRAMES / 8 {
            let mut guard = region.write(page).expect("there is room again");
            fill(&mut guard, page, 1);
        }
        for page in given..written + FRAMES / 8 {
            check(page).expect("it was written");
        }
    });
}
