//! Misuse that does not compile. Each example that does not has one beside it that does, and differs by it alone.
//!
//! Code that compiles, and must do no harm, is in `tests/adversaries`.
//!
//! A guard may be held for as long as its region, and no longer.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let guard = region.read(0)?;
//! assert_eq!(guard[0], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let guard = task.region(at)?.read(0)?;
//! assert_eq!(guard[0], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! So are pages in a row, and a reference to one of them goes with the range.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let range = region.read_range(0..2)?;
//! let page = &range[0];
//! assert_eq!(page[0], 0);
//! drop(range);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let range = task.region(at)?.read_range(0..2)?;
//! let page = &range[0];
//! assert_eq!(page[0], 0);
//! drop(range);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let range = region.read_range(0..2)?;
//! let page = &range[0];
//! drop(range);
//! assert_eq!(page[0], 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A region, a task, a space and the parts that spaces share live no longer than the parts they are made of.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! drop(region);
//! drop(task);
//! drop(space);
//! drop(map);
//! drop(zone);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! drop(task);
//! region.read(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! drop(space);
//! region.read(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! drop(map);
//! region.read(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! drop(zone);
//! region.read(0)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A task is one thread's at a time.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let other = space.enter()?;
//! std::thread::scope(|scope| scope.spawn(move || other.unmap(at, FRAME_SIZE)).join().is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! std::thread::scope(|scope| scope.spawn(|| task.unmap(at, FRAME_SIZE)).join().is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A reader without a guard keeps no reference to the page.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let seen = region.read_optimistic(0, |words| words.load(0))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let mut kept = None;
//! region.read_optimistic(0, |words| kept = Some(words))?;
//! let seen = kept.map(|words| words.load(0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Pages are written back, read, evicted and found by the crate alone: beginning that twice, or ending it late, would
//! put two pages into one frame.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! assert_eq!(task.mapped(at / FRAME_SIZE), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = task.begin_swap_out(at / FRAME_SIZE);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = task.begin_write_back(at / FRAME_SIZE);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = task.scan_present(0, |_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = task.scan_dirty(0..1, |_| ());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = task.is_being_read(0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Frames belong to those that got them: a zone's knowledge of them, and its operations on blocks that it takes for its
//! own, are the crate's, or unsafe.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! assert!(zone.free_frames() > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = zone.ledger.get_frame(0, pumice::frame::ledger::Want::Dirty);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! let _ = zone.ledger();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! zone.discard(0..1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! zone.reset(0..1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! zone.discard_frames(pumice::addr::Pfn(0), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! zone.reset_frames(pumice::addr::Pfn(0), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! So are the tables, and where frames come from.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! use pumice::page_table::{Rights as _, TableOps};
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! use pumice::page_table::FrameSource;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! use pumice::page_table::Tables;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! use pumice::page_table::tables::FrameList;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! use pumice::page_table::pager::Pager;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Code that is asked while frames are handed out must not ask for some itself: to promise that takes `unsafe`.
//! ```
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! struct Plenty;
//! // SAFETY: it comes back to nobody.
//! unsafe impl pumice_frames::frame::Budget for Plenty {
//!     fn charge(&self, _: usize) -> bool { true }
//!     fn uncharge(&self, _: usize) {}
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! ```compile_fail
//! # use pumice::{addr::FRAME_SIZE, clear::Clearer, frame::Zone, page_table::{Atomic, Rights}, sys::mem::Huge};
//! # use pumice::space::{MemMap, VmSpace};
//! # let zone = Zone::new(4 << 20, 1, Huge::No)?;
//! # let map = MemMap::new(&zone, Clearer::detect())?;
//! # let space = VmSpace::new(map.frames(), Atomic)?;
//! # let task = space.enter()?;
//! # let at = task.map(2 * FRAME_SIZE, Rights::READ_WRITE)?;
//! # let region = task.region(at)?;
//! struct Plenty;
//! impl pumice_frames::frame::Budget for Plenty {
//!     fn charge(&self, _: usize) -> bool { true }
//!     fn uncharge(&self, _: usize) {}
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
