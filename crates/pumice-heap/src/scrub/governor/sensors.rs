//! The readings of the machine that a governor wants.

/// Reads the world. Counters only grow; a sensor that the system lacks says `None`.
pub(in crate::scrub) trait Sensors {
    /// Monotonic time.
    fn now_ns(&mut self) -> u64;

    /// Processor time of the calling thread.
    fn cpu_time_ns(&mut self) -> u64;

    /// Processor time of the caller's process without the caller's own.
    fn program_ns(&mut self) -> u64;

    /// Processors of the system, for [`Sensors::others_runnable`] to be compared with.
    fn processors(&self) -> u32;

    /// Threads of the whole system, but the caller, that run or are ready to.
    fn others_runnable(&mut self) -> Option<u32>;

    /// Load average over a minute, in hundredths.
    fn load_hundredths(&mut self) -> u64;

    /// Idle time of the processors that the caller may run on, in all; `None` where it may run on
    /// all, since [`Sensors::others_runnable`] knows better then.
    fn idle_ns(&mut self) -> Option<u64>;

    /// The time that threads waited for a processor.
    fn waits(&mut self) -> Waits;

    /// The quota of the caller's group, `level` steps from the first group that has one;
    /// [`LEVELS`] at most.
    fn quota(&mut self, level: usize) -> Option<Quota>;

    /// Finds its files again: the process may have been moved to another group.
    fn refresh(&mut self);
}

/// Groups with a quota, one inside the other, that are heeded.
pub(in crate::scrub) const LEVELS: usize = 4;

/// Time spent ready and not running.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::scrub) struct Waits {
    /// The calling thread.
    pub(in crate::scrub) own_ns: u64,
    /// The process's first thread.
    pub(in crate::scrub) group_ns: Option<u64>,
    /// CPU pressure: somebody in the caller's group, or failing that in the system, waited.
    pub(in crate::scrub) pressure_ns: Option<u64>,
}

/// A group's quota of processor time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::scrub) struct Quota {
    /// Thousandths of one processor that the group may use.
    pub(in crate::scrub) limit: u64,
    /// Processor time that the group has used.
    pub(in crate::scrub) used_ns: u64,
    /// Periods in which it was throttled.
    pub(in crate::scrub) throttled: u64,
}
