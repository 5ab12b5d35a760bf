//! A program whose large allocations are pumice's: two lines of it.
//!
//! It sums columns of matrices that it makes anew each time, as numerical programs do, and says
//! what was served. Run it by `cargo run --release -p pumice --example zeroed_vectors`.

use pumice::stats::Event;

#[global_allocator]
static ALLOCATOR: pumice::Allocator = pumice::Allocator::new();

const SIDE: usize = 1024;
const ROUNDS: usize = 50;

/// Makes a matrix of zeros, fills its diagonal and one row, and adds everything up.
fn trace_of_a_new_matrix() -> f64 {
    let mut matrix = vec![0.0; SIDE * SIDE];
    for index in 0..SIDE {
        matrix[index * SIDE + index] = 1.0;
    }
    matrix[..SIDE].fill(1.0);
    matrix.iter().sum()
}

/// Does it over and over, and says what came of it.
pub fn main() {
    let sum: f64 = (0..ROUNDS).map(|_| trace_of_a_new_matrix()).sum();
    println!("sum {sum}");
    assert_eq!(sum, (ROUNDS * (2 * SIDE - 1)) as f64);
    match ALLOCATOR.slot() {
        Some(slot) => {
            for event in [Event::Requests, Event::Hits, Event::Misses, Event::HotClearedBytes] {
                println!("{} {}", event.name(), slot.get(event));
            }
        }
        None => println!("nothing is served in this process"),
    }
}
