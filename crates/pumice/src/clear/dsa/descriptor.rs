//! Descriptors and completion records, bit by bit as published.
//!
//! ```text
//! word   descriptor, 64 bytes                     completion record, 32 bytes
//!  0     63 opcode 56 | 55 flags 32 | 31 pasid 0   63 bytes completed 32 | ... | 7 status 0
//!  1     address of the completion record          address that faulted
//!  2     pattern, or address of a batch's list     -
//!  3     destination                               -
//!  4     63 ... 32 | 31 bytes, or descriptors 0
//!  5-7   for other operations
//! ```
//! Sources: Linux `include/uapi/linux/idxd.h`; Intel Data Streaming Accelerator Architecture
//! Specification (order number 341204), "Descriptors" and "Completion record".

use crate::sync::atomic::{AtomicU64, Ordering};

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

/// Where what is written goes.
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

    /// As the device reads it.
    pub fn bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        for (eight, word) in bytes.chunks_exact_mut(8).zip(self.0) {
            eight.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Where the device says what became of a descriptor. It writes all of it at once, and nobody else
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

/// What a record says of a fill.
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
        /// The address.
        at: u64,
    },
    /// The device did not do it, and has ended it.
    Refused,
    /// What no device says of a fill: nothing is known.
    Nonsense,
}

/// `enum dsa_completion_status`
pub(super) mod status {
    pub const NONE: u8 = 0x00;
    pub const SUCCESS: u8 = 0x01;
    pub const PAGE_FAULT_NOBOF: u8 = 0x03;
    pub const PAGE_FAULT_IR: u8 = 0x04;
    pub const BATCH_FAIL: u8 = 0x05;
    pub const BATCH_PAGE_FAULT: u8 = 0x06;
    /// The first and the last of those that say what is wrong with a descriptor, or with the device.
    pub const BAD_OPCODE: u8 = 0x10;
    pub const TRANSLATION_FAIL: u8 = 0x1c;
    /// Whether the access that faulted was a write, in a fault's status.
    pub const WRITE: u8 = 0x80;
}

impl Completion {
    /// Reads a record of a fill of `len` bytes.
    pub fn of(record: [u64; 2], len: u32) -> Completion {
        let [first, at] = record;
        let (status, done) = (first as u8, (first >> 32) as u32);
        match status & !status::WRITE {
            _ if status == status::NONE => Completion::None,
            _ if status == status::SUCCESS => Completion::Done,
            status::PAGE_FAULT_NOBOF if done < len => Completion::Fault { done, at },
            // Nothing is taken for written by it, with the bit or without.
            status::PAGE_FAULT_IR => Completion::Refused,
            status::BAD_OPCODE..=status::TRANSLATION_FAIL if status < status::WRITE => {
                Completion::Refused
            }
            _ => Completion::Nonsense,
        }
    }
}

/// What a record says of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchCompletion {
    /// Nothing yet.
    None,
    /// All its descriptors came to an end.
    Done,
    /// It has ended, and some of its descriptors were not begun.
    Short,
    /// What no device says of a batch.
    Nonsense,
}

impl BatchCompletion {
    /// Reads a record of a batch.
    pub fn of(record: [u64; 2]) -> BatchCompletion {
        let status = record[0] as u8;
        match status & !status::WRITE {
            _ if status == status::NONE => BatchCompletion::None,
            _ if status == status::SUCCESS => BatchCompletion::Done,
            status::BATCH_FAIL | status::BATCH_PAGE_FAULT => BatchCompletion::Short,
            status::BAD_OPCODE..=status::TRANSLATION_FAIL if status < status::WRITE => {
                BatchCompletion::Short
            }
            _ => BatchCompletion::Nonsense,
        }
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
        let folder = std::env::temp_dir().join(format!("pumice-idxd-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let (source, program) = (folder.join("layout.c"), folder.join("layout"));
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
        std::fs::remove_dir_all(&folder).expect("there");
    }

    #[test]
    fn only_success_is_success() {
        for status in 0..=u8::MAX {
            for done in [0u32, 100, 4095, 4096, u32::MAX] {
                let record = [u64::from(done) << 32 | u64::from(status), 0x1000];
                let completion = Completion::of(record, 4096);
                assert_eq!(completion == Completion::Done, status == 1, "{status:#x}");
                assert_eq!(completion == Completion::None, status == 0, "{status:#x}");
                if let Completion::Fault { done, at } = completion {
                    assert!(done < 4096 && at == 0x1000 && matches!(status, 0x03 | 0x83));
                }
                assert_eq!(BatchCompletion::of(record) == BatchCompletion::Done, status == 1);
                assert_eq!(BatchCompletion::of(record) == BatchCompletion::None, status == 0);
            }
        }
        assert_eq!(Completion::of([0x02, 0], 1), Completion::Nonsense);
        assert_eq!(Completion::of([0x10, 0], 1), Completion::Refused);
        assert_eq!(Completion::of([0x1d, 0], 1), Completion::Nonsense);
        assert_eq!(Completion::of([0x80, 0], 1), Completion::Nonsense);
    }
}
