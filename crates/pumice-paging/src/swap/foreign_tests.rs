//! Files that look like devices with something on them.

use std::os::unix::fs::FileExt;
use std::process::Command;

use proptest::prelude::*;
use tempfile::NamedTempFile;

use super::foreign::{places, Foreign, END, FAR, FORMATS, START};
use super::{Cached, Swap, SwapError};
use pumice_frames::addr::FRAME_SIZE;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Of swap.
const BYTES: u64 = 2 * MIB;
/// Lengths with every rest that formats at the end depend on; the last has all of the places but one.
const LENGTHS: [u64; 5] =
    [4 * MIB, 20 * MIB + 512, 65 * MIB + 4096, GIB + 7 * 65536 + 3584, 300 * GIB];

/// A sparse file that is gone with this.
struct Image(NamedTempFile);

impl Image {
    /// `None`, and a line, where the file system has no files so long.
    fn new(name: &str, len: u64) -> Option<Image> {
        let file = tempfile::Builder::new().prefix(&format!("pumice-{name}-")).tempfile();
        let image = Image(file.expect("a file"));
        match image.0.as_file().set_len(len) {
            Ok(()) => Some(image),
            Err(error) => {
                eprintln!("skipped: no file of {len} bytes ({error})");
                None
            }
        }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.0.as_file().write_all_at(bytes, at).expect("room");
    }

    /// The reason for its refusal; `None` if it was taken, of which nothing is left then.
    fn refusal(&self) -> Option<Foreign> {
        match Swap::create(self.0.path(), BYTES, Cached::No) {
            Ok(swap) => {
                drop(swap);
                self.put(0, &[0; FRAME_SIZE]);
                None
            }
            Err(SwapError::NotSwap { reason, .. }) => Some(reason),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_known_format_is_refused_by_its_name() {
    for len in LENGTHS {
        let Some(image) = Image::new("format", len) else { continue };
        assert_eq!(image.refusal(), None, "an empty disk of {len} bytes");
        for format in FORMATS {
            let Some(at) = format.place(len) else { continue };
            let inside = |(start, bytes): (u64, u64)| {
                (start..start + bytes).contains(&at)
                    && at + format.magic.len() as u64 <= start + bytes
            };
            assert!(places(len).any(inside), "{format:?} at {at} of {len}");
            image.put(at, format.magic);
            let reason = image.refusal();
            let is_named = matches!(reason, Some(Foreign::Known { .. }));
            assert!(is_named, "{format:?} at {at} of {len}: {reason:?}");
            let mut back = vec![0; format.magic.len()];
            image.0.as_file().read_exact_at(&mut back, at).expect("it is there");
            assert_eq!(back, format.magic, "left as it was");
            image.put(at, &vec![0; format.magic.len()]);
        }
        assert_eq!(image.refusal(), None);
    }
}

/// Those that the review named: as they lie on a disk, and what the message says.
#[test]
fn btrfs_zfs_md_and_their_like_are_named() {
    let len = 100 * MIB + 3 * 4096;
    let md = b"\xfc\x4e\x2b\xa9";
    let uberblock = b"\x0c\xb1\xba\0\0\0\0\0";
    let zfs_end = len / (256 << 10) * (256 << 10);
    let cases: &[(u64, &[u8], &str)] = &[
        (65536 + 64, b"_BHRfS_M", "btrfs"),
        (64 * MIB + 64, b"_BHRfS_M", "btrfs"),
        (128 << 10, uberblock, "ZFS"),
        (384 << 10, uberblock, "ZFS"),
        (zfs_end - (384 << 10), uberblock, "ZFS"),
        (zfs_end - (128 << 10), uberblock, "ZFS"),
        (len / 65536 * 65536 - 65536, md, "a Linux RAID member (md 0.90)"),
        (len - 8192, md, "a Linux RAID member (md 1.0)"),
        (0, md, "a Linux RAID member (md 1.1)"),
        (4096, md, "a Linux RAID member (md 1.2)"),
        (len - 4096 + 60, b"\x83\x74\x02\x6d", "a DRBD device"),
        (4 * MIB, b"SKUL\xba\xbe", "a LUKS2 volume"),
        (len - 512, b"EFI PART", "a GUID partition table"),
        (len - 1024, b"Intel Raid ISM Cfg Sig. 1.1.00", "an Intel RAID member"),
    ];
    let image = Image::new("named", len).expect("room");
    for (at, bytes, expected) in cases {
        image.put(*at, bytes);
        let reason = image.refusal();
        let is_it = matches!(reason, Some(Foreign::Known { name, offset }) if name == *expected && offset == *at);
        assert!(is_it, "{expected}: {reason:?}");
        image.put(*at, &vec![0; bytes.len()]);
    }
    assert_eq!(image.refusal(), None);
}

/// Formats of programs that are installed.
#[test]
fn disks_that_were_formatted_are_refused() {
    let tools: [(&[&str], &str); 7] = [
        (&["mkfs.ext4", "-q", "-F"], "ext"),
        (&["mkfs.minix"], "Minix"),
        (&["mkswap", "-q"], "a swap area of Linux"),
        (&["mkfs.btrfs", "-q", "-f"], "btrfs"),
        (&["mkfs.xfs", "-q", "-f"], "XFS"),
        (&["mkfs.vfat"], "FAT"),
        (
            &["cryptsetup", "-q", "luksFormat", "--type=luks2", "--key-file=/etc/hostname"],
            "a LUKS volume",
        ),
    ];
    for (tool, expected) in tools {
        let image = Image::new("formatted", 300 * MIB).expect("room");
        let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
        let made =
            Command::new(tool[0]).args(&tool[1..]).arg(image.0.path()).env("PATH", path).output();
        match made {
            Ok(output) if output.status.success() => {
                let reason = image.refusal();
                let is_it =
                    matches!(reason, Some(Foreign::Known { name, .. }) if name.contains(expected));
                assert!(is_it, "{expected}: {reason:?}");
            }
            _ => eprintln!("skipped: no {}", tool[0]),
        }
    }
}

/// A swap area on a RAID of metadata at the end is found on its member too, and does not grow over them.
#[test]
fn an_area_does_not_grow_over_a_raid() {
    let len = 16 * MIB;
    let image = Image::new("member", len).expect("room");
    drop(Swap::create(image.0.path(), len - 64 * 1024, Cached::No).expect("zeros"));
    image.put(len - 8192, b"\xfc\x4e\x2b\xa9");
    drop(Swap::create(image.0.path(), len - 64 * 1024, Cached::No).expect("as large as it was"));
    let error = Swap::create(image.0.path(), len, Cached::No).expect_err("over the metadata");
    assert!(error.to_string().contains("md 1.0"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_byte_in_any_place_refuses(
        len in prop::sample::select(&LENGTHS[..]),
        place in 0usize..FAR.len() + 2,
        within in any::<prop::sample::Index>(),
        at_edge in prop::option::of(any::<bool>()),
        byte in 1u8..,
    ) {
        let Some(image) = Image::new("any", len) else { return Ok(()) };
        let places: Vec<_> = places(len).collect();
        let (start, bytes) = places[place % places.len()];
        let at = start + match at_edge {
            Some(true) => bytes - 1,
            Some(false) => 0,
            None => within.index(bytes as usize) as u64,
        };
        image.put(at, &[byte]);
        prop_assert!(image.refusal().is_some(), "{} at {} of {}", byte, at, len);
        prop_assert!(Swap::create_over_anything(image.0.path(), BYTES, Cached::No).is_ok());
    }

    #[test]
    fn the_first_and_the_last_byte_are_looked_at(len in 1u64..1 << 41) {
        let places: Vec<_> = places(len).collect();
        let ends = |at| places.iter().any(|&(start, bytes)| (start..start + bytes).contains(&at));
        prop_assert!(ends(0) && ends(len - 1));
        prop_assert!(ends(START.min(len) - 1) && ends(len.saturating_sub(END)));
        prop_assert!(places.iter().all(|&(start, bytes)| start % FRAME_SIZE as u64 == 0 && start + bytes <= len));
    }
}
