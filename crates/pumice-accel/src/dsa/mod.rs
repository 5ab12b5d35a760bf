//! Intel's Data Streaming Accelerator, from user space: memory fills by a device beside the processor.
//!
//! | file | contents |
//! |---|---|
//! | `descriptor` | descriptors and completion records, bit by bit |
//! | `driven` | an engine over that device, for tests |
//! | `groups` | the owner of each of them |
//! | `portal` | how a descriptor reaches the device: [`Portal`] |
//! | `queues` | the work queues that the kernel offers |
//! | `soft` | a device in software, for tests and measurements: [`soft::SoftDevice`] |
//!
//! The device shares the process's address space (shared virtual memory), so a fill names memory as the program does,
//! and a page that is not there is a page fault: the device then ends the fill and says how far it came. The processor
//! touches the page and hands over the rest; after [`MOST_RESUMES`] of them it is cheaper to let the processor do the
//! rest.
//!
//! A batch of pieces is one descriptor that names a list of up to 64. A descriptor can't be taken
//! back: cancelling only has no rest handed over any more.
//!
//! # Trust
//! Each status of a record has one meaning (`descriptor`). Only success, and a write that faulted within the fill, say
//! that bytes are zero. A report that no device makes of a fill, or that the hardware failed, means that nothing is
//! known: the engine is lost, and its pieces in flight stay in flight.

#[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "the engine is not modelled"))]
mod descriptor;
#[cfg(all(any(test, feature = "fake"), not(any(loom, shuttle))))]
#[allow(missing_docs, reason = "for tests")]
pub mod driven;
#[cfg_attr(any(loom, shuttle), allow(dead_code, reason = "the engine is not modelled"))]
mod groups;
mod portal;
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
mod queues;
#[cfg(all(any(test, feature = "soft"), not(any(loom, shuttle))))]
pub mod soft;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use descriptor::Descriptor;
#[cfg(not(any(loom, shuttle)))]
pub use portal::Hardware;
pub use portal::{Handover, Portal};
#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
pub use queues::{Mode, Places, WorkQueue};

#[cfg(not(any(loom, shuttle)))]
pub use engine::Dsa;

/// A piece is handed over again so often after page faults.
pub const MOST_RESUMES: u32 = 16;

/// Why there is no such engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Not a processor that has one.
    #[error("this processor has no MOVDIR64B and no ENQCMD, the instructions that drive the accelerator")]
    NoInstruction,
    /// The driver is not there.
    #[error("there is no /sys/bus/dsa: no accelerator, or its driver (idxd) is not loaded")]
    NoDriver,
    /// No queue for users.
    #[error(
        "no work queue of type user is enabled under /sys/bus/dsa/devices: see accel-config(1)"
    )]
    NoQueue,
    /// The kernel refused it.
    #[error("a work queue can't be opened: {0}")]
    Os(rustix::io::Errno),
}

#[cfg(not(any(loom, shuttle)))]
mod engine {
    use core::ptr::NonNull;

    use super::descriptor::{status, BatchCompletion, Completion, Descriptor, Towards};
    use super::groups::{Group, Groups, Handed, GROUPS, PIECES};
    use super::portal::{Handover, Portal};
    use super::{OpenError, MOST_RESUMES};
    use pumice_frames::addr::FRAME_SIZE;
    use pumice_frames::clear::engine::{Engine, Lost, Piece, PieceState};
    use pumice_frames::clear::Warmth;
    use pumice_frames::sync::atomic::{AtomicBool, Ordering};
    use pumice_frames::sys::mem;
    use pumice_frames::sys::thread::Maker;

    /// See the module's top.
    #[derive(Debug)]
    pub struct Dsa<P: Portal> {
        portal: P,
        groups: Groups<'static>,
        memory: NonNull<u8>,
        maker: Maker,
        /// Set once, never unset. Relaxed: it spares calls, and orders nothing.
        is_lost: AtomicBool,
    }

    const TABLE_BYTES: usize = (GROUPS * size_of::<Group>()).next_multiple_of(FRAME_SIZE);

    // SAFETY: the memory is only reached by way of the groups, which are `Sync`.
    unsafe impl<P: Portal + Send> Send for Dsa<P> {}
    // SAFETY: as above.
    unsafe impl<P: Portal> Sync for Dsa<P> {}

    impl<P: Portal> Dsa<P> {
        /// An engine on a portal. Its descriptors lie in memory that a forked child does not have:
        /// copying on write would take it from under the device.
        ///
        /// # Errors
        /// [`OpenError::Os`] without memory.
        pub fn on(portal: P) -> Result<Dsa<P>, OpenError> {
            let memory = mem::map_kept_from_children(TABLE_BYTES).map_err(OpenError::Os)?;
            // SAFETY: mapped and zero, and zeros are groups that are not in use; unmapped only once
            // no group is in use and this value goes.
            let groups = unsafe { core::slice::from_raw_parts(memory.cast().as_ptr(), GROUPS) };
            let (groups, is_lost) = (Groups::new(groups), AtomicBool::new(false));
            Ok(Dsa { portal, groups, memory, maker: Maker::here(), is_lost })
        }

        /// The portal.
        pub fn portal(&self) -> &P {
            &self.portal
        }

        /// For tests: writes a record of the first group, the batch's behind the others'.
        #[cfg(test)]
        pub(super) fn scribble(&self, index: usize, status: u8, bytes: u32, at: u64) {
            let group = self.groups.get(0);
            let place = index * 7 % (PIECES + 1);
            group.records.get(place).unwrap_or(&group.batch).complete(status, bytes, at);
        }

        /// For tests: gives the memory back though groups are in use.
        ///
        /// # Safety
        /// The device writes to them no more.
        #[cfg(any(test, feature = "fake"))]
        pub(super) unsafe fn give_back(self) {
            let this = core::mem::ManuallyDrop::new(self);
            // SAFETY: mapped by `on`; the caller says that the device is done, and nobody has this value any more.
            let _ = unsafe { mem::unmap(this.memory, TABLE_BYTES) };
        }

        fn lose(&self) {
            self.is_lost.store(true, Ordering::Relaxed);
        }

        fn lost(&self) -> Result<(), Lost> {
            match self.is_lost.load(Ordering::Relaxed) {
                true => Err(Lost),
                false => Ok(()),
            }
        }

        /// Hands a descriptor over where the queue has room for it.
        ///
        /// # Safety
        /// As [`Portal::hand_over`].
        unsafe fn hand_over(&self, descriptor: &Descriptor) -> bool {
            if !self.groups.enter_queue(self.portal.entries().unwrap_or(u32::MAX)) {
                return false;
            }
            // SAFETY: as the caller promises.
            let handed = unsafe { self.portal.hand_over(descriptor) };
            if handed == Handover::Broken {
                self.lose();
            }
            if handed != Handover::Taken {
                self.groups.leave_queue();
            }
            handed == Handover::Taken
        }

        /// The descriptor for what remains of a piece, or as much as one may fill.
        fn descriptor(&self, piece: &Piece, group: &Group, index: usize) -> Descriptor {
            let (at, len) = piece.remaining();
            let len = len.min(self.portal.most_bytes() as usize);
            let towards = match piece.warmth() {
                Warmth::Hot => Towards::Cache,
                Warmth::Cold => Towards::Memory,
            };
            let record = core::ptr::from_ref(&group.records[index]) as u64;
            Descriptor::zero(at as u64, len as u32, towards, record)
        }

        /// Takes the first of the waiting pieces, as many as go into one descriptor. `false`: no room.
        fn submit_group(&self, pieces: &mut [Piece]) -> bool {
            let Some(number) = self.groups.take() else { return false };
            let group = self.groups.get(number);
            let in_batch = self.portal.most_in_batch().min(PIECES);
            let most = if in_batch < 2 { PIECES } else { in_batch };
            let waiting =
                || pieces.iter().filter(|piece| piece.state() == PieceState::Waiting).take(most);
            let mut count = 0;
            for (index, piece) in waiting().enumerate() {
                // SAFETY: the group is ours, and none of it is handed over yet.
                unsafe { group.write(index, self.descriptor(piece, group, index)) };
                count += 1;
            }
            let how = if count < 2 || in_batch < 2 { Handed::OneByOne } else { Handed::AsBatch };
            self.groups.begin(number, count, how);
            // SAFETY: as above.
            let list = unsafe { group.read(count) };
            // SAFETY: the pieces are the caller's until they are settled, and the group ours until then.
            let hand_over = |one: &Descriptor| unsafe { self.hand_over(one) };
            let taken = match how {
                Handed::AsBatch => {
                    let record = core::ptr::from_ref(&group.batch) as u64;
                    let batch = Descriptor::batch(group.list_at(), count as u32, record);
                    if hand_over(&batch) {
                        count
                    } else {
                        0
                    }
                }
                Handed::OneByOne => list.iter().take_while(|one| hand_over(one)).count(),
            };
            if taken == 0 {
                self.groups.give_back(number);
                return false;
            }
            let waiting = pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting);
            for (index, piece) in waiting.take(taken).enumerate() {
                piece.take((number * PIECES + index) as u32);
            }
            // Those that were not taken have come to an end.
            for index in taken..count {
                group.notes[index].take_entry();
                self.groups.release(number);
            }
            taken == count
        }

        /// Looks for a piece's completion.
        fn look(&self, piece: &mut Piece) {
            let (number, index) = (piece.tag() as usize / PIECES, piece.tag() as usize % PIECES);
            let group = self.groups.get(number);
            let note = &group.notes[index];
            // SAFETY: the piece's owner holds its descriptor.
            let fill = unsafe { group.read_one(index) };
            let len = fill.bytes_to_fill();
            // In this order: descriptors that ended before their batch have written their records by then, but see
            // below.
            let batch = self.groups.batch(number);
            let completion = Completion::of(group.records[index].read(), &fill);
            let (done, has_more) = match completion {
                Completion::Done => (len as usize, piece.remaining().1 > len as usize),
                Completion::Fault { done, at } => {
                    let may_try = !note.is_cancelled() && note.count_resume() < MOST_RESUMES;
                    if may_try {
                        touch(piece, done as usize, at);
                    }
                    (done as usize, may_try)
                }
                Completion::Refused => (0, false),
                Completion::None if note.is_single() => return,
                Completion::None => match batch {
                    // The batch ended before it came to this one.
                    BatchCompletion::Short { begun } if index >= begun as usize => (0, false),
                    // A record whose page the device did not find comes later, from the kernel.
                    BatchCompletion::None
                    | BatchCompletion::Done
                    | BatchCompletion::Short { .. } => return,
                    BatchCompletion::Nonsense => return self.lose(),
                },
                Completion::Nonsense => return self.lose(),
            };
            if batch == BatchCompletion::Nonsense {
                self.lose();
            }
            if note.take_entry() {
                self.groups.leave_queue();
            }
            if has_more && !note.is_cancelled() {
                // SAFETY: the device said that so much is written, and has ended the fill.
                unsafe { piece.advance(done) };
                return self.resume(piece, group, index);
            }
            // The last of a batch that is not over stays in flight, and is found the same again.
            if self.groups.release(number) {
                // SAFETY: as above; and it is handed over no more.
                unsafe {
                    match piece.remaining().1 == done {
                        true => piece.settle_zeroed(),
                        false => piece.settle_faulted(done),
                    }
                }
            }
        }

        /// Hands the rest of a piece over, whose descriptor has come to an end.
        fn resume(&self, piece: &Piece, group: &Group, index: usize) {
            let (note, record) = (&group.notes[index], &group.records[index]);
            note.set_single();
            record.reset();
            // SAFETY: the device has ended the descriptor that was there.
            let rest = unsafe { group.write(index, self.descriptor(piece, group, index)) };
            note.set_entry();
            // SAFETY: as in `submit_group`: the piece is in flight still.
            if !unsafe { self.hand_over(rest) } {
                note.take_entry();
                // As the device would say it, for the next look.
                record.complete(status::BAD_OPCODE, 0, 0);
            }
        }
    }

    /// Has the page there at which a fill of what remains of a piece stopped after `done` bytes.
    fn touch(piece: &Piece, done: usize, fault_at: u64) {
        let from = piece.remaining().0 as u64 + done as u64;
        let byte = fault_at.max(from) as *mut u8;
        // SAFETY: the rest of the fill, and of the piece, which nobody else uses, and where no descriptor is at work.
        unsafe { byte.write_volatile(byte.read_volatile()) };
    }

    // SAFETY: a piece is settled once its record says that its descriptor came to an end, and as
    // zeroed only where that and the ones before it say that all of it was written.
    unsafe impl<P: Portal> Engine for Dsa<P> {
        fn name(&self) -> &'static str {
            "dsa"
        }

        unsafe fn submit(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            self.lost()?;
            for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::Waiting) {
                if piece.remaining().1 == 0 {
                    piece.take(0);
                    // SAFETY: nothing is zero.
                    unsafe { piece.settle_zeroed() };
                }
            }
            while pieces.iter().any(|piece| piece.state() == PieceState::Waiting) {
                if !self.submit_group(pieces) {
                    break;
                }
            }
            self.lost()
        }

        unsafe fn poll(&self, pieces: &mut [Piece]) -> Result<(), Lost> {
            for piece in pieces.iter_mut().filter(|piece| piece.state() == PieceState::InFlight) {
                self.look(piece);
            }
            self.lost()
        }

        unsafe fn cancel(&self, pieces: &mut [Piece]) {
            for piece in pieces.iter().filter(|piece| piece.state() == PieceState::InFlight) {
                let tag = piece.tag() as usize;
                self.groups.get(tag / PIECES).notes[tag % PIECES].cancel();
            }
        }
    }

    impl<P: Portal> Drop for Dsa<P> {
        fn drop(&mut self) {
            // Else it is not there; and then the device may still write to it.
            if self.maker.is_here() && self.groups.are_all_free() {
                // SAFETY: mapped by `on`; no group is in use, and nobody has this value any more.
                let _ = unsafe { mem::unmap(self.memory, TABLE_BYTES) };
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    impl Dsa<super::portal::Hardware> {
        /// The first work queue that can be had: none, on this architecture.
        ///
        /// # Errors
        /// [`OpenError::NoInstruction`].
        pub fn open() -> Result<Self, OpenError> {
            Err(OpenError::NoInstruction)
        }
    }

    #[cfg(target_arch = "x86_64")]
    impl Dsa<super::portal::Hardware> {
        /// The first work queue that can be had.
        ///
        /// # Errors
        /// The part that is missing.
        pub fn open() -> Result<Self, OpenError> {
            Dsa::open_at(super::Places::KERNEL)
        }

        pub(super) fn open_at(places: super::Places<'_>) -> Result<Self, OpenError> {
            use super::portal::Hardware;
            use super::Mode;
            let has = crate::sys::enqueue::Enqueue::detect();
            let portal = places.find(|queue| {
                let can = match queue.mode {
                    Mode::Dedicated => has.movdir64b,
                    Mode::Shared => has.enqcmd,
                };
                if !can {
                    return Err(OpenError::NoInstruction);
                }
                let node = places.node(&queue).ok_or(OpenError::NoQueue)?;
                Hardware::open(node.as_c_str(), queue).map_err(OpenError::Os)
            })?;
            Dsa::on(portal)
        }
    }
}
