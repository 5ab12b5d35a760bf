//! The effects of an engine beside the processor on the ledger, in every way that it can fail.

use proptest::prelude::*;

use super::*;
use crate::scrub::flight::{Back, Flight};
use pumice_accel::dsa::driven::{manner, Driven};
use pumice_frames::clear::fake::script;
use pumice_frames::clear::{Engine, Lost, Piece, PieceState};

const BLOCKS: usize = 12;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_frame_is_zeroed_only_if_it_is_however_an_engine_fails(script in script()) {
        scrub_and_use(&script.device());
    }

    /// Lost and late records, wrong statuses and faults in strange places among them.
    #[test]
    fn and_however_the_accelerator_does(manner in manner()) {
        scrub_and_use(&Driven::new(&manner));
    }
}

/// Takes whatever it is given, and never says anything of it.
struct Hung;

// SAFETY: nothing is ever settled.
unsafe impl Engine for Hung {
    fn name(&self) -> &'static str {
        "hung"
    }

    unsafe fn submit(&self, pieces: &mut [Piece]) -> core::result::Result<(), Lost> {
        pieces
            .iter_mut()
            .filter(|piece| piece.state() == PieceState::Waiting)
            .for_each(|piece| piece.take(0));
        Ok(())
    }

    unsafe fn poll(&self, _pieces: &mut [Piece]) -> core::result::Result<(), Lost> {
        Ok(())
    }
}

#[test]
fn nobody_waits_for_what_an_engine_has() {
    let heap = new_heap(Topology::one(), BLOCKS * BLOCK_SIZE, 1 << 30, Verify::Yes);
    while heap.populate() == Left::More {}
    let at = get(heap, 3 * BLOCK_SIZE, Content::Any);
    free(heap, at);
    heap.age(Order::BLOCK);
    let mut flight = Flight::new(&Hung);
    assert_eq!(flight.launch(|| heap.claim(Order::BLOCK)), 3 * BLOCK_SIZE);
    let zone = heap.zones.local(0, ZoneKind::Ready);
    let is_waited_for = || zone.ledger().has_more_claims_than(heap.scrubber.claims_away());
    assert!(is_waited_for());
    heap.scrubber.set_claims_away(flight.claims());
    assert!(!is_waited_for() && zone.ledger().has_more_claims_than(0));
    let one = heap.claim(Order::BLOCK);
    assert_eq!(one.is_some(), is_waited_for(), "what scrubd itself has comes back soon");
}

/// The heap verifies each allocation: a frame marked zeroed that is not ends the test.
fn scrub_and_use(engine: &dyn Engine) {
    let heap = new_heap(Topology::one(), BLOCKS * BLOCK_SIZE, 1 << 30, Verify::Yes);
    while heap.populate() == Left::More {}
    let mut flight = Flight::new(engine);
    let mut held = 0;
    for _ in 0..4 {
        let runs: Vec<_> = (0..4).map(|_| get(heap, 3 * BLOCK_SIZE, Content::Zero)).collect();
        for &at in &runs {
            assert!(is_zeroed(at, 3 * BLOCK_SIZE));
            fill(at, 3 * BLOCK_SIZE);
        }
        runs.into_iter().for_each(|at| free(heap, at));
        heap.age(Order::BLOCK);
        for _ in 0..20 {
            while flight.has_room() {
                let launched = flight.launch(|| heap.claim(Order::BLOCK));
                if launched == 0 {
                    break;
                }
                held += launched / BLOCK_SIZE;
            }
            flight.collect(
                |_| (),
                |claim, back| {
                    held -= 1;
                    let outcome = match back {
                        Back::Zeroed => Outcome::Zeroed,
                        Back::Rest(_) => Outcome::Dirty,
                    };
                    heap.finish(claim, outcome);
                },
            );
        }
    }
    assert_eq!(held == 0, flight.is_empty());
}
