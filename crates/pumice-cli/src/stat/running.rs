//! The kernel's view of a process.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// The user.
    pub uid: u32,
    /// The program's name, which after an `exec` is another than what a slot says. It may hold anything.
    pub name: String,
}

impl Running {
    /// `None` of one that has ended, waited for or not.
    pub fn find(pid: u32) -> Option<Running> {
        let folder = format!("/proc/{pid}");
        let uid = fs::metadata(&folder).ok()?.uid();
        let stat = fs::read(folder + "/stat").ok()?;
        let (name, state) = name_and_state(&stat)?;
        let name = String::from_utf8_lossy(name).into_owned();
        (!matches!(state, b'Z' | b'X')).then_some(Running { uid, name })
    }
}

/// Of `/proc/PID/stat`: between the first parenthesis and the last there may be anything.
fn name_and_state(stat: &[u8]) -> Option<(&[u8], u8)> {
    let first = stat.iter().position(|&byte| byte == b'(')? + 1;
    let last = stat.iter().rposition(|&byte| byte == b')')?;
    Some((stat.get(first..last)?, *stat.get(last + 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_anything() {
        assert_eq!(name_and_state(b"7 (a b) S 1"), Some((&b"a b"[..], b'S')));
        assert_eq!(name_and_state(b"7 (a) R (\xff) Z 1"), Some((&b"a) R (\xff"[..], b'Z')));
        for bad in [&b""[..], b"7 a S", b"7 )(", b"7 (a)"] {
            assert_eq!(name_and_state(bad), None, "{bad:?}");
        }
        let own = Running::find(std::process::id()).expect("it runs");
        assert!(!own.name.is_empty());
    }
}
