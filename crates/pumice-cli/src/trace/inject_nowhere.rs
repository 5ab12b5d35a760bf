//! The interface of `inject` where `pumice trace` does not run: it says so before the program starts.

use std::rc::Rc;

use libc::pid_t;

/// There are none.
#[derive(Debug, Default)]
pub struct Tracees;

impl Tracees {
    pub fn reap(&self) {}

    pub fn are_left(&self) -> bool {
        false
    }
}

/// There is none.
#[derive(Debug)]
pub enum Process {}

/// See `inject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotStopped {
    #[expect(dead_code, reason = "nothing is stopped")]
    HasExecuted,
}

impl Process {
    pub fn of(_pid: pid_t, _child: pid_t, _tracees: &Rc<Tracees>) -> Option<Process> {
        None
    }

    pub fn is_there(&self) -> bool {
        match *self {}
    }

    pub fn stop(&self) -> Result<Stopped<'_>, NotStopped> {
        match *self {}
    }
}

/// There is none.
#[derive(Debug)]
pub struct Stopped<'p>(&'p Process);

impl Stopped<'_> {
    pub fn call(&mut self, _number: i64, _arguments: [u64; 6]) -> Option<i64> {
        match *self.0 {}
    }

    pub fn write(&self, _at: u64, _bytes: &[u8]) -> Option<()> {
        match *self.0 {}
    }

    pub fn pid(&self) -> pid_t {
        match *self.0 {}
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {}
}
