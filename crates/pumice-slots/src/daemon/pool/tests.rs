use super::*;

use crate::{SharedFile, SlotFile};

const SMALL: Key = Key::new(64 << 10, PageKind::Small);
const LARGE: Key = Key::new(256 << 10, PageKind::Small);

fn slot(key: Key) -> ReadySlot {
    let file = match (key.sharing, key.snapshot) {
        (Sharing::Shared, Some(name)) => {
            let file = SlotFile::create_shared(name, key.bytes, key.pages).expect("a memfd");
            Backing::Shared(SharedFile::seal(file).expect("sealed"))
        }
        _ => Backing::Own(SlotFile::create(key.bytes, key.pages).expect("a memfd")),
    };
    ReadySlot { file, huge_bytes: 0, version: None }
}

/// Any client.
const OTHER: Taker = Taker { user: 0, rank: Rank::Master };

fn tenant(user: u32) -> Taker {
    Taker { user, rank: Rank::Tenant }
}

/// Populates all there is to be.
fn fill(pool: &mut Pool) {
    while let Some(key) = pool.begin(Instant::now()) {
        assert!(pool.populated(key, slot(key)).is_none());
    }
}

fn pool() -> Pool {
    let mut pool = Pool::default();
    assert!(pool.configure(&[(LARGE, 1), (SMALL, 2)]).is_empty());
    pool
}

#[test]
fn the_smallest_that_fits_serves() {
    let pool = pool();
    assert_eq!(pool.find(1, None), Ok(SMALL));
    assert_eq!(pool.find(64 << 10, None), Ok(SMALL));
    assert_eq!(pool.find((64 << 10) + 1, None), Ok(LARGE));
    assert_eq!(pool.find(1 << 20, None), Err(Reason::TooLarge));
    assert_eq!(pool.find(1, Some(PageKind::Thp)), Err(Reason::NoSuchPages));
    assert_eq!(pool.sizes(), [64 << 10, 256 << 10]);
}

#[test]
fn no_more_are_made_than_wanted() {
    let (mut pool, now) = (pool(), Instant::now());
    let mut begun: Vec<_> = std::iter::from_fn(|| pool.begin(now)).collect();
    begun.sort();
    assert_eq!(begun, [SMALL, SMALL, LARGE]);
    assert!(pool.populated(SMALL, slot(SMALL)).is_none());
    assert!(pool.take(SMALL, 1, OTHER).is_some());
    // Leased ones count.
    assert_eq!(pool.begin(now), None);
    pool.ended(SMALL);
    assert_eq!(pool.begin(now), Some(SMALL));
}

#[test]
fn waiting_clients_are_served_in_turn() {
    let (mut pool, now) = (pool(), Instant::now());
    pool.wait(LARGE, 7, OTHER);
    pool.wait(LARGE, 8, OTHER);
    assert_eq!(pool.classes()[1].waited_for(), 2);
    assert_eq!(pool.begin_urgent(now), Some(LARGE), "what is waited for comes first");
    assert_eq!(pool.begin_urgent(now), None, "there is to be one of them");
    assert_eq!(pool.served_next(LARGE), None);
    assert!(pool.populated(LARGE, slot(LARGE)).is_none());
    assert!(pool.take(LARGE, 9, OTHER).is_none(), "nobody overtakes");
    assert_eq!(pool.served_next(LARGE), Some(7));
    pool.forget(LARGE, 7);
    assert_eq!(pool.served_next(LARGE), Some(8));
    assert!(pool.take(LARGE, 8, OTHER).is_some());
}

#[test]
fn the_user_that_had_less_comes_first() {
    let mut pool = pool();
    fill(&mut pool);
    for token in 0..2 {
        assert!(pool.take(SMALL, token, tenant(1)).is_some(), "nobody else wants it");
    }
    pool.wait(SMALL, 2, tenant(1));
    pool.wait(SMALL, 3, tenant(2));
    pool.ending(SMALL, 1);
    pool.ended(SMALL);
    fill(&mut pool);
    assert_eq!((pool.served_next(SMALL), pool.out_of_order()), (Some(3), 0));
    assert!(pool.take(SMALL, 2, tenant(1)).is_none());
    assert!(pool.take(SMALL, 3, tenant(2)).is_some());
    assert_eq!(pool.out_of_order(), 1);
}

#[test]
fn a_user_that_ends_its_share_leaves_the_rest_to_others() {
    let mut pool = pool();
    assert!(pool.configure(&[(SMALL, 4), (LARGE, 1)]).is_empty());
    let leases = |pool: &mut Pool, key, token, taker| {
        let slot = pool.take(key, token, taker);
        if slot.is_some() {
            pool.ending(key, taker.user);
            pool.ended(key);
        }
        slot.is_some()
    };
    for (percent, expected) in [(None, 4), (Some(50), 2), (Some(100), 4), (Some(1), 1)] {
        fill(&mut pool);
        pool.set_share(percent);
        let had = (0..4).filter(|&token| leases(&mut pool, SMALL, token, tenant(1))).count();
        assert_eq!(had, expected, "{percent:?}");
    }
    assert!(pool.holds_back(SMALL, tenant(1)) && !pool.holds_back(SMALL, tenant(2)));
    assert!(!pool.holds_back(SMALL, OTHER), "root, and the daemon's user");
    // It waits, and others pass.
    pool.wait(SMALL, 8, tenant(1));
    assert_eq!(pool.served_next(SMALL), None);
    assert!(leases(&mut pool, SMALL, 9, tenant(2)));
    // Slots that are populated pay for those that it has ended.
    fill(&mut pool);
    assert_eq!(pool.served_next(SMALL), Some(8));
    assert!(leases(&mut pool, SMALL, 8, tenant(1)));
    // Of one slot it can't have less.
    assert!(leases(&mut pool, LARGE, 10, tenant(1)));
    fill(&mut pool);
    assert!(leases(&mut pool, LARGE, 11, tenant(1)));
    // And nothing is owed that nobody is to populate.
    assert!(pool.configure(&[(SMALL, 1)]).len() == 3);
    assert!(!pool.holds_back(SMALL, tenant(1)));
}

#[test]
fn more_who_wait_have_more_populated() {
    let (mut pool, now) = (pool(), Instant::now());
    assert_eq!(pool.begin(now), Some(SMALL));
    pool.wait(SMALL, 1, OTHER);
    assert_eq!(pool.begin_urgent(now), None, "one is on its way");
    pool.wait(SMALL, 2, OTHER);
    assert_eq!(pool.begin_urgent(now), Some(SMALL));
    pool.wait(SMALL, 3, OTHER);
    assert_eq!(pool.begin_urgent(now), None, "no more are wanted");
    assert!(pool.populated(SMALL, slot(SMALL)).is_none());
    assert_eq!(pool.classes()[0].waited_for(), 2);
}

#[test]
fn a_failure_is_tried_again_later() {
    let (mut pool, now) = (pool(), Instant::now());
    let later = now + std::time::Duration::from_secs(5);
    pool.wait(LARGE, 1, OTHER);
    assert_eq!(pool.begin_urgent(now), Some(LARGE));
    pool.failed(LARGE, later);
    assert_eq!(pool.begin_urgent(now), None);
    assert_eq!(pool.begin(now), Some(SMALL));
    assert_eq!(pool.next_retry(), Some(later));
    pool.pass_retries(now);
    assert_eq!(pool.next_retry(), Some(later));
    pool.pass_retries(later);
    assert_eq!(pool.next_retry(), None, "nothing is due any more, whether there is room or not");
    assert_eq!(pool.begin_urgent(later), Some(LARGE));
}

#[test]
fn a_snapshot_of_another_size_is_the_same_class() {
    let web = Key { snapshot: SnapshotName::new("web"), ..SMALL };
    let (mut pool, now) = (Pool::default(), Instant::now());
    assert!(pool.configure(&[(SMALL, 1), (web, 2)]).is_empty());
    fill(&mut pool);
    assert_eq!(pool.find(1, None), Ok(SMALL), "a request by size gets none");
    assert_eq!(pool.sizes(), [SMALL.bytes]);
    assert_eq!(pool.find(SMALL.bytes + 1, None), Err(Reason::TooLarge));
    assert_eq!(web.snapshot.and_then(|name| pool.find_snapshot(name)), Some(web));
    assert!(pool.take(web, 1, OTHER).is_some());
    // Slots whose version nobody knows are of another than any.
    let larger = Key { bytes: 2 * web.bytes, ..web };
    assert_eq!(pool.renew(larger, None).len(), 1);
    assert_eq!(pool.begin(now), Some(larger), "in place of the one that went");
    assert!(pool.populated(web, slot(web)).is_some(), "one that was begun before is of no use");
    assert_eq!(pool.begin(now), Some(larger));
    assert_eq!(pool.begin(now), None, "the leased one counts");
    assert!(pool.populated(larger, slot(larger)).is_none());
    pool.ending(web, 7);
    pool.ended(web);
    assert_eq!(pool.begin(now), Some(larger));
    assert!(!SMALL.is_of(&web) && web.is_of(&larger) && !SMALL.is_of(&LARGE));
}

#[test]
fn a_snapshot_of_other_pages_is_the_same_class() {
    let web = Key { snapshot: "web".parse().ok(), ..SMALL };
    let (mut pool, now) = (Pool::default(), Instant::now());
    let unseen = Key { bytes: 0, ..web };
    assert!(pool.configure(&[(unseen, 2)]).is_empty());
    assert_eq!(pool.begin(now), None, "its size is not known");
    assert!(pool.renew(web, None).is_empty());
    pool.rest_until(web, now + std::time::Duration::from_secs(1));
    assert_eq!(pool.begin(now), None, "it may change without a trace");
    pool.rest_until(web, now);
    fill(&mut pool);
    assert!(pool.take(web, 1, OTHER).is_some());
    let thp = Key { pages: PageKind::Thp, ..web };
    assert_eq!(pool.configure(&[(thp, 2)]).len(), 1);
    assert_eq!(pool.classes().len(), 1);
    assert_eq!(pool.begin(now), Some(thp));
    assert!(pool.populated(web, slot(web)).is_some(), "of the pages before");
    pool.wait(thp, 2, OTHER);
    assert!(pool.configure(&[]).is_empty());
    pool.ended(web);
    pool.forget(thp, 2);
    assert!(pool.classes().is_empty(), "nothing is left of it");
    // One of which nothing was made.
    assert!(pool.configure(&[(web, 2)]).is_empty() && pool.configure(&[]).is_empty());
    assert!(pool.classes().is_empty());
}

#[test]
fn nothing_is_made_for_requests_that_do_not_wait() {
    let web = Key { snapshot: "web".parse().ok(), ..SMALL };
    let (mut pool, now) = (Pool::default(), Instant::now());
    assert!(pool.configure(&[(web, 2)]).is_empty());
    for token in 0..2 {
        pool.wait_for_look(web, token, OTHER);
    }
    assert_eq!((pool.classes()[0].waited_for(), pool.begin_urgent(now)), (0, None));
    pool.wait(web, 3, OTHER);
    assert_eq!(pool.begin_urgent(now), Some(web));
    assert!(pool.populated(web, slot(web)).is_none());
    assert_eq!(pool.take_next(web, |token| token == 0).map(|(token, _)| token), Some(0));
    pool.forget(web, 1);
    assert_eq!(pool.classes()[0].waited_for(), 1);
    assert!(pool.classes()[0].looking.is_empty());
}

#[test]
fn slots_of_a_file_that_is_not_known_yet_are_owed() {
    let web = Key { snapshot: "web".parse().ok(), ..SMALL };
    let mut pool = Pool::default();
    assert!(pool.configure(&[(web, 2)]).is_empty());
    fill(&mut pool);
    assert!(pool.take(web, 1, tenant(1)).is_some());
    assert_eq!(pool.configure(&[(Key { bytes: 0, ..web }, 2)]).len(), 1);
    pool.ending(web, 1);
    pool.ended(web);
    assert_eq!(pool.classes()[0].owed.of(1), 1);
}

#[test]
fn a_shared_slot_is_made_once_and_leased_to_all() {
    let name = SnapshotName::new("web").expect("a name");
    let web = SMALL.of_snapshot(name, Sharing::Shared);
    let (mut pool, now) = (Pool::default(), Instant::now());
    pool.set_share(Some(1));
    assert!(pool.configure(&[(web, 1)]).is_empty());
    for token in 0..3 {
        pool.wait(web, token, tenant(token as u32));
    }
    assert_eq!(pool.classes()[0].waited_for(), 1);
    assert_eq!(pool.begin_urgent(now), Some(web));
    assert_eq!(pool.begin_urgent(now), None, "one is enough for all");
    assert!(pool.populated(web, slot(web)).is_none());
    let mut ids = Vec::new();
    while let Some((_, slot)) = pool.take_next(web, |_| true) {
        ids.push(slot.file.shared().expect("shared").id());
    }
    assert!(ids.len() == 3 && ids.iter().all(|&id| id == ids[0] && pool.has_ready(id)));
    assert_eq!((pool.begin(now), pool.readiness()), (None, (1, 1)));
    assert_eq!((pool.classes()[0].row(0).ready, pool.classes()[0].row(0).leased), (1, 3));
    assert_eq!(pool.ready_bytes(), web.bytes);
    // Another version: those that have the old one don't count.
    assert_eq!(pool.renew(web, None).len(), 1);
    assert!(!pool.has_ready(ids[0]));
    assert_eq!(pool.begin(now), Some(web));
    assert!(pool.populated(web, slot(web)).is_none());
    pool.ending(web, 1);
    pool.ended(web);
    assert_eq!((pool.begin(now), pool.classes()[0].row(0).leased), (None, 2));
    // A slot each from now on, then none: those that have it don't count.
    let alone = Key { sharing: Sharing::Alone, ..web };
    assert_eq!(pool.configure(&[(alone, 2)]).len(), 1);
    assert_eq!((pool.begin(now), pool.begin(now)), (Some(alone), Some(alone)));
    assert!(pool.populated(alone, slot(alone)).is_none());
    pool.failed(alone, now);
    assert!(pool.take(alone, 9, OTHER).is_some_and(|slot| slot.file.own().is_some()));
    assert!(pool.configure(&[]).is_empty());
    pool.ended(alone);
    pool.ended(web);
    assert_eq!(pool.classes().len(), 1);
    pool.ended(web);
    assert!(pool.classes().is_empty());
}

/// A request that came later can't be served yet, and comes first in turn.
#[test]
fn the_next_is_one_of_those_that_may_have_a_slot_now() {
    let mut pool = pool();
    fill(&mut pool);
    assert!(pool.take(LARGE, 1, tenant(1)).is_some(), "so its turn is later");
    pool.wait(SMALL, 2, tenant(1));
    pool.wait(SMALL, 3, tenant(2));
    assert_eq!(pool.take_next(SMALL, |token| token == 2).map(|(token, _)| token), Some(2));
    assert!(pool.take_next(SMALL, |token| token == 2).is_none());
    assert_eq!(pool.take_next(SMALL, |_| true).map(|(token, _)| token), Some(3));
}

#[test]
fn less_wanted_is_less_kept() {
    let (mut pool, now) = (pool(), Instant::now());
    while let Some(key) = pool.begin(now) {
        assert!(pool.populated(key, slot(key)).is_none());
    }
    assert!(pool.take(SMALL, 1, OTHER).is_some());
    assert_eq!(pool.configure(&[(SMALL, 1)]).len(), 2);
    assert_eq!(pool.find(1, None), Ok(SMALL));
    assert_eq!(pool.find(100 << 10, None), Err(Reason::TooLarge));
    assert_eq!(pool.begin(now), None);
    assert!(pool.configure(&[]).is_empty());
    pool.ended(SMALL);
    assert!(pool.classes().is_empty());
}

#[test]
fn a_reserved_slot_is_only_a_tickets() {
    let mut pool = pool();
    fill(&mut pool);
    assert_eq!(pool.reserve(1, None, None), Ok(SMALL));
    assert!(pool.take(SMALL, 1, OTHER).is_some());
    assert!(pool.take(SMALL, 2, OTHER).is_none(), "one is ready, and kept");
    assert_eq!(pool.reserve(1, None, None), Err(Reason::NoneFree));
    assert_eq!(pool.reserve(1, Some(PageKind::Thp), None), Err(Reason::NoSuchPages));
    assert_eq!(pool.reserve(1, None, Some(0)), Err(Reason::NoSuchPages));
    pool.wait(SMALL, 2, OTHER);
    assert!(pool.take_next(SMALL, |_| true).is_none());
    pool.wait_with_ticket(SMALL, 3);
    let (token, _) = pool.take_next(SMALL, |_| true).expect("ready");
    assert_eq!((token, pool.reserved()), (3, 0));
    // It is kept once more when it ends, and before the client that waits.
    pool.ending(SMALL, Taker::OF_A_TICKET.user);
    pool.reserve_again(SMALL);
    pool.ended(SMALL);
    fill(&mut pool);
    assert!(pool.take_next(SMALL, |_| true).is_none());
    assert_eq!(pool.overbooked(SMALL), 0);
    pool.configure(&[(SMALL, 1), (LARGE, 1)]);
    assert_eq!(pool.overbooked(SMALL), 1);
    pool.unreserve(SMALL);
    assert_eq!(pool.overbooked(SMALL), 0);
}

/// A slot is made in haste for each client that waits, also beside those kept for tickets that nobody has shown.
#[test]
fn clients_that_wait_are_counted_without_reserved_slots() {
    let mut pool = pool();
    fill(&mut pool);
    assert_eq!(pool.reserve(1, None, None), Ok(SMALL));
    assert!(pool.take(SMALL, 1, OTHER).is_some());
    let waited_for = |pool: &Pool| pool.classes()[0].waited_for();
    assert_eq!(waited_for(&pool), 0);
    pool.wait(SMALL, 2, OTHER);
    assert_eq!(waited_for(&pool), 1);
    pool.wait_with_ticket(SMALL, 3);
    assert_eq!(waited_for(&pool), 1, "that one is ready");
    pool.forget(SMALL, 3);
    pool.forget(SMALL, 2);
    assert_eq!(waited_for(&pool), 0);
}
