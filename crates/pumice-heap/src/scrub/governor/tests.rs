//! Policies against a world made up by hand.

use super::sensors::Quota;
use super::*;
use pumice_frames::addr::BLOCK_SIZE;

/// A world in which one burst takes 100 µs and nothing happens by itself.
#[derive(Debug)]
struct World {
    now_ns: u64,
    own_ns: u64,
    program_ns: u64,
    others: Option<u32>,
    load: u64,
    idle_ns: Option<u64>,
    waits: Waits,
    quota: Option<Quota>,
}

impl Sensors for World {
    fn now_ns(&mut self) -> u64 {
        self.now_ns
    }
    fn cpu_time_ns(&mut self) -> u64 {
        self.own_ns
    }
    fn program_ns(&mut self) -> u64 {
        self.program_ns
    }
    fn processors(&self) -> u32 {
        2
    }
    fn others_runnable(&mut self) -> Option<u32> {
        self.others
    }
    fn load_hundredths(&mut self) -> u64 {
        self.load
    }
    fn idle_ns(&mut self) -> Option<u64> {
        self.idle_ns
    }
    fn waits(&mut self) -> Waits {
        self.waits
    }
    fn quota(&mut self, level: usize) -> Option<Quota> {
        self.quota.filter(|_| level == 0)
    }
    fn refresh(&mut self) {}
}

const BURST_NS: u64 = 100_000;
const NO_LIMITS: Limits = Limits { load_hundredths: 0, rate_pages_per_s: 0 };

fn world() -> World {
    World {
        now_ns: 1,
        own_ns: 0,
        program_ns: 0,
        others: Some(0),
        load: 0,
        idle_ns: None,
        waits: Waits { own_ns: 0, group_ns: Some(0), pressure_ns: Some(0) },
        quota: None,
    }
}

fn alone() -> Governor<World> {
    Governor::new(world(), Manner::Scrub)
}

fn populating() -> Governor<World> {
    Governor::new(world(), Manner::Populate)
}

/// Runs for `span_ns` and returns the share of it that went into bursts, in thousandths. `passing`
/// is what the rest of the world does as time passes, told for how long and whether we worked.
fn share_of(
    governor: &mut Governor<World>,
    span_ns: u64,
    limits: &Limits,
    mut passing: impl FnMut(&mut World, u64, bool),
) -> u64 {
    let (start_ns, mut worked_ns) = (governor.sensors.now_ns, 0);
    let mut pass = |governor: &mut Governor<World>, ns: u64, worked: bool| {
        governor.sensors.now_ns += ns;
        passing(&mut governor.sensors, ns, worked);
    };
    while governor.sensors.now_ns < start_ns + span_ns {
        match governor.ask(limits, Need::Wanted) {
            Verdict::Rest(rest_ns) => {
                assert!(rest_ns > 0, "no busy waiting");
                pass(governor, rest_ns, false);
            }
            Verdict::Go => {
                governor.sensors.own_ns += BURST_NS;
                worked_ns += BURST_NS;
                pass(governor, BURST_NS, true);
                let pause_ns = governor.pause_after(BLOCK_SIZE, BURST_NS, limits);
                pass(governor, pause_ns, false);
            }
        }
    }
    worked_ns * 1000 / span_ns
}

const SECOND: u64 = 1_000 * MS;

#[test]
fn alone_it_does_not_pause() {
    assert!(share_of(&mut alone(), SECOND, &NO_LIMITS, |_, _, _| {}) > 990);
}

#[test]
fn beside_the_program_that_wants_zeros_it_does_not_pause() {
    let mut governor = alone();
    governor.sensors.others = Some(1);
    let share = share_of(&mut governor, SECOND, &NO_LIMITS, |world, ns, _| world.program_ns += ns);
    assert!(share > 900, "{share}");
    let mixed =
        share_of(&mut governor, SECOND, &NO_LIMITS, |world, ns, _| world.program_ns += ns / 3);
    assert!(mixed <= 215, "most of the time it is somebody else: {mixed}");
}

#[test]
fn beside_a_neighbour_it_takes_a_fifth() {
    let mut governor = alone();
    governor.sensors.others = Some(1);
    let share = share_of(&mut governor, SECOND, &NO_LIMITS, |_, _, _| {});
    assert!((190..=205).contains(&share), "{share}");
    governor.sensors.others = None;
    let blind = share_of(&mut governor, SECOND, &NO_LIMITS, |_, _, _| {});
    assert!(blind <= 205, "a blind governor is polite: {blind}");
}

#[test]
fn what_nobody_asks_for_is_done_when_nobody_runs() {
    let mut governor = alone();
    assert_eq!(governor.ask(&NO_LIMITS, Need::Spare), Verdict::Go);
    governor.sensors.others = Some(1);
    assert!(matches!(governor.ask(&NO_LIMITS, Need::Spare), Verdict::Rest(_)));
    assert_eq!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Go);
}

#[test]
fn with_every_processor_taken_it_does_a_burst_now_and_then() {
    let mut governor = alone();
    governor.sensors.others = Some(2);
    let share = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, |_, _, _| {});
    assert_eq!(share, 1, "in thousandths");
    governor.sensors.others = Some(0);
    assert_eq!(
        governor.ask(&NO_LIMITS, Need::Wanted),
        Verdict::Go,
        "and goes on when they are gone"
    );
}

#[test]
fn beside_a_neighbour_populating_is_held_to_a_bandwidth() {
    let share = |others| {
        let mut governor = populating();
        governor.sensors.others = others;
        share_of(&mut governor, SECOND, &NO_LIMITS, |_, _, _| {})
    };
    assert!(share(Some(0)) > 990);
    // A block in 100 µs is 20 GB/s, a fortieth of it 512 MiB/s.
    assert!((23..=27).contains(&share(Some(1))), "{}", share(Some(1)));
    assert!((23..=27).contains(&share(None)), "a blind governor is polite");
    let mut slow = populating();
    slow.sensors.others = Some(1);
    assert_eq!(slow.ask(&NO_LIMITS, Need::Wanted), Verdict::Go);
    assert_eq!(slow.pause_after(BLOCK_SIZE, 50 * BURST_NS, &NO_LIMITS), 0, "slow by itself");
}

#[test]
fn with_every_processor_taken_populating_takes_a_hundredth_of_one() {
    let mut governor = populating();
    governor.sensors.others = Some(2);
    let wait = |world: &mut World, ns, _| *world.waits.pressure_ns.as_mut().expect("set") += ns;
    // It rests for 4 ms besides, which longer bursts than these hardly notice.
    let share = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, wait);
    assert!((6..=10).contains(&share), "{share}");
    assert!(governor.is_full());
    // Its own wait for a processor is no time that it took from anybody.
    while governor.ask(&NO_LIMITS, Need::Wanted) != Verdict::Go {}
    governor.sensors.own_ns += BURST_NS;
    assert_eq!(governor.pause_after(BLOCK_SIZE, SECOND, &NO_LIMITS), 0);
    governor.sensors.now_ns += (PAUSE_WHERE_FULL - 1) * BURST_NS;
    assert_eq!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Rest(BURST_NS));
    governor.sensors.others = Some(0);
    assert_eq!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Go);
    assert!(!governor.is_full());
}

#[test]
fn slow_memory_is_left_to_others() {
    let mut governor = alone();
    for _ in 0..3 {
        assert_eq!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Go);
        governor.pause_after(BLOCK_SIZE, BURST_NS, &NO_LIMITS);
    }
    assert_eq!(governor.pause_after(BLOCK_SIZE, BURST_NS * 5 / 4, &NO_LIMITS), 0, "noise");
    let pause_ns = governor.pause_after(BLOCK_SIZE, 3 * BURST_NS, &NO_LIMITS);
    assert!((19 * BURST_NS / 10..=2 * BURST_NS).contains(&pause_ns), "{pause_ns}");
}

#[test]
fn waiting_that_rises_with_our_work_stops_it() {
    for who in 0..3 {
        let mut governor = alone();
        let share = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, |world, ns, worked| {
            let waited = if worked { ns } else { 0 };
            match who {
                0 => world.waits.own_ns += waited,
                1 => *world.waits.group_ns.as_mut().expect("set") += waited,
                _ => *world.waits.pressure_ns.as_mut().expect("set") += waited,
            }
        });
        assert!(share < 40, "sensor {who}: {share}");
    }
}

#[test]
fn waiting_that_others_cause_among_themselves_does_not() {
    let mut governor = alone();
    let share = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, |world, ns, _| {
        *world.waits.pressure_ns.as_mut().expect("set") += ns / 3;
        *world.waits.group_ns.as_mut().expect("set") += ns / 4;
    });
    assert!(share > 900, "{share}");
}

#[test]
fn processors_that_we_may_use_must_have_idle_time() {
    let mut governor = alone();
    governor.sensors.others = Some(1);
    governor.sensors.idle_ns = Some(0);
    let busy = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, |_, _, _| {});
    assert!(busy < 20, "nothing but our own time was to be had: {busy}");
    governor.sensors.others = Some(0);
    let idle = share_of(&mut governor, 10 * SECOND, &NO_LIMITS, |world, ns, worked| {
        *world.idle_ns.as_mut().expect("set") += if worked { 0 } else { ns };
    });
    assert!(idle > 800, "after the last rest of 1.3 s: {idle}");
}

#[test]
fn load_and_rate_are_limits() {
    let mut governor = alone();
    governor.sensors.load = 151;
    let limits = Limits { load_hundredths: 150, rate_pages_per_s: 0 };
    assert_eq!(governor.ask(&limits, Need::Wanted), Verdict::Rest(LOAD_REST_NS));
    governor.sensors.load = 150;
    assert_eq!(governor.ask(&limits, Need::Wanted), Verdict::Go);
    // 51,200 pages a second are 100 blocks, of 100 µs each.
    let limits = Limits { load_hundredths: 0, rate_pages_per_s: 51_200 };
    let share = share_of(&mut alone(), SECOND, &limits, |_, _, _| {});
    assert_eq!(share, 10);
}

/// A group with a quota of one processor, in which others use `others` thousandths of one.
fn with_quota(governor: &mut Governor<World>, others: u64, span_ns: u64) -> u64 {
    let quota = Quota { limit: 1000, used_ns: 0, throttled: 0 };
    governor.sensors.quota.get_or_insert(quota);
    share_of(governor, span_ns, &NO_LIMITS, |world, ns, worked| {
        let quota = world.quota.as_mut().expect("set");
        quota.used_ns += ns * others / 1000 + if worked { ns } else { 0 };
    })
}

#[test]
fn a_quota_that_the_program_uses_up_is_left_to_it() {
    assert_eq!(with_quota(&mut alone(), 950, 10 * SECOND), 0);
}

#[test]
fn a_quota_half_used_is_taken_by_an_eighth() {
    let share = with_quota(&mut alone(), 500, 10 * SECOND);
    assert!((100..=130).contains(&share), "{share}");
}

#[test]
fn throttling_stops_it_for_seconds() {
    let mut governor = alone();
    with_quota(&mut governor, 500, SECOND);
    let quota = governor.sensors.quota.as_mut().expect("set");
    quota.throttled += 1;
    let share = with_quota(&mut governor, 500, SECOND);
    assert!(share < 20, "{share}");
}

#[test]
fn a_quota_is_watched_for_a_period_before_any_of_it_is_used() {
    let mut governor = alone();
    governor.sensors.quota = Some(Quota { limit: 1000, used_ns: 0, throttled: 0 });
    assert!(matches!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Rest(_)));
    governor.sensors.now_ns += 100 * MS;
    assert_eq!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Go);
    governor.wake();
    assert!(matches!(governor.ask(&NO_LIMITS, Need::Wanted), Verdict::Rest(_)));
}

#[test]
fn rests_double_up_to_their_limit() {
    let mut backoff = Backoff::new(1, 5);
    assert_eq!([(); 4].map(|()| backoff.next()), [1, 2, 4, 5]);
    backoff.reset();
    assert_eq!(backoff.next(), 1);
}
