//! Processes by the numbers that they have here.
//!
//! A slot says its process's number in that process's own namespace. Of this namespace that is the number; of one
//! within it, `/proc` says both.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pumice_frames::sys::thread;
use pumice_heap::stats::Owner;

/// Reads a process's number.
///
/// # Errors
/// That it is none.
pub fn parse_pid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "not a process number".to_owned())
}

/// Processes as they were at one time; those of other namespaces are looked up when one is first asked for.
#[derive(Debug)]
pub struct Numbers {
    own: u32,
    inner: OnceCell<Inner>,
}

/// Processes of namespaces within this one.
#[derive(Debug, Default)]
struct Inner {
    /// Whether these are all there are.
    is_complete: bool,
    here: HashMap<Owner, u32>,
    /// Numbers of those whose namespace can't be told.
    unknown: HashSet<u32>,
}

impl Numbers {
    /// As they are now.
    pub fn now() -> Numbers {
        Numbers { own: thread::pid_namespace(), inner: OnceCell::new() }
    }

    /// Whether a process is of this namespace.
    pub fn is_own(&self, owner: Owner) -> bool {
        owner.namespace == self.own
    }

    /// The number of a process that exists.
    pub fn here(&self, owner: Owner) -> Option<u32> {
        match self.is_own(owner) {
            true => thread::process_exists(owner.pid).then_some(owner.pid),
            false => self.inner().here.get(&owner).copied(),
        }
    }

    /// Whether a process is certain to exist no more.
    pub fn is_gone(&self, owner: Owner) -> bool {
        if self.is_own(owner) {
            return owner.is_gone_to(self.own);
        }
        let inner = self.inner();
        let may_be = || inner.here.contains_key(&owner) || inner.unknown.contains(&owner.pid);
        owner.namespace != 0 && inner.is_complete && !may_be()
    }

    fn inner(&self) -> &Inner {
        self.inner.get_or_init(|| Inner::read(self.own))
    }
}

impl Inner {
    fn read(own: u32) -> Inner {
        let mut inner = Inner::default();
        // A folder of another namespace's numbers, or none.
        let is_ours = fs::read_link("/proc/self").is_ok_and(|name| {
            name.as_os_str().as_bytes() == std::process::id().to_string().as_bytes()
        });
        let Ok(entries) = fs::read_dir("/proc") else { return inner };
        // Where others' processes are hidden, so may some be that only became others'.
        inner.is_complete = is_ours && own != 0 && Path::new("/proc/1").exists();
        for entry in entries.flatten().filter(|_| is_ours) {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
            if let Some(pid) = pid {
                inner.add(own, pid);
            }
        }
        inner
    }

    fn add(&mut self, own: u32, pid: u32) {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/pid")).map(|it| it.ino() as u32);
        if namespace.as_ref().is_ok_and(|&namespace| namespace == own) {
            return;
        }
        let Ok(status) = fs::read(format!("/proc/{pid}/status")) else { return };
        let Some(innermost) = innermost(&status) else { return };
        match namespace {
            Ok(namespace) => {
                self.here.insert(Owner { namespace, pid: innermost }, pid);
            }
            Err(_) => {
                self.unknown.insert(innermost);
            }
        }
    }
}

/// A process's number in its own namespace, if that is within the reader's.
fn innermost(status: &[u8]) -> Option<u32> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"NSpid:"))?;
    let numbers = std::str::from_utf8(line).ok()?.split_whitespace().skip(1);
    numbers.last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_the_innermost_number() {
        assert_eq!(innermost(b"Name:\tx\nNSpid:\t70\t8\t2\nNSpgid:\t1\t1\n"), Some(2));
        for none in [&b"NSpid:\t70\n"[..], b"", b"NSpid:", b"NSpid:\t70\tx", b"Name:\t\xff\n"] {
            assert_eq!(innermost(none), None, "{none:?}");
        }
    }

    #[test]
    fn processes_of_this_namespace_are_as_they_are() {
        let (numbers, own) = (Numbers::now(), Owner::here());
        assert_eq!(numbers.here(own), Some(own.pid));
        assert!(!numbers.is_gone(own));
        let gone = Owner { pid: i32::MAX as u32, ..own };
        assert_eq!(numbers.here(gone), None);
        assert!(numbers.is_gone(gone));
    }

    #[test]
    fn what_can_not_be_told_is_not_gone() {
        let numbers = Numbers::now();
        let nowhere = Owner { namespace: 0, pid: 1 };
        assert!(numbers.own == 0 || !numbers.is_gone(nowhere));
        // Nothing has such a number, unless /proc hides some.
        let other = Owner { namespace: 7, pid: i32::MAX as u32 };
        assert_eq!(numbers.here(other), None);
        assert_eq!(numbers.is_gone(other), numbers.inner().is_complete);
    }
}
