//! Files and sockets that other users have put where the daemon and its clients look. Other users are threads of this
//! program, which only root can make.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{chown, lchown, symlink, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Stdio;

use pumice_slots::{socket, Client, Error, LeaseRequest};
use rustix::fs::{flock, FlockOperation};
use rustix::net::{
    accept_with, bind, listen, socket_with, AddressFamily, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::slots::{as_user, is_root, Daemon};
use crate::support::{folder, pumice, stderr};

const SMALL: u64 = 64 << 10;
const ONE: [&str; 4] = ["--slot", "64K=1", "--pages", "4k"];
const STRANGER: u32 = 54_322;

fn set_mode(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
}

fn bound(path: &Path) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let socket = socket.expect("a socket");
    bind(&socket, &SocketAddrUnix::new(path).expect("short")).expect("bound");
    set_mode(path, 0o666);
    socket
}

/// The message that a stranger who listens there is sent.
fn heard(listens: &OwnedFd) -> usize {
    let mut packets = 0;
    while let Ok(connection) = accept_with(listens, SocketFlags::NONBLOCK) {
        packets += usize::from(socket::receive(&connection).is_ok_and(|packet| packet.is_some()));
    }
    packets
}

/// The reason that a listener is a stranger.
fn stranger<T>(outcome: Result<T, Error>) -> &'static str {
    match outcome {
        Err(Error::Stranger { what, .. }) => what,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("it went to a stranger"),
    }
}

/// The message of `pumice serve` where it does not start.
fn refused(arguments: &[&str]) -> String {
    let mut command = pumice(&[&["serve"], &ONE[..], arguments].concat());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = command.spawn().expect("pumice starts");
    let until = std::time::Instant::now() + crate::slots::PATIENCE;
    while daemon.try_wait().expect("ours").is_none() {
        if std::time::Instant::now() >= until {
            daemon.kill().expect("ours");
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = daemon.wait_with_output().expect("ours");
    let said = stderr(&output);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_holder_sends_its_slot_to_no_stranger() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start("impostor", &ONE);
    set_mode(&daemon.folder, 0o755);
    let mut lease = daemon.lease(SMALL);
    daemon.kill();
    let path = daemon.socket();
    fs::remove_file(&path).expect("the daemon's");

    // A user that can write in the folder can bind there, or have root bind it.
    set_mode(&daemon.folder, 0o777);
    let listens = as_user(STRANGER, &[], || {
        let socket = bound(&path);
        listen(&socket, 8).expect("listening");
        socket
    });
    assert_eq!(stranger(lease.resume()), "other users can write in the folder");
    set_mode(&daemon.folder, 0o1777);
    assert_eq!(stranger(lease.resume()), "the socket is another's");
    set_mode(&daemon.folder, 0o755);
    assert_eq!(stranger(lease.resume()), "the socket is another's");
    chown(&daemon.folder, Some(STRANGER), None).expect("root may");
    assert_eq!(stranger(lease.resume()), "the folder is another's");
    chown(&daemon.folder, Some(0), None).expect("root may");
    assert_eq!(heard(&listens), 0);

    // The socket is root's, and the listener is not.
    fs::remove_file(&path).expect("root may");
    let listens = bound(&path);
    as_user(STRANGER, &[], || listen(&listens, 8).expect("listening"));
    assert_eq!(stranger(lease.resume()), "another user listens");
    assert_eq!(heard(&listens), 0);

    drop(listens);
    daemon.restart(&ONE);
    lease.resume().expect("the daemon's successor");
    lease.end().expect("an answer");
}

#[test]
fn nobody_leases_from_a_stranger() {
    if !is_root() {
        return;
    }
    let place = folder("slots-fake");
    let path = place.join("slots.sock");
    let listens = bound(&path);
    as_user(STRANGER, &[], || listen(&listens, 8).expect("listening"));
    let client = Client::new(&path);
    let what = stranger(client.lease(&LeaseRequest::new(SMALL)));
    assert!(what.starts_with("neither root nor you"), "{what}");
    assert_eq!(heard(&listens), 0);
}

/// As `su` and `sudo -E` leave it.
#[test]
fn anothers_runtime_folder_is_not_looked_in() {
    if !is_root() {
        return;
    }
    let place = folder("slots-runtime");
    fs::create_dir(place.join("pumice")).expect("ours");
    let _socket = bound(&place.join("pumice/slots.sock"));
    let said = || {
        let mut command = pumice(&["slots"]);
        let output = command.env("XDG_RUNTIME_DIR", &place).output().expect("pumice starts");
        stderr(&output)
    };
    let own = place.display().to_string();
    assert!(said().contains(&own), "{}", said());
    chown(&place, Some(STRANGER), None).expect("root may");
    assert!(!said().contains(&own), "{}", said());
}

#[test]
fn nobody_else_can_take_the_lock() {
    let mut daemon = Daemon::start("lock", &ONE);
    let lock = daemon.folder.join("lock");
    let mode = || fs::symlink_metadata(&lock).expect("there").mode() & 0o777;
    assert_eq!(mode(), 0o600);
    daemon.kill();

    // As earlier versions made it: a user that has it open could keep every later daemon from starting.
    set_mode(&lock, 0o644);
    let opened = File::open(&lock).expect("all may read it");
    daemon.restart(&ONE);
    assert_eq!(mode(), 0o600);
    daemon.kill();
    flock(&opened, FlockOperation::NonBlockingLockExclusive).expect("nobody's any more");
    daemon.restart(&ONE);
    daemon.kill();

    // Somebody has it locked already.
    set_mode(&lock, 0o644);
    let opened = File::open(&lock).expect("all may read it");
    flock(&opened, FlockOperation::NonBlockingLockExclusive).expect("nobody's");
    let dir = daemon.folder.to_str().expect("UTF-8");
    let said = refused(&["--dir", dir]);
    assert!(said.contains("remove it") && said.contains("lock"), "{said}");
    drop(opened);
    daemon.restart(&ONE);
}

#[test]
fn a_lock_that_is_something_else_is_refused() {
    let place = folder("slots-lock-planted");
    let (lock, other) = (place.join("lock"), place.join("other"));
    let dir = place.to_str().expect("UTF-8");
    fs::write(&other, "precious").expect("ours");
    for (plant, part) in [
        (&(|| symlink(&other, &lock)) as &dyn Fn() -> std::io::Result<()>, "is a link"),
        (&|| fs::hard_link(&other, &lock), "is no file of its own"),
        (
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, &lock, 0o600.into()).map_err(Into::into),
            "is no file of its own",
        ),
    ] {
        plant().expect("planted");
        let said = refused(&["--dir", dir]);
        assert!(said.contains(part) && said.contains("--dir"), "{said}");
        fs::remove_file(&lock).expect("ours");
    }
    if is_root() {
        fs::write(&lock, "").expect("ours");
        set_mode(&lock, 0o600);
        chown(&lock, Some(STRANGER), None).expect("root may");
        let said = refused(&["--dir", dir]);
        assert!(said.contains("belongs to user 54322") && said.contains("remove it"), "{said}");
    }
    assert_eq!(fs::read_to_string(&other).expect("there"), "precious");
}

#[test]
fn a_folder_that_others_can_write_in_is_refused() {
    let place = folder("slots-open");
    let inner = place.join("inner");
    fs::create_dir(&inner).expect("ours");
    let dir = inner.to_str().expect("UTF-8");
    for open in [inner.as_path(), &place] {
        set_mode(open, 0o777);
        let told = format!("chmod go-w {}", open.display());
        let said = refused(&["--dir", dir]);
        assert!(said.contains(&told) && said.contains("--dir"), "{said}");
        let (own, socket) = (folder("slots-open-own"), inner.join("s"));
        let paths = [&*own, socket.as_path()].map(|path| path.to_str().expect("UTF-8").to_owned());
        let said = refused(&["--dir", &paths[0], "--socket", &paths[1]]);
        assert!(said.contains(&told) && said.contains("--socket"), "{said}");
        set_mode(open, 0o755);
    }
}

#[test]
fn what_a_stranger_planted_is_not_followed() {
    if !is_root() {
        return;
    }
    let place = folder("slots-planted");
    set_mode(&place, 0o1777);
    let aim = folder("slots-planted-aim");
    let link = place.join("link");
    symlink(&aim, &link).expect("a link");
    lchown(&link, Some(STRANGER), None).expect("root may");
    let said = refused(&["--dir", link.to_str().expect("UTF-8")]);
    assert!(said.contains("is a link of user 54322's"), "{said}");
    assert_eq!(fs::read_dir(&aim).expect("ours").count(), 0);

    // The name of the socket is taken.
    let path = place.join("slots.sock");
    let _theirs = as_user(STRANGER, &[], || bound(&path));
    let said = refused(&["--dir", place.to_str().expect("UTF-8")]);
    assert!(said.contains("belongs to user 54322") && said.contains("--socket"), "{said}");
}

#[test]
fn the_socket_is_for_all_whatever_the_umask() {
    for umask in ["0", "077"] {
        let place = folder(&format!("slots-umask-{umask}"));
        let script =
            format!("umask {umask}; exec \"$0\" serve --slot 64K=1 --pages 4k --dir \"$1\"");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_pumice")]).arg(&place);
        let mut daemon = command.stdin(Stdio::null()).spawn().expect("sh starts");
        let client = Client::new(place.join("slots.sock"));
        let until = std::time::Instant::now() + crate::slots::PATIENCE;
        while client.stat().is_err() {
            assert!(std::time::Instant::now() < until, "it does not start");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let status = fs::symlink_metadata(place.join("slots.sock")).expect("there");
        assert_eq!(status.mode() & 0o7777, 0o666, "umask {umask}");
        daemon.kill().expect("ours");
        daemon.wait().expect("ours");
    }
}

#[test]
fn a_socket_of_another_that_took_the_name_stays() {
    let mut daemon = Daemon::start("renamed", &ONE);
    let path = daemon.socket();
    fs::rename(&path, daemon.folder.join("moved")).expect("ours");
    let _other = bound(&path);
    daemon.signal(libc::SIGTERM);
    assert_eq!(daemon.status(), Some(0));
    assert!(path.exists());
}
