//! Part B: page fault scalability.

use super::field::equals;
use super::{
    is, less, lines, more, number, series, table, words, Condition, Entry, Part, Plot, Published,
    Setting,
};

/// `bench fault`
pub static FAULT: Entry = Entry {
    name: "fault",
    title: "Page faults against threads",
    about: "Threads touch pages of one region. In pumice's address spaces entries change under one lock held over the \
            fault (\"whole\", as before V12), under a short lock, or by atomic operations; and in the kernel. There \
            are more threads than processors on purpose, so a lock's holder may have none.",
    part: Part::B,
    quick: Setting { arguments: &["--quick", "--size", "128M"], seconds: 25.0 },
    full: Setting { arguments: &[], seconds: 200.0 },
    published: &[Published {
        caption: "512 processors, 32 GB, 3 repetitions; faults a second on the wall",
        head: &["threads", "before V12", "with V12"],
        rows: &[
            &["1", "45,097", "44,428"],
            &["4", "141,545", ""],
            &["8", "118,671", "308,454"],
            &["16", "", "395,682"],
            &["32", "53,754", "366,445"],
            &["128", "18,918", "288,005"],
            &["512", "72,752", "1,050,416"],
        ],
    }],
    keys: &[
        "experiment",
        "backend",
        "locking",
        "prefault_pages",
        "page_size",
        "pattern",
        "thr",
        "lines",
        "operation",
        "pages",
    ],
    figures: &[more("flt_wall_s", "faults per second"), more("flt_cpu_s", "faults per CPU second"), less("ns", "ns")],
    tables: &[
        table(
            "Each thread its share, one line of each page written",
            &[is("experiment", "fault"), OWN, ONE_LINE], &COLUMNS,
        ),
        table("The fault path alone: no line written", &[equals("lines", 0.0)], &COLUMNS),
        table("All threads in the same 2 MiB", &[is("pattern", "one-block")], &COLUMNS),
        table("Beside a thread that maps and unmaps", &[is("pattern", "mapper")], &COLUMNS),
        table("Access to pages that are there", &[is("experiment", "access")], &[
            words("operation", "{operation}").wide(22),
            number("pages", "pages", 0),
            number("ns", "ns", 1),
        ]),
    ],
    plots: &[Plot::Lines(lines(
        "Rate against threads: each its share, one line written",
        ("thr", "threads"), ("flt_wall_s", "faults per second"),
        &[
            series("kernel, 4 KiB pages", &[OWN, ONE_LINE, is("backend", "kernel-4k")]),
            series("kernel, huge pages", &[OWN, ONE_LINE, is("backend", "kernel-thp")]),
            series("one lock over the fault", &[OWN, ONE_LINE, ALONE, is("locking", "whole")]),
            series("a lock for each change", &[OWN, ONE_LINE, ALONE, is("locking", "short")]),
            series("atomic", &[OWN, ONE_LINE, ALONE, SMALL, is("locking", "atomic")]),
            series(
                "atomic, prefaulting 16 pages",
                &[OWN, ONE_LINE, equals("prefault_pages", 16.0), is("locking", "atomic")],
            ),
        ],
    ))],
};

const OWN: Condition = is("pattern", "own");
const ONE_LINE: Condition = equals("lines", 1.0);
const ALONE: Condition = equals("prefault_pages", 1.0);
const SMALL: Condition = is("page_size", "4k");

const COLUMNS: [super::Column; 14] = [
    words("backend", "{backend}"),
    words("locking", "{locking}"),
    words("pattern", "{pattern}"),
    words("pages", "{page_size}").wide(5),
    number("prefault", "prefault_pages", 0),
    number("Gb", "gb", 2).wide(5),
    number("Thr", "thr", 0).wide(3),
    number("CLine", "lines", 0).wide(5),
    number("user s", "user_s", 4),
    number("system s", "system_s", 4),
    number("wall s", "wall_s", 4),
    number("flt/cpu/s", "flt_cpu_s", 0).wide(11),
    number("fault/wsec", "flt_wall_s", 0).wide(11),
    number("with filling", "flt_cpu_s_with_filling", 0),
];
