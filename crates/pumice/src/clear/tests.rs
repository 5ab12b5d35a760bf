//! Every engine against a plain model; a device that refuses, faults and is lost.

use proptest::prelude::*;
use std::cell::RefCell;
use std::sync::Mutex;

use super::*;
use crate::config::Nocache;

const PATTERN: u8 = 0xa5;

/// Memory around a range must keep its pattern, the range must be zero.
fn assert_cleared_exactly(memory: &[u8], offset: usize, len: usize, who: &str) {
    let mut expected = vec![PATTERN; memory.len()];
    expected[offset..offset + len].fill(0);
    // Not assert_eq!, which would print both.
    assert!(memory == expected, "{who}: clearing {len} bytes at {offset}");
}

proptest! {
    #[test]
    fn every_engine_clears_exactly_the_range(
        offset in 0usize..5000, len in prop_oneof![0usize..300, 0usize..20_000],
    ) {
        for engine in CpuEngine::available() {
            let mut memory = vec![PATTERN; 25_100];
            // SAFETY: the range lies in `memory`.
            unsafe { engine.clear(memory.as_mut_ptr().add(offset), len) };
            assert_cleared_exactly(&memory, offset, len, engine.name());
        }
    }

    #[test]
    fn the_clearer_does_too_whatever_is_asked(
        offset in 0usize..200,
        len in prop_oneof![0usize..20_000, 500_000usize..600_000, 4_000_000usize..4_400_000],
        hot in any::<bool>(),
        nocache in prop::sample::select(vec![Nocache::Auto, Nocache::On, Nocache::Off]),
    ) {
        let warmth = if hot { Warmth::Hot } else { Warmth::Cold };
        let mut memory = vec![PATTERN; offset + len + 100];
        // SAFETY: the range lies in `memory`.
        unsafe { Clearer::detect().clear_as(memory.as_mut_ptr().add(offset), len, warmth, nocache) };
        assert_cleared_exactly(&memory, offset, len, "clearer");
    }
}

#[test]
fn portable_is_always_there_and_names_are_unique() {
    let engines: Vec<_> = CpuEngine::available().collect();
    assert_eq!(engines.last(), Some(&CpuEngine::PORTABLE));
    assert!(engines.len() <= CpuEngine::MAX);
    let names: std::collections::HashSet<_> = engines.iter().map(|engine| engine.name()).collect();
    assert_eq!(names.len(), engines.len());
}

#[test]
#[cfg(target_arch = "x86_64")]
fn detection_agrees_with_std() {
    let has = |name| CpuEngine::available().any(|engine| engine.name() == name);
    assert_eq!(has("avx2-nt"), is_x86_feature_detected!("avx2"));
    assert_eq!(has("avx512-nt"), is_x86_feature_detected!("avx512f"));
}

#[test]
fn a_plan_survives_its_text() {
    let clearer = Clearer::detect();
    assert_eq!(Clearer::from_env_str(&clearer.plan().to_string()), Ok(clearer));
}

#[test]
fn plans_are_read_strictly() {
    let parse = |text| Plan::parse(text, CpuEngine::available()).map(|plan| plan.to_string());
    let all = "portable,portable,portable,portable/portable,portable,portable,portable";
    assert_eq!(parse("portable").as_deref(), Ok(all));
    assert_eq!(parse("portable/portable,portable,portable,portable").as_deref(), Ok(all));
    assert_eq!(parse(""), Err(PlanError::NoSuchEngine));
    assert_eq!(parse("abacus"), Err(PlanError::NoSuchEngine));
    assert_eq!(parse("portable/"), Err(PlanError::NoSuchEngine));
    assert_eq!(parse("portable,portable"), Err(PlanError::Count));
    assert_eq!(parse("portable,portable,portable,portable,portable"), Err(PlanError::Count));
}

#[test]
fn nocache_is_obeyed_where_there_is_a_choice() {
    let clearer = Clearer::detect();
    let can = |path| CpuEngine::available().any(|engine| engine.path() == path);
    for len in SIZES {
        let path = |nocache| clearer.engine_as(len, Warmth::Cold, nocache).path();
        assert!(!can(Path::Around) || path(Nocache::On) == Path::Around);
        assert!(!can(Path::Through) || path(Nocache::Off) == Path::Through);
    }
}

#[test]
fn calibration_yields_a_plan_that_can_be_handed_on() {
    let mut scratch = vec![1u8; calibrate::SCRATCH_BYTES];
    let clearer = Clearer::calibrate(&mut scratch);
    let handed_on = Clearer::from_env_str(&clearer.plan().to_string()).expect("a plan");
    assert_eq!(handed_on.plan(), clearer.plan());
    // Too little memory to measure in: what CPUID says.
    assert_eq!(Clearer::calibrate(&mut scratch[..1000]), Clearer::detect());
}

/// What a [`FakeDevice`] does with a piece.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// does not take it: no room
    Refuse,
    /// zeroes it at a later poll
    Zero { polls: u8 },
    /// zeroes some of it, says so, and stops
    Fault { percent: u8 },
    /// scribbles zeros over some of it but says nothing of it
    FaultSilently { percent: u8 },
    /// never comes back
    Hang,
}

/// A device that follows a script: the fate of each piece it is offered, in turn.
#[derive(Debug)]
struct FakeDevice {
    script: Vec<Fate>,
    state: Mutex<DeviceState>,
    /// is lost after it was offered so many pieces
    lost_after: usize,
}

#[derive(Debug, Default)]
struct DeviceState {
    offered: usize,
    /// fate and polls so far of the pieces taken; the tag is the index
    taken: Vec<(Fate, u8)>,
    submits_after_loss: usize,
}

impl FakeDevice {
    fn new(script: Vec<Fate>, lost_after: usize) -> FakeDevice {
        FakeDevice { script, lost_after, state: Mutex::default() }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, DeviceState> {
        self.state.lock().expect("no test panics in here")
    }
}

/// Zeroes the first `percent` of what remains of a piece.
unsafe fn zero_part(piece: &Piece, percent: u8) -> usize {
    let (at, len) = piece.remaining();
    let part = len * usize::from(percent) / 100;
    // SAFETY: the part lies in the piece.
    unsafe { at.write_bytes(0, part) };
    part
}

// SAFETY: pieces are settled as zeroed after they were zeroed, and touched no more.
unsafe impl Engine for FakeDevice {
    fn name(&self) -> &'static str {
        "fake"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let mut state = self.state();
        for piece in pieces.iter_mut().filter(|piece| piece.state() == State::Waiting) {
            if state.offered >= self.lost_after {
                state.submits_after_loss += 1;
                return Err(Lost);
            }
            let fate = self.script[state.offered % self.script.len()];
            state.offered += 1;
            if !matches!(fate, Fate::Refuse) {
                piece.take(state.taken.len() as u32);
                state.taken.push((fate, 0));
            }
        }
        Ok(())
    }

    unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
        let mut state = self.state();
        for piece in pieces.iter_mut().filter(|piece| piece.state() == State::InFlight) {
            let (fate, polls) = &mut state.taken[piece.tag() as usize];
            *polls += 1;
            // SAFETY: the pieces' memory is the test's; what is said of it is true.
            unsafe {
                match *fate {
                    Fate::Zero { polls: wanted } if *polls >= wanted => {
                        zero_part(piece, 100);
                        piece.settle_zeroed();
                    }
                    Fate::Fault { percent } => {
                        let done = zero_part(piece, percent);
                        piece.settle_faulted(done);
                    }
                    Fate::FaultSilently { percent } => {
                        zero_part(piece, percent);
                        piece.settle_faulted(0);
                    }
                    Fate::Zero { .. } | Fate::Hang | Fate::Refuse => {}
                }
            }
        }
        if state.offered >= self.lost_after {
            Err(Lost)
        } else {
            Ok(())
        }
    }
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        Just(Fate::Refuse),
        (0u8..4).prop_map(|polls| Fate::Zero { polls }),
        (0u8..=100).prop_map(|percent| Fate::Fault { percent }),
        (0u8..=100).prop_map(|percent| Fate::FaultSilently { percent }),
        Just(Fate::Hang),
    ]
}

fn device() -> impl Strategy<Value = FakeDevice> {
    let lost_after = prop_oneof![Just(usize::MAX), 0usize..20];
    (prop::collection::vec(fate(), 1..8), lost_after)
        .prop_map(|(script, lost_after)| FakeDevice::new(script, lost_after))
}

proptest! {
    #[test]
    fn a_chain_zeroes_all_that_does_not_hang_and_never_claims_more(
        devices in prop::collection::vec(device(), 0..3),
        lens in prop::collection::vec(0usize..3000, 0..20),
    ) {
        let engines: Vec<&dyn Engine> = devices.iter().map(|device| device as _).collect();
        let chain = Chain::new(&engines, Clearer::detect());
        let memory: Vec<_> = lens.iter().map(|&len| RefCell::new(vec![PATTERN; len + 2])).collect();
        let mut pieces: Vec<Piece> = memory
            .iter()
            .map(|memory| {
                let mut memory = memory.borrow_mut();
                Piece::new(memory[1..].as_mut_ptr(), memory.len() - 2, Warmth::Cold)
            })
            .collect();

        // SAFETY: nobody else uses the memory, and it outlives the pieces.
        unsafe { chain.submit(&mut pieces) }.expect("a chain is never lost");
        const POLLS: usize = 20;
        for _ in 0..POLLS {
            for (piece, memory) in pieces.iter().zip(&memory) {
                if piece.state() == State::Zeroed {
                    let memory = memory.borrow();
                    assert_cleared_exactly(&memory, 1, memory.len() - 2, "chain");
                }
            }
            // SAFETY: as above.
            unsafe { chain.poll(&mut pieces) }.expect("a chain is never lost");
        }

        for piece in &pieces {
            let hangs = || {
                let taken = &devices[usize::from(piece.stage)].state().taken;
                matches!(taken[piece.tag() as usize].0, Fate::Hang)
            };
            prop_assert!(piece.state() == State::Zeroed || hangs(), "{piece:?}");
        }
    }

    #[test]
    fn a_lost_device_is_not_offered_anything_again(lens in prop::collection::vec(1usize..99, 1..9)) {
        let device = FakeDevice::new(vec![Fate::Zero { polls: 1 }], 0);
        let engines: [&dyn Engine; 1] = [&device];
        let chain = Chain::new(&engines, Clearer::detect());
        for len in lens {
            let mut memory = vec![PATTERN; len];
            let mut pieces = [Piece::new(memory.as_mut_ptr(), len, Warmth::Hot)];
            // SAFETY: the memory is this test's.
            unsafe { chain.submit(&mut pieces) }.expect("a chain is never lost");
            prop_assert_eq!(pieces[0].state(), State::Zeroed);
            prop_assert!(memory.iter().all(|&byte| byte == 0));
        }
        prop_assert!(chain.is_lost(0));
        prop_assert_eq!(device.state().submits_after_loss, 1);
    }
}
