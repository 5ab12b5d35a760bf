//! Pages of the tree, beside a map of what they should hold; and bytes that are no page.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::store::node::{self, Node, Page, Parts};

fn empty() -> Page {
    let mut page = [0; 4096];
    Parts::default().write(&mut page).expect("an empty leaf");
    page
}

fn all_of(page: &Page) -> BTreeMap<Vec<u8>, Vec<u8>> {
    Parts::of(page).expect("a node").entries.into_iter().collect()
}

proptest! {
    #[test]
    fn a_page_is_a_map(
        changes in vec((any::<bool>(), vec(0_u8..4, 0..6), 0_usize..300), 1..200)
    ) {
        let (mut page, mut map) = (empty(), BTreeMap::new());
        for (nth, (is_put, key, len)) in changes.into_iter().enumerate() {
            let value = vec![nth as u8; len];
            if !is_put {
                prop_assert_eq!(node::remove(&mut page, &key), Ok(map.remove(&key).is_some()));
            } else if Node::of(&page).and_then(|node| node.fits(&key, &value)).expect("a node") {
                prop_assert_eq!(node::put(&mut page, &key, &value), Ok(()));
                map.insert(key.clone(), value);
            }
            let node = Node::of(&page).expect("a node");
            prop_assert_eq!(node.get(&key).expect("a node"), map.get(&key).map(Vec::as_slice));
        }
        prop_assert_eq!(all_of(&page), map);
    }

    #[test]
    fn halves_hold_what_the_whole_held(
        entries in proptest::collection::btree_map(vec(any::<u8>(), 0..300), 0_usize..500, 3..12),
        level in 0_u8..2,
    ) {
        let value = |len: usize| if level == 0 { vec![7; len] } else { vec![9; 4] };
        let all: Vec<_> = entries.into_iter().map(|(key, len)| (key, value(len))).collect();
        let mut lower = Parts { level, right: 5, leftmost: 3, high: None, entries: all.clone() };
        let (separator, upper) = lower.split(8).expect("entries enough");
        prop_assert_eq!((lower.right, upper.right), (8, 5));
        prop_assert_eq!(lower.high.as_ref(), Some(&separator));
        prop_assert!(lower.entries.iter().all(|(key, _)| *key < separator));
        prop_assert!(upper.entries.iter().all(|(key, _)| *key >= separator));
        prop_assert!(!lower.entries.is_empty() && !upper.entries.is_empty());
        let up = usize::from(level > 0);
        prop_assert_eq!(lower.entries.len() + upper.entries.len() + up, all.len());
    }

    /// No contents of a page cause a panic.
    #[test]
    fn no_page_is_believed(
        seed in any::<u64>(),
        changes in vec((0_usize..4096, any::<u8>()), 1..64),
    ) {
        let mut page = empty();
        for nth in 0..20_u64 {
            let key = (seed ^ nth).to_le_bytes();
            node::put(&mut page, &key, &[1; 90]).expect("room");
        }
        for (at, byte) in changes {
            // The head more often than the rest.
            page[if byte % 2 == 0 { at % 80 } else { at }] = byte;
        }
        let key = seed.to_le_bytes();
        let _ = Node::of(&page).and_then(|node| node.get(&key));
        let _ = Node::of(&page).and_then(Node::free);
        let _ = Node::of(&page).and_then(|node| node.child_for(&key));
        let _ = Parts::of(&page).and_then(|mut parts| parts.split(2));
        let _ = node::remove(&mut page, &key);
        let _ = node::put(&mut page, &key, &[2; 200]);
    }
}
