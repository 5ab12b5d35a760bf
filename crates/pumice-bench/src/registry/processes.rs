//! Part F: experiments that none of the published designs has: ordinary processes, and the allocator of frames.

use super::{bars, interval, is, less, number, value, words, Entry, Part, Plot, Setting, Table};

/// `bench map`
pub static MAP: Entry = Entry {
    name: "map",
    title: "mmap, touch, munmap",
    about: "A C program that knows nothing of pumice maps memory, touches it and unmaps it in a loop; and touches \
            memory for the first time that --ready has populated. By turns with the kernel's small pages, its huge \
            pages, and under pumice run.",
    part: Part::F,
    quick: Setting { arguments: &["--quick", "--rounds", "3"], seconds: 14.0 },
    full: Setting { arguments: &[], seconds: 120.0 },
    published: &[],
    keys: &["load", "way"],
    figures: &[less("wall_ns", "ns a page"), less("cpu_ns", "CPU ns a page")],
    tables: &[Table {
        caption: "Nanoseconds for each page touched, medians",
        only: &[],
        columns: &[
            words("load", "{load}"),
            words("memory", "{way}"),
            number("ns", "wall_ns", 1),
            number("CPU ns", "cpu_ns", 1),
            number("CPU ns, populating included", "all_cpu_ns", 1),
            number("peak KiB", "peak_kib", 0),
            interval("times faster than 4k", "times_faster_than_4k.median", FASTER_THAN_4K, 2),
            interval("than thp", "times_faster_than_thp.median", FASTER_THAN_THP, 2),
        ],
    }],
    plots: &[Plot::Bars(bars(
        "Nanoseconds for each page touched", "{load}: {way}", ("ns", 0),
        &[value("wall_ns")],
    ).marked(&[is("way", "pumice")]))],
};

/// The ends of an interval.
pub const FASTER_THAN_4K: [&str; 2] = ["times_faster_than_4k.low", "times_faster_than_4k.high"];
/// The same, for huge pages.
pub const FASTER_THAN_THP: [&str; 2] = ["times_faster_than_thp.low", "times_faster_than_thp.high"];

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
    tables: &[Table {
        caption: "Medians, and ratios to the kernel's small pages with 95 % intervals",
        only: &[],
        columns: &[
            words("values", "{load}"),
            words("memory", "{way}"),
            number("snapshot ms", "snapshot_ms", 1),
            number("fork ms", "fork_ms", 1),
            number("all ms", "all_ms", 1),
            number("peak KiB", "peak_kib", 0),
            interval("snapshot / 4k", "snapshot_to_4k.median", ["snapshot_to_4k.low", "snapshot_to_4k.high"], 2),
            interval("all / 4k", "all_to_4k.median", ["all_to_4k.low", "all_to_4k.high"], 2),
        ],
    }],
    plots: &[Plot::Bars(bars(
        "From the fork until the child has read all", "{load}: {way}", ("ms", 1),
        &[value("snapshot_ms")],
    ).marked(&[is("way", "pumice")]))],
};

/// `bench frame`
pub static FRAME: Entry = Entry {
    name: "frame",
    title: "Getting and putting frames",
    about: "The allocator of frames alone; no memory behind them is touched. One compare-and-swap in the same rounds \
            stands beside it: that is what the shared paths consist of.",
    part: Part::F,
    quick: Setting { arguments: &[], seconds: 2.0 },
    full: Setting { arguments: &[], seconds: 2.0 },
    published: &[],
    keys: &["operation"],
    figures: &[less("ns", "ns")],
    tables: &[Table {
        caption: "Nanoseconds for one operation",
        only: &[],
        columns: &[
            words("operation", "{operation}"),
            number("median ns", "ns", 1),
            number("best ns", "best_ns", 1),
        ],
    }],
    plots: &[Plot::Bars(bars(
        "Nanoseconds for one frame", "{operation}", ("ns", 1),
        &[value("ns")],
    ).only(&[super::field::begins("operation", "pcp")]))],
};
