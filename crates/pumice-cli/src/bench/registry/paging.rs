//! Part E: paging. What was published waits here for the experiments that set pumice's beside it.

use super::Published;

/// The tables that nothing reproduces yet.
pub static PUBLISHED: [Published; 2] = [
    Published {
        caption: "bonnie, 400 MB: the same speed, a tenth of the processor time",
        head: &["", "out KB/s", "CPU %", "rewrite KB/s", "CPU %", "in KB/s", "CPU %"],
        rows: &[
            &["buffered", "12,999", "12.1", "5,918", "10.8", "13,412", "12.1"],
            &["direct", "12,810", "1.8", "5,855", "1.6", "13,529", "1.2"],
        ],
    },
    Published {
        caption: "A kernel build in swap (make -j30), and SAP's throughput over repeated runs",
        head: &["", "before", "after"],
        rows: &[
            &["make -j30 bzImage", "8 min 15 s", "7 min 39 s"],
            &["SAP", "8.59 falling to 1.10", "11.6 to 16.1 throughout"],
        ],
    },
];
