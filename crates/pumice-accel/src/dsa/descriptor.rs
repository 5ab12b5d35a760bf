//! Descriptors and completion records, bit by bit as published.
//!
//! ```text
//! word   descriptor, 64 bytes                     completion record, 32 bytes
//!  0     63 opcode 56 | 55 flags 32 | 31 pasid 0   63 completed 32 | ... | 7 status 0
//!  1     address of the completion record          address that faulted
//!  2     pattern, or address of a batch's list     -
//!  3     destination                               -
//!  4     63 ... 32 | 31 bytes, or descriptors 0
//!  5-7   for other operations
//! ```
//! A record counts as completed the bytes of a fill, and the descriptors of a batch.
//!
//! Sources: Linux `include/uapi/linux/idxd.h`; Intel Data Streaming Accelerator Architecture
//! Specification (order number 341204), "Descriptors" and "Completion record".

use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::sync::atomic::{AtomicU64, Ordering};

const OPCODE_BATCH: u64 = 0x01;
const OPCODE_MEMFILL: u64 = 0x04;

/// The completion record's address is valid.
const FLAG_CRAV: u64 = 0x0004;
/// A completion record is wanted.
const FLAG_RCR: u64 = 0x0008;
/// The destination goes to the cache; without it, around.
const FLAG_CC: u64 = 0x0100;

/// A work descriptor. A page fault ends it (no `BLOCK_ON_FAULT`): the processor sees to the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Descriptor([u64; 8]);

/// The path of the written data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// To memory.
    Memory,
    /// To the last-level cache.
    Cache,
}

impl Descriptor {
    /// Bytes that stand for no operation.
    pub const NONE: Descriptor = Descriptor([0; 8]);

    fn new(opcode: u64, flags: u64, record: u64) -> Descriptor {
        let mut words = [0; 8];
        words[0] = opcode << 56 | (flags | FLAG_CRAV | FLAG_RCR) << 32;
        words[1] = record;
        Descriptor(words)
    }

    /// Fills `len` bytes at `at` with zeros (memory fill with a pattern of 0).
    pub fn zero(at: u64, len: u32, towards: Towards, record: u64) -> Descriptor {
        let flags = if towards == Towards::Cache { FLAG_CC } else { 0 };
        let mut descriptor = Descriptor::new(OPCODE_MEMFILL, flags, record);
        descriptor.0[3] = at;
        descriptor.0[4] = len.into();
        descriptor
    }

    /// Does `count` descriptors, which lie one behind the other at `list`, in any order.
    pub fn batch(list: u64, count: u32, record: u64) -> Descriptor {
        let mut descriptor = Descriptor::new(OPCODE_BATCH, 0, record);
        descriptor.0[2] = list;
        descriptor.0[4] = count.into();
        descriptor
    }

    /// Bytes it is to fill.
    pub fn bytes_to_fill(&self) -> u32 {
        self.0[4] as u32
    }

    /// Whether a fill may stop after `done` bytes for the page that `fault_at` is in.
    fn may_stop(&self, done: u32, fault_at: u64) -> bool {
        let (at, len) = (self.0[3], u64::from(self.bytes_to_fill()));
        // The device may name the page, or the byte.
        let first = at.saturating_add(done.into()) & !(FRAME_SIZE as u64 - 1);
        u64::from(done) < len && (first..at.saturating_add(len)).contains(&fault_at)
    }

    /// As the device reads it.
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (eight, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            eight.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Where the device reports a descriptor's completion. It writes all of it at once, and nobody else
/// writes while the device may.
#[derive(Debug)]
#[repr(C, align(32))]
pub struct Record([AtomicU64; 4]);

impl Record {
    /// One that says nothing yet.
    #[cfg(any(loom, test))]
    pub(super) fn new() -> Record {
        Record([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
    }

    /// To be called before the descriptor is handed over.
    pub(super) fn reset(&self) {
        // Relaxed: handing over orders it (`sys::enqueue` fences).
        self.0[0].store(0, Ordering::Relaxed);
        self.0[1].store(0, Ordering::Relaxed);
    }

    /// The first two words; the second means something only if the first has a status.
    pub(super) fn read(&self) -> [u64; 2] {
        // Acquire: pairs with the device's write, which comes after it has written the memory.
        [self.0[0].load(Ordering::Acquire), self.0[1].load(Ordering::Relaxed)]
    }

    /// For devices in software: completes the descriptor.
    pub(super) fn complete(&self, status: u8, bytes: u32, fault_at: u64) {
        self.0[1].store(fault_at, Ordering::Relaxed);
        // Release: pairs with the Acquire in `read`.
        self.0[0].store(u64::from(bytes) << 32 | u64::from(status), Ordering::Release);
    }
}

/// A record's report on a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Nothing: the device is at work on it, or has not begun.
    None,
    /// All of it is written.
    Done,
    /// It ended at a page that is not there, after so many bytes.
    Fault {
        /// Bytes written.
        done: u32,
        /// An address in the rest of the fill, or in the page where that begins.
        at: u64,
    },
    /// The device has ended it, and nothing is taken for written.
    Refused,
    /// A report that no device makes of a fill, or that the device is broken: nothing is known.
    Nonsense,
}

/// `enum dsa_completion_status`. Those from 0x20 on say that the hardware failed; 0x1a, 0x26 and 0x27 stand in
/// the kernel's event log only (Linux `drivers/dma/idxd/irq.c`), never in a record.
pub(super) mod status {
    pub const NONE: u8 = 0x00;
    pub const SUCCESS: u8 = 0x01;
    pub const PAGE_FAULT_NOBOF: u8 = 0x03;
    pub const PAGE_FAULT_IR: u8 = 0x04;
    pub const BATCH_FAIL: u8 = 0x05;
    pub const BATCH_PAGE_FAULT: u8 = 0x06;
    pub const BAD_OPCODE: u8 = 0x10;
    pub const INVALID_FLAGS: u8 = 0x11;
    pub const NOZERO_RESERVE: u8 = 0x12;
    pub const XFER_ERANGE: u8 = 0x13;
    pub const DESC_CNT_ERANGE: u8 = 0x14;
    pub const DESCLIST_ALIGN: u8 = 0x18;
    pub const INT_HANDLE_INVAL: u8 = 0x19;
    pub const CRA_ALIGN: u8 = 0x1b;
    pub const ADDR_ALIGN: u8 = 0x1c;
    pub const PRIV_BAD: u8 = 0x1d;
    pub const TRAFFIC_CLASS_CONF: u8 = 0x1e;
    /// Whether the access that faulted was a write, in a fault's status; never in another's.
    pub const WRITE: u8 = 0x80;
    /// As a fill has it, which reads nothing.
    pub const PAGE_FAULT_IN_FILL: u8 = PAGE_FAULT_NOBOF | WRITE;
    /// See [`PAGE_FAULT_IN_FILL`].
    pub const PAGE_FAULT_IR_IN_FILL: u8 = PAGE_FAULT_IR | WRITE;
}

/// Whether a status says that a descriptor of any kind was not begun, for what stands in it.
fn is_refused(status: u8) -> bool {
    use status::*;
    matches!(
        status,
        BAD_OPCODE
            | INVALID_FLAGS
            | NOZERO_RESERVE
            | INT_HANDLE_INVAL
            | CRA_ALIGN
            | ADDR_ALIGN
            | PRIV_BAD
            | TRAFFIC_CLASS_CONF
    )
}

impl Completion {
    /// Reads the record of a fill.
    pub fn of(record: [u64; 2], fill: &Descriptor) -> Completion {
        let [first, at] = record;
        let (status, done) = (first as u8, (first >> 32) as u32);
        match status {
            status::NONE => Completion::None,
            status::SUCCESS => Completion::Done,
            status::PAGE_FAULT_IN_FILL if fill.may_stop(done, at) => Completion::Fault { done, at },
            // A read that faulted is none of the fill's own.
            status::PAGE_FAULT_NOBOF => Completion::Refused,
            status::PAGE_FAULT_IR | status::PAGE_FAULT_IR_IN_FILL => Completion::Refused,
            status::XFER_ERANGE => Completion::Refused,
            _ if is_refused(status) => Completion::Refused,
            _ => Completion::Nonsense,
        }
    }
}

/// A record's report on a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchCompletion {
    /// Nothing yet.
    None,
    /// All its descriptors came to an end.
    Done,
    /// It has ended, and so have as many of its descriptors from the first on as it had begun.
    Short {
        /// As many.
        begun: u32,
    },
    /// A report that no device makes of a batch, or that the device is broken.
    Nonsense,
}

impl BatchCompletion {
    /// Reads the record of a batch of `most` descriptors at most.
    pub fn of(record: [u64; 2], most: u32) -> BatchCompletion {
        let (status, begun) = (record[0] as u8, (record[0] >> 32) as u32);
        match status {
            status::NONE => BatchCompletion::None,
            status::SUCCESS => BatchCompletion::Done,
            status::BATCH_FAIL | status::BATCH_PAGE_FAULT if begun <= most => {
                BatchCompletion::Short { begun }
            }
            status::DESC_CNT_ERANGE | status::DESCLIST_ALIGN => BatchCompletion::Short { begun: 0 },
            _ if is_refused(status) => BatchCompletion::Short { begun: 0 },
            _ => BatchCompletion::Nonsense,
        }
    }

    /// Whether the device is through with the batch.
    pub fn is_over(self) -> bool {
        matches!(self, BatchCompletion::Done | BatchCompletion::Short { .. })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Offsets and values from `struct dsa_hw_desc`, written down byte by byte.
    #[test]
    fn descriptors_are_laid_out_as_published() {
        let record = 0x1122_3344_5566_7700;
        let fill = Descriptor::zero(0x7f00_1234_5678_9abc, 0x0020_0000, Towards::Memory, record);
        let mut bytes = [0u8; 64];
        bytes[4] = 0x0c; // flags: CRAV | RCR
        bytes[7] = 0x04; // opcode: MEMFILL
        bytes[8..16].copy_from_slice(&[0x00, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        bytes[24..32].copy_from_slice(&[0xbc, 0x9a, 0x78, 0x56, 0x34, 0x12, 0x00, 0x7f]);
        bytes[34] = 0x20; // xfer_size
        assert_eq!(fill.bytes(), bytes);
        assert_eq!(fill.bytes_to_fill(), 0x0020_0000);
        let cached = Descriptor::zero(0x7f00_1234_5678_9abc, 0x0020_0000, Towards::Cache, record);
        bytes[5] = 0x01; // flags: CC
        assert_eq!(cached.bytes(), bytes);

        let mut bytes = [0u8; 64];
        bytes[4] = 0x0c;
        bytes[7] = 0x01; // opcode: BATCH
        bytes[8..16].copy_from_slice(&[0x00, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        bytes[16..24].copy_from_slice(&[0x40, 0, 0, 0, 0, 0x10, 0, 0]);
        bytes[32] = 64; // desc_count
        assert_eq!(Descriptor::batch(0x1000_0000_0040, 64, record).bytes(), bytes);
        assert_eq!((size_of::<Descriptor>(), align_of::<Descriptor>()), (64, 64));
        assert_eq!((size_of::<Record>(), align_of::<Record>()), (32, 32));
    }

    /// The same against the header of this machine, where it has one.
    #[test]
    fn descriptors_are_laid_out_as_the_kernels_header_has_them() {
        const PROGRAM: &str = r#"
            #include <linux/idxd.h>
            #include <stdio.h>
            #include <string.h>
            static void put(const void *at, int len) {
                for (int i = 0; i < len; i++) printf("%02x", ((const unsigned char *)at)[i]);
                printf("\n");
            }
            int main(void) {
                struct dsa_hw_desc d;
                struct dsa_completion_record r;
                memset(&d, 0, sizeof d);
                d.opcode = DSA_OPCODE_MEMFILL, d.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR;
                d.completion_addr = 0x112233445566ull, d.pattern = 0;
                d.dst_addr = 0x7f0012345678ull, d.xfer_size = 0x200001;
                put(&d, sizeof d);
                memset(&d, 0, sizeof d);
                d.opcode = DSA_OPCODE_BATCH, d.flags = IDXD_OP_FLAG_CRAV | IDXD_OP_FLAG_RCR;
                d.completion_addr = 0x112233445566ull;
                d.desc_list_addr = 0x7f0012345640ull, d.desc_count = 63;
                put(&d, sizeof d);
                memset(&r, 0, sizeof r);
                r.status = DSA_COMP_PAGE_FAULT_NOBOF | DSA_COMP_STATUS_WRITE;
                r.bytes_completed = 0x1234, r.fault_addr = 0x7f0012346000ull;
                put(&r, sizeof r);
            }"#;
        let folder = tempfile::tempdir().expect("a folder");
        let [source, program] = ["layout.c", "layout"].map(|name| folder.path().join(name));
        std::fs::write(&source, PROGRAM).expect("writable");
        let mut compiler = std::process::Command::new("cc");
        let built = compiler.arg("-o").args([&program, &source]).output();
        if !built.is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: no <linux/idxd.h>, or no C compiler");
            return;
        }
        let said = std::process::Command::new(&program).output().expect("it runs").stdout;
        let said = String::from_utf8(said).expect("text");
        let lines: Vec<_> = said.lines().collect();
        let text =
            |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let fill = Descriptor::zero(0x7f00_1234_5678, 0x20_0001, Towards::Memory, 0x1122_3344_5566);
        assert_eq!(text(&fill.bytes()), lines[0]);
        let batch = Descriptor::batch(0x7f00_1234_5640, 63, 0x1122_3344_5566);
        assert_eq!(text(&batch.bytes()), lines[1]);
        let record = Record::new();
        record.complete(status::PAGE_FAULT_NOBOF | status::WRITE, 0x1234, 0x7f00_1234_6000);
        let words: Vec<u8> = record.read().iter().flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(text(&words), lines[2][..32]);
    }

    const AT: u64 = 0x7f00_0000_0800;
    const LEN: u32 = 0x4000;

    fn fill() -> Descriptor {
        Descriptor::zero(AT, LEN, Towards::Memory, 0x1000)
    }

    /// A record as a device writes it, byte by byte: `struct dsa_completion_record`.
    fn record(status: u8, result: u8, completed: u32, fault_at: u64) -> [u64; 2] {
        let mut bytes = [0xee; 16];
        (bytes[0], bytes[1]) = (status, result);
        bytes[4..8].copy_from_slice(&completed.to_le_bytes());
        bytes[8..16].copy_from_slice(&fault_at.to_le_bytes());
        let word = |from: usize| {
            bytes[from..from + 8].iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
        };
        [word(0), word(8)]
    }

    #[test]
    fn every_status_of_a_fill_has_one_meaning() {
        for status in 0..=u8::MAX {
            for (done, at) in [(0, AT), (100, AT + 100), (0, AT & !0xfff), (LEN - 1, AT + 0x3fff)] {
                let expected = match status {
                    0x00 => Completion::None,
                    0x01 => Completion::Done,
                    0x83 => Completion::Fault { done, at },
                    0x03 | 0x04 | 0x84 | 0x10..=0x13 | 0x19 | 0x1b..=0x1e => Completion::Refused,
                    _ => Completion::Nonsense,
                };
                for result in [0, 1, 0xff] {
                    let record = record(status, result, done, at);
                    assert_eq!(Completion::of(record, &fill()), expected, "{status:#x} {done}");
                }
            }
        }
    }

    #[test]
    fn faults_that_no_fill_has_are_nonsense() {
        let of = |done, at| Completion::of(record(0x83, 0, done, at), &fill());
        for (done, at) in [(0, AT), (0, AT & !0xfff), (0, AT + 0x3fff), (0x1900, 0x7f00_0000_2000)]
        {
            assert_eq!(of(done, at), Completion::Fault { done, at });
        }
        for (done, at) in [
            // Before it, behind it, and in front of the written part.
            (0, (AT & !0xfff) - 1),
            (0, AT + u64::from(LEN)),
            (0x1900, 0x7f00_0000_1fff),
            (0, 0),
            (0, u64::MAX),
            // As much as there is to write, and more.
            (LEN, AT + 0x3fff),
            (LEN + 1, AT + 0x3fff),
            (u32::MAX, AT + 0x3fff),
        ] {
            assert_eq!(of(done, at), Completion::Nonsense, "{done:#x} {at:#x}");
        }
        let last = Descriptor::zero(u64::MAX - 100, LEN, Towards::Memory, 0x1000);
        let past = Completion::of(record(0x83, 0, LEN - 1, u64::MAX), &last);
        assert_eq!(past, Completion::Nonsense);
    }

    #[test]
    fn every_status_of_a_batch_has_one_meaning() {
        for status in 0..=u8::MAX {
            for begun in [0, 5, 64, 65, u32::MAX] {
                let expected = match status {
                    0x00 => BatchCompletion::None,
                    0x01 => BatchCompletion::Done,
                    0x05 | 0x06 if begun <= 64 => BatchCompletion::Short { begun },
                    0x10..=0x12 | 0x14 | 0x18 | 0x19 | 0x1b..=0x1e => {
                        BatchCompletion::Short { begun: 0 }
                    }
                    _ => BatchCompletion::Nonsense,
                };
                let batch = BatchCompletion::of(record(status, 1, begun, 0), 64);
                assert_eq!(batch, expected, "{status:#x} {begun}");
                let is_over = !matches!(batch, BatchCompletion::None | BatchCompletion::Nonsense);
                assert_eq!(batch.is_over(), is_over);
            }
        }
    }
}
