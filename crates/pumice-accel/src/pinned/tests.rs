//! Pools over registrars and engines that fail, and their memory in a child.

use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;
use pumice_frames::clear::fake::script;
use pumice_frames::clear::{is_zero, Lost};
use pumice_frames::sys::fake::FakeMemory;

/// Notes its requests.
#[derive(Debug, Default)]
struct Noting(AtomicUsize);

impl Registrar for &Noting {
    type Error = Errno;

    unsafe fn register(&self, _at: *mut u8, len: usize) -> Result<(), Errno> {
        match len > 64 << 20 {
            true => Err(Errno::NOMEM),
            false => {
                self.0.fetch_add(len, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    unsafe fn unregister(&self, _at: *mut u8, len: usize) {
        self.0.fetch_sub(len, Ordering::Relaxed);
    }
}

#[test]
fn memory_is_registered_once_and_kept_so() {
    let noting = Noting::default();
    let pool = Pool::new(7 << 20, &noting).expect("memory");
    assert_eq!(noting.0.load(Ordering::Relaxed), 8 << 20);
    for _ in 0..3 {
        let mut all = pool.take(8 << 20, Content::Zero).expect("all of it");
        assert!(all.iter().all(|&byte| byte == 0));
        all.fill(0xa5);
        assert!(pool.take(1, Content::Any).is_none());
        drop(all);
        assert_eq!(pool.free_bytes(), 8 << 20);
    }
    assert_eq!(noting.0.load(Ordering::Relaxed), 8 << 20, "once");
    drop(pool);
    assert_eq!(noting.0.load(Ordering::Relaxed), 0);
    assert!(matches!(Pool::new(65 << 20, &noting), Err(PoolError::Pinning(Errno::NOMEM))));
}

#[test]
fn locked_memory_is_a_pool_too() {
    match Pool::new(4 << 20, Locked) {
        Ok(pool) => {
            let buffer = pool.take(3 << 20, Content::Zero).expect("free");
            assert_eq!((buffer.len(), buffer[0]), (4 << 20, 0));
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

/// Pins nothing.
struct Nobody;

impl Registrar for Nobody {
    type Error = Errno;

    unsafe fn register(&self, _at: *mut u8, _len: usize) -> Result<(), Errno> {
        Ok(())
    }

    unsafe fn unregister(&self, _at: *mut u8, _len: usize) {}
}

/// Takes whatever it is given, and never says anything of it.
#[derive(Default)]
struct Hung(AtomicUsize);

// SAFETY: nothing is ever settled.
unsafe impl Engine for Hung {
    fn name(&self) -> &'static str {
        "hung"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        self.0.fetch_add(1, Ordering::Relaxed);
        pieces.iter_mut().for_each(|piece| piece.take(0));
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> Result<(), Lost> {
        Ok(())
    }
}

#[test]
fn an_engine_that_no_longer_answers_is_asked_no_more() {
    let hung = Hung::default();
    let pool = Pool::new((BATCH + 1) * BLOCK_SIZE, Nobody).expect("memory");
    drop(pool.take((BATCH + 1) * BLOCK_SIZE, Content::Any).expect("all of it"));
    pool.zero_free(&hung);
    assert_eq!(hung.0.load(Ordering::Relaxed), 1, "it did not answer the first time");
    assert_eq!(pool.free_bytes(), BLOCK_SIZE, "what it did not get is the processor's");
}

/// Writes its zeros when it is told to, long after it was given up.
#[derive(Default)]
struct Late(Mutex<Vec<(usize, usize)>>);

impl Late {
    fn answer(&self) -> usize {
        let taken = core::mem::take(&mut *self.0.lock().expect("no panic"));
        for &(at, len) in &taken {
            // SAFETY: its submitter vouched for it until it was settled: it was not.
            unsafe { (at as *mut u8).write_bytes(0, len) };
        }
        taken.len()
    }
}

// SAFETY: nothing is ever settled.
unsafe impl Engine for Late {
    fn name(&self) -> &'static str {
        "late"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let mut taken = self.0.lock().expect("no panic");
        for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
            taken.push((piece.range().0 as usize, piece.range().1));
            piece.take(0);
        }
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> Result<(), Lost> {
        Ok(())
    }
}

#[test]
fn a_late_answer_reaches_no_buffer() {
    let late = Late::default();
    let pool = Pool::new(4 * BLOCK_SIZE, Nobody).expect("memory");
    let all = pool.take(4 * BLOCK_SIZE, Content::Any).expect("all of it");
    let first = pool.block(0) as usize..pool.block(4) as usize;
    drop(all);
    let mut kept = pool.take(BLOCK_SIZE, Content::Any).expect("free");
    kept.fill(0xa5);
    assert_eq!(pool.zero_free(&late), 0, "it has the other three");
    assert_eq!(pool.free_bytes(), 0);
    assert!(pool.take(1, Content::Any).is_none(), "what the engine has is nobody's");
    drop(kept);
    let mut buffer = pool.take(1, Content::Any).expect("the one that was not submitted");
    buffer.fill(0xa5);
    assert_eq!(late.answer(), 3);
    assert!(buffer.iter().all(|&byte| byte == 0xa5));
    drop(buffer);
    assert_eq!(pool.free_bytes(), BLOCK_SIZE, "nobody looks any more");
    assert_eq!(pool.zero_free(&late), 0, "asked anew, it does not answer again");
    assert_eq!(pool.free_bytes(), 0);
    drop(pool);
    // The memory stays: the engine may write to it for ever.
    late.answer();
    // SAFETY: it is mapped still, and nobody writes to it now.
    assert!(unsafe { is_zero(first.start as *const u8, first.len()) });
}

/// Runs something in a child of `fork`; the status it ends with, as waitpid(2) has it.
fn in_child(what: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child does what async-signal-safe code may do, and ends.
    match unsafe { libc::fork() } {
        0 => {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: no core is wanted of a child that is meant to be killed, nor a word of the harness.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            }
            let code = what();
            // SAFETY: it ends the child.
            unsafe { libc::_exit(code) }
        }
        child => {
            assert!(child > 0, "no child");
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn a_child_has_no_buffer() {
    let pool = Pool::new(2 * BLOCK_SIZE, Nobody).expect("memory");
    let mut buffer = pool.take(BLOCK_SIZE, Content::Any).expect("free");
    buffer[0] = 7;
    let at = buffer.as_mut_ptr();
    let status = in_child(|| {
        // SAFETY: it is not there: the test is about that.
        unsafe { at.read_volatile().into() }
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
    assert_eq!(buffer[0], 7, "the parent has it still");
    buffer.fill(8);
}

#[test]
fn a_pool_that_a_child_drops_leaves_alone_what_is_there() {
    let noting = Noting::default();
    let pool = Pool::new(BLOCK_SIZE, &noting).expect("memory");
    let at = pool.block(0);
    // Moved in, so that the child has it to drop; the parent's stays, as it is.
    let pool = core::mem::ManuallyDrop::new(pool);
    let status = in_child(|| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: nothing is there.
        let mapped = unsafe { libc::mmap(at.cast(), BLOCK_SIZE, rights, flags, -1, 0) };
        if mapped != at.cast() {
            return 1;
        }
        // SAFETY: mapped a moment ago; the pool is not used any more.
        unsafe {
            at.write(5);
            drop(core::ptr::read(&*pool));
            i32::from(at.read_volatile()) - 5
        }
    });
    assert_eq!(status, 0);
    assert_eq!(noting.0.load(Ordering::Relaxed), BLOCK_SIZE);
    drop(core::mem::ManuallyDrop::into_inner(pool));
    assert_eq!(noting.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_pool_that_can_not_be_populated_leaves_nothing() {
    let noting = Noting::default();
    // Reserving, committing, huge pages, populating: the first of them that fails.
    for calls in 0..4 {
        let memory = FakeMemory::failing_after(calls, Errno::NOMEM);
        let failed = Pool::in_memory(&memory, 4 * BLOCK_SIZE, &noting);
        assert!(matches!(failed, Err(PoolError::Memory(Errno::NOMEM))), "{calls}: {failed:?}");
        assert_eq!(noting.0.load(Ordering::Relaxed), 0, "nobody was told");
    }
    let memory = FakeMemory::failing_after(4, Errno::NOMEM);
    assert!(Pool::in_memory(&memory, 4 * BLOCK_SIZE, &noting).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn zeros_are_zeros_whatever_the_engine_does(
        script in script(),
        steps in prop::collection::vec((1usize..4, any::<bool>()), 1..12),
    ) {
        // A device that hangs is waited for, which takes too long here.
        let device = script.without_hanging().device();
        let noting = Noting::default();
        let pool = Pool::new(8 << 20, &noting).expect("memory");
        for (blocks, zeroes) in steps {
            let content = if zeroes { Content::Zero } else { Content::Any };
            if let Some(mut buffer) = pool.take(blocks * BLOCK_SIZE, content) {
                // SAFETY: the buffer is borrowed.
                let is_zeroed = unsafe { is_zero(buffer.as_ptr(), buffer.len()) };
                prop_assert!(!zeroes || is_zeroed);
                buffer.fill(0xa5);
            }
            if zeroes {
                pool.zero_free(&device);
                prop_assert_eq!(pool.free_bytes(), 8 << 20);
            }
        }
    }
}
