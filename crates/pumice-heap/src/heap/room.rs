//! Room to grow, in runs within a block that were copied because they grew.
//!
//! Two runs that grow, step by step, in one block would be in each other's way: each step would copy one of them to
//! another block. So a copy gets some room, and the next steps are within it. The heap does not know what was asked
//! for, only what a run has: one that is cut by as little stays as long as it is.

use pumice_frames::addr::{BLOCK_FRAMES, BLOCK_SIZE};

/// A copy has room for one such share more...
const ROOM_SHARE: usize = 10;
/// ... and a run that is cut by no more than such a share keeps it.
const KEPT_SHARE: usize = 8;

/// The bytes that a copy is to have which was made since so many did not fit where the allocation stood.
pub fn with_room(size: usize) -> usize {
    match size {
        ..BLOCK_SIZE => (size + size / ROOM_SHARE).min(BLOCK_SIZE),
        _ => size,
    }
}

/// The frames that a run has afterwards, of which the program needs `frames` from now on.
pub(super) fn frames_left(has: usize, frames: usize) -> usize {
    let is_little = has <= BLOCK_FRAMES && frames < has && has - frames <= has.div_ceil(KEPT_SHARE);
    if is_little {
        has
    } else {
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pumice_frames::addr::{frames_for, FRAME_SIZE};

    #[test]
    fn room_is_kept_as_it_is_used() {
        for size in (64 << 10..BLOCK_SIZE).step_by(60_000) {
            let has = frames_for(with_room(size));
            assert!(has <= frames_for(size) + frames_for(size / ROOM_SHARE) && has <= BLOCK_FRAMES);
            for step in (size..=has * FRAME_SIZE).step_by(FRAME_SIZE) {
                assert_eq!(frames_left(has, frames_for(step)), has, "{size} {step}");
            }
            assert_eq!(frames_left(has, has / 2), has / 2);
        }
        assert_eq!(with_room(BLOCK_SIZE), BLOCK_SIZE);
        assert_eq!(frames_left(2 * BLOCK_FRAMES, 2 * BLOCK_FRAMES - 1), 2 * BLOCK_FRAMES - 1);
    }
}
