//! Queues over every engine: whole requests, also where the engine did part of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::io::Errno;

use crate::engine::{self, Direction, Piece};
use crate::fake::{FakeEngine, Faults};
use crate::file::Buffered;
use crate::*;
use pumice_frames::addr::FRAME_SIZE;

const FRAMES: usize = 8;

#[repr(align(4096))]
struct Run([u8; FRAMES * FRAME_SIZE]);

fn file(name: &str) -> (PathBuf, BlockFile) {
    let path = std::env::temp_dir().join(format!("pumice-io-{name}-{}", std::process::id()));
    fs::write(&path, vec![0; 4 * FRAMES * FRAME_SIZE]).expect("a file");
    let file = BlockFile::open(&path, Cached::No).expect("a file");
    (path, file)
}

/// Writes runs of frames, and reads them back.
fn runs_come_back<E: Engine>(file: &BlockFile, engine: E) {
    let mut queue = Queue::new(engine, 8);
    let mut runs: Vec<Box<Run>> =
        (1..4).map(|byte| Box::new(Run([byte; FRAMES * FRAME_SIZE]))).collect();
    for direction in [Direction::Write, Direction::Read] {
        for (index, run) in runs.iter_mut().enumerate() {
            let at = NonNull::from(&mut run.0).cast();
            let len = FRAMES * FRAME_SIZE;
            let request = Request {
                file: file.reference(),
                direction,
                bytes: Bytes::Run { at, len },
                offset: (index * len) as u64,
                token: 0,
            };
            // SAFETY: the runs stay until the queue is empty.
            unsafe { queue.submit(request, index) }.expect("room");
        }
        let mut done = Vec::new();
        queue.drain(|index, result| done.push((index, result))).expect("it goes on");
        done.sort_by_key(|&(index, _)| index);
        assert_eq!(done, [(0, Ok(())), (1, Ok(())), (2, Ok(()))]);
        for (index, run) in runs.iter_mut().enumerate() {
            let byte = if direction == Direction::Write { 0 } else { index as u8 + 1 };
            if direction == Direction::Read {
                assert!(run.0.iter().all(|&other| other == byte), "run {index}");
            }
            run.0.fill(byte);
        }
    }
}

#[test]
fn all_bytes_go_however_short_the_engine_is() {
    let (path, file) = file("short");
    runs_come_back(&file, Plain::new());
    runs_come_back(&file, engine::best(8));
    for seed in 0..20 {
        let faults = Faults { short: 3, late: 3, ..Faults::default() };
        runs_come_back(&file, FakeEngine::new(Plain::new(), faults, seed));
        runs_come_back(&file, FakeEngine::new(engine::best(8), faults, seed));
    }
    let _ = fs::remove_file(path);
}

/// Frames that lie the other way round in memory than in the file.
fn frames_come_back<E: Engine>(file: &BlockFile, engine: E) {
    let mut queue = Queue::new(engine, 8);
    let mut run = Box::new(Run([0; FRAMES * FRAME_SIZE]));
    for (frame, bytes) in run.0.chunks_exact_mut(FRAME_SIZE).enumerate() {
        bytes.fill(frame as u8 + 1);
    }
    let at = NonNull::from(&mut run.0).cast::<u8>();
    // SAFETY: within the run.
    let frame = |nth: usize| Piece::frame(unsafe { at.add(nth * FRAME_SIZE) });
    let backwards: Vec<Piece> = (0..FRAMES).rev().map(frame).collect();
    let forwards: Vec<Piece> = (0..FRAMES).map(frame).collect();
    for (direction, pieces) in [(Direction::Write, backwards), (Direction::Read, forwards)] {
        let first = NonNull::from(&pieces[0]);
        let bytes = Bytes::Frames { pieces: first, count: FRAMES };
        let request = Request {
            file: file.reference(),
            direction,
            bytes,
            offset: FRAME_SIZE as u64,
            token: 0,
        };
        // SAFETY: the run and the list stay until the queue is empty.
        unsafe { queue.submit(request, 3) }.expect("room");
        let mut said = None;
        queue.drain(|payload, result| said = Some((payload, result))).expect("it goes on");
        assert_eq!(said, Some((3, Ok(()))));
    }
    for (frame, bytes) in run.0.chunks_exact(FRAME_SIZE).enumerate() {
        assert!(bytes.iter().all(|&byte| usize::from(byte) == FRAMES - frame), "frame {frame}");
    }
}

#[test]
fn scattered_frames_go_beside_each_other() {
    let (path, file) = file("frames");
    frames_come_back(&file, Plain::new());
    frames_come_back(&file, engine::best(8));
    for seed in 0..20 {
        let faults = Faults { short: 3, late: 3, ..Faults::default() };
        frames_come_back(&file, FakeEngine::new(Plain::new(), faults, seed));
        frames_come_back(&file, FakeEngine::new(engine::best(8), faults, seed));
    }
    let _ = fs::remove_file(path);
}

#[test]
fn a_queue_says_when_it_is_full_and_what_lies_past_the_end() {
    let (path, file) = file("end");
    let mut queue = Queue::new(Plain::new(), 1);
    let mut run = Box::new(Run([0; FRAMES * FRAME_SIZE]));
    let at = NonNull::from(&mut run.0).cast();
    let bytes = Bytes::Run { at, len: FRAME_SIZE };
    let file = file.reference();
    let request = Request { file, direction: Direction::Read, bytes, offset: 1 << 30, token: 0 };
    // SAFETY: the run stays until the queue is empty.
    unsafe { queue.submit(request, 7) }.expect("room");
    assert_eq!(queue.payloads().collect::<Vec<_>>(), [&7]);
    // SAFETY: as above.
    assert_eq!(unsafe { queue.submit(request, 8) }, Err((Errno::BUSY, 8)));
    queue.reap().expect("it goes on");
    assert_eq!((queue.room(), queue.in_flight()), (1, 1));
    assert_eq!(queue.pop(), Some((7, Err(Errno::IO))));
    assert_eq!((queue.pop(), queue.in_flight()), (None, 0));
    let _ = fs::remove_file(path);
}

#[test]
fn one_queue_serves_many_files() {
    let files: Vec<_> = (0..4).map(|nth| file(&format!("many-{nth}"))).collect();
    let mut queue = Queue::new(engine::best(8), 8);
    let mut run = Box::new(Run([0; FRAMES * FRAME_SIZE]));
    let at = NonNull::from(&mut run.0).cast::<u8>();
    for direction in [Direction::Write, Direction::Read] {
        for (nth, (bytes, (_, file))) in run.0.chunks_exact_mut(FRAME_SIZE).zip(&files).enumerate()
        {
            bytes.fill(if direction == Direction::Write { nth as u8 + 1 } else { 0 });
            // SAFETY: within the run.
            let at = unsafe { at.add(nth * FRAME_SIZE) };
            let bytes = Bytes::Run { at, len: FRAME_SIZE };
            let file = file.reference();
            let request = Request { file, direction, bytes, offset: 0, token: 0 };
            // SAFETY: the run and the files stay until the queue is empty.
            unsafe { queue.submit(request, ()) }.expect("room");
        }
        queue.drain(|(), result| assert_eq!(result, Ok(()))).expect("it goes on");
    }
    for (nth, (path, _)) in files.iter().enumerate() {
        let byte = nth as u8 + 1;
        assert!(run.0[nth * FRAME_SIZE..][..FRAME_SIZE].iter().all(|&other| other == byte));
        assert!(fs::read(path).expect("the file")[..FRAME_SIZE].iter().all(|&other| other == byte));
        let _ = fs::remove_file(path);
    }
}

#[test]
fn a_file_says_how_its_data_goes() {
    let (path, direct) = file("way");
    match direct.way() {
        Way::Direct { memory, offset } => {
            assert!(memory.is_power_of_two() && offset.is_power_of_two());
            assert!(memory.max(offset) as usize <= FRAME_SIZE);
        }
        way => eprintln!("skipped: {} has no direct I/O: {way:?}", path.display()),
    }
    let buffered = BlockFile::open_to(&path, Opening::Read, Cached::Yes).expect("a file");
    assert_eq!(
        (buffered.way(), buffered.cached()),
        (Way::Buffered(Buffered::AsAsked), Cached::Yes)
    );
    assert_eq!(buffered.id(), direct.id());
    let (other_path, other) = file("way-other");
    assert_ne!(other.id(), direct.id());
    for path in [path, other_path] {
        let _ = fs::remove_file(&path);
        let none = BlockFile::open_to(&path, Opening::Write, Cached::No);
        assert_eq!(none.map(|_| ()), Err(Errno::NOENT));
    }
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() {
        eprintln!("skipped: no /dev/shm");
        return;
    }
    let path = shm.join(format!("pumice-io-way-{}", std::process::id()));
    let in_memory = BlockFile::open(&path, Cached::No).expect("a file");
    let _ = fs::remove_file(path);
    let way = in_memory.way();
    assert!(matches!(way, Way::Buffered(Buffered::InMemory | Buffered::Refused)), "{way:?}");
}
