//! Every engine against a plain model; a device that refuses, faults and is lost.

use proptest::prelude::*;
use std::cell::RefCell;

use super::contract::{uphold, Ground, Hope};
use super::fake::{device, FakeDevice, Fate};
use super::*;

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
        text in prop::sample::select(vec!["cpu", "/around", "/through"]),
    ) {
        let warmth = if hot { Warmth::Hot } else { Warmth::Cold };
        let clearer = Clearer::from_env_str(text).expect("a plan");
        let mut memory = vec![PATTERN; offset + len + 100];
        // SAFETY: the range lies in `memory`.
        unsafe { clearer.clear(memory.as_mut_ptr().add(offset), len, warmth) };
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
    for kind in EngineKind::ALL {
        let clearer = clearer.with_ahead(kind);
        assert_eq!(Clearer::from_env_str(&clearer.to_string()), Ok(clearer));
        assert_eq!(Clearer::from_env_str(kind.name()), Ok(clearer));
        assert!(CpuEngine::available().all(|engine| engine.name() != kind.name()));
    }
}

#[test]
fn plans_are_read_strictly() {
    let parse = |text| Clearer::from_env_str(text).map(|clearer| clearer.plan().to_string());
    let all = "portable,portable,portable,portable/portable,portable,portable,portable";
    assert_eq!(parse("portable").as_deref(), Ok(all));
    assert_eq!(parse("portable/portable,portable,portable,portable").as_deref(), Ok(all));
    assert_eq!(parse(""), Err(PlanError::NoSuchEngine));
    assert_eq!(parse("abacus"), Err(PlanError::NoSuchEngine));
    for none in ["portable/", "/", "/ /cpu", "portable/portable/abacus", "cpu/portable", "cpu/cpu"]
    {
        assert_eq!(parse(none), Err(PlanError::NoSuchEngine), "{none}");
    }
    assert_eq!(parse("portable,portable"), Err(PlanError::Count));
    assert_eq!(parse("portable,portable,portable,portable,portable"), Err(PlanError::Count));
}

#[test]
fn a_path_is_taken_where_there_is_a_choice() {
    let before = Clearer::detect().with_ahead(EngineKind::Kernel);
    for (text, path) in [("/around", Path::Around), ("/through", Path::Through)] {
        let clearer = before.with_plan(text).expect("a plan");
        assert_eq!((clearer.plan().hot, clearer.ahead()), (before.plan().hot, EngineKind::Kernel));
        let can = CpuEngine::available().any(|engine| engine.path() == path);
        assert!(!can || clearer.plan().cold.map(CpuEngine::path) == [path; 4], "{clearer}");
    }
}

#[test]
fn calibration_yields_a_plan_that_can_be_handed_on() {
    let mut scratch = vec![1u8; calibrate::SCRATCH_BYTES];
    let clearer = Clearer::calibrate(&mut scratch);
    assert_eq!(Clearer::from_env_str(&clearer.to_string()), Ok(clearer));
    // Too little memory to measure in: the plan comes from CPUID.
    assert_eq!(Clearer::calibrate(&mut scratch[..1000]), Clearer::detect());
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
                if piece.state() == PieceState::Zeroed {
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
            prop_assert!(piece.state() == PieceState::Zeroed || hangs(), "{piece:?}");
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
            prop_assert_eq!(pieces[0].state(), PieceState::Zeroed);
            prop_assert!(memory.iter().all(|&byte| byte == 0));
        }
        prop_assert!(chain.is_lost(0));
        prop_assert_eq!(device.state().submits_after_loss, 1);
    }
}

#[test]
fn the_processors_engines_uphold_the_contract() {
    for engine in CpuEngine::available() {
        uphold(Hope::AllZeroed, || engine);
    }
    uphold(Hope::AllZeroed, Clearer::detect);
    uphold(Hope::AllZeroed, || Chain::new(&[], Clearer::detect()));
}

#[test]
fn the_kernels_engine_upholds_the_contract() {
    uphold(Hope::AllZeroed, || {
        // SAFETY: the suite's memory is private and anonymous.
        unsafe { Kernel::new() }
    });
    uphold(Hope::AllZeroed, || {
        // SAFETY: as above.
        unsafe { Kernel::one_by_one() }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn devices_that_fail_uphold_the_contract(script in fake::script(), chained in any::<bool>()) {
        let new = || script.device();
        uphold(Hope::Anything, new);
        if chained {
            let devices = [new(), new()];
            let engines: [&dyn Engine; 2] = [&devices[0], &devices[1]];
            uphold(Hope::Anything, || Chain::new(&engines, Clearer::detect()));
        }
    }
}

#[test]
fn locked_memory_is_not_handed_back_and_not_called_zero() {
    let ground = Ground::new(4 * 4096, vec![0..4096, 4096..3 * 4096, 3 * 4096..4 * 4096]);
    let mut pieces = ground.pieces();
    let (at, len) = pieces[1].range();
    // SAFETY: locking changes no content.
    if unsafe { rustix::mm::mlock(at.cast(), len) }.is_err() {
        eprintln!("skipped: no memory may be locked here");
        return;
    }
    // SAFETY: as above.
    let kernel = unsafe { Kernel::new() };
    // SAFETY: the memory is this test's.
    unsafe { kernel.submit(&mut pieces) }.expect("never lost");
    let states: Vec<_> = pieces.iter().map(Piece::state).collect();
    assert_eq!(states, [PieceState::Zeroed, PieceState::Faulted, PieceState::Zeroed]);
    ground.check(&pieces, "kernel");
    // SAFETY: as above.
    unsafe { rustix::mm::munlock(at.cast(), len) }.expect("it is locked");
}
