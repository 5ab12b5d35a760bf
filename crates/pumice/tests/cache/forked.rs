//! A process that is forked while a cache runs: it has old copies of pages, and none of the cache's threads.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use pumice::cache::{run, CacheError, Options, View};

use super::*;

/// The use that a child makes of the cache.
#[derive(Clone, Copy, PartialEq)]
enum Child {
    Syncs,
    Returns,
    Panics,
    Executes,
}

/// How a child has ended, which may take half a minute.
fn wait(child: libc::pid_t) -> Option<ExitStatus> {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        let mut status = 0;
        // SAFETY: it is this process's child.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return Some(ExitStatus::from_raw(status));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // SAFETY: as above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    None
}

fn syncs(view: &View<'_, '_>) -> ! {
    let is_refused = matches!(view.sync(), Err(CacheError::Forked));
    // SAFETY: nothing of the parent's is to be ended.
    unsafe { libc::_exit(if is_refused { 7 } else { 1 }) }
}

/// Forks a child that has page 0 with ones, writes twos in the parent, and syncs.
fn fork(how: Child) -> Option<ExitStatus> {
    let scratch = Scratch::new(match how {
        Child::Syncs => "forked-syncs",
        Child::Returns => "forked-returns",
        Child::Panics => "forked-panics",
        Child::Executes => "forked-executes",
    });
    let mut settings = Settings::new(1024);
    // Nothing is written in the background.
    settings.dirty_age = Duration::from_secs(600);
    let ended = run(&settings, |cache| {
        let file = cache.open(&scratch.0, &Options::new()).expect("a file");
        let task = cache.task().expect("room");
        let view = task.view(&file).expect("room");
        view.write_or_grow(0).expect("room").fill(1);
        // SAFETY: the child calls the cache, which is what this is about, and what may be called after `fork`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            match how {
                Child::Syncs => syncs(&view),
                Child::Returns => return None,
                Child::Panics => panic!("a child's"),
                Child::Executes => {
                    let name = c"/bin/true".as_ptr();
                    // SAFETY: a name, and the end of the list.
                    unsafe { libc::execl(name, name, std::ptr::null::<libc::c_char>()) };
                    // SAFETY: as in `syncs`.
                    unsafe { libc::_exit(1) }
                }
            }
        }
        view.write(0).expect("there").fill(2);
        view.sync().expect("the device is there");
        let status = wait(child);
        assert_eq!(
            std::fs::read(&scratch.0).expect("there"),
            [2; FRAME],
            "as the parent synced it"
        );
        status
    });
    let status = ended.expect("a cache");
    assert_eq!(std::fs::read(&scratch.0).expect("there"), [2; FRAME]);
    status
}

#[test]
fn a_child_that_syncs_is_refused() {
    assert_eq!(fork(Child::Syncs).and_then(|status| status.code()), Some(7));
}

#[test]
fn a_child_that_returns_is_ended() {
    assert_eq!(fork(Child::Returns).and_then(|status| status.signal()), Some(libc::SIGABRT));
}

#[test]
fn a_child_that_panics_is_ended() {
    assert_eq!(fork(Child::Panics).and_then(|status| status.signal()), Some(libc::SIGABRT));
}

#[test]
fn a_child_that_executes_another_program_does_that() {
    assert_eq!(fork(Child::Executes).and_then(|status| status.code()), Some(0));
}
