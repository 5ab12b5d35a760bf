//! The interface of `inject` where `pumice trace` does not run: it says so before the program starts.

use libc::pid_t;

/// There is none.
#[derive(Debug)]
pub enum Process {}

impl Process {
    pub fn of(_pid: pid_t, _child: pid_t) -> Option<Process> {
        None
    }

    pub fn stop(&self) -> Option<Stopped<'_>> {
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
