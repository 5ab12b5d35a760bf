//! Room to grow, in runs within a block that were copied because they grew.
//!
//! Two runs that grow, step by step, in one block would be in each other's way: each step would copy one of them to
//! another block. So a copy that grew by a small step gets some room, and the next steps are within it, but no more
//! room than lets as many such runs be in a block as without it. The heap does not know how much was asked for, only
//! how much a run has: one that is cut by as little stays as long as it is.

use pumice_frames::addr::{frames_for, BLOCK_FRAMES, FRAME_SIZE};

/// A step is small that adds no more than such a share of what the run has.
const STEP_SHARE: usize = 4;
/// A copy has room for one such share more...
const ROOM_SHARE: usize = 10;
/// ... and a run that is cut by no more than such a share keeps it.
const KEPT_SHARE: usize = 8;

/// The bytes that a copy is to have of an allocation of `has` bytes which is to have `size`.
pub fn with_room(has: usize, size: usize) -> usize {
    let frames = frames_for(size);
    let is_step = size > has && size - has <= has / STEP_SHARE;
    if !is_step || frames >= BLOCK_FRAMES {
        return size;
    }
    let most = BLOCK_FRAMES / (BLOCK_FRAMES / frames);
    size.max((frames + frames / ROOM_SHARE).min(most) * FRAME_SIZE)
}

/// The frames that a run has afterwards, of which the program needs `frames` from now on.
pub(super) fn frames_left(has: usize, frames: usize) -> usize {
    let is_little = has <= BLOCK_FRAMES && frames < has && has - frames <= has / KEPT_SHARE;
    if is_little {
        has
    } else {
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_frames::addr::BLOCK_SIZE;

    #[test]
    fn room_is_kept_as_it_is_used() {
        for size in (8 << 10..BLOCK_SIZE).step_by(4100) {
            let (needs, has) = (frames_for(size), frames_for(with_room(size - 100, size)));
            assert!((needs..=needs + needs / ROOM_SHARE).contains(&has), "{size}");
            assert_eq!(BLOCK_FRAMES / has, BLOCK_FRAMES / needs, "{size}");
            assert!((needs..=has).all(|step| frames_left(has, step) == has), "{size}");
            assert_eq!(frames_left(has, has / 2), has / 2);
        }
        assert_eq!(frames_left(2 * BLOCK_FRAMES, 2 * BLOCK_FRAMES - 1), 2 * BLOCK_FRAMES - 1);
    }

    #[test]
    fn what_doubles_or_shrinks_gets_no_room() {
        for size in [16 << 10, 100 << 10, 512 << 10, 1 << 20, 3 << 20] {
            assert_eq!(with_room(size / 2, size), size);
            assert_eq!(with_room(2 * size, size), size);
        }
        assert_eq!(with_room((1 << 20) - FRAME_SIZE, 1 << 20), 1 << 20, "two are in a block");
    }
}
