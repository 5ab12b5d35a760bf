//! A burst of scrubd's by an engine beside the processor: batches of blocks, several in flight.
//!
//! A batch has blocks of one memory node, which the thread prefers when it submits, looks at and finishes the batch:
//! pages of it that the kernel has taken meanwhile come back from there.

use super::claims::Claims;
use super::flight::{Back, Flight, BATCHES, CLAIMS};
use super::scrubd::Orders;
use super::{Claim, Outcome};
use pumice_frames::addr::{Order, BLOCK_SIZE};
use pumice_frames::clear::engine::LOOK;
use pumice_frames::clear::Engine;
use pumice_frames::sys::thread;

/// When scrubd is to end it waits so many looks for the pieces in flight; the rest is given up.
const LAST_LOOKS: u32 = 2000;

/// Claims as much as the settings say, has it cleared, and hands it back. The bytes cleared; `None` if nothing
/// is there to claim.
pub(super) fn burst<E: Engine>(
    claims: &Claims,
    flight: &mut Flight<E>,
    orders: &Orders,
) -> Option<usize> {
    let scrubber = claims.scrubber();
    let collect = |flight: &mut Flight<E>| {
        let finish = |claim: Claim, back: Back| {
            let zeroed = match back {
                Back::Zeroed => claim.len,
                Back::Rest(zeroed) => zeroed,
            };
            claims.finish(claim, zeroed);
        };
        flight.collect(|node| claims.prefer(node), finish);
        scrubber.set_claims_away(flight.claims());
    };
    // Pieces given up before may have come to their end meanwhile.
    collect(flight);
    let (mut bytes, mut odd) = (0, None);
    for number in 0..BATCHES {
        let due = orders.batch_bytes.saturating_sub(bytes).div_ceil(BLOCK_SIZE);
        let is_over = match odd {
            Some(Claim { len, .. }) => len < BLOCK_SIZE,
            None => number > 0 && due == 0,
        };
        if is_over || !flight.has_room() || scrubber.is_waited_for() {
            break;
        }
        let (batch, other) = gather(claims, odd, due.clamp(1, CLAIMS), orders.stop);
        odd = other;
        let Some(first) = batch[0] else { break };
        claims.prefer(first.node);
        let mut batch = batch.into_iter();
        bytes += flight.launch(|| batch.next().flatten());
        collect(flight);
    }
    let is_any = bytes > 0 || odd.is_some();
    if let Some(claim) = odd {
        if claims.finish(claim, 0) == Outcome::Zeroed {
            bytes += claim.len;
        }
    }
    see_through(claims, flight, collect);
    is_any.then_some(bytes)
}

/// Looks until nothing is in flight, or the engine is lost.
fn see_through<E: Engine>(
    claims: &Claims,
    flight: &mut Flight<E>,
    collect: impl Fn(&mut Flight<E>),
) {
    let scrubber = claims.scrubber();
    let (mut is_wanted, mut looks) = (true, 0);
    collect(flight);
    while !flight.is_empty() && !flight.is_lost() && looks < LAST_LOOKS {
        if is_wanted && (scrubber.is_waited_for() || scrubber.scrubd().is_stopped()) {
            flight.cancel();
            is_wanted = false;
        }
        looks += u32::from(scrubber.scrubd().is_stopped());
        thread::sleep(LOOK);
        collect(flight);
    }
}

/// Blocks of one node, `most` at most and `first` among them; and claims beside them that are none of those: a block
/// of another node, for the next batch, or an area within a block, for the processor, of which there is one claim at a
/// time.
fn gather(
    claims: &Claims,
    first: Option<Claim>,
    most: usize,
    stop: Order,
) -> ([Option<Claim>; CLAIMS], Option<Claim>) {
    let mut batch = [None; CLAIMS];
    batch[0] = first;
    for index in usize::from(first.is_some())..most.min(CLAIMS) {
        let Some(claim) = claims.claim(stop) else { break };
        let is_alike = batch[0].is_none_or(|first: Claim| first.node == claim.node);
        if claim.len < BLOCK_SIZE || !is_alike {
            return (batch, Some(claim));
        }
        batch[index] = Some(claim);
    }
    (batch, None)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::Mutex;

    use super::*;
    use crate::config::Setting;
    use crate::scrub::helper::Job;
    use crate::scrub::{Left, Need, Scrubber, Source};
    use crate::stats::{CounterSlot, Tree};
    use pumice_frames::clear::{is_zero, Clearer, Lost, Piece, PieceState};
    use pumice_frames::sys::mem;

    /// Blocks of several nodes, and an engine that does half of each: both know which node is preferred.
    struct Blocks {
        memory: usize,
        /// Of each block.
        nodes: Vec<usize>,
        /// An area that is claimed after the blocks.
        area: AtomicBool,
        next: AtomicUsize,
        finished: AtomicUsize,
        preferred: AtomicUsize,
        /// Blocks of each batch submitted.
        batches: Mutex<Vec<usize>>,
    }

    impl Blocks {
        fn new(nodes: &[usize]) -> &'static Blocks {
            let len = (nodes.len() + 1) * BLOCK_SIZE;
            let memory = mem::map_table(len).expect("memory").as_ptr();
            // SAFETY: mapped a moment ago.
            unsafe { memory.write_bytes(1, len) };
            Box::leak(Box::new(Blocks {
                memory: memory as usize,
                nodes: nodes.to_vec(),
                area: AtomicBool::new(false),
                next: AtomicUsize::new(0),
                finished: AtomicUsize::new(0),
                preferred: AtomicUsize::new(usize::MAX),
                batches: Mutex::default(),
            }))
        }

        fn at(&self, index: usize) -> *mut u8 {
            (self.memory + index * BLOCK_SIZE) as *mut u8
        }

        fn check_node(&self, at: *mut u8) {
            let node = self.nodes.get((at as usize - self.memory) / BLOCK_SIZE);
            let preferred = self.preferred.load(Ordering::Relaxed);
            assert!(node.is_none_or(|&node| node == preferred), "{preferred} for {node:?}");
        }

        fn batches(&self) -> Vec<usize> {
            core::mem::take(&mut self.batches.lock().expect("no panic"))
        }
    }

    // SAFETY: the blocks are the test's own.
    unsafe impl Source for Blocks {
        fn age(&self, _stop: Order) -> Left {
            Left::Nothing
        }

        fn claim(&self, _stop: Order) -> Option<Claim> {
            let index = self.next.load(Ordering::Relaxed);
            let (len, node) = match self.nodes.get(index) {
                Some(&node) => (BLOCK_SIZE, node),
                None if self.area.swap(false, Ordering::Relaxed) => (BLOCK_SIZE / 4, 0),
                None => return None,
            };
            self.next.store(index + 1, Ordering::Relaxed);
            self.prefer(node);
            Some(Claim { at: self.at(index), len, node, token: index as u64 })
        }

        fn prefer(&self, node: usize) {
            self.preferred.store(node, Ordering::Relaxed);
        }

        fn finish(&self, claim: Claim, outcome: Outcome) {
            assert_eq!(outcome, Outcome::Zeroed);
            self.check_node(claim.at);
            // SAFETY: nobody writes to it.
            assert!(unsafe { is_zero(claim.at, claim.len) });
            self.finished.fetch_add(1, Ordering::Relaxed);
        }

        fn need(&self) -> Need {
            Need::Wanted
        }

        fn left_to_populate(&self) -> Left {
            Left::Nothing
        }

        fn populate(&self) -> Left {
            Left::Nothing
        }

        fn offer(&self) -> Left {
            Left::Nothing
        }

        fn decay(&self) -> Left {
            Left::Nothing
        }
    }

    // SAFETY: memory said to be zero was written, and pieces are touched no more once they are settled.
    unsafe impl Engine for &Blocks {
        fn name(&self) -> &'static str {
            "half"
        }

        unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            let waiting = pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting);
            let taken = waiting.map(|piece| {
                self.check_node(piece.range().0);
                piece.take(0);
            });
            let count = taken.count();
            self.batches.lock().expect("no panic").push(count);
            Ok(())
        }

        unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::InFlight) {
                let (at, len) = piece.range();
                self.check_node(at);
                // SAFETY: the piece is this engine's.
                unsafe {
                    at.write_bytes(0, len / 2);
                    piece.settle_faulted(len / 2);
                }
            }
            Ok(())
        }
    }

    fn claims_of(blocks: &'static Blocks) -> (Claims, &'static CounterSlot) {
        let tree = Tree::private(0, 0).expect("memory");
        let slot = tree.attach(std::process::id()).expect("a slot");
        let scrubber = Box::leak(Box::new(Scrubber::new(
            slot,
            Clearer::detect(),
            pumice_frames::sys::sched::Affinity::UNKNOWN,
        )));
        (Claims::new(Job { scrubber, source: blocks }), slot)
    }

    #[test]
    fn a_batch_ends_where_the_node_changes() {
        let blocks = Blocks::new(&[0, 0, 1, 0, 2, 2, 2, 2, 2, 1]);
        let (claims, slot) = claims_of(blocks);
        Setting::ScrubBatchPages.set(slot, u64::MAX >> 20);
        let mut flight = Flight::new(blocks);
        let orders = Orders::read(slot);
        let mut bytes = 0;
        while let Some(cleared) = burst(&claims, &mut flight, &orders) {
            bytes += cleared;
        }
        assert_eq!(bytes, 10 * BLOCK_SIZE);
        // Four batches make a burst.
        assert_eq!(blocks.batches(), [2, 1, 1, 4, 1, 1]);
        assert_eq!(blocks.finished.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn a_burst_has_as_many_blocks_as_it_was_told() {
        let blocks = Blocks::new(&[0; 40]);
        let (claims, slot) = claims_of(blocks);
        let mut flight = Flight::new(blocks);
        let mut burst_of = |pages: u64| {
            Setting::ScrubBatchPages.set(slot, pages);
            let bytes = burst(&claims, &mut flight, &Orders::read(slot));
            (bytes.map(|bytes| bytes / BLOCK_SIZE), blocks.batches())
        };
        assert_eq!(burst_of(1), (Some(1), vec![1]));
        assert_eq!(burst_of(5 * 512), (Some(5), vec![4, 1]));
        assert_eq!(burst_of(5 * 512 + 1), (Some(6), vec![4, 2]));
        assert_eq!(burst_of(1 << 30), (Some(BATCHES * CLAIMS), vec![CLAIMS; BATCHES]));
        assert_eq!(burst_of(1 << 30), (Some(12), vec![4, 4, 4]));
        assert_eq!(burst_of(1 << 30), (None, vec![]));
    }

    #[test]
    fn an_area_within_a_block_is_the_processors() {
        let blocks = Blocks::new(&[0, 0]);
        blocks.area.store(true, Ordering::Relaxed);
        let (claims, slot) = claims_of(blocks);
        Setting::ScrubBatchPages.set(slot, 5 * 512);
        let mut flight = Flight::new(blocks);
        let bytes = burst(&claims, &mut flight, &Orders::read(slot));
        assert_eq!((bytes, blocks.batches()), (Some(2 * BLOCK_SIZE + BLOCK_SIZE / 4), vec![2]));
        assert_eq!(blocks.finished.load(Ordering::Relaxed), 3);
    }
}
