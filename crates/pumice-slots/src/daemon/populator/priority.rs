//! The priority of threads that populate.

use rustix::thread::{gettid, Pid};

/// The calling thread's number.
pub fn own_number() -> i32 {
    Pid::as_raw(Some(gettid()))
}

/// Puts the calling thread under `SCHED_IDLE`. Without success it has the daemon's own priority, and the
/// pacer all the same.
pub fn lower() {
    set(0, libc::SCHED_IDLE);
}

/// Gives a thread of this process the normal priority again, which needs `CAP_SYS_NICE` or an
/// `RLIMIT_NICE` that allows it. Whether it did.
pub fn raise(number: i32) -> bool {
    set(number, libc::SCHED_OTHER)
}

fn set(number: i32, policy: i32) -> bool {
    let nothing = libc::sched_param { sched_priority: 0 };
    // SAFETY: 0 is the calling thread, any other number one of this process's, or none; the parameters are
    // valid for the call.
    unsafe { libc::sched_setscheduler(number, policy, &nothing) == 0 }
}
