//! A snapshot's file: opened safely, and told from what it was before.
//!
//! Clients get the file's content. So only root and the daemon's user may choose the file: the folders on the way are
//! theirs alone, as the socket's are (`serving/folder.rs`), and a link is followed if one of them made it.
//!
//! A [`Version`] says that the content is the same. Each change of a file, and each call that sets its times, sets the
//! time of change (ctime) to that of the clock's last tick, or to its last whole second on some file systems. So a file
//! that changed just before may change once more and look the same. [`Version::settles_in`] is for that.
//!
//! That is so on file systems that are known to do it ([`TRUSTED`]). Of all others no more is relied on than that a
//! change is another version: only the time counts in which this daemon has seen the same one. On a stacked one
//! (overlayfs) not even that holds, and a file there is refused.
//!
//! A file system in memory keeps no time of writes through a mapping. A look there asks whether a program has the file
//! open for writing, which it has as long as it has it mapped so.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::fs::{fstat, fstatfs, openat, readlinkat, statat, statx};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::pages::PageKind;
use crate::serving::folder::{is_ours, is_written_by_others, split, Folder, Missing, OTHER_NAMES};
use crate::ServeError;

/// Links on one path, as the kernel has it.
const MOST_LINKS: u32 = 40;
/// Some ticks of the slowest clock: a later change has another time.
const TICKS: Duration = Duration::from_millis(50);
/// The same where times are whole seconds, or every other one (vfat).
const SECONDS: Duration = Duration::from_millis(2_050);
/// File systems whose read leases need leave of a server: NFS, SMB and CIFS.
const LEASED_BY_SERVERS: [u32; 3] = [0x6969, 0xfe53_4d42, 0xff53_4d42];
/// File systems that set the times by this machine's clock, also on writes through a mapping, and know all programs
/// that have a file open for writing: ext2 to ext4, XFS, Btrfs, F2FS, bcachefs, FAT, exFAT and UDF; and some that
/// nobody writes to: SquashFS, EROFS and ISO 9660.
const TRUSTED: [u32; 11] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0xf2f5_2010,
    0xca45_1a4e,
    0x4d44,
    0x2011_bab0,
    0x7371_7368,
    0xe0f5_e1e2,
    0x9660,
    0x1501_3346,
];
/// File systems above others: overlayfs, eCryptfs, Unionfs and Aufs. A program that has a file there mapped writes
/// to the one below, and a lease here is had all the same.
const STACKED: [u32; 4] = [0x794c_7630, 0xf15f, 0xf15f_083d, 0x6175_6673];
/// tmpfs, ramfs and hugetlbfs.
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// Identity, size and times of a file: of two reads with the same, the content is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    device: (u32, u32),
    inode: u64,
    bytes: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    times: Times,
}

/// The worth of a file's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    /// They are of this machine's clock.
    Ours,
    /// They may be of another machine's clock, as on all file systems that are not known to be otherwise.
    Others,
    /// They may not tell of writes at all, nor does a lease: a stacked file system.
    Stacked,
    /// They are of this machine's clock, and do not tell of writes through a mapping.
    InMemory,
}

impl Times {
    /// Those on a kind of file system, by its number in statfs(2).
    fn on(kind: u32) -> Times {
        match kind {
            kind if IN_MEMORY.contains(&kind) => Times::InMemory,
            kind if TRUSTED.contains(&kind) => Times::Ours,
            kind if STACKED.contains(&kind) => Times::Stacked,
            _ => Times::Others,
        }
    }
}

impl Version {
    /// That of an open file. A server of files is asked, not a cache of its answers.
    ///
    /// # Errors
    /// As statx(2) and fstatfs(2).
    pub fn of(file: impl AsFd) -> io::Result<Version> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let times = Times::on(fstatfs(&file)?.f_type as u32);
        let status = statx(file, "", flags, StatxFlags::BASIC_STATS)?;
        Ok(Version {
            device: (status.stx_dev_major, status.stx_dev_minor),
            inode: status.stx_ino,
            bytes: status.stx_size,
            modified: (status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
            times,
        })
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of a slot for it, which is of whole pages; `None` if there is no such number.
    pub fn slot_bytes(&self, pages: PageKind) -> Option<u64> {
        self.bytes.checked_next_multiple_of(pages.granule()).filter(|&bytes| bytes > 0)
    }

    /// How long it takes until each later change has another time, and a version of its own. It was seen so long ago
    /// already, which counts where the times are of another clock, or are to come.
    pub fn settles_in(&self, seen: Duration) -> Duration {
        let age = match self.times {
            Times::Ours | Times::InMemory => self.age().map_or(seen, |age| age.max(seen)),
            Times::Others | Times::Stacked => seen,
        };
        let granule = if self.changed.1 == 0 { SECONDS } else { TICKS };
        granule.saturating_sub(age)
    }

    /// How long ago it was changed; `None` if that is to come, as after a change of the clock.
    fn age(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.changed.0).ok()?;
        let changed = UNIX_EPOCH.checked_add(Duration::new(seconds, self.changed.1))?;
        SystemTime::now().duration_since(changed).ok()
    }
}

/// A file to read, and its version.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its path.
    pub path: Arc<Path>,
    /// The version that the file had when it was looked at.
    pub version: Version,
    /// Since when it was seen to have that one.
    pub since: Instant,
}

/// Opens a snapshot's file for reading, or says in a line why it is none.
///
/// # Errors
/// The line, which names the file: [`ServeError::System`] if there may be nothing wrong with that.
pub fn open(path: &Path) -> Result<(OwnedFd, Version), ServeError> {
    let refused = |why: &str| ServeError::usage(fails(path, why));
    let broken = |error: io::Error| ServeError::of(&error, fails(path, &error.to_string()));
    let failed = |error: Errno| broken(error.into());
    let mut target = path.to_owned();
    for _ in 0..MOST_LINKS {
        let (folder, name) = split(&target).ok_or_else(|| refused("it names no file"))?;
        let folder = Folder::open(folder, Missing::Fail, "--snapshot");
        let folder = folder.map_err(|error| error.map(|why| fails(path, &why)))?;
        let status = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        // Where the sticky bit is set others can make files, too.
        let is_open = is_written_by_others(&fstat(&folder).map_err(failed)?);
        if !is_ours(status.st_uid) && (is_open || kind == FileType::Symlink) {
            let user = status.st_uid;
            return Err(refused(&format!(
                "user {user} made it, and others can write in its folder"
            )));
        }
        if is_open && status.st_nlink > 1 && kind != FileType::Directory {
            return Err(refused(&format!("it {OTHER_NAMES}")));
        }
        if kind == FileType::Symlink {
            let link = readlinkat(&folder, name, Vec::new()).map_err(failed)?;
            let link = PathBuf::from(std::ffi::OsString::from_vec(link.into_bytes()));
            target = folder.path().join(link);
            continue;
        }
        if kind != FileType::RegularFile {
            return Err(refused("it is no regular file"));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(&folder, name, flags, Mode::empty()).map_err(failed)?;
        let opened = fstat(&file).map_err(failed)?;
        if (opened.st_dev, opened.st_ino) != (status.st_dev, status.st_ino) {
            // Replaced in this moment, by the daemon's user or root.
            continue;
        }
        let version = Version::of(&file).map_err(broken)?;
        if version.times == Times::Stacked {
            return Err(refused(STACKED_ABOVE));
        }
        if version.bytes == 0 {
            return Err(refused("it is empty"));
        }
        return Ok((file, version));
    }
    Err(refused("it is behind too many links"))
}

/// The version that the path names now. A file that may change without a trace has none.
///
/// # Errors
/// As [`open`].
pub fn look(path: &Path) -> Result<Version, ServeError> {
    let (file, version) = open(path)?;
    if version.times == Times::InMemory && is_open_for_writing(&file) {
        return Err(ServeError::usage(fails(path, OPEN_FOR_WRITING)));
    }
    Ok(version)
}

/// The line for a file and what is wrong with it.
pub fn fails(path: &Path, why: &str) -> String {
    format!("can't read {}: {why}", path.display())
}

/// The reason that [`is_open_for_writing`] gives.
pub const OPEN_FOR_WRITING: &str = "a program has it open for writing";

/// Why a file is refused on overlayfs and the like.
const STACKED_ABOVE: &str =
    "it is on a file system above another (overlayfs or the like), which does not tell of all \
    writes; give its path on the one below";

/// Whether a program has the file open for writing, or mapped so: a read lease can't be had then. `false` where there
/// are no leases.
pub fn is_open_for_writing(file: &OwnedFd) -> bool {
    if fstatfs(file).is_ok_and(|status| LEASED_BY_SERVERS.contains(&(status.f_type as u32))) {
        return false;
    }
    let number = file.as_raw_fd();
    // SAFETY: plain system calls on a descriptor that is open. The kernel sends a signal here if a program opens the
    // file for writing in this moment. SIGIO would end this process; SIGURG is ignored unless somebody asks for it.
    unsafe {
        if libc::fcntl(number, F_SETSIG, libc::SIGURG) != 0 {
            return false;
        }
        if libc::fcntl(number, libc::F_SETLEASE, libc::F_RDLCK) != 0 {
            return io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock;
        }
        libc::fcntl(number, libc::F_SETLEASE, libc::F_UNLCK);
    }
    false
}

/// Missing in the crate `libc`. The same number on every architecture that we have.
const F_SETSIG: libc::c_int = 10;

#[cfg(test)]
pub mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{symlink, PermissionsExt};

    use super::*;

    /// A folder that is this user's alone.
    pub fn folder_in(place: &Path) -> tempfile::TempDir {
        let folder = tempfile::tempdir_in(place).expect("a folder");
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).expect("ours");
        folder
    }

    /// That of temporary files, or one in memory where those are on a file system that is refused, as in containers.
    pub fn trusted_place() -> PathBuf {
        let place = std::env::temp_dir();
        let file = tempfile::tempfile_in(&place).expect("a file");
        match Version::of(&file).expect("open").times {
            Times::Ours | Times::InMemory => place,
            _ => "/dev/shm".into(),
        }
    }

    /// A folder there.
    pub fn trusted_folder() -> tempfile::TempDir {
        folder_in(&trusted_place())
    }

    /// The file as it is, once a change would be seen.
    pub fn settled(path: &Path) -> Source {
        let (since, (_, version)) = (Instant::now(), open(path).expect("a file"));
        std::thread::sleep(version.settles_in(Duration::ZERO));
        Source { path: path.into(), version, since }
    }

    #[test]
    fn a_change_is_another_version() {
        let place = trusted_folder();
        let path = place.path().join("file");
        fs::write(&path, "one").expect("written");
        let first = look(&path).expect("a file");
        assert_eq!(first.bytes(), 3);
        assert_eq!(first.slot_bytes(PageKind::Hugetlb2M), Some(2 << 20));
        assert_eq!(look(&path).expect("a file"), first);
        symlink("file", place.path().join("link")).expect("a link");
        assert_eq!(look(&place.path().join("link")).expect("a file"), first);
        // A tick of any clock.
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, "two").expect("written");
        let second = look(&path).expect("a file");
        assert_ne!(second, first);
        fs::write(place.path().join("new"), "two").expect("written");
        fs::rename(place.path().join("new"), &path).expect("renamed");
        assert_ne!(look(&path).expect("a file"), second);
    }

    #[test]
    fn other_things_are_refused_in_a_line() {
        let place = trusted_folder();
        fs::write(place.path().join("empty"), "").expect("written");
        symlink("loop", place.path().join("loop")).expect("a link");
        for name in ["missing", "empty", "loop", ".", "empty/x"] {
            let why = look(&place.path().join(name)).expect_err(name).to_string();
            assert!(why.starts_with("can't read /") && why.lines().count() == 1, "{why}");
        }
        let open = place.path().join("open");
        fs::create_dir(&open).expect("a folder");
        fs::write(open.join("file"), "x").expect("written");
        assert!(look(&open.join("file")).is_ok());
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("ours");
        let why = look(&open.join("file")).expect_err("others can replace it").to_string();
        assert!(why.contains("chmod go-w"), "{why}");
    }

    /// Where `fs.protected_hardlinks` is 0, anybody can do this with any file.
    #[test]
    fn a_file_with_other_names_is_refused_where_others_can_give_it_one() {
        let place = tempfile::tempdir().expect("a folder");
        let [file, open] = ["file", "open"].map(|name| place.path().join(name));
        fs::set_permissions(&place, Permissions::from_mode(0o755)).expect("ours");
        fs::write(&file, "secret").expect("written");
        symlink(&file, place.path().join("link")).expect("a link");
        fs::create_dir(&open).expect("a folder");
        fs::hard_link(&file, open.join("file")).expect("another name");
        fs::hard_link(place.path().join("link"), open.join("link")).expect("another name");
        for name in ["file", "link"] {
            assert!(look(&open.join(name)).is_ok(), "the folder is the daemon's alone");
        }
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("ours");
        for name in ["file", "link"] {
            let why = look(&open.join(name)).expect_err("another's choice").to_string();
            assert!(why.contains(OTHER_NAMES), "{why}");
        }
        fs::remove_file(place.path().join("link")).expect("ours");
        fs::remove_file(open.join("file")).expect("ours");
        assert!(look(&open.join("link")).is_ok(), "the daemon's user or root made it there");
    }

    /// A program that writes to a mapping of a file on overlayfs writes to the one below: no time of the upper one
    /// changes if that is in memory, and a lease is had.
    #[test]
    fn only_file_systems_that_are_known_are_trusted() {
        for (kind, times) in [
            (0xef53, Times::Ours),
            (0x5846_5342, Times::Ours),
            (0x0102_1994, Times::InMemory),
            (0x794c_7630, Times::Stacked),
            (0xf15f, Times::Stacked),
            // NFS, FUSE, ZFS, and one that nobody knows.
            (0x6969, Times::Others),
            (0x6573_5546, Times::Others),
            (0x2fc1_2fc1, Times::Others),
            (0x1234_5678, Times::Others),
        ] {
            assert_eq!(Times::on(kind), times, "{kind:x}");
        }
    }

    #[test]
    fn a_version_settles_when_the_next_one_has_another_time() {
        let (file, now) = (tempfile::tempfile().expect("a file"), SystemTime::now());
        let version = Version::of(&file).expect("open");
        let now_s = now.duration_since(UNIX_EPOCH).expect("later").as_secs() as i64;
        let changed = |second, ns, times| Version { changed: (second, ns), times, ..version };
        let minute = Duration::from_secs(60);
        for (times, second, ns, seen, expected) in [
            (Times::Ours, now_s - 10, 1, Duration::ZERO, Duration::ZERO),
            (Times::Ours, now_s - 10, 0, Duration::ZERO, Duration::ZERO),
            // To come, as after a change of the clock.
            (Times::Ours, now_s + 10_000, 1, Duration::ZERO, TICKS),
            (Times::InMemory, now_s + 10_000, 0, Duration::ZERO, SECONDS),
            (Times::Ours, now_s + 10_000, 0, SECONDS, Duration::ZERO),
            // Another machine's clock may be behind.
            (Times::Others, now_s - 10, 1, Duration::ZERO, TICKS),
            (Times::Others, now_s - 10, 0, TICKS, SECONDS - TICKS),
            (Times::Others, now_s - 10, 0, minute, Duration::ZERO),
        ] {
            assert_eq!(changed(second, ns, times).settles_in(seen), expected, "{times:?} {second}");
        }
        // One second of two: the same time again.
        assert!(changed(now_s - 1, 0, Times::Ours).settles_in(Duration::ZERO) > Duration::ZERO);
    }
}
