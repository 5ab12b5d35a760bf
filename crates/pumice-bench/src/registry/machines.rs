//! Part D: ready memory for virtual machines and for pinning.

use super::field::begins;
use super::{
    bars, interval, is, less, lower_share, more, named, number, scaled, table, value, words, Entry,
    Part, Plot, Published, Setting,
};

/// `bench vm`
pub static VM: Entry = Entry {
    name: "vm",
    title: "Starting a virtual machine",
    about: "From the start of QEMU until it answers that the machine is there. The memory is preallocated by QEMU, \
            or leased from a daemon that populated it before. A column shows the time it took to populate.",
    part: Part::D,
    quick: Setting { arguments: &["--sizes", "1G", "--rounds", "2"], seconds: 20.0 },
    full: Setting { arguments: &[], seconds: 240.0 },
    published: &[Published {
        caption: "64 GB, 32 processors, a GPU passed through: seconds until it is created, three runs",
        head: &["pages", "before", "with PG_zero"],
        rows: &[
            &["4 KiB", "23.5 / 24.7 / 24.6", "10.2 / 10.3 / 11.2"],
            &["huge", "17.9 / 14.8 / 14.9", "1.9 / 1.8 / 1.9"],
        ],
    }],
    keys: &["bytes", "memory", "prealloc_threads", "accelerator"],
    figures: &[less("start_s", "s")],
    tables: &[table("Until the machine answers", &[], &[
        words("memory", "{memory}").wide(20),
        words("size", "{bytes|size}").wide(7),
        number("threads that preallocate", "prealloc_threads", 0),
        interval("start s [best, worst]", "start_s", ["start_low_s", "start_high_s"], 3),
        number("times no prealloc", "times_floor", 2),
        number("populated before, in s", "populate_s", 2),
        // The least of all rounds.
        scaled("% in huge pages", "huge_share", 100.0, 0),
    ])],
    plots: &[Plot::Bars(bars(
        "Creating a virtual machine, with the best and the worst round",
        "{bytes|size}, {memory}, {prealloc_threads} threads",
        ("s", 3),
        &[value("start_s").with_ends(["start_low_s", "start_high_s"])],
    ).marked(&[begins("memory", "slot")]))],
};

/// `bench lease`
pub static LEASE: Entry = Entry {
    name: "lease",
    title: "Leasing memory",
    about: "From connecting to the daemon until the descriptor of a ready slot is in hand, beside making the same \
            memory oneself; and the resources that all the leases left in the daemon.",
    part: Part::D,
    quick: Setting { arguments: &["--cycles", "300"], seconds: 10.0 },
    full: Setting { arguments: &[], seconds: 60.0 },
    published: &[],
    keys: &["bytes", "pages"],
    figures: &[less("lease_p50_us", "µs"), less("lease_p99_us", "µs"), less("fresh_p50_us", "µs")],
    tables: &[table("Microseconds until the memory is there", &[], &[
        words("size", "{bytes|size}"),
        words("pages", "{pages}"),
        number("leases", "cycles", 0),
        // From connecting until the descriptor is there, and the same memory made by oneself.
        number("leased, median", "lease_p50_us", 0),
        number("99 of 100", "lease_p99_us", 0),
        number("made oneself, median", "fresh_p50_us", 0),
        number("99 of 100", "fresh_p99_us", 0),
        // In the daemon; its resident memory does not count slots.
        number("descriptors left", "descriptors_left", 0),
        number("files left", "files_left", 0),
        number("KiB left", "resident_kib_left", 0),
    ])],
    plots: &[Plot::Bars(bars(
        "Microseconds until the memory is there, median", "{bytes|size}, {pages}", ("µs", 0),
        &[named("made oneself (the kernel)", "fresh_p50_us"), named("leased (pumice)", "lease_p50_us")],
    ))],
};

/// `bench pin`
pub static PIN: Entry = Entry {
    name: "pin",
    title: "Pinning memory",
    about: "From nothing until all is pinned, by buffers registered with io_uring (as devices pin) and by mlock: fresh \
            memory, and a slot that a daemon has ready. Below: a pool whose memory stays pinned, against mapping and \
            pinning anew.",
    part: Part::D,
    quick: Setting { arguments: &["--sizes", "256M", "--rounds", "3"], seconds: 10.0 },
    full: Setting { arguments: &[], seconds: 240.0 },
    published: &[],
    keys: &["experiment", "bytes", "pin", "pages"],
    figures: &[less("fresh_s", "s"), less("slot_s", "s"), less("pool_s", "s"), less("mmap_s", "s")],
    tables: &[
        table("Seconds to map and pin", &[is("experiment", "slot")], &[
            words("pinned by", "{pin}"),
            words("pages", "{pages}"),
            words("size", "{bytes|size}"),
            number("fresh s", "fresh_s", 4),
            number("slot s", "slot_s", 4),
            interval("times faster", "times_faster", ["times_faster_low", "times_faster_high"], 1),
            number("populated before, in s", "populate_s", 2),
        ]),
        table("Seconds to a pinned buffer of zeros", &[is("experiment", "pool")], &[
            words("pinned by", "{pin}"),
            words("size", "{bytes|size}"),
            number("pool s", "pool_s", 7),
            number("mmap and pin s", "mmap_s", 4),
            number("host-alloc s", "host_alloc_s", 4),
            interval("times faster", "times_faster", ["times_faster_low", "times_faster_high"], 0),
            number("than host-alloc", "times_faster_than_host_alloc", 0),
            number("made before, in s", "prepare_s", 4),
            number("zeroed again, in s", "rezero_s", 4),
        ]),
    ],
    plots: &[Plot::Bars(bars(
        "Seconds to map and pin", "{bytes|size}, {pin}, {pages}", ("s", 4),
        &[named("fresh (the kernel)", "fresh_s"), named("slot (pumice)", "slot_s")],
    ).only(&[is("experiment", "slot")]))],
};

/// `bench populate`
pub static POPULATE: Entry = Entry {
    name: "populate",
    title: "The cost of populating slots to programs beside it",
    about: "The daemon populates slots beside programs that compute or copy. The loss is that of these programs. \
            For \"alone\", it is that of the daemon against one that is not polite.",
    part: Part::D,
    quick: Setting { arguments: &["--pairs", "6", "--window-ms", "60", "--case", "compute"], seconds: 18.0 },
    full: Setting { arguments: &[], seconds: 340.0 },
    published: &[],
    keys: &["case", "pages", "polite"],
    figures: &[lower_share("loss_pct"), more("populate_mib_s", "MiB/s")],
    tables: &[table("Loss of the neighbours, median and 95 % interval", &[], &[
        words("beside", "{case}").wide(19),
        number("neighbours", "neighbours", 0),
        number("populated MiB/s", "populate_mib_s", 0),
        number("daemon % of a CPU", "populate_cpu_pct", 1),
        interval("loss %", "loss_pct", ["loss_low_pct", "loss_high_pct"], 1),
    ])],
    plots: &[Plot::Bars(bars(
        "Processor time of the daemon, by its neighbour", "{case}", ("% of a CPU", 1),
        &[value("populate_cpu_pct")],
    ))],
};
