//! The engine over a device in software, and over files that look like the kernel's.

use core::time::Duration;
use proptest::prelude::*;

use super::driven::{manner, Driven};
use super::soft::{Fate, Manner, SoftDevice};
use super::*;
use pumice_frames::addr::FRAME_SIZE;
use pumice_frames::clear::contract::{uphold, Ground, Hope};
use pumice_frames::clear::{Engine, Lost, Piece, PieceState, Waiting};

#[test]
fn the_engine_upholds_the_contract() {
    let usual = Manner::default;
    for manner in [
        usual(),
        Manner { entries: None, ..usual() },
        Manner { most_in_batch: 0, ..usual() },
        Manner { most_bytes: 4096, ..usual() },
        Manner { fates: vec![Fate::Late(3), Fate::Done], ..usual() },
        Manner { fates: vec![Fate::LateRecord(3), Fate::Done], ..usual() },
    ] {
        uphold(Hope::AllZeroed, || Driven::new(&manner));
    }
    for manner in [
        // The rest after a fault finds the queue full now and then.
        Manner { fates: vec![Fate::PageFault(50), Fate::Done], ..usual() },
        Manner { entries: Some(1), ..usual() },
        Manner { entries: None, busy_sixteenths: 3, ..usual() },
        Manner { most_in_batch: 2, ..usual() },
    ] {
        uphold(Hope::Anything, || Driven::new(&manner));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_does_over_devices_that_fail(manner in manner()) {
        uphold(Hope::Anything, || Driven::new(&manner));
    }

    #[test]
    fn a_dedicated_queue_is_never_overrun(entries in 1u32..5, lens in prop::collection::vec(1usize..9000, 1..200)) {
        let driven = Driven::new(&Manner { entries: Some(entries), most_in_batch: 2, ..Manner::default() });
        let mut from = 0;
        let mut ranges = Vec::new();
        for len in lens {
            ranges.push(from..from + len);
            from += len;
        }
        let ground = Ground::new(from, ranges);
        let mut pieces = ground.pieces();
        for _ in 0..300 {
            // SAFETY: the memory is this test's.
            unsafe {
                driven.submit(&mut pieces).expect("not lost");
                driven.poll(&mut pieces).expect("not lost");
            }
        }
        prop_assert_eq!(driven.device.overruns(), 0);
        prop_assert!(pieces.iter().all(|piece| piece.state() == PieceState::Zeroed));
        ground.check(&pieces, "dsa");
    }
}

// As many cases as are asked for: `ci/fuzz-records`.
proptest! {
    /// No record, whatever its bytes, has memory called zero that is not, or other memory written to.
    #[test]
    fn records_of_any_bytes_are_survived(
        records in prop::collection::vec((any::<u8>(), any::<u32>(), any::<u64>()), 1..40),
    ) {
        let driven = Driven::new(&Manner::default());
        let ranges = (0..64).map(|index| index << 14..(index << 14) + 8192);
        let ground = Ground::new(1 << 20, ranges.collect());
        let mut pieces = ground.pieces();
        // SAFETY: the memory is this test's.
        let _is_lost = unsafe { driven.dsa.submit(&mut pieces) };
        for (index, (status, bytes, at)) in records.into_iter().enumerate() {
            // Success would be a lie here: the device has not worked.
            let status = if status == 1 { 2 } else { status };
            driven.dsa.scribble(index, status, bytes, at);
            // SAFETY: as above.
            let _is_lost = unsafe { driven.dsa.poll(&mut pieces) };
            let partly = |piece: &Piece| piece.state() == PieceState::Zeroed;
            prop_assert!(!pieces.iter().any(partly));
        }
        // SAFETY: the device has not worked, and goes first.
        unsafe {
            drop(driven);
            ground.give_back();
        }
    }
}

/// A batch of two whose first descriptor has a fate.
fn two_pieces(fate: Fate) -> (Driven, Ground, Vec<Piece>) {
    let driven = Driven::new(&Manner { fates: vec![fate, Fate::Done], ..Manner::default() });
    let ground = Ground::new(4 * FRAME_SIZE, vec![0..FRAME_SIZE, 2 * FRAME_SIZE..4 * FRAME_SIZE]);
    let mut pieces = ground.pieces();
    // SAFETY: the memory is this test's.
    unsafe { driven.submit(&mut pieces) }.expect("not lost");
    (driven, ground, pieces)
}

#[test]
fn whatever_the_status_what_was_not_written_is_not_called_zero() {
    for status in (0..=u8::MAX).filter(|&status| status != 1) {
        let (driven, ground, mut pieces) = two_pieces(Fate::Status(status));
        // SAFETY: the memory is this test's.
        let is_lost = (0..5).any(|_| unsafe { driven.poll(&mut pieces) } == Err(Lost));
        let expected = match status {
            0x00 => (PieceState::InFlight, false),
            0x03 | 0x04 | 0x84 | 0x10..=0x13 | 0x19 | 0x1b..=0x1e => (PieceState::Faulted, false),
            _ => (PieceState::InFlight, true),
        };
        assert_eq!((pieces[0].state(), is_lost), expected, "{status:#x}");
        assert_eq!(pieces[0].remaining().1, FRAME_SIZE, "{status:#x}");
        ground.check(&pieces, "dsa");
    }
}

#[test]
fn a_record_that_comes_after_its_batchs_is_waited_for() {
    let (driven, ground, mut pieces) = two_pieces(Fate::LateRecord(2));
    for _ in 0..2 {
        // SAFETY: the memory is this test's.
        unsafe { driven.poll(&mut pieces) }.expect("not lost");
        assert_eq!(pieces[0].state(), PieceState::InFlight, "its place may not be used again");
    }
    // SAFETY: as above.
    unsafe { driven.wait(&mut pieces, Duration::from_secs(5), Waiting::Spinning) }
        .expect("not lost");
    assert!(pieces.iter().all(|piece| piece.state() == PieceState::Zeroed));
    ground.check(&pieces, "dsa");
}

#[test]
fn faults_are_gone_on_with_where_they_stopped() {
    let driven = Driven::new(&Manner { fates: vec![Fate::PageFault(50)], ..Manner::default() });
    let ground = Ground::new(4 * FRAME_SIZE, vec![0..FRAME_SIZE, 2 * FRAME_SIZE..4 * FRAME_SIZE]);
    let mut pieces = ground.pieces();
    // SAFETY: the memory is this test's.
    unsafe {
        driven.submit(&mut pieces).expect("not lost");
        driven.wait(&mut pieces, Duration::from_secs(5), Waiting::Spinning).expect("not lost");
    }
    ground.check(&pieces, "dsa");
    for piece in &pieces {
        assert_eq!(piece.state(), PieceState::Faulted, "half of the rest at a time never ends");
        let (whole, rest) = (piece.range().1, piece.remaining().1);
        assert!(rest < 64 && rest > 0, "{rest} of {whole}");
    }
}

#[test]
fn a_device_that_works_on_its_own_is_waited_for() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let device: &SoftDevice = Box::leak(Box::new(SoftDevice::new(Manner::default())));
    let dsa = Dsa::on(device).expect("memory");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                device.work();
                std::thread::yield_now();
            }
        });
        for _ in 0..20 {
            let ranges = (0..150).map(|index| index * FRAME_SIZE..(index + 1) * FRAME_SIZE);
            let ground = Ground::new(150 * FRAME_SIZE, ranges.collect());
            let mut pieces = ground.pieces();
            // SAFETY: the memory is this test's.
            unsafe {
                dsa.submit(&mut pieces).expect("not lost");
                dsa.wait(&mut pieces, Duration::from_secs(20), Waiting::Spinning)
                    .expect("not lost");
            }
            ground.check(&pieces, "dsa");
            assert!(pieces.iter().all(|piece| piece.state() == PieceState::Zeroed));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Files as the driver has them under /sys and /dev.
#[cfg(target_arch = "x86_64")]
mod files {
    use std::fs;
    use std::path::Path;

    use tempfile::TempDir;

    use super::super::{Dsa, OpenError, Places};
    use crate::sys::enqueue::Enqueue;
    use pumice_frames::clear::{Engine, Piece, PieceState, Warmth};

    struct Tree(TempDir);

    impl Tree {
        fn new() -> Tree {
            let folder = tempfile::tempdir().expect("a folder");
            fs::create_dir(folder.path().join("dev")).expect("a folder");
            Tree(folder)
        }

        fn queue(&self, name: &str, attributes: &[(&str, &str)]) {
            let folder = self.0.path().join("sys").join(name);
            fs::create_dir_all(&folder).expect("a folder");
            for (attribute, value) in attributes {
                fs::write(folder.join(attribute), format!("{value}\n")).expect("writable");
            }
            // A page of a file for a portal: the test can read the stores.
            fs::write(self.0.path().join("dev").join(name), [0u8; 4096]).expect("writable");
        }

        fn open(&self) -> Result<Dsa<super::super::Hardware>, OpenError> {
            let text = |path: &Path| path.to_str().expect("text").to_owned();
            let (devices, nodes) =
                (text(&self.0.path().join("sys")), text(&self.0.path().join("dev")));
            Dsa::open_at(Places { devices: &devices, nodes: &nodes })
        }
    }

    const DEDICATED: [(&str, &str); 6] = [
        ("state", "enabled"),
        ("type", "user"),
        ("mode", "dedicated"),
        ("size", "16"),
        ("max_batch_size", "32"),
        ("max_transfer_size", "2147483648"),
    ];

    #[test]
    fn what_is_missing_is_said() {
        let tree = Tree::new();
        assert_eq!(tree.open().expect_err("no bus"), OpenError::NoDriver);
        tree.queue("wq0.0", &[("state", "disabled"), ("type", "user")]);
        tree.queue("wq0.1", &[("state", "enabled"), ("type", "kernel")]);
        tree.queue("wq0.2", &[("state", "enabled"), ("type", "user"), ("mode", "odd")]);
        tree.queue("wq0.4", &DEDICATED);
        tree.queue("wq1.0", &DEDICATED);
        tree.queue("dsa1", &[("pasid_enabled", "0")]);
        assert_eq!(tree.open().expect_err("none for users"), OpenError::NoQueue);
        if !Enqueue::detect().enqcmd {
            tree.queue("dsa0", &[("pasid_enabled", "1")]);
            fs::remove_dir_all(tree.0.path().join("sys/wq0.4")).expect("there");
            let mut shared = DEDICATED;
            shared[2].1 = "shared";
            tree.queue("wq0.3", &shared);
            assert_eq!(tree.open().expect_err("no ENQCMD"), OpenError::NoInstruction);
        }
    }

    #[test]
    fn a_dedicated_queues_portal_takes_the_descriptors_bytes() {
        if !Enqueue::detect().movdir64b {
            eprintln!("skipped: this processor has no MOVDIR64B");
            return;
        }
        let tree = Tree::new();
        tree.queue("wq2.0", &[("state", "disabled")]);
        tree.queue("wq2.1", &DEDICATED);
        tree.queue("dsa2", &[("pasid_enabled", "1")]);
        let dsa = tree.open().expect("a queue");
        let memory = Box::leak(vec![1u8; 64 << 10].into_boxed_slice());
        let piece = |bytes: &mut [u8]| Piece::new(bytes.as_mut_ptr(), bytes.len(), Warmth::Cold);
        let mut pieces: Vec<_> = memory.chunks_mut(1000).map(piece).collect();
        // SAFETY: the memory is never given back.
        unsafe { dsa.submit(&mut pieces) }.expect("not lost");
        let taken = pieces.iter().filter(|piece| piece.state() == PieceState::InFlight).count();
        assert_eq!(taken, pieces.len(), "66 pieces are three batches");
        let portal = fs::read(tree.0.path().join("dev/wq2.1")).expect("readable");
        for (index, count) in [(0, 32), (1, 32), (2, 2)] {
            let descriptor = &portal[64 * index..][..64];
            assert_eq!(descriptor[7], 0x01, "a batch");
            assert_eq!(descriptor[32], count);
        }
        assert!(portal[192..].iter().all(|&byte| byte == 0));
    }
}
