//! How reclaim of a zone asks the caches that are registered with it: [`super::shrinker`] says for how much.
//!
//! No lock of the zone is held, and no space known, while a cache is asked.

use std::sync::Arc;

use pumice_frames::frame::Gfp;
use pumice_io::sync::contain;

use super::policy::Policy;
use super::round::Round;
use super::shrinker::{part, Ask, Call, Outcome, Shrinker, Trust, SHRINK_BATCH};
use super::zone::ZoneReclaim;

/// Ends a registration when it is dropped, after the calls that are in progress: but for one that the calling thread
/// itself is in.
#[must_use = "a registration ends when it is dropped"]
pub struct Registration<'r, P: Policy> {
    zone: &'r ZoneReclaim<P>,
    id: u64,
}

impl<P: Policy> Drop for Registration<'_, P> {
    fn drop(&mut self) {
        let mut state = self.zone.state();
        while state.shrinkers.close(self.id) {
            state = self.zone.let_go.wait(state);
        }
        let entry = state.shrinkers.remove(self.id);
        drop(state);
        // Its drop may run others' code, so no lock is held.
        drop(entry);
    }
}

impl<P: Policy> ZoneReclaim<P> {
    /// Asks a cache for frames too, from now on until the registration is dropped.
    pub fn register_shrinker(&self, shrinker: Arc<dyn Shrinker>) -> Registration<'_, P> {
        let (needs, frames) = (shrinker.needs(), shrinker.count());
        let id = self.state().shrinkers.add(shrinker, needs, frames);
        // Where it waits since nothing could go, there may be something now.
        self.wake.notify_all();
        Registration { zone: self, id }
    }

    /// Asks a cache for frames too while `work` is done.
    pub fn with_shrinker<R>(&self, shrinker: &dyn Shrinker, work: impl FnOnce() -> R) -> R {
        // SAFETY: the lifetime is shorter than it then says: the registration ends with this call, however that ends,
        // and waits for calls of it. The calling thread is in none, for one that it is in has begun after this.
        let shrinker =
            unsafe { std::mem::transmute::<&dyn Shrinker, &'static dyn Shrinker>(shrinker) };
        let _registration = self.register_shrinker(Arc::new(shrinker));
        work()
    }

    /// Frames that are free now, if anybody knows.
    fn count_now(&self) -> Option<usize> {
        self.state().members.free_frames()
    }
}

impl<P: Policy + Send> Round<'_, P> {
    /// Has caches give frames. Whether any did.
    pub fn shrink_caches(&mut self, ask: Ask) -> bool {
        let gfp = self.direct.unwrap_or(Gfp::KERNEL);
        let (mut after, mut has_freed) = (0, false);
        loop {
            let mut state = self.zone.state();
            let Some(call) = state.shrinkers.begin(after, ask, gfp) else { break };
            drop(state);
            if after == 0 {
                self.let_go_of_all();
            }
            after = call.id;
            has_freed |= self.shrink_cache(call, ask, gfp);
            if has_freed && !self.needs_more() {
                break;
            }
        }
        if after != 0 {
            self.meet_spaces();
        }
        has_freed
    }

    /// Has one cache pay its debt, as far as frames are needed. Returns whether it gave any.
    fn shrink_cache(&mut self, call: Call, ask: Ask, gfp: Gfp) -> bool {
        let Call { id, shrinker, owed, mut trust } = call;
        let mut outcome = Outcome::default();
        let went = contain(|| {
            // It goes in here: its drop may panic as well.
            let shrinker = shrinker;
            outcome.count = shrinker.count();
            let wanted = match ask {
                Ask::Owed => part(outcome.count, owed).max(outcome.count.min(1)),
                Ask::LastResort => outcome.count.min(SHRINK_BATCH),
            };
            while outcome.asked < wanted {
                let some = SHRINK_BATCH.min(wanted - outcome.asked);
                outcome.asked += some;
                let freed = self.scan_cache(&*shrinker, some, gfp, &mut trust);
                outcome.freed += freed;
                if freed == 0 || !self.needs_more() {
                    break;
                }
            }
        });
        outcome.has_panicked = went.is_none();
        self.zone.state().shrinkers.end(id, owed, &outcome, trust, gfp);
        self.zone.let_go.notify_all();
        outcome.freed > 0
    }

    /// One batch. How many frames are free by it, as far as that is believed.
    fn scan_cache(
        &mut self,
        shrinker: &dyn Shrinker,
        frames: usize,
        gfp: Gfp,
        trust: &mut Trust,
    ) -> usize {
        let before = if trust.is_to_check() { self.zone.count_now() } else { None };
        let said = shrinker.scan(frames, gfp).min(self.zone.frames());
        if let (Some(before), true) = (before, said > 0) {
            trust.note(self.zone.count_now().is_none_or(|now| now > before));
        }
        if said == 0 || trust.is_lost() {
            return 0;
        }
        self.note_shrunk(said);
        said
    }

    /// Takes note of frames that a cache gave, and wakes threads that wait for them.
    fn note_shrunk(&mut self, frames: usize) {
        self.progress.end_series();
        self.note_freed(frames);
        let mut state = self.zone.state();
        state.counts.shrunk += frames as u64;
        self.zone.tell(&mut state, frames);
    }

    /// Whether the thread that asked for frames, or the zone, is still short of them.
    fn needs_more(&self) -> bool {
        let mut state = self.zone.state();
        self.direct.is_none() && !state.is_stopped && state.is_short(self.zone.free())
    }
}
