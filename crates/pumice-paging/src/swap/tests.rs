//! Swap areas in files, with everything that can go wrong.

use std::fs;

use proptest::prelude::*;
use tempfile::TempPath;

use super::*;
use pumice_io::fake::{FakeEngine, Faults};
use pumice_io::{engine, Plain, Ring};

#[repr(align(4096))]
#[derive(Clone)]
struct Frame([u8; FRAME_SIZE]);

impl Frame {
    fn of(seed: u64) -> Frame {
        let mut frame = Frame([0; FRAME_SIZE]);
        for (at, word) in frame.0.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(
                &(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at as u64).to_le_bytes(),
            );
        }
        frame
    }

    fn at(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.0).cast()
    }
}

/// A path that is nobody else's, gone with this.
struct Scratch(TempPath);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let prefix = format!("pumice-swap-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make(|_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }
}

fn read_in<E: Engine>(
    swap: &Swap,
    queue: &mut Queue<E, usize>,
    slot: SwapSlot,
) -> Result<Frame, SwapError> {
    let mut frame = Frame([0; FRAME_SIZE]);
    // SAFETY: the frame is here until the queue is empty.
    unsafe { swap.read(queue, slot, Bytes::Run { at: frame.at(), len: FRAME_SIZE }, 0)? };
    let mut went = Ok(());
    queue.drain(|_, result| went = result).expect("the engine goes on");
    went.map_err(|errno| SwapError::Read { slot, errno })?;
    swap.check(slot, &frame.0)?;
    Ok(frame)
}

/// # Safety
/// The frame stays until the request is done.
unsafe fn write<E: Engine>(
    swap: &Swap,
    queue: &mut Queue<E, usize>,
    (slot, note): (SwapSlot, u32),
    at: NonNull<u8>,
    page: usize,
) -> Result<(), SwapError> {
    // SAFETY: the caller's promise.
    unsafe {
        swap.seal(slot, at.cast().as_ref());
        swap.set_note(slot, note);
        let request = swap.request(Direction::Write, slot, Bytes::Run { at, len: FRAME_SIZE });
        queue.submit(request, page).map_err(|(errno, _)| SwapError::Write { slot, errno })
    }
}

/// Writes pages, some of which fail, and reads back those that did not.
fn survives<E: Engine>(swap: &Swap, mut queue: Queue<E, usize>, pages: u64) -> (usize, usize) {
    let mut frames: Vec<(Frame, SwapSlot, bool)> = Vec::new();
    for page in 0..pages {
        frames.push((Frame::of(page), swap.get().expect("a free slot"), false));
    }
    for page in 0..frames.len() {
        while queue.room() == 0 {
            queue.reap().expect("it goes on");
            while let Some((page, result)) = queue.pop() {
                frames[page].2 = result.is_ok();
            }
        }
        let (frame, slot, _) = &mut frames[page];
        // SAFETY: the frames stay until the queue is empty.
        unsafe { write(swap, &mut queue, (*slot, page as u32), frame.at(), page) }.expect("room");
    }
    queue.drain(|page, result| frames[page].2 = result.is_ok()).expect("it goes on");
    let (mut written, mut read) = (0, 0);
    for (page, (frame, slot, is_written)) in frames.iter().enumerate() {
        if *is_written {
            written += 1;
            assert_eq!(swap.note(*slot), page as u32);
            if let Ok(back) = read_in(swap, &mut queue, *slot) {
                read += 1;
                assert!(back.0 == frame.0, "page {page}");
            }
        }
        assert!(swap.put(*slot));
        assert!(!swap.put(*slot));
    }
    (written, read)
}

#[test]
fn pages_come_back_by_every_engine() {
    for cached in [Cached::No, Cached::Yes] {
        let path = Scratch::new(&format!("engines-{cached:?}"));
        let swap = Swap::create(&path.0, 4 << 20, cached).expect("a swap area");
        assert_eq!(survives(&swap, Queue::new(Plain::new(), 16), 300), (300, 300));
        assert_eq!(survives(&swap, Queue::new(engine::best(64), 64), 900), (900, 900));
        match Ring::new(8) {
            Ok(ring) => assert_eq!(survives(&swap, Queue::new(ring, 8), 300), (300, 300)),
            Err(errno) => eprintln!("skipped: no io_uring ({errno})"),
        }
        assert_eq!(swap.usage(), (1023, 0));
    }
}

#[test]
fn faults_of_the_device_lose_nothing_else() {
    let path = Scratch::new("faults");
    let swap = Swap::create(&path.0, 4 << 20, Cached::No).expect("a swap area");
    let faults = Faults { error: 10, no_space: 20, short: 3, late: 4 };
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    for round in 0..4 {
        let fake = FakeEngine::new(engine::best(32), faults, seed + round);
        let (written, read) = survives(&swap, Queue::new(fake, 32), 500);
        assert!(
            (300..500).contains(&written) && (100..written).contains(&read),
            "{written} {read}"
        );
    }
    // One in two would be 17 in a row, after which a request is given up, in one run of a hundred.
    let late = Faults { late: 2, short: 3, ..Faults::default() };
    let fake = FakeEngine::new(Plain::new(), late, seed);
    assert_eq!(survives(&swap, Queue::new(fake, 32), 500), (500, 500));
}

#[test]
fn lost_and_misplaced_writes_are_found() {
    let path = Scratch::new("lost");
    let swap = Swap::create(&path.0, 1 << 20, Cached::Yes).expect("a swap area");
    let mut queue = Queue::new(Plain::new(), 4);
    let mut frame = Frame::of(5);
    let (one, other) = (swap.get().expect("a slot"), swap.get().expect("a slot"));
    for slot in [one, other] {
        // SAFETY: the frame stays until the queue is empty.
        unsafe { write(&swap, &mut queue, (slot, 0), frame.at(), 0) }.expect("room");
    }
    queue.drain(|_, result| result.expect("written")).expect("it goes on");
    assert!(read_in(&swap, &mut queue, one).is_ok());
    let mut bytes = fs::read(&path.0).expect("the file");
    bytes[one.0 as usize * FRAME_SIZE + 77] ^= 1;
    fs::write(&path.0, &bytes).expect("the file");
    assert!(
        matches!(read_in(&swap, &mut queue, one), Err(SwapError::Checksum { slot }) if slot == one)
    );
    assert!(read_in(&swap, &mut queue, other).is_ok());
    // The same page is in both, but each slot has its own checksum.
    bytes.copy_within(
        other.0 as usize * FRAME_SIZE..(other.0 as usize + 1) * FRAME_SIZE,
        one.0 as usize * FRAME_SIZE,
    );
    fs::write(&path.0, &bytes).expect("the file");
    assert!(read_in(&swap, &mut queue, one).is_ok(), "the very bytes that were written");
    bytes.truncate(FRAME_SIZE);
    fs::write(&path.0, &bytes).expect("the file");
    assert!(matches!(read_in(&swap, &mut queue, one), Err(SwapError::Read { .. })));
}

#[test]
fn a_file_is_one_swap_at_a_time() {
    let path = Scratch::new("one");
    let swap = Swap::create(&path.0, 1 << 20, Cached::No).expect("a file");
    let error = Swap::create(&path.0, 1 << 20, Cached::No).expect_err("it is in use");
    assert!(matches!(error, SwapError::InUse { .. }), "{error}");
    drop(swap);
    Swap::create(&path.0, 1 << 20, Cached::No).expect("nobody's any more");
}

#[test]
fn what_is_not_swap_is_left_alone() {
    let path = Scratch::new("other");
    fs::write(&path.0, "somebody's letters").expect("a file");
    let error = Swap::create(&path.0, 1 << 20, Cached::No).expect_err("not ours");
    assert!(matches!(error, SwapError::NotSwap { .. }), "{error}");
    fs::write(&path.0, vec![b'x'; 10_000]).expect("a file");
    let error = Swap::create(&path.0, 1 << 20, Cached::No).expect_err("not ours");
    assert!(error.to_string().contains("byte 0 is not zero"), "{error}");
    assert!(error.to_string().ends_with(&format!("rm {}", path.0.display())), "{error}");
    assert_eq!(fs::read(&path.0).expect("the file"), vec![b'x'; 10_000]);
    fs::write(&path.0, "").expect("a file");
    for _ in 0..2 {
        Swap::create(&path.0, 1 << 20, Cached::No).expect("an empty file, and then our own");
    }
    fs::write(&path.0, vec![b'x'; 10_000]).expect("a file");
    Swap::create_over_anything(&path.0, 1 << 20, Cached::No).expect("as it was asked for");
    Swap::create(&path.0, 1 << 20, Cached::No).expect("our own");
    assert!(matches!(Swap::create(&path.0, 4096, Cached::No), Err(SwapError::BadSize { .. })));
    assert!(matches!(
        Swap::create(Path::new("/no/such/folder"), 1 << 20, Cached::No),
        Err(SwapError::Open { .. })
    ));
}

#[test]
fn full_swap_says_so() {
    let path = Scratch::new("full");
    let swap = Swap::create(&path.0, 8 * FRAME_SIZE as u64, Cached::No).expect("a swap area");
    let slots: Vec<SwapSlot> = (0..7).map(|_| swap.get().expect("a slot")).collect();
    assert!(matches!(swap.get(), Err(SwapError::Full { slots: 7 })));
    assert!(swap.is_scarce());
    for slot in &slots[..4] {
        assert!(swap.put(*slot));
    }
    assert!(!swap.is_scarce() && swap.get().is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Any file is swap of ours, or is nobody's, or is left as it was with an error that says why.
    #[test]
    fn no_file_is_too_bad(
        len in 0usize..3 * FRAME_SIZE,
        begin in prop::collection::vec(any::<u8>(), 0..64),
        kind in 0u8..4,
        change in prop::option::of((0usize..64, any::<u8>())),
        bytes in prop_oneof![0u64..5 * FRAME_SIZE as u64, 1u64 << 40..u64::MAX],
    ) {
        let path = Scratch::new("fuzz");
        let mut content = vec![0; len];
        let mut frame = [0; FRAME_SIZE];
        match kind {
            0 => frame[..begin.len()].copy_from_slice(&begin),
            1 => Header { slots: u32::from_le_bytes([7, 0, 0, begin.len() as u8]) }.write(&mut frame),
            2 => Header { slots: 3 }.write(&mut frame),
            _ => {}
        }
        if let Some((at, byte)) = change {
            frame[at] = byte;
        }
        let head = len.min(FRAME_SIZE);
        content[..head].copy_from_slice(&frame[..head]);
        fs::write(&path.0, &content).expect("a file");
        let cached = if kind % 2 == 0 { Cached::Yes } else { Cached::No };
        match Swap::create(&path.0, bytes, cached) {
            Ok(swap) => {
                prop_assert!(Header::read(&frame).is_ok() || content.iter().all(|&byte| byte == 0));
                prop_assert_eq!(u64::from(swap.usage().0), bytes / FRAME_SIZE as u64 - 1);
            }
            Err(SwapError::NotSwap { .. } | SwapError::BadSize { .. }) => {
                prop_assert_eq!(fs::read(&path.0).expect("the file"), content);
            }
            Err(error) => prop_assert!(matches!(error, SwapError::Open { .. }), "{}", error),
        }
    }
}
