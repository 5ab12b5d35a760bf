//! What an engine beside the processor does to the ledger, whatever goes wrong with it.

use proptest::prelude::*;

use super::*;
use crate::clear::fake::script;
use crate::scrub::flight::{Back, Flight};

const BLOCKS: usize = 12;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The heap verifies each allocation: a frame marked zeroed that is not ends the test.
    #[test]
    fn a_frame_is_zeroed_only_if_it_is_however_an_engine_fails(script in script()) {
        let heap = new_heap(Topology::one(), BLOCKS * BLOCK_SIZE, 1 << 30, Verify::Yes);
        while heap.populate() == Left::More {}
        // Never dropped before its memory: a device that hangs may write on.
        let device = script.device();
        let mut flight = Flight::new(&device);
        let mut held = 0;
        for _ in 0..4 {
            let runs: Vec<_> = (0..4).map(|_| get(heap, 3 * BLOCK_SIZE, Content::Zero)).collect();
            for &at in &runs {
                prop_assert!(is_zeroed(at, 3 * BLOCK_SIZE));
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
                flight.collect(|claim, back| {
                    held -= 1;
                    let outcome = match back {
                        Back::Zeroed => Outcome::Zeroed,
                        Back::Rest(_) => Outcome::Dirty,
                    };
                    heap.finish(claim, outcome);
                });
            }
        }
        prop_assert_eq!(held == 0, flight.is_empty());
    }
}
