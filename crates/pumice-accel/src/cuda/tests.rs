//! The engine over a library that stands in for NVIDIA's: `fake.c`, built here.

use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::{Cuda, CudaError, MOST_REGISTERED};
use crate::sys::dynamic::Library;
use pumice_frames::addr::{BLOCK_SIZE, FRAME_SIZE};
use pumice_frames::clear::contract::{uphold, Ground, Hope};
use pumice_frames::clear::{Chain, Clearer, Engine, Lost, Piece, PieceState, Waiting, Warmth};
use pumice_frames::sys::mem::{Memory, Os};

/// The failures to come: see `fake.c`. -1 is never, and 0 nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrong {
    copies: i32,
    records: i32,
    slow: i32,
    failing: i32,
    lose: i32,
    registers: i32,
}

const NOTHING: Wrong =
    Wrong { copies: -1, records: -1, slow: 0, failing: 0, lose: 0, registers: -1 };

/// The library's path; `None` without a C compiler.
fn library() -> Option<CString> {
    static PATH: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("pumice-cuda-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, built) = (folder.join("fake.c"), folder.join("libfake.so"));
        std::fs::write(&source, include_str!("fake.c")).expect("writable");
        let mut compiler = Command::new("cc");
        let output = compiler
            .args(["-O1", "-shared", "-fPIC", "-pthread", "-o"])
            .args([&built, &source])
            .output();
        output.is_ok_and(|output| output.status.success()).then_some(built)
    });
    let path = path.as_ref()?;
    CString::new(path.to_str().expect("text")).ok()
}

/// The fake has one state for all, so tests take turns.
struct Fake {
    path: CString,
    library: Library,
    _turn: MutexGuard<'static, ()>,
}

impl Fake {
    fn new() -> Option<Fake> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = library() else {
            eprintln!("skipped: no C compiler");
            return None;
        };
        // SAFETY: it was built from `fake.c`, and does nothing when it is loaded.
        let library = unsafe { Library::load(&path) }.expect("it was built");
        let fake = Fake { path, library, _turn: turn };
        fake.set(NOTHING);
        Some(fake)
    }

    fn set(&self, wrong: Wrong) {
        let Wrong { copies, records, slow, failing, lose, registers } = wrong;
        let set = self.library.symbol(c"fake_set").expect("exported").as_ptr();
        // SAFETY: its signature in `fake.c`.
        unsafe {
            let set: extern "C" fn(i32, i32, i32, i32, i32, i32) = core::mem::transmute(set);
            set(copies, records, slow, failing, lose, registers);
        }
    }

    fn number(&self, name: &core::ffi::CStr) -> usize {
        let number = self.library.symbol(name).expect("exported").as_ptr();
        // SAFETY: its signature in `fake.c`.
        unsafe {
            let number: extern "C" fn() -> usize = core::mem::transmute(number);
            number()
        }
    }

    fn open(&self) -> Cuda {
        // SAFETY: the fake does as the driver does, as far as it is asked.
        unsafe { Cuda::open_library(&self.path) }.expect("the fake has a GPU")
    }
}

/// Registers whatever it is given first, as a pool's owner would have.
struct Registering(Cuda);

// SAFETY: the engine's own.
unsafe impl Engine for Registering {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        for piece in pieces.iter().filter(|piece| piece.state() == PieceState::Waiting) {
            let (at, len) = piece.remaining();
            let known = self.0.state().registered(at as usize, len).is_some();
            if len > 0 && !known {
                // SAFETY: the suite's memory stays mapped.
                let _ = unsafe { self.0.register(at, len) };
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.0.submit(pieces) }
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        // SAFETY: as the caller promises.
        unsafe { self.0.poll(pieces) }
    }
}

#[test]
fn the_engine_upholds_the_contract_whatever_the_driver_says() {
    let Some(fake) = Fake::new() else { return };
    for wrong in [
        NOTHING,
        Wrong { slow: 40, ..NOTHING },
        Wrong { copies: 7, ..NOTHING },
        Wrong { copies: 0, ..NOTHING },
        Wrong { records: 1, ..NOTHING },
        Wrong { failing: 1, ..NOTHING },
        Wrong { lose: 1, ..NOTHING },
        Wrong { registers: 3, ..NOTHING },
    ] {
        uphold(Hope::Anything, || {
            fake.set(wrong);
            Registering(fake.open())
        });
    }
    fake.set(NOTHING);
}

#[test]
fn what_is_registered_is_zeroed_and_the_rest_is_the_next_engines() {
    let Some(fake) = Fake::new() else { return };
    let cuda = fake.open();
    let ground = Ground::new(
        64 * FRAME_SIZE,
        (0..32).map(|index| index * 8192..index * 8192 + 5000).collect(),
    );
    let mut pieces = ground.pieces();
    // SAFETY: the suite's memory stays mapped.
    unsafe { cuda.register(pieces[0].range().0, 16 * 8192) }.expect("registered");
    // SAFETY: the memory is this test's.
    unsafe {
        cuda.submit(&mut pieces).expect("not lost");
        cuda.wait(&mut pieces, core::time::Duration::from_secs(5), Waiting::Spinning)
            .expect("not lost");
    }
    ground.check(&pieces, "cuda");
    for (index, piece) in pieces.iter().enumerate() {
        assert_eq!(
            piece.state(),
            if index < 16 { PieceState::Zeroed } else { PieceState::Waiting }
        );
    }
    let engines: [&dyn Engine; 1] = [&cuda];
    let chain = Chain::new(&engines, Clearer::detect());
    // SAFETY: as above.
    unsafe { chain.submit(&mut pieces) }.expect("never lost");
    ground.check(&pieces, "chain");
    assert!(pieces.iter().all(|piece| piece.state() == PieceState::Zeroed));
    // SAFETY: all pieces are settled.
    unsafe { cuda.unregister(pieces[0].range().0) }.expect("registered");
    drop(pieces);
    drop(cuda);
    assert_eq!(fake.number(c"fake_contexts"), 0, "the context is given back");
}

#[test]
fn much_memory_is_registered_in_chunks_and_all_of_it_or_none() {
    let Some(fake) = Fake::new() else { return };
    let cuda = fake.open();
    let before = fake.number(c"fake_registrations");
    let at = 0x10_0000_0000 as *mut u8;
    let len = 3 * MOST_REGISTERED + (2 << 30);
    // SAFETY: the fake only notes what is as large.
    unsafe { cuda.register(at, len) }.expect("registered");
    assert_eq!(fake.number(c"fake_registrations") - before, 4);
    assert_eq!(fake.number(c"fake_longest"), MOST_REGISTERED);
    // SAFETY: nothing was asked of it.
    unsafe { cuda.unregister(at) }.expect("registered");
    assert_eq!(fake.number(c"fake_registrations"), before);
    fake.set(Wrong { registers: 2, ..NOTHING });
    // SAFETY: as above.
    let refused = unsafe { cuda.register(at, len) };
    assert!(
        matches!(refused, Err(CudaError::Call { call: "cuMemHostRegister_v2", .. })),
        "{refused:?}"
    );
    assert_eq!(fake.number(c"fake_registrations"), before, "none of it");
    fake.set(NOTHING);
}

#[test]
fn no_copy_lies_in_two_registrations() {
    let Some(fake) = Fake::new() else { return };
    let cuda = fake.open();
    // Only what is touched needs memory.
    let len = MOST_REGISTERED + (2 << 20);
    let Ok(at) = Os.reserve(len, BLOCK_SIZE) else {
        eprintln!("skipped: no addresses");
        return;
    };
    let at = at.as_ptr();
    let (from, bytes) = (MOST_REGISTERED - FRAME_SIZE, 3 * FRAME_SIZE);
    let across = at.wrapping_add(from);
    // SAFETY: reserved a moment ago, for good.
    let memory = unsafe {
        Os.commit(across, bytes).expect("memory");
        across.write_bytes(0xa5, bytes);
        cuda.register(at, len).expect("registered");
        core::slice::from_raw_parts_mut(across, bytes)
    };
    let mut pieces = [Piece::new(memory.as_mut_ptr(), bytes, Warmth::Cold)];
    // SAFETY: as above.
    unsafe {
        cuda.submit(&mut pieces).expect("not lost");
        cuda.wait(&mut pieces, core::time::Duration::from_secs(5), Waiting::Spinning)
            .expect("not lost");
    }
    assert_eq!(pieces[0].state(), PieceState::Zeroed);
    assert!(memory.iter().all(|&byte| byte == 0));
}

#[test]
fn a_library_that_is_not_there_is_said() {
    // SAFETY: there is none.
    let none = unsafe { Cuda::open_library(c"/no/such/libcuda.so.1") };
    assert_eq!(
        none.expect_err("none").to_string(),
        "there is no libcuda.so.1: no NVIDIA driver is installed"
    );
    // SAFETY: libc's own, which has no such functions.
    if let Err(error) = unsafe { Cuda::open_library(c"libc.so.6") } {
        assert!(matches!(error, CudaError::NoFunction(_) | CudaError::NoLibrary), "{error}");
    }
}

#[test]
fn an_engine_that_is_lost_settles_nothing_any_more() {
    let Some(fake) = Fake::new() else { return };
    let cuda = fake.open();
    let mut bytes = Box::leak(vec![7u8; 3 * FRAME_SIZE].into_boxed_slice());
    // SAFETY: leaked.
    unsafe { cuda.register(bytes.as_mut_ptr(), bytes.len()) }.expect("registered");
    fake.set(Wrong { records: 0, ..NOTHING });
    let mut pieces = [Piece::new(bytes.as_mut_ptr(), bytes.len(), Warmth::Cold)];
    // SAFETY: leaked.
    unsafe {
        assert_eq!(cuda.submit(&mut pieces), Err(Lost));
        fake.set(NOTHING);
        assert_eq!(cuda.poll(&mut pieces), Err(Lost));
        assert_eq!(cuda.submit(&mut pieces), Err(Lost));
    }
    assert_eq!(
        pieces[0].state(),
        PieceState::InFlight,
        "its event was never recorded: nothing is known"
    );
    bytes = &mut [];
    assert!(bytes.is_empty());
}
