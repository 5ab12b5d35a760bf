//! Part F: experiments that none of the published designs has: ordinary processes, and the allocator of frames.

use super::{
    bars, interval, is, less, number, table, value, words, Column, Entry, Part, Plot, Setting,
};

/// `bench map`
pub static MAP: Entry = Entry {
    name: "map",
    title: "mmap, touch, munmap",
    about: "A C program without code for pumice maps memory, touches it and unmaps it in a loop. It also touches \
            memory for the first time that --ready has populated. It runs by turns with the kernel's small pages, \
            its huge pages, and under pumice run.",
    part: Part::F,
    quick: Setting { arguments: &["--quick", "--rounds", "3"], seconds: 14.0 },
    full: Setting { arguments: &[], seconds: 120.0 },
    published: &[],
    keys: &["load", "way"],
    figures: &[less("wall_ns", "ns a page"), less("cpu_ns", "CPU ns a page")],
    tables: &[table("Nanoseconds for each page touched, medians", &[], &[
        words("load", "{load}").wide(22),
        words("memory", "{way}"),
        number("ns", "wall_ns", 1),
        number("CPU ns", "cpu_ns", 1),
        number("CPU ns, populating included", "all_cpu_ns", 1),
        number("peak KiB", "peak_kib", 0).wide(10),
        interval("times faster than 4k", "times_faster_than_4k.median", FASTER_THAN_4K, 2),
        interval("than thp", "times_faster_than_thp.median", FASTER_THAN_THP, 2),
    ])],
    plots: &[Plot::Bars(bars(
        "Nanoseconds for each page touched", "{load}: {way}", ("ns", 0),
        &[value("wall_ns")],
    ).marked(&[is("way", "pumice")]))],
};

/// The ends of intervals.
const FASTER_THAN_4K: [&str; 2] = ["times_faster_than_4k.low", "times_faster_than_4k.high"];
const FASTER_THAN_THP: [&str; 2] = ["times_faster_than_thp.low", "times_faster_than_thp.high"];

const fn ratio(head: &'static str, [middle, low, high]: [&'static str; 3]) -> Column {
    interval(head, middle, [low, high], 2)
}

/// `bench fork`
pub static FORK: Entry = Entry {
    name: "fork",
    title: "A server that takes snapshots by fork",
    about: "A large heap is forked while the parent goes on writing, as in-memory databases save themselves.",
    part: Part::F,
    quick: Setting { arguments: &["--quick", "--rounds", "5"], seconds: 8.0 },
    full: Setting { arguments: &[], seconds: 200.0 },
    published: &[],
    keys: &["load", "way"],
    figures: &[less("snapshot_ms", "ms"), less("all_ms", "ms"), less("peak_kib", "KiB")],
    tables: &[table("Medians, and ratios to the kernel's pages with 95 % intervals", &[], &[
        words("values", "{load}").wide(22),
        words("memory", "{way}"),
        number("snapshot ms", "snapshot_ms", 1),
        number("fork ms", "fork_ms", 1),
        number("writing ms", "writing_ms", 1),
        number("all ms", "all_ms", 1),
        number("peak KiB", "peak_kib", 0).wide(10),
        ratio("snapshot / 4k", ["snapshot_to_4k.median", "snapshot_to_4k.low", "snapshot_to_4k.high"]),
        ratio("all / 4k", ["all_to_4k.median", "all_to_4k.low", "all_to_4k.high"]),
        ratio("peak / 4k", ["peak_to_4k.median", "peak_to_4k.low", "peak_to_4k.high"]),
        ratio("snapshot / thp", ["snapshot_to_thp.median", "snapshot_to_thp.low", "snapshot_to_thp.high"]),
        ratio("peak / thp", ["peak_to_thp.median", "peak_to_thp.low", "peak_to_thp.high"]),
    ])],
    plots: &[Plot::Bars(bars(
        "From the fork until the child has read all", "{load}: {way}", ("ms", 1),
        &[value("snapshot_ms")],
    ).marked(&[is("way", "pumice")]))],
};

/// `bench frame`
pub static FRAME: Entry = Entry {
    name: "frame",
    title: "Getting and putting frames",
    about: "The allocator of frames alone; no memory behind them is touched. One compare-and-swap in the same \
            rounds stands beside it, since the shared paths consist of those.",
    part: Part::F,
    quick: Setting { arguments: &[], seconds: 2.0 },
    full: Setting { arguments: &[], seconds: 2.0 },
    published: &[],
    keys: &["operation"],
    figures: &[less("ns", "ns")],
    tables: &[table("Nanoseconds for one operation", &[], &[
        words("operation", "{operation}").wide(28),
        number("median ns", "ns", 2),
        number("best ns", "best_ns", 2),
        // Where there is a peer that has this operation.
        number("peer ns", "peer_ns", 2),
        number("ours/peer", "ratio_to_peer", 2),
    ])],
    plots: &[Plot::Bars(bars(
        "Nanoseconds for one frame", "{operation}", ("ns", 1),
        &[value("ns")],
    ).only(&[super::field::begins("operation", "pcp")]))],
};
