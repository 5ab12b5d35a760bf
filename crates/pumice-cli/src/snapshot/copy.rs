//! A slot's content on its way into a file. Holes of the slot are not read, and zeros are not written: the file has
//! holes there.
//!
//! The slot is read, not mapped. Its lease may end meanwhile, which truncates it: reading says so, and touching a
//! mapping would kill this process.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{seek, SeekFrom};
use rustix::io::Errno;

use super::slot::Slot;

/// Bytes read at a time, few enough to be in a processor's cache when they are compared and written.
const PIECE_BYTES: usize = 1 << 20;
/// A page: zeros are looked for in whole ones.
const BLOCK_BYTES: usize = 4 << 10;
/// Zeros that are fewer are written. A hole saves less than it costs each reader: one more request to the device, in
/// whose time it could have read as much.
const HOLE_BYTES: usize = 64 << 10;

const ZEROS: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

/// The side that failed.
#[derive(Debug)]
pub enum Error {
    /// The slot can't be read, or its lease has ended. The line is whole.
    Slot(String),
    /// The file can't be written.
    Target(io::Error),
}

/// Copies all of a slot into a file that is all hole, and tells `progress` how far it is. Returns the bytes written.
pub fn copy(slot: &Slot, to: &File, mut progress: impl FnMut(u64)) -> Result<u64, Error> {
    let mut room = vec![0; PIECE_BYTES + BLOCK_BYTES];
    // The kernel copies to a buffer that begins with a page several times as fast as to others.
    let before = room.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
    let room = &mut room[before..before + PIECE_BYTES];
    let (mut at, mut written) = (0, 0);
    while let Some((start, end)) = next_data(slot, at)? {
        at = start;
        while at < end {
            let rest = usize::try_from(end - at).unwrap_or(usize::MAX);
            let piece = &mut room[..PIECE_BYTES.min(rest)];
            read(slot, piece, at)?;
            for run in data_runs(piece) {
                to.write_all_at(&piece[run.clone()], at + run.start as u64)
                    .map_err(Error::Target)?;
                written += run.len() as u64;
            }
            at += piece.len() as u64;
            progress(at);
        }
    }
    match slot.is_whole() {
        true => Ok(written),
        false => Err(ended(slot)),
    }
}

/// The next part that is no hole, from `at` on.
fn next_data(slot: &Slot, at: u64) -> Result<Option<(u64, u64)>, Error> {
    if at >= slot.bytes() {
        return Ok(None);
    }
    let start = match seek(slot.file(), SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // It can't tell.
        Err(Errno::INVAL) => return Ok(Some((at, slot.bytes()))),
        Err(error) => return Err(unreadable(slot, &error.into())),
    };
    let end = seek(slot.file(), SeekFrom::Hole(start));
    let end = end.map_err(|error| unreadable(slot, &error.into()))?.min(slot.bytes());
    // A page may have become a hole since, of a machine that was not paused: the rest is to be copied all the same.
    let end = end.max(start.saturating_add(BLOCK_BYTES as u64)).min(slot.bytes());
    Ok((start < end).then_some((start, end)))
}

fn read(slot: &Slot, piece: &mut [u8], at: u64) -> Result<(), Error> {
    slot.file().read_exact_at(piece, at).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => ended(slot),
        _ => unreadable(slot, &error),
    })
}

fn unreadable(slot: &Slot, error: &io::Error) -> Error {
    Error::Slot(format!("can't read the slot at {slot}: {error}"))
}

fn ended(slot: &Slot) -> Error {
    Error::Slot(format!("the slot at {slot} was given back while it was read"))
}

/// The parts of a piece that are to be written.
fn data_runs(piece: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (index, block) in piece.chunks(BLOCK_BYTES).enumerate() {
        if *block == ZEROS[..block.len()] {
            continue;
        }
        let start = index * BLOCK_BYTES;
        let end = start + block.len();
        match runs.last_mut() {
            Some(run) if start - run.end < HOLE_BYTES => run.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A piece with these blocks not zero.
    fn with_blocks(blocks: &[usize], bytes: usize) -> Vec<u8> {
        let mut piece = vec![0; bytes];
        for block in blocks {
            piece[(block + 1) * BLOCK_BYTES - 1] = 1;
        }
        piece
    }

    #[test]
    fn zeros_are_left_out_if_they_are_many() {
        let most = HOLE_BYTES / BLOCK_BYTES;
        let bytes = |from: usize, to: usize| from * BLOCK_BYTES..to * BLOCK_BYTES;
        for (blocks, runs) in [
            (vec![], vec![]),
            (vec![0], vec![bytes(0, 1)]),
            (vec![255], vec![bytes(255, 256)]),
            (vec![3, 4, 5], vec![bytes(3, 6)]),
            (vec![3, 3 + most], vec![bytes(3, 4 + most)]),
            (vec![3, 4 + most], vec![bytes(3, 4), bytes(4 + most, 5 + most)]),
        ] {
            assert_eq!(data_runs(&with_blocks(&blocks, PIECE_BYTES)), runs, "{blocks:?}");
        }
        let mut odd = with_blocks(&[], 5 * BLOCK_BYTES + 7);
        odd[5 * BLOCK_BYTES + 6] = 1;
        let last = 5 * BLOCK_BYTES..odd.len();
        assert_eq!(data_runs(&odd), vec![last]);
    }
}
