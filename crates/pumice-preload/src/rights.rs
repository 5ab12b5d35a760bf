//! Calls by which a program changes its rights: user, groups, capabilities, namespaces, root directory.
//!
//! The heap's helpers are threads that the C library knows nothing of, so it does not have them change with the
//! program's own. They would keep the rights that it gives up, and they share its memory. So they end before
//! each of these calls, and are started again, by a thread with the new rights, after it; where rights change again
//! and again, not before memory is freed again ([`pumice_heap::heap::Heap::readmit_helpers`]).
//!
//! | rights of | calls | helpers afterwards |
//! |---|---|---|
//! | the process | `setuid` and its family in the C library, `chroot`, `pivot_root` | as before |
//! | the calling thread | the same by number, `setfsuid`, `setfsgid`, `capset`, `prctl`, `unshare`, `setns`, Landlock, `iopl`, a session's keyring | as before where it is the only thread, else none: the thread that starts one could be one that has kept its rights |
//!
//! `unshare` and `setns` moreover are refused, in part, to a process with several threads. The kernel may stop counting
//! a thread a moment after it says that there is none, so a refusal is asked for again for a while.

use core::ffi::{c_char, c_int, c_long, c_uint, CStr};
use core::time::Duration;

use linux_raw_sys::general as linux;
use pumice_frames::sys::thread;

use crate::symbols::{self, c_name};
use crate::{errno, state};

/// The threads whose rights a call changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    Process,
    Thread,
}

const PR_CAPBSET_DROP: c_int = 24;
const PR_SET_SECUREBITS: c_int = 28;
const PR_SET_NO_NEW_PRIVS: c_int = 38;
const PR_CAP_AMBIENT: c_int = 47;
const KEYCTL_JOIN_SESSION_KEYRING: usize = 1;

/// "Invalid argument", on every architecture: the answer to a process with several threads.
const EINVAL: c_int = 22;
/// How often, and after what pause, something is asked again that waits for a thread's end.
const ATTEMPTS: u32 = 20;
const PAUSE: Duration = Duration::from_micros(100);

/// Defines functions that change rights: the next library's, with the helpers away.
macro_rules! changes_rights {
    ($whose:expr; $($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[no_mangle]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            type Next = unsafe extern "C" fn($($type),*) -> c_int;
            const NAME: &CStr = c_name(concat!(stringify!($name), "\0"));
            around($whose, || match symbols::next!(NAME, Next) {
                // SAFETY: forwarded with the caller's promise.
                Some(next) => c_long::from(unsafe { next($($argument),*) }),
                None => unknown(),
            }) as c_int
        }
    )*};
}

changes_rights! {
    Whose::Process;
    setuid(user: c_uint);
    seteuid(user: c_uint);
    setreuid(real: c_uint, effective: c_uint);
    setresuid(real: c_uint, effective: c_uint, saved: c_uint);
    setgid(group: c_uint);
    setegid(group: c_uint);
    setregid(real: c_uint, effective: c_uint);
    setresgid(real: c_uint, effective: c_uint, saved: c_uint);
    setgroups(count: usize, groups: *const c_uint);
    initgroups(user: *const c_char, group: c_uint);
    chroot(path: *const c_char);
    pivot_root(new: *const c_char, old: *const c_char);
}

changes_rights! {
    Whose::Thread;
    setfsuid(user: c_uint);
    setfsgid(group: c_uint);
    capset(header: *mut u8, data: *const u8);
    unshare(flags: c_int);
    setns(file: c_int, kind: c_int);
}

#[cfg(target_arch = "x86_64")]
changes_rights! {
    Whose::Thread;
    iopl(level: c_int);
    ioperm(from: usize, count: usize, on: c_int);
}

/// A function that the C library lacks, and that nobody can have been linked to: `ENOSYS`.
fn unknown() -> c_long {
    const ENOSYS: c_int = 38;
    errno::set(ENOSYS);
    -1
}

/// The threads whose rights a call by number may change, if any.
pub(crate) fn changed_by_number(number: u32, [a, ..]: [usize; 6]) -> Option<Whose> {
    match number {
        linux::__NR_prctl => changed_by_prctl(a as c_int),
        linux::__NR_chroot | linux::__NR_pivot_root => Some(Whose::Process),
        linux::__NR_setuid
        | linux::__NR_setgid
        | linux::__NR_setreuid
        | linux::__NR_setregid
        | linux::__NR_setresuid
        | linux::__NR_setresgid
        | linux::__NR_setgroups
        | linux::__NR_setfsuid
        | linux::__NR_setfsgid
        | linux::__NR_capset
        | linux::__NR_unshare
        | linux::__NR_setns
        | linux::__NR_lsm_set_self_attr
        | linux::__NR_landlock_restrict_self => Some(Whose::Thread),
        linux::__NR_keyctl if a == KEYCTL_JOIN_SESSION_KEYRING => Some(Whose::Thread),
        #[cfg(target_arch = "x86_64")]
        linux::__NR_iopl | linux::__NR_ioperm => Some(Whose::Thread),
        _ => None,
    }
}

/// The same of `prctl`. A filter is another matter: [`crate::seccomp`].
pub(crate) fn changed_by_prctl(option: c_int) -> Option<Whose> {
    let changes =
        [PR_CAPBSET_DROP, PR_SET_SECUREBITS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT].contains(&option);
    changes.then_some(Whose::Thread)
}

/// Makes a call that changes rights, without helpers. Its answer, and `errno`, are the call's.
pub(crate) fn around(whose: Whose, call: impl Fn() -> c_long) -> c_long {
    let Some(withheld) = state::withhold_helpers() else {
        let result = call();
        if whose == Whose::Thread && result != -1 && !state::is_quiet() {
            errno::keep(|| {
                if !is_only_thread(false) {
                    state::go_alone();
                }
            });
        }
        return result;
    };
    let mut result = call();
    let mut attempts = if withheld.had_any { ATTEMPTS } else { 0 };
    while result == -1 && attempts > 0 && errno::get() == EINVAL {
        attempts -= 1;
        thread::sleep(PAUSE);
        result = call();
    }
    errno::keep(|| {
        if whose == Whose::Thread && result != -1 && !is_only_thread(withheld.had_any) {
            withheld.heap.go_on_alone();
        }
        withheld.heap.readmit_helpers(withheld.had_any);
    });
    result
}

/// Whether the process has one thread, now that the helpers have ended. `false` where nobody can tell.
fn is_only_thread(had_helpers: bool) -> bool {
    // A folder has a link more for each folder in it.
    let threads =
        || rustix::fs::stat(c"/proc/self/task").map_or(usize::MAX, |it| it.st_nlink as usize - 2);
    let attempts = if had_helpers { ATTEMPTS } else { 1 };
    (0..attempts).any(|attempt| {
        if attempt > 0 {
            thread::sleep(PAUSE);
        }
        threads() == 1
    })
}
