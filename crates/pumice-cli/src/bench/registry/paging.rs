//! Part E: paging. What was published and has no experiment yet waits here too.

use super::field::equals;
use super::{
    is, less, more, number, series, times, words, Column, Condition, Entry, Lines, Part, Plot,
    Published, Setting, Table,
};

/// The tables that nothing reproduces yet.
pub static PUBLISHED: [Published; 1] = [Published {
    caption: "bonnie, 400 MB: the same speed, a tenth of the processor time",
    head: &["", "out KB/s", "CPU %", "rewrite KB/s", "CPU %", "in KB/s", "CPU %"],
    rows: &[
        &["buffered", "12,999", "12.1", "5,918", "10.8", "13,412", "12.1"],
        &["direct", "12,810", "1.8", "5,855", "1.6", "13,529", "1.2"],
    ],
}];

/// `bench reclaim`
pub static RECLAIM: Entry = Entry {
    name: "reclaim",
    title: "A region larger than its memory",
    about: "Threads write and read pages of a region many times larger than its memory: in an address space of \
            pumice's, with swap in a file, and in the kernel, in a control group with as much memory and swap in a \
            file beside it. Waits are of all accesses, to pages that are there too. The device's rows are single \
            pages, read or written directly.",
    part: Part::E,
    quick: Setting { arguments: &["--quick"], seconds: 20.0 },
    full: Setting { arguments: &[], seconds: 1500.0 },
    published: &[Published {
        caption: "A kernel build in swap (make -j30), and SAP's throughput over repeated runs",
        head: &["", "before", "after"],
        rows: &[
            &["make -j30 bzImage", "8 min 15 s", "7 min 39 s"],
            &["SAP", "8.59 falling to 1.10", "11.6 to 16.1 throughout"],
        ],
    }],
    keys: &["pattern", "backend", "threads", "region_bytes", "frames_bytes"],
    figures: &[
        more("accesses_per_s", "accesses per second"),
        less("cpu_us_per_page", "µs"),
        less("p99_us", "µs"),
    ],
    tables: &[
        Table { caption: "On a region 2 times the memory", only: &[equals("times", 2.0)], columns: &COLUMNS },
        Table { caption: "On a region 4 times the memory", only: &[equals("times", 4.0)], columns: &COLUMNS },
        Table {
            caption: "The device alone",
            only: &[is("backend", "device")],
            columns: &[
                words("", "{pattern}"),
                number("threads", "threads", 0),
                number("pages per second", "accesses_per_s", 0),
                number("median µs", "p50_us", 0),
                number("99 of 100, µs", "p99_us", 0),
                number("longest, µs", "max_us", 0),
            ],
        },
    ],
    plots: &[Plot::Lines(Lines {
        title: "Accesses against threads, on a region 4 times the memory",
        x: ("threads", "threads"),
        y: ("accesses_per_s", "accesses per second"),
        series: &[
            series("kernel, uniform writes", &[FOUR, UNIFORM, is("backend", "kernel-swap")]),
            series("pumice, uniform writes", &[FOUR, UNIFORM, is("backend", "pumice")]),
            series("kernel, Zipf writes", &[FOUR, ZIPF, is("backend", "kernel-swap")]),
            series("pumice, Zipf writes", &[FOUR, ZIPF, is("backend", "pumice")]),
        ],
    })],
};

const FOUR: Condition = equals("times", 4.0);
const UNIFORM: Condition = is("pattern", "random-write");
const ZIPF: Condition = is("pattern", "zipf-write");

const COLUMNS: [Column; 10] = [
    words("", "{pattern}"),
    words("by", "{backend}"),
    number("threads", "threads", 0),
    number("accesses per second", "accesses_per_s", 0),
    times("times the kernel's", "accesses_per_s", "backend", "kernel-swap"),
    number("pages in per second", "in_per_s", 0),
    number("CPU µs per page in", "cpu_us_per_page", 1),
    number("99 of 100 waits, µs", "p99_us", 0),
    number("longest wait, µs", "max_us", 0),
    number("drift %", "drift_percent", 1),
];
