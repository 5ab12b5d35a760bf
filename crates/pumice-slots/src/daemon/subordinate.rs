//! The users that subordinate numbers belong to: subuid(5) gives users ranges of them, as many as 65536 each.
//!
//! In a user namespace, a user can act by each of them (newuidmap(1)), and stays a member of its groups. So a user
//! that may lease as a group's member would have its quota, its connections and its turn in line that many times over:
//! limits on a user hold for all of its numbers together. Numbers that `allow` names itself are told apart, and so
//! are those that root gave its containers.

use std::collections::HashMap;
use std::fs;

/// The file that lists which user has which numbers.
const FILE: &str = "/etc/subuid";

/// The ranges, and the user that each is of.
#[derive(Clone, Debug, Default)]
pub struct Subordinate {
    ranges: Vec<(u32, u32, u32)>,
}

impl Subordinate {
    /// As the file says; without one there are none.
    pub fn read(user_number: impl Fn(&str) -> Option<u32>) -> Subordinate {
        Subordinate::parse(&fs::read_to_string(FILE).unwrap_or_default(), user_number)
    }

    /// Lines of `user:first:count`; other lines give nobody anything.
    fn parse(text: &str, user_number: impl Fn(&str) -> Option<u32>) -> Subordinate {
        let mut known = HashMap::new();
        let mut range = |line: &str| {
            let mut fields = line.trim().split(':');
            let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
            let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
            let owner = *known.entry(name.to_owned()).or_insert_with(|| user_number(name));
            owner.filter(|&owner| owner != 0).map(|owner| (first, count, owner))
        };
        Subordinate { ranges: text.lines().filter_map(&mut range).collect() }
    }

    /// The user whose number this is: itself, if it is in no range.
    pub fn owner(&self, user: u32) -> u32 {
        let is_in = |&&(first, count, _): &&(u32, u32, u32)| user >= first && user - first < count;
        self.ranges.iter().find(is_in).map_or(user, |&(_, _, owner)| owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_range_is_its_owners() {
        let text =
            "one:100000:65536\nroot:300000:65536\ntwo:200000:10\n\nno:1\n77:400000:1\ntwo:x:1\n\
                    nobody-at-all:500000:9\none:4294967290:100\n";
        let number = |name: &str| match name {
            "root" => Some(0),
            "one" => Some(1001),
            "two" => Some(1002),
            name => name.parse().ok(),
        };
        let subordinate = Subordinate::parse(text, number);
        for (user, owner) in [
            (0, 0),
            (99_999, 99_999),
            (100_000, 1001),
            (165_535, 1001),
            (165_536, 165_536),
            (200_009, 1002),
            (200_010, 200_010),
            (300_000, 300_000),
            (400_000, 77),
            (500_000, 500_000),
            (u32::MAX, 1001),
        ] {
            assert_eq!(subordinate.owner(user), owner, "{user}");
        }
    }
}
