//! The users and groups that may lease, by name or number, each with a quota or none.

use std::ffi::{c_char, c_int, CString};
use std::mem::MaybeUninit;

use pumice_heap::config::parse_size;

use super::subordinate::Subordinate;

/// A client, as the kernel describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its group and supplementary groups.
    pub groups: Vec<u32>,
    /// Its process; 0 where that is not visible from here.
    pub pid: u32,
}

/// One user or group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    User(u32),
    Group(u32),
}

/// A user or a group that may lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    who: Who,
    /// The most bytes that one user has at a time.
    quota_bytes: Option<u64>,
}

impl Rule {
    /// Reads `user:NAME` or `group:NAME`, with `=SIZE` or without.
    pub fn parse(text: &str) -> Result<Rule, String> {
        const EXPECTED: &str = "a rule is such as user:qemu, group:kvm or user:qemu=32G";
        let (who, quota) = match text.split_once('=') {
            Some((who, quota)) => {
                let quota = parse_size(quota).ok_or(EXPECTED)?;
                (who, Some(quota as u64))
            }
            None => (text, None),
        };
        let (kind, name) = who.split_once(':').ok_or(EXPECTED)?;
        let who = match kind {
            "user" => Who::User(number_of(name, user_number).ok_or(format!("no user '{name}'"))?),
            "group" => {
                Who::Group(number_of(name, group_number).ok_or(format!("no group '{name}'"))?)
            }
            _ => return Err(EXPECTED.into()),
        };
        Ok(Rule { who, quota_bytes: quota })
    }
}

fn number_of(name: &str, look_up: fn(&str) -> Option<u32>) -> Option<u32> {
    match name.parse() {
        // The kernel's number for nobody in particular.
        Ok(u32::MAX) => None,
        Ok(number) => Some(number),
        Err(_) => look_up(name),
    }
}

fn user_number(name: &str) -> Option<u32> {
    look_up(name, 16 << 10, libc::getpwnam_r, |user| user.pw_uid)
}

fn group_number(name: &str) -> Option<u32> {
    // A group's members are all in there.
    look_up(name, 1 << 20, libc::getgrnam_r, |group| group.gr_gid)
}

/// `getpwnam_r` or `getgrnam_r`.
type GetByName<T> =
    unsafe extern "C" fn(*const c_char, *mut T, *mut c_char, usize, *mut *mut T) -> c_int;

/// The number in the entry of a name, whose strings have so many bytes of room.
fn look_up<T>(
    name: &str,
    room_bytes: usize,
    get: GetByName<T>,
    number: fn(&T) -> u32,
) -> Option<u32> {
    let name = CString::new(name).ok()?;
    let mut entry = MaybeUninit::uninit();
    let mut buffer = vec![0; room_bytes];
    let (room, mut found) = (buffer.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: all are valid for the call, and the buffer's length is its own. An entry that is found is valid.
    unsafe {
        let failed = get(name.as_ptr(), entry.as_mut_ptr(), room, room_bytes, &mut found);
        (failed == 0 && !found.is_null()).then(|| number(&*found))
    }
}

/// The rules in their order; the first that fits a client holds.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    rules: Vec<Rule>,
    subordinate: Subordinate,
}

impl Allowed {
    /// These, and the superuser and the daemon's own user besides.
    pub fn new(rules: Vec<Rule>) -> Allowed {
        let subordinate = match rules.is_empty() {
            true => Subordinate::default(),
            false => Subordinate::read(|name| number_of(name, user_number)),
        };
        Allowed { rules, subordinate }
    }

    /// The most bytes that the peer's user may have; `None` if it may have none at all.
    pub fn quota_bytes(&self, peer: &Peer) -> Option<u64> {
        match self.rule(peer) {
            Some(rule) => Some(rule.quota_bytes.unwrap_or(u64::MAX)),
            None => is_master(peer).then_some(u64::MAX),
        }
    }

    /// The user that the peer's limits are of: its own, unless it is a subordinate number of another's that no rule
    /// names.
    pub fn account(&self, peer: &Peer) -> u32 {
        match self.rule(peer).map(|rule| rule.who) {
            Some(Who::User(_)) => peer.uid,
            _ if is_master(peer) => peer.uid,
            Some(Who::Group(_)) | None => self.subordinate.owner(peer.uid),
        }
    }

    fn rule(&self, peer: &Peer) -> Option<&Rule> {
        self.rules.iter().find(|rule| match rule.who {
            Who::User(uid) => uid == peer.uid,
            Who::Group(gid) => peer.groups.contains(&gid),
        })
    }
}

/// Whether the peer is root or the daemon's own user.
pub fn is_master(peer: &Peer) -> bool {
    peer.uid == 0 || peer.uid == rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, groups: groups.to_vec(), pid: 1 }
    }

    #[test]
    fn rules_are_read() {
        let rule = Rule::parse("user:root=2G").expect("root is a user");
        assert_eq!(rule, Rule { who: Who::User(0), quota_bytes: Some(2 << 30) });
        assert_eq!(Rule::parse("group:77"), Ok(Rule { who: Who::Group(77), quota_bytes: None }));
        for bad in
            ["", "root", "user:", "user:no-such-user", "uid:0", "user:0=x", "user:4294967295"]
        {
            assert!(Rule::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_first_rule_that_fits_holds() {
        let rules = ["user:5001=1G", "group:77=2G", "user:5002"];
        let allowed =
            Allowed::new(rules.iter().map(|rule| Rule::parse(rule).expect("good")).collect());
        assert_eq!(allowed.quota_bytes(&peer(5001, &[77])), Some(1 << 30));
        assert_eq!(allowed.quota_bytes(&peer(5002, &[77])), Some(2 << 30));
        assert_eq!(allowed.quota_bytes(&peer(5002, &[])), Some(u64::MAX));
        assert_eq!(allowed.quota_bytes(&peer(5003, &[1])), None);
        assert_eq!(allowed.quota_bytes(&peer(0, &[])), Some(u64::MAX));
    }
}
