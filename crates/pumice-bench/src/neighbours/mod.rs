//! Programs that do something else meanwhile, and the cost to them of work in the background.
//!
//! | module | contents |
//! |---|---|
//! | [`neighbour`] | a process that computes or streams through memory, and counts how far it gets |
//! | [`case`] | neighbours of one kind, and where they run |
//! | [`pairs`] | windows with and without the work in the background, and their result |

pub mod case;
mod neighbour;
pub mod pairs;

use neighbour::Neighbour;
pub use neighbour::{Session, Work};

use std::thread;
use std::time::{Duration, Instant};

/// Neighbours that have not begun by then never will.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often they are looked at until then.
const LOOK_AGAIN: Duration = Duration::from_millis(30);

/// Waits until all have begun: one that streams faults its memory in first.
///
/// # Errors
/// Why there is nothing to measure.
fn wait_until_all_work(neighbours: &[Neighbour]) -> Result<(), String> {
    let start = Instant::now();
    while neighbours.iter().any(|neighbour| neighbour.work_done() == 0) {
        if start.elapsed() > PATIENCE {
            return Err("a neighbour does not get to work".to_owned());
        }
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}
