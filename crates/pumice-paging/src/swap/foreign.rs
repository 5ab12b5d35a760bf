//! The owner of a file or a device that has no header of ours.
//!
//! Nothing is taken for swap where anybody may have data. File systems, volume managers and RAIDs sign at many places:
//! behind the first frame, at a device's end, and some keep copies far inside. So all of these places must be zero:
//! the first [`START`] bytes, the last [`END`] bytes, and a frame at each offset of [`FAR`]. [`FORMATS`] names what is
//! there, as libblkid(3) knows it. Other bytes are refused all the same.

use std::ptr::NonNull;

use rustix::io::Errno;

use super::header::HeaderError;
use pumice_frames::addr::FRAME_SIZE;
use pumice_io::BlockFile;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const FRAME: u64 = FRAME_SIZE as u64;

/// Bytes from the start on that are zero. The farthest known signature there is the second header of LUKS2, at 4 MiB.
pub const START: u64 = 8 * MIB;

/// Bytes up to the end that are zero. The farthest known signature there is Promise's, at 1.5 MiB from the end.
pub const END: u64 = 4 * MIB;

/// Frames elsewhere that are zero: the mirrors of btrfs, and the second superblock of ext4 with blocks of 1, 2, 4 and
/// 64 KiB.
pub const FAR: [u64; 7] =
    [8 * MIB, 32 * MIB, 64 * MIB, 128 * MIB, 32 * GIB, 256 * GIB, 1024 * 1024 * GIB];

/// Why a file or a device is no swap area of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// It begins with a header like ours.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Something that is known.
    #[error("it has the signature of {name} at byte {offset}")]
    Known {
        /// The entry's state.
        name: &'static str,
        /// Where it signs.
        offset: u64,
    },
    /// Something that is not.
    #[error("its byte {offset} is not zero, so there may be data")]
    Unknown {
        /// The first such byte that was looked at.
        offset: u64,
    },
}

/// The origin of an offset.
#[derive(Clone, Copy, Debug)]
enum Base {
    Start,
    /// Back from the end, after the end has been rounded down to this many bytes.
    End(u64),
}

/// How a format is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Format {
    pub name: &'static str,
    base: Base,
    offset: u64,
    /// From the offset to the magic bytes.
    within: u64,
    pub magic: &'static [u8],
}

impl Format {
    /// Where the magic bytes are in a file or a device of `len` bytes.
    pub(super) fn place(&self, len: u64) -> Option<u64> {
        let at = match self.base {
            Base::Start => self.offset + self.within,
            Base::End(align) => (len / align * align).checked_sub(self.offset)? + self.within,
        };
        (at + self.magic.len() as u64 <= len).then_some(at)
    }
}

const fn start(name: &'static str, offset: u64, magic: &'static [u8]) -> Format {
    Format { name, base: Base::Start, offset, within: 0, magic }
}

const fn end(name: &'static str, (align, offset): (u64, u64), magic: &'static [u8]) -> Format {
    Format { name, base: Base::End(align), offset, within: 0, magic }
}

/// The same with the magic bytes `within` bytes behind the offset.
const fn inside(within: u64, format: Format) -> Format {
    Format { within, ..format }
}

const MD: &[u8] = b"\xfc\x4e\x2b\xa9";
const MD_BIG_ENDIAN: &[u8] = b"\xa9\x2b\x4e\xfc";
const ZFS: &[u8] = b"\x0c\xb1\xba\0\0\0\0\0";
const ZFS_BIG_ENDIAN: &[u8] = b"\0\0\0\0\0\xba\xb1\x0c";
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const PROMISE: &[u8] = b"Promise Technology, Inc.";
const LUKS2: &[u8] = b"SKUL\xba\xbe";
/// The first uberblock of a ZFS label, from the label's start on; there are others behind it.
const UBERBLOCKS: u64 = 128 * KIB;
const SECTOR: u64 = 512;

/// The formats that are known. Of those that share bytes the more certain one comes first.
pub(super) const FORMATS: &[Format] = &[
    start("a LUKS volume", 0, b"LUKS\xba\xbe"),
    start("a LUKS2 volume", 16 * KIB, LUKS2),
    start("a LUKS2 volume", 32 * KIB, LUKS2),
    start("a LUKS2 volume", 64 * KIB, LUKS2),
    start("a LUKS2 volume", 128 * KIB, LUKS2),
    start("a LUKS2 volume", 256 * KIB, LUKS2),
    start("a LUKS2 volume", 512 * KIB, LUKS2),
    start("a LUKS2 volume", MIB, LUKS2),
    start("a LUKS2 volume", 2 * MIB, LUKS2),
    start("a LUKS2 volume", 4 * MIB, LUKS2),
    start("an LVM2 physical volume", 0, b"LABELONE"),
    start("an LVM2 physical volume", SECTOR, b"LABELONE"),
    start("an LVM2 physical volume", 2 * SECTOR, b"LABELONE"),
    start("an LVM2 physical volume", 3 * SECTOR, b"LABELONE"),
    start("a Linux RAID member (md 1.1)", 0, MD),
    start("a Linux RAID member (md 1.2)", 4 * KIB, MD),
    end("a Linux RAID member (md 1.0)", (4 * KIB, 8 * KIB), MD),
    end("a Linux RAID member (md 0.90)", (64 * KIB, 64 * KIB), MD),
    end("a Linux RAID member (md 0.90)", (64 * KIB, 64 * KIB), MD_BIG_ENDIAN),
    inside(60, end("a DRBD device", (KIB, 4 * KIB), b"\x83\x74\x02\x6b")),
    inside(60, end("a DRBD device", (KIB, 4 * KIB), b"\x83\x74\x02\x6c")),
    inside(60, end("a DRBD device", (KIB, 4 * KIB), b"\x83\x74\x02\x6d")),
    inside(24, start("a bcache device", 4 * KIB, BCACHE)),
    inside(24, start("bcachefs", 4 * KIB, BCACHEFS)),
    start("a Ceph OSD (BlueStore)", 0, b"bluestore block device"),
    start("a VDO volume", 0, b"dmvdo001"),
    inside(4, start("a Stratis pool", SECTOR, b"!Stra0tis\x86\xff\x02^")),
    start("a VMFS volume", MIB, b"\x0d\xd0\x01\xc0"),
    start("VMFS", 2 * MIB, b"\x5e\xf1\xab\x2f"),
    inside(UBERBLOCKS, start("ZFS", 0, ZFS)),
    inside(UBERBLOCKS, start("ZFS", 0, ZFS_BIG_ENDIAN)),
    inside(UBERBLOCKS, start("ZFS", 256 * KIB, ZFS)),
    inside(UBERBLOCKS, start("ZFS", 256 * KIB, ZFS_BIG_ENDIAN)),
    inside(UBERBLOCKS, end("ZFS", (256 * KIB, 512 * KIB), ZFS)),
    inside(UBERBLOCKS, end("ZFS", (256 * KIB, 512 * KIB), ZFS_BIG_ENDIAN)),
    inside(UBERBLOCKS, end("ZFS", (256 * KIB, 256 * KIB), ZFS)),
    inside(UBERBLOCKS, end("ZFS", (256 * KIB, 256 * KIB), ZFS_BIG_ENDIAN)),
    inside(64, start("btrfs", 64 * KIB, b"_BHRfS_M")),
    inside(64, start("btrfs", 64 * MIB, b"_BHRfS_M")),
    inside(64, start("btrfs", 256 * GIB, b"_BHRfS_M")),
    start("XFS", 0, b"XFSB"),
    inside(32, start("APFS", 0, b"NXSB")),
    start("F2FS", KIB, b"\x10\x20\xf5\xf2"),
    start("EROFS", KIB, b"\xe2\xe1\xf5\xe0"),
    start("SquashFS", 0, b"hsqs"),
    start("JFS", 32 * KIB, b"JFS1"),
    inside(52, start("ReiserFS", 64 * KIB, b"ReIsEr")),
    inside(52, start("ReiserFS", 8 * KIB, b"ReIsEr")),
    start("Reiser4", 64 * KIB, b"ReIsEr4"),
    start("GFS2", 64 * KIB, b"\x01\x16\x19\x70\0\0\0\x01"),
    start("OCFS2", KIB, b"OCFSV2"),
    start("OCFS2", 2 * KIB, b"OCFSV2"),
    start("OCFS2", 4 * KIB, b"OCFSV2"),
    start("OCFS2", 8 * KIB, b"OCFSV2"),
    inside(1, start("ISO 9660", 32 * KIB, b"CD001")),
    inside(1, start("UDF", 32 * KIB, b"BEA01")),
    start("a swap area of Linux", 4 * KIB - 10, b"SWAPSPACE2"),
    start("a swap area of Linux", 8 * KIB - 10, b"SWAPSPACE2"),
    start("a swap area of Linux", 16 * KIB - 10, b"SWAPSPACE2"),
    start("a swap area of Linux", 32 * KIB - 10, b"SWAPSPACE2"),
    start("a swap area of Linux", 64 * KIB - 10, b"SWAPSPACE2"),
    start("a swap area of Linux", 4 * KIB - 10, b"SWAP-SPACE"),
    start("a hibernated system", 4 * KIB - 10, b"S1SUSPEND"),
    start("NTFS", 3, b"NTFS    "),
    start("exFAT", 3, b"EXFAT   "),
    start("BitLocker", 3, b"-FVE-FS-"),
    start("FAT", 54, b"FAT1"),
    start("FAT", 82, b"FAT32   "),
    start("a GUID partition table", SECTOR, b"EFI PART"),
    start("a GUID partition table", 4 * KIB, b"EFI PART"),
    end("a GUID partition table", (SECTOR, SECTOR), b"EFI PART"),
    end("a GUID partition table", (4 * KIB, 4 * KIB), b"EFI PART"),
    start("an SGI disk label", 0, b"\x0b\xe5\xa9\x41"),
    start("a BSD disk label", SECTOR, b"\x57\x45\x56\x82"),
    start("a BSD disk label", 64, b"\x57\x45\x56\x82"),
    end("an Intel RAID member", (SECTOR, 2 * SECTOR), b"Intel Raid ISM Cfg Sig. "),
    end("a DDF RAID member", (SECTOR, SECTOR), b"\xde\x11\xde\x11"),
    end("a DDF RAID member", (SECTOR, SECTOR), b"\x11\xde\x11\xde"),
    end("a DDF RAID member", (SECTOR, 257 * SECTOR), b"\xde\x11\xde\x11"),
    end("an NVIDIA RAID member", (SECTOR, 2 * SECTOR), b"NVIDIA  "),
    end("an Adaptec RAID member", (SECTOR, SECTOR), b"\x37\xfc\x4d\x1e"),
    end("an LSI RAID member", (SECTOR, SECTOR), b"$XIDE$"),
    end("a JMicron RAID member", (SECTOR, SECTOR), b"JM"),
    end("a Promise RAID member", (SECTOR, 63 * SECTOR), PROMISE),
    end("a Promise RAID member", (SECTOR, 255 * SECTOR), PROMISE),
    end("a Promise RAID member", (SECTOR, 256 * SECTOR), PROMISE),
    end("a Promise RAID member", (SECTOR, 16 * SECTOR), PROMISE),
    end("a Promise RAID member", (SECTOR, 3087 * SECTOR), PROMISE),
    inside(32, start("a HighPoint RAID member", 9 * SECTOR, b"\xf0\x16\x78\x5a")),
    // Two bytes are little to go by: these come last.
    start("HFS+", KIB, b"H+\0\x04"),
    start("HFS+", KIB, b"HX\0\x05"),
    end("HFS+", (SECTOR, KIB), b"H+\0\x04"),
    start("HFS", KIB, b"BD"),
    inside(6, start("NILFS2", KIB, b"\x34\x34")),
    inside(6, end("NILFS2", (4 * KIB, 4 * KIB), b"\x34\x34")),
    inside(56, start("ext2, ext3 or ext4", KIB, b"\x53\xef")),
    inside(56, start("ext2, ext3 or ext4", 8 * MIB + KIB, b"\x53\xef")),
    inside(56, start("ext2, ext3 or ext4", 32 * MIB, b"\x53\xef")),
    inside(56, start("ext2, ext3 or ext4", 128 * MIB, b"\x53\xef")),
    inside(56, start("ext2, ext3 or ext4", 32 * GIB, b"\x53\xef")),
    inside(16, start("Minix", KIB, b"\x7f\x13")),
    inside(16, start("Minix", KIB, b"\x8f\x13")),
    inside(16, start("Minix", KIB, b"\x68\x24")),
    inside(16, start("Minix", KIB, b"\x78\x24")),
    inside(24, start("Minix", KIB, b"\x5a\x4d")),
    start("a Sun disk label", 508, b"\xda\xbe"),
    start("a boot sector or a partition table", 510, b"\x55\xaa"),
];

/// The ranges of a file or a device of `len` bytes that must be zero, each as its offset and its length. Offsets are
/// multiples of a frame.
pub(super) fn places(len: u64) -> impl Iterator<Item = (u64, u64)> {
    let tail = len.saturating_sub(END) / FRAME * FRAME;
    let far = FAR.into_iter().map(|at| (at, FRAME));
    let all = [(0, START)].into_iter().chain(far).chain([(tail, END + FRAME)]);
    all.filter_map(move |(at, bytes)| {
        let there = len.checked_sub(at)?.min(bytes);
        (there > 0).then_some((at, there))
    })
}

/// Whether a file or a device without a header of ours is nobody's.
///
/// # Errors
/// The kernel's error.
pub(super) fn look(file: &BlockFile) -> Result<Option<Foreign>, Errno> {
    let mut buffer = Buffer::new();
    for (at, bytes) in places(file.len()) {
        let mut done = 0;
        while done < bytes {
            let piece = buffer.read(file, at + done, bytes - done)?;
            if let Some(index) = first_not_zero(piece) {
                let offset = at + done + index as u64;
                let known = known(file, 0..file.len())?;
                return Ok(Some(known.unwrap_or(Foreign::Unknown { offset })));
            }
            done += piece.len() as u64;
        }
    }
    Ok(None)
}

/// The known format in a range of a file or a device, of which other bytes may be anything.
///
/// # Errors
/// The kernel's error.
pub(super) fn known(
    file: &BlockFile,
    range: std::ops::Range<u64>,
) -> Result<Option<Foreign>, Errno> {
    let mut buffer = Buffer::new();
    for format in FORMATS {
        let Some(offset) = format.place(file.len()).filter(|at| range.contains(at)) else {
            continue;
        };
        let frame = offset / FRAME * FRAME;
        let (before, magic) = ((offset - frame) as usize, format.magic);
        let bytes = buffer.read(file, frame, before as u64 + magic.len() as u64)?;
        if bytes.get(before..).is_some_and(|bytes| bytes.starts_with(magic)) {
            return Ok(Some(Foreign::Known { name: format.name, offset }));
        }
    }
    Ok(None)
}

/// Bytes read at a time.
const PIECE: usize = 64 << 10;

/// Bytes that are read of a file, aligned for direct I/O.
#[repr(align(4096))]
struct Buffer([u8; PIECE]);

impl Buffer {
    fn new() -> Box<Buffer> {
        Box::new(Buffer([0; PIECE]))
    }

    /// Reads from an offset on, a multiple of a frame: `bytes` bytes, or as many as fit.
    ///
    /// # Errors
    /// The kernel's error; `EIO` past the end.
    fn read(&mut self, file: &BlockFile, offset: u64, bytes: u64) -> Result<&[u8], Errno> {
        let bytes = bytes.min(PIECE as u64) as usize;
        let at = NonNull::from(&mut self.0).cast();
        // SAFETY: whole frames of the buffer, which is this function's.
        let there = unsafe { file.read_up_to(at, bytes.next_multiple_of(FRAME_SIZE), offset) }?;
        if there < bytes {
            return Err(Errno::IO);
        }
        Ok(&self.0[..bytes])
    }
}

fn first_not_zero(bytes: &[u8]) -> Option<usize> {
    // Whole frames at a time, which the processor compares fast.
    const ZEROS: [u8; FRAME_SIZE] = [0; FRAME_SIZE];
    let differs = |frame: &&[u8]| **frame != ZEROS[..frame.len()];
    let frame = bytes.chunks(FRAME_SIZE).position(|frame| differs(&frame))? * FRAME_SIZE;
    bytes[frame..].iter().position(|&byte| byte != 0).map(|index| frame + index)
}
