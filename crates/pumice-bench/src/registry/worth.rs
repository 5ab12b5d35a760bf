//! Part C: is it worth it?

use super::{
    bars, interval, is, less, named, number, table, value, words, Better, Entry, Figure, Part,
    Plot, Published, Scale, Setting, Table,
};

/// `bench programs`
pub static PROGRAMS: Entry = Entry {
    name: "programs",
    title: "Programs that you know",
    about: "Each program is first estimated as it is: its zero-fill faults, times the cost of one on this machine, \
            are the most that pumice run can save. Less can be saved where all of the memory is written, since \
            memory that the kernel has just zeroed is in the cache. It runs by turns as it is, with glibc told to \
            use huge pages (glibc.malloc.hugetlb=1), and under pumice run. \"Too close to call\" is a result, and \
            so is \"nothing\".",
    part: Part::C,
    quick: Setting { arguments: &["--quick"], seconds: 60.0 },
    full: Setting { arguments: &[], seconds: 420.0 },
    published: &[Published {
        caption: "A kernel build on DragonFly, 2.4 GHz P4, 2 GB: \"too close to call\"",
        head: &["", "seconds", "zero-fill faults", "found a zeroed page"],
        rows: &[
            &["before the patch", "1,048", "6.5 million", "under 1 %"],
            &["idle zeroing off", "1,054", "", ""],
            &["on", "1,051", "6.5 million", "about 40 %"],
            &["on, around the cache", "1,052", "", ""],
            &["at most, by arithmetic", "5.6 less", "", "100 %"],
            &["at most, by arithmetic", "2.8 less", "", "40 %"],
        ],
    }],
    keys: &["program"],
    figures: &[less("plain_s", "s"), less("huge_s", "s"), less("pumice_s", "s")],
    tables: &[
        table("The bound, and the measured saving with its 95 % interval", &[], &[
            words("program", "{program}").wide(18),
            number("glibc s", "plain_s", 3),
            number("pumice s", "pumice_s", 3),
            // They can't be looked at everywhere.
            number("bound %", "bound_pct", 1),
            number("if all is written %", "bound_low_pct", 1),
            interval("saved %", "saved_pct", ["saved_low_pct", "saved_high_pct"], 1),
            interval("by huge pages alone %", "huge_saved_pct", ["huge_saved_low_pct", "huge_saved_high_pct"], 1),
            words("verdict", "{verdict}"),
        ]),
        table("Medians", &[], &[
            words("program", "{program}"),
            words("what it does", "{about}"),
            number("zero-fill faults", "zfod", 0),
            number("glibc s", "plain_s", 3),
            number("huge pages s", "huge_s", 3),
            number("pumice s", "pumice_s", 3),
            number("glibc MiB", "plain_peak_mib", 0),
            number("pumice MiB", "pumice_peak_mib", 0),
            number("glibc CPU s", "plain_cpu_s", 3),
            number("pumice CPU s", "pumice_cpu_s", 3),
        ]),
    ],
    plots: &[Plot::Bars(bars(
        "Time that pumice saves: the bound, and the measured saving",
        "{program}",
        ("%", 1),
        &[
            named("at most, by arithmetic", "bound_pct"),
            named("measured", "saved_pct").with_ends(["saved_low_pct", "saved_high_pct"]),
        ],
    ))],
};

/// The picture of `bench alloc --plot`.
pub static RATIOS: Plot = Plot::Bars(
    bars(
        "Relative to the better of glibc with and without huge pages, below 1 is better",
        "{load}: {allocator}",
        ("times", 2),
        &[
            named("time", "time_ratio").with_ends(["time_ratio_low", "time_ratio_high"]),
            named("peak memory", "memory_ratio")
                .with_ends(["memory_ratio_low", "memory_ratio_high"]),
        ],
    )
    .marked(&[is("allocator", "pumice")]),
);

/// The tables of `bench alloc`: of a load, and of the ratios of pumice, and of its mappings, load by load.
pub static ALLOC: [Table; 3] = [
    table(
        "A load",
        &[],
        &[
            words("allocator", "{allocator}"),
            number("wall s", "wall_s", 3),
            number("cpu s", "cpu_s", 3),
            number("peak KiB", "peak_kib", 0).wide(11),
            number("min. faults", "minor_faults", 0),
            number("maj.", "major_faults", 0).wide(5),
            interval("time/glibc [95 %]", "time_ratio", ["time_ratio_low", "time_ratio_high"], 3),
            interval("cpu/glibc [95 %]", "cpu_ratio", ["cpu_ratio_low", "cpu_ratio_high"], 3),
            interval(
                "memory/glibc [95 %]",
                "memory_ratio",
                ["memory_ratio_low", "memory_ratio_high"],
                3,
            ),
        ],
    ),
    table(
        "Ratios",
        &[],
        &[
            words("load", "{load}").wide(18),
            interval("time", "time_ratio", ["time_ratio_low", "time_ratio_high"], 3),
            interval("cpu", "cpu_ratio", ["cpu_ratio_low", "cpu_ratio_high"], 3),
            interval("memory", "memory_ratio", ["memory_ratio_low", "memory_ratio_high"], 3),
            interval(
                "time/best peer",
                "time_to_best",
                ["time_to_best_low", "time_to_best_high"],
                3,
            ),
            words("which", "{best}"),
            number("repeated", "repeated_rounds", 0),
            number("cold", "cold_rounds", 0).wide(4),
        ],
    ),
    table(
        "Mappings",
        &[],
        &[
            words("load", "{load}").wide(18),
            interval("time", "mmap_time", ["mmap_time_low", "mmap_time_high"], 3),
            interval("cpu", "mmap_cpu", ["mmap_cpu_low", "mmap_cpu_high"], 3),
            number("repeated", "repeated_rounds", 0),
            number("cold", "cold_rounds", 0).wide(4),
        ],
    ),
];

/// It may be less than 0, which no ratio is.
const ADDED_MS: Figure =
    Figure { field: "added_ms", unit: "ms", better: Better::Less, scale: Scale::Difference };

/// `bench start`
pub static START: Entry = Entry {
    name: "start",
    title: "The cost to a program with nothing to gain",
    about: "Short programs run by turns plain, under env and under pumice run. The time added is the cost of a try.",
    part: Part::C,
    quick: Setting { arguments: &["--rounds", "10"], seconds: 7.0 },
    full: Setting { arguments: &[], seconds: 80.0 },
    published: &[],
    keys: &["program"],
    figures: &[less("plain_ms", "ms"), less("pumice_ms", "ms"), ADDED_MS],
    tables: &[table("From start to end, medians", &[], &[
        words("program", "{program}").wide(24),
        number("plain ms", "plain_ms", 3),
        number("under env ms", "env_ms", 3),
        number("under pumice ms", "pumice_ms", 3),
        interval("added ms", "added_ms", ["added_low_ms", "added_high_ms"], 3),
        number("ratio", "ratio", 3),
    ])],
    plots: &[Plot::Bars(bars(
        "Added by pumice run, with its 95 % interval", "{program}", ("ms", 2),
        &[value("added_ms").with_ends(["added_low_ms", "added_high_ms"])],
    ))],
};
