//! The device itself, without anybody's paging: single pages, direct, by plain calls.

use std::path::Path;
use std::ptr::NonNull;

use pumice_frames::addr::FRAME_SIZE;
use pumice_io::engine::Direction;
use pumice_io::{BlockFile, Cached};

use super::job::Pattern;
use crate::start_line::{together, StartLine};
use crate::team::answer::{Answer, Timed};
use pumice_command::random::Random;
use pumice_command::Failure;

/// Bytes that are written at a time when the file is made.
const RUN: usize = 1 << 20;

#[repr(align(4096))]
#[derive(Clone)]
struct Frame([u8; FRAME_SIZE]);

/// Makes a file of so many bytes, all of them written.
pub fn make_file(path: &Path, bytes: u64) -> Result<(), Failure> {
    let failure = |error| Failure::system(format!("can't write {}: {error}", path.display()));
    let mut file = BlockFile::open(path, Cached::No).map_err(failure)?;
    file.reserve(bytes).map_err(failure)?;
    let mut run = vec![Frame([0x5a; FRAME_SIZE]); RUN / FRAME_SIZE];
    let at = NonNull::from(&mut run[0].0).cast();
    for offset in (0..bytes).step_by(RUN) {
        let len = RUN.min((bytes - offset) as usize);
        // SAFETY: the run's bytes, which nobody else has.
        unsafe { file.transfer(Direction::Write, at, len, offset) }.map_err(failure)?;
    }
    Ok(())
}

/// Reads, or reads and writes, pages of the file at random for so long.
pub fn run(
    path: &Path,
    pattern: Pattern,
    threads: usize,
    seconds: f64,
    seed: u64,
) -> Result<Answer, Failure> {
    let failure = |error| Failure::system(format!("{}: {error}", path.display()));
    let file = BlockFile::open(path, Cached::No).map_err(failure)?;
    let pages = (file.len() / FRAME_SIZE as u64) as usize;
    let one = |thread: usize, line: &StartLine| {
        let mut random = Random::new(seed << 8 | thread as u64);
        let mut frame = Box::new(Frame([0x5a; FRAME_SIZE]));
        Timed::run(line, usize::MAX, seconds, |_| {
            let offset = (random.below(pages) * FRAME_SIZE) as u64;
            let writes = pattern == Pattern::DeviceMixed && random.below(2) == 0;
            let direction = if writes { Direction::Write } else { Direction::Read };
            let at = NonNull::from(&mut frame.0).cast();
            // SAFETY: the frame's bytes, which nobody else has.
            unsafe { file.transfer(direction, at, FRAME_SIZE, offset) }
        })
    };
    Ok(Answer::of_threads(&together(threads, one).map_err(failure)?))
}
