//! Part A: pre-zeroed pages.

use super::field::{begins, equals, float, text, Row};
use super::{
    bars, by, interval, is, less, lines, lower_share, more, number, scaled, series, table, times,
    value, words, Condition, Entry, Part, Plot, Published, Series, Setting,
};

/// `bench pft`
pub static PFT: Entry = Entry {
    name: "pft",
    title: "Page faults a second",
    about: "Threads allocate memory and write to every page. The kernel faults each page in and zeroes it. pumice \
            has faulted it in and zeroed it ahead. Filling is scrubd's time for that; it is ours, and figures are \
            shown with it, too. The gain is for memory that is touched sparsely. Programs that write every line of \
            a page pay for them in the cache.",
    part: Part::A,
    quick: Setting { arguments: &["--quick", "--size", "64M"], seconds: 18.0 },
    full: Setting { arguments: &[], seconds: 180.0 },
    published: &[
        Published {
            caption: "2 x PIII-450, 384 MB; each run allocates 256 MB and touches one line a page",
            head: &["", "Gb", "Rep", "Thr", "flt/cpu/s", "fault/wsec", "gain"],
            rows: &[
                &["before, one allocation", "0.25", "1", "1", "157,455", "157,070", ""],
                &["after", "0.25", "1", "1", "672,151", "664,045", "4.2"],
                &["before, two threads", "0.25", "1", "2", "101,476", "190,350", ""],
                &["after", "0.25", "1", "2", "459,629", "741,857", "3.9"],
                &["before, ten in a row", "0.25", "10", "1", "157,335", "157,076", ""],
                &["after", "0.25", "10", "1", "330,913", "330,225", "2.1"],
                &["before, ten, two threads", "0.25", "10", "2", "100,756", "190,572", ""],
                &["after", "0.25", "10", "2", "307,172", "320,680", "1.7"],
            ],
        },
        Published {
            caption: "Lines of 128 bytes touched in each page of 16 KiB, after",
            head: &["lines", "flt/cpu/s"],
            rows: &[&["1", "500,813"], &["128", "102,300"]],
        },
    ],
    keys: &["experiment", "backend", "gb", "rep", "thr", "lines", "touched_pages"],
    figures: &[more("flt_cpu_s", "pages per CPU second"), more("flt_wall_s", "pages per second")],
    tables: &[
        table("One allocation, the pool full", &[BURST], &PFT_COLUMNS),
        table(
            "Ten in a row, each given back before the next: the pool runs out",
            &[is("experiment", "row")], &PFT_COLUMNS,
        ),
        table("Few pages of 128 MiB touched", &[is("experiment", "sparse")], &[
            words("backend", "{backend}"),
            number("pages", "touched_pages", 0),
            by("us each", |row| us_each(row, float(row, "wall_s"))),
            by("CPU us each", |row| us_each(row, float(row, "user_s") + float(row, "system_s"))),
            number("pages per CPU second", "flt_cpu_s", 0),
            times("times kernel-4k", "flt_cpu_s", "backend", "kernel-4k"),
            number("resident KiB", "rss_kb", 0),
        ]),
    ],
    plots: &[
        Plot::Lines(lines(
            "Rate against lines touched: one thread, the pool full",
            ("lines", "cache lines written in each 4 KiB page (of 64)"), ("flt_cpu_s", "pages per CPU second"),
            &[
                series("kernel, 4 KiB pages", &[BURST, ONE_THREAD, SMALL]),
                series("kernel, huge pages", &[BURST, ONE_THREAD, HUGE]),
                series("pumice", &[BURST, ONE_THREAD, PUMICE]),
                Series {
                    name: "pumice, filling included",
                    only: &[BURST, ONE_THREAD, PUMICE],
                    y: Some("flt_cpu_s_with_filling"),
                },
            ],
        )),
        Plot::Lines(lines(
            "Rate against threads: one line a page, the pool full",
            ("thr", "threads"), ("flt_wall_s", "pages per second"),
            &[
                series("kernel, 4 KiB pages", &[BURST, ONE_LINE, SMALL]),
                series("kernel, huge pages", &[BURST, ONE_LINE, HUGE]),
                series("pumice", &[BURST, ONE_LINE, PUMICE]),
            ],
        )),
    ],
};

const BURST: Condition = is("experiment", "burst");
const ONE_THREAD: Condition = equals("thr", 1.0);
const ONE_LINE: Condition = equals("lines", 1.0);
const SMALL: Condition = is("backend", "kernel-4k");
const HUGE: Condition = is("backend", "kernel-thp");
const PUMICE: Condition = is("backend", "pumice");

const PFT_COLUMNS: [super::Column; 16] = [
    words("backend", "{backend}"),
    number("Gb", "gb", 2).wide(5),
    number("Rep", "rep", 0).wide(3),
    number("Thr", "thr", 0).wide(3),
    number("CLine", "lines", 0).wide(5),
    number("user s", "user_s", 4),
    number("system s", "system_s", 4),
    number("wall s", "wall_s", 4),
    number("flt/cpu/s", "flt_cpu_s", 0).wide(11),
    number("fault/wsec", "flt_wall_s", 0).wide(11),
    number("with filling", "flt_cpu_s_with_filling", 0),
    by("pays after", pays_after),
    times("gain over kernel-4k", "flt_cpu_s", "backend", "kernel-4k"),
    times("with filling", "flt_cpu_s_with_filling", "backend", "kernel-4k"),
    times("over kernel-thp", "flt_cpu_s", "backend", "kernel-thp"),
    times("with filling", "flt_cpu_s_with_filling", "backend", "kernel-thp"),
];

fn pays_after(row: &Row) -> String {
    match (&*text(row, "backend"), &*text(row, "pays_after")) {
        ("pumice", "") => "never".to_owned(),
        ("pumice", count) => count.to_owned(),
        _ => "-".to_owned(),
    }
}

fn us_each(row: &Row, seconds: f64) -> String {
    format!("{:.1}", seconds / float(row, "rep") * 1e6)
}

/// `bench clear`
pub static CLEAR: Entry = Entry {
    name: "clear",
    title: "Zeroing: bandwidth by engine",
    about: "How fast each engine of this processor zeroes memory that is not in the cache, and how fast memory is \
            read. Streaming stores leave the caches alone: \"near\" and \"far\" rows have the cost of touching \
            the page afterwards. Below: engines by batches, with processor time; and how much slower a neighbour walks \
            through parts and all of as much memory as the last-level cache holds while others are zeroed beside it.",
    part: Part::A,
    quick: Setting {
        arguments: &["--seconds-per-cell", "0.04", "--region", "512M", "--working-set", "32M"],
        seconds: 10.0,
    },
    full: Setting { arguments: &[], seconds: 66.0 },
    published: &[Published {
        caption: "Dillon's mbwtest, one processor (P4, 2.4 GHz)",
        head: &["", "MB/s"],
        rows: &[&["memory bandwidth", "4,672"]],
    }],
    keys: &["use", "engine", "size_bytes", "working_set_bytes"],
    figures: &[
        more("gb_per_s", "GB/s"),
        less("cpu_s_per_gb", "CPU s/GB"),
        less("ns_per_block", "ns a block"),
        lower_share("slowdown_percent"),
        less("lost_ms_per_gb", "ms/GB"),
    ],
    tables: &[
        table("Bandwidth: one thread's processor time", &[is("experiment", "bandwidth")], &[
            words("use", "{use}"),
            words("engine", "{engine}"),
            words("at a time", "{size_bytes|size}"),
            number("GB/s", "gb_per_s", 2),
            number("ns per 4 KiB", "ns_per_4kib", 1),
            number("spread %", "spread_percent", 0),
        ]),
        table("Engines by batches of 64 blocks", &[is("use", "engine")], &[
            words("engine", "{engine}").wide(14),
            number("GB/s", "gb_per_s", 2),
            number("CPU s/GB", "cpu_s_per_gb", 4),
            number("spinning GB/s", "spinning_gb_per_s", 2),
            number("CPU s/GB", "spinning_cpu_s_per_gb", 4),
        ]),
        table("The processor's part of a batch, on an accelerator in software", &[is("use", "overhead")], &[
            words("engine", "{engine}").wide(14),
            number("submit ns/block", "submit_ns_per_block", 0),
            number("settle ns/block", "settle_ns_per_block", 0),
        ]),
        table("A neighbour's slow-down, the same bytes zeroed by each engine", &[is("use", "neighbour")], &[
            words("engine", "{engine}"),
            words("walked", "{working_set_bytes|size}"),
            number("zeroed GB/s", "zeroed_gb_per_s", 2),
            scaled("alone Ml/s", "alone_lines_per_s", 1e-6, 1),
            scaled("beside Ml/s", "beside_lines_per_s", 1e-6, 1),
            interval("slow-down %", "slowdown_percent", ["slowdown_low", "slowdown_high"], 1),
            interval("lost ms per GB zeroed", "lost_ms_per_gb", ["lost_ms_low", "lost_ms_high"], 2),
            interval("of stosb's", "share_of_stosb", ["share_low", "share_high"], 2),
        ]),
    ],
    plots: &[Plot::Bars(bars(
        "Bandwidth by engine: memory that is not in the cache", "{engine}, {size_bytes|size} at a time", ("GB/s", 1),
        &[value("gb_per_s")],
    ).only(&[is("use", "clear")]))],
};

/// `bench scrub`
pub static SCRUB: Entry = Entry {
    name: "scrub",
    title: "What scrubbing costs those beside it",
    about: "scrubd works as hard as it is ever allowed to, beside programs that compute or copy. The loss is that \
            of these programs, and should not differ from 0. For \"alone\", it is that of scrubd against an engine \
            without a governor.",
    part: Part::A,
    quick: Setting { arguments: &["--pairs", "6", "--window-ms", "80"], seconds: 14.0 },
    full: Setting { arguments: &[], seconds: 80.0 },
    published: &[],
    keys: &["case"],
    figures: &[lower_share("loss_pct"), more("scrub_gb_s", "GB/s")],
    tables: &[table("Loss of the neighbours, median and 95 % interval", &[], &[
        words("beside", "{case}").wide(13),
        number("neighbours", "neighbours", 0),
        number("scrubbed GB/s", "scrub_gb_s", 2),
        number("scrubd % of a CPU", "scrub_cpu_pct", 1),
        interval("loss %", "loss_pct", ["loss_low_pct", "loss_high_pct"], 1),
    ])],
    plots: &[
        Plot::Bars(bars(
            "Processor time of scrubd, by its neighbour", "{case}", ("% of a CPU", 1),
            &[value("scrub_cpu_pct")],
        )),
        Plot::Bars(bars(
            "Loss of the neighbours, with its 95 % interval", "{case}", ("%", 1),
            &[value("loss_pct").with_ends(["loss_low_pct", "loss_high_pct"])],
        ).only(&[begins("case", "busy")])),
    ],
};
