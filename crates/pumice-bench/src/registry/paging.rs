//! Part E: paging.

use super::field::{begins, equals};
use super::{
    bars, is, less, lines, lower_share, more, number, series, table, times, value, words, Better,
    Column, Condition, Entry, Figure, Lines, Part, Plot, Published, Scale, Setting, Table, Value,
    YScale,
};

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
        table("On a region 2 times the memory", &[equals("times", 2.0)], &COLUMNS),
        table("On a region 4 times the memory", &[equals("times", 4.0)], &COLUMNS),
        table("The device alone", &[is("backend", "device")], &COLUMNS),
    ],
    plots: &[Plot::Lines(lines(
        "Accesses against threads, on a region {times} times the memory",
        ("threads", "threads"), ("accesses_per_s", "accesses per second"),
        &[
            series("kernel, uniform writes", &[UNIFORM, begins("backend", "kernel-")]),
            series("pumice, uniform writes", &[UNIFORM, begins("backend", "pumice")]),
            series("kernel, Zipf writes", &[ZIPF, begins("backend", "kernel-")]),
            series("pumice, Zipf writes", &[ZIPF, begins("backend", "pumice")]),
        ],
    ).only_largest("times"))],
};

const UNIFORM: Condition = is("pattern", "random-write");
const ZIPF: Condition = is("pattern", "zipf-write");

const COLUMNS: [Column; 16] = [
    words("pattern", "{pattern}").wide(16),
    words("by", "{backend}").wide(11),
    number("times", "times", 0).wide(5),
    number("threads", "threads", 0).wide(3),
    number("accesses/s", "accesses_per_s", 0).wide(11),
    number("x kernel", "times_kernel", 2),
    number("in/s", "in_per_s", 0),
    number("CPU us/in", "cpu_us_per_page", 1),
    number("machine's", "machine_us_per_page", 1),
    number("p50 us", "p50_us", 1),
    number("p99 us", "p99_us", 1),
    number("max us", "max_us", 1),
    number("drift %", "drift_percent", 1),
    number("spread %", "spread_percent", 1),
    number("file MB/s", "file_mb_per_s", 1),
    number("hit ns", "hit_ns", 1),
];

/// `bench io`
pub static IO: Entry = Entry {
    name: "io",
    title: "Files larger than their memory",
    about: "A file is written, rewritten and read in order, and read at random: through the kernel's page cache by \
            read and write (buffered) and mapped (mmap), in control groups with as much memory, through pumice's \
            (direct), and by fio, which has no cache and measures the device. Pages at random are those that came \
            from the device; beside a thread that overwrites the file, the longest waits count. The scan's rows have \
            the share of a working set's accesses that found their page during a scan, and the share of the set \
            that was still in memory after one; resident rows are reads of \
            pages that are in memory.",
    part: Part::E,
    quick: Setting { arguments: &["--quick"], seconds: 40.0 },
    full: Setting { arguments: &[], seconds: 600.0 },
    published: &[Published {
        caption: "bonnie, 400 MB: the same speed, a tenth of the processor time",
        head: &["", "out KB/s", "CPU %", "rewrite KB/s", "CPU %", "in KB/s", "CPU %"],
        rows: &[
            &["buffered", "12,999", "12.1", "5,918", "10.8", "13,412", "12.1"],
            &["direct", "12,810", "1.8", "5,855", "1.6", "13,529", "1.2"],
        ],
    }],
    keys: &["op", "backend", "threads", "file_bytes", "frames_bytes"],
    figures: &[
        more("mb_s", "MB/s"),
        lower_share("cpu_percent"),
        more("iops", "accesses per second"),
        less("p99_us", "µs"),
    ],
    tables: &[
        table("Written in order, and made durable", &[is("op", "out")], &IO_COLUMNS),
        table("Read, changed and written back", &[is("op", "rewrite")], &IO_COLUMNS),
        table("Read in order", &[is("op", "in")], &IO_COLUMNS),
        table("Pages at random, one at a time", &[is("op", "random")], &IO_COLUMNS),
        table("Pages at random, asked for ahead", &[is("op", "random-ahead")], &IO_COLUMNS),
        table("Pages at random, beside a thread that overwrites", &[is("op", "random-beside")], &IO_COLUMNS),
        table("A working set, and a scan of ten times the memory", &[is("op", "scan")], &IO_COLUMNS),
        table("Pages in memory, at random", &[begins("op", "resident")], &IO_COLUMNS),
    ],
    plots: &[Plot::Lines(lines(
        "Pages read at random against threads", ("threads", "threads"), ("in_per_s", "pages per second"),
        &[
            series("direct, asked ahead", &[is("op", "random-ahead"), is("backend", "direct")]),
            series("direct, one at a time", &[is("op", "random"), is("backend", "direct")]),
            series("fio, asked ahead", &[is("op", "random-ahead"), is("backend", "fio")]),
            series("fio, one at a time", &[is("op", "random"), is("backend", "fio")]),
            series("mmap, asked ahead", &[is("op", "random-ahead"), is("backend", "mmap")]),
            series("mmap, one at a time", &[is("op", "random"), is("backend", "mmap")]),
        ],
    ))],
};

const IO_COLUMNS: [Column; 19] = [
    words("op", "{op}").wide(13),
    words("backend", "{backend}"),
    number("thr", "threads", 0).wide(3),
    number("MB/s", "mb_s", 0),
    number("CPU %", "cpu_percent", 1),
    number("mach %", "machine_percent", 1),
    number("iops", "iops", 0).wide(11),
    number("in/s", "in_per_s", 0),
    number("p99 us", "p99_us", 1),
    number("max us", "max_us", 0),
    // Of the thread that writes beside those that read.
    number("MB/s out", "beside_mb_s", 0),
    number("CPU us/in", "cpu_us_per_page", 2),
    number("CPU s/GB", "cpu_s_per_gb", 3),
    // Beside a scan, and there after one.
    number("hits %", "hits_percent", 1),
    number("kept %", "kept_percent", 1),
    number("x fio", "times_fio", 2),
    number("x mmap", "times_mmap", 2),
    number("x unguarded", "times_unguarded", 2),
    number("spread %", "spread_percent", 1),
];

/// The picture of `bench replace --plot`.
pub static HITS_AGAINST_FRAMES: Plot = Plot::Lines(Lines {
    title: "References of {trace} that find their page in memory",
    largest: "",
    scale: YScale::Percent,
    x: ("frames", "frames"),
    y: ("hit_pct", "hits, percent"),
    series: &[
        series("fifo", &[is("policy", "fifo")]),
        series("lru", &[is("policy", "lru")]),
        series("clock", &[is("policy", "clock")]),
        series("2q", &[is("policy", "2q")]),
        series("two-list", &[is("policy", "two-list")]),
        series("adaptive", &[is("policy", "adaptive")]),
        series("arc", &[is("policy", "arc")]),
        series("lirs", &[is("policy", "lirs")]),
        series("s3-fifo", &[is("policy", "s3-fifo")]),
        series("sieve", &[is("policy", "sieve")]),
        series("clock-pro", &[is("policy", "clock-pro")]),
        series("opt", &[is("policy", "opt")]),
    ],
});

/// `bench replace`
pub static REPLACE: Entry = Entry {
    name: "replace",
    title: "Which page goes: hit ratios",
    about: "The share of references that each replacement policy finds in memory, over synthetic traces: zipf \
            (some pages are far more frequent than others), scans (the same, and now and then 10,000 pages in a row \
            that are used once), loop (6,000 pages around and around), phases (5,000 pages at a time). two-list \
            and adaptive are pumice's, the very code that reclaim runs; opt knows the future. 'pumice bench \
            replace --trace FILE' does the same for a trace of yours, and --all adds ARC, LIRS, S3-FIFO, SIEVE and \
            CLOCK-Pro.",
    part: Part::E,
    quick: Setting { arguments: &[], seconds: 6.0 },
    full: Setting { arguments: &[], seconds: 6.0 },
    published: &[Published {
        caption: "OLTP, an hour of a database's references (Megiddo and Modha, FAST 2003), hits in percent by \
                  libcachesim 0.3.5",
        head: &["frames", "FIFO", "LRU", "CLOCK", "2Q", "ARC", "LIRS", "S3-FIFO", "SIEVE", "OPT"],
        rows: &[
            &["1,000", "28.53", "32.83", "33.27", "40.53", "38.95", "34.58", "40.86", "32.56", "53.61"],
            &["5,000", "49.68", "53.65", "53.83", "55.73", "55.25", "52.62", "55.75", "51.89", "68.27"],
            &["15,000", "61.42", "64.63", "64.77", "65.72", "65.40", "63.98", "65.98", "65.10", "75.14"],
        ],
    }],
    keys: &["trace", "frames", "policy"],
    figures: &[Figure { field: "hit_pct", unit: "%", better: Better::More, scale: Scale::Exact }],
    tables: &[
        table("1,000 frames", &[equals("frames", 1000.0)], &HIT_COLUMNS),
        table("4,000 frames", &[equals("frames", 4000.0)], &HIT_COLUMNS),
        table("16,000 frames", &[equals("frames", 16_000.0)], &HIT_COLUMNS),
    ],
    plots: &[
        hit_bars("Hits of zipf, 4,000 frames", ZIPF_TRACE),
        hit_bars("Hits of scans, 4,000 frames", SCANS),
        hit_bars("Hits of loop, 4,000 frames", LOOP),
        hit_bars("Hits of phases, 4,000 frames", PHASES),
    ],
};

const ZIPF_TRACE: &[Condition] = &[equals("frames", 4000.0), is("trace", "zipf")];
const SCANS: &[Condition] = &[equals("frames", 4000.0), is("trace", "scans")];
const LOOP: &[Condition] = &[equals("frames", 4000.0), is("trace", "loop")];
const PHASES: &[Condition] = &[equals("frames", 4000.0), is("trace", "phases")];

const HIT_COLUMNS: [Column; 5] = [
    words("trace", "{trace}"),
    words("policy", "{policy}"),
    number("hits %", "hit_pct", 2),
    times("times LRU", "hit_pct", "policy", "lru"),
    times("of the optimum", "hit_pct", "policy", "opt"),
];
/// The table of `bench replace --live`.
pub static LIVE_HITS: Table = table("Simulated, and with real pages", &[], &LIVE_COLUMNS);

const LIVE_COLUMNS: [Column; 7] = [
    words("policy", "{policy}"),
    number("frames", "frames", 0),
    number("simulated %", "hit_pct", 2),
    number("live %", "live_hit_pct", 2),
    number("points lost", "lost_points", 2),
    number("mean pages", "mean_pages", 0),
    number("most", "most_pages", 0),
];

const HITS: [Value; 1] = [value("hit_pct")];
const OURS: [Condition; 1] = [is("policy", "adaptive")];

const fn hit_bars(title: &'static str, only: &'static [Condition]) -> Plot {
    Plot::Bars(bars(title, "{policy}", ("%", 2), &HITS).only(only).marked(&OURS))
}
