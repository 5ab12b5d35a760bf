//! Two words side by side, changed by one atomic operation.
//!
//! A locked operation on two words costs little more than one on one word (5.3 ns and 4.7 ns where this
//! was written), and code that installs many words spends most of its time in them.

use crate::sync::atomic::AtomicU64;

/// Two words that one operation can change.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Pair(pub [AtomicU64; 2]);

/// Says that the processor has such an operation.
#[derive(Clone, Copy, Debug)]
pub struct Pairs(());

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
impl Pairs {
    /// Asks the processor, which in a virtual machine takes microseconds.
    pub fn detect() -> Option<Pairs> {
        const CMPXCHG16B: u32 = 13;
        let basic = crate::sys::cpuid::cpuid(1);
        (basic.ecx >> CMPXCHG16B & 1 != 0).then_some(Pairs(()))
    }

    /// Replaces both words if both are what is expected. `false`: it changed neither.
    ///
    /// To others it is two `compare_exchange_weak` of [`AcqRel`](core::sync::atomic::Ordering::AcqRel), one
    /// for each word, that either both succeed or both fail.
    #[inline]
    #[must_use]
    pub fn compare_exchange(self, pair: &Pair, old: [u64; 2], new: [u64; 2]) -> bool {
        let is_done: u64;
        // SAFETY: the processor has the instruction, as `self` says; the pair is aligned as it wants, and atomic; rbx,
        // which the compiler reserves, is put back. The operands between the two exchanges of it are in named
        // registers: the compiler may choose rbx where any will do.
        unsafe {
            core::arch::asm!(
                "xchg {low}, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "sete cl",
                "mov rbx, {low}",
                in("rdi") pair,
                low = inout(reg) new[0] => _,
                inout("rcx") new[1] => is_done,
                inout("rax") old[0] => _,
                inout("rdx") old[1] => _,
                options(nostack),
            );
        }
        is_done as u8 != 0
    }
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
impl Pairs {
    /// Not used here: models look at each word by itself.
    pub fn detect() -> Option<Pairs> {
        None
    }

    /// See the other one.
    #[must_use]
    pub fn compare_exchange(self, _: &Pair, _: [u64; 2], _: [u64; 2]) -> bool {
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::atomic::Ordering;

    fn words(pair: &Pair) -> [u64; 2] {
        [0, 1].map(|index| pair.0[index].load(Ordering::Relaxed))
    }

    #[test]
    fn changes_both_words_or_neither() {
        let Some(pairs) = Pairs::detect() else {
            eprintln!("skipped: no such operation here");
            return;
        };
        let pair = Pair([AtomicU64::new(1), AtomicU64::new(2)]);
        assert!(!pairs.compare_exchange(&pair, [1, 3], [7, 8]));
        assert!(!pairs.compare_exchange(&pair, [3, 2], [7, 8]));
        assert_eq!(words(&pair), [1, 2]);
        assert!(pairs.compare_exchange(&pair, [1, 2], [u64::MAX, 4]));
        assert_eq!(words(&pair), [u64::MAX, 4]);
    }

    /// Where the answer is kept beyond a call, an optimizing compiler likes to have it in rbx.
    #[test]
    fn the_answer_outlives_a_call() {
        #[inline(never)]
        fn look(pair: &Pair) -> u64 {
            std::hint::black_box(words(pair)[0])
        }
        #[inline(never)]
        fn answer(pairs: Pairs, pair: &Pair, old: u64) -> u64 {
            look(pair);
            let is_done = pairs.compare_exchange(pair, [old; 2], [3, 4]);
            look(pair);
            u64::from(is_done) + look(std::hint::black_box(pair))
        }
        let Some(pairs) = Pairs::detect() else {
            eprintln!("skipped: no such operation here");
            return;
        };
        let pair = Pair([AtomicU64::new(1), AtomicU64::new(1)]);
        assert_eq!([2, 1, 1].map(|old| answer(pairs, &pair, old)), [1, 1 + 3, 3]);
    }

    /// Against single words: nothing of what others add gets lost.
    #[test]
    fn loses_no_update_of_a_single_word() {
        const TIMES: u64 = 100_000;
        let Some(pairs) = Pairs::detect() else {
            eprintln!("skipped: no such operation here");
            return;
        };
        let pair = Pair([AtomicU64::new(0), AtomicU64::new(0)]);
        std::thread::scope(|scope| {
            for index in [0, 1] {
                let word = &pair.0[index];
                scope.spawn(move || {
                    for _ in 0..TIMES {
                        word.fetch_add(1, Ordering::AcqRel);
                    }
                });
            }
            let mut done = 0;
            while done < TIMES {
                let old = words(&pair);
                done += u64::from(pairs.compare_exchange(&pair, old, old.map(|word| word + 1)));
            }
        });
        assert_eq!(words(&pair), [2 * TIMES; 2]);
    }
}
