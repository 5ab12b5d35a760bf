//! The file of the tickets that were given out: after an end of both the daemon and this process, the next daemon is
//! told of them all the same. It has a line for each reservation, and is replaced whole. Only its owner can read it.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pumice_slots::message::MAX_WAIT_MS;
use pumice_slots::ticket::Reservation;
use pumice_slots::PageKind;

/// The first line of a file.
const HEAD: &str = "pumice tickets 1";
/// A file larger than this is none of ours: there are 4096 reservations at most.
const MOST_BYTES: u64 = 1 << 20;

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Store {
    path: PathBuf,
}

impl Store {
    /// The file of this path. Its folder is made when it is written.
    pub fn new(path: impl Into<PathBuf>) -> Store {
        Store { path: path.into() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it; empty if there is none. Lines that can't be read are left out.
    ///
    /// # Errors
    /// It can't be read, or others could have written it.
    pub fn read(&self) -> io::Result<Vec<Reservation>> {
        let mut options = fs::OpenOptions::new();
        let opened = options.read(true).custom_flags(libc::O_NOFOLLOW).open(&self.path);
        let mut file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let status = file.metadata()?;
        let own = rustix::process::geteuid().as_raw();
        let is_ours = [0, own].contains(&status.uid()) && status.mode() & 0o077 == 0;
        if !status.is_file() || !is_ours || status.len() > MOST_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not this program's"));
        }
        let text = io::read_to_string(&mut file)?;
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is of another version"));
        }
        Ok(lines.filter_map(parse).collect())
    }

    /// Replaces it.
    ///
    /// # Errors
    /// As open(2), write(2) and rename(2). The file is as it was then.
    pub fn write<'a>(&self, all: impl Iterator<Item = &'a Reservation>) -> io::Result<()> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)?;
        }
        let new = self.path.with_extension("new");
        // One that was left by an end in the middle.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
        let lines: String = all.map(line).collect();
        file.write_all(format!("{HEAD}\n{lines}").as_bytes())?;
        fs::rename(&new, &self.path)
    }
}

fn line(it: &Reservation) -> String {
    let pages = it.pages.map_or("any", PageKind::name);
    let node = it.node.map_or_else(|| "any".to_owned(), |node| node.to_string());
    format!("{} {} {} {pages} {node} {}\n", it.name, it.ticket, it.bytes, it.limit_ms)
}

fn parse(line: &str) -> Option<Reservation> {
    let words: Vec<_> = line.split(' ').collect();
    let [name, ticket, bytes, pages, node, limit_ms] = words[..] else { return None };
    let any = |word: &str| word == "any";
    Some(Reservation {
        name: name.parse().ok()?,
        ticket: ticket.parse().ok()?,
        bytes: bytes.parse().ok().filter(|&bytes| bytes > 0)?,
        pages: if any(pages) { None } else { Some(PageKind::parse(pages)?) },
        node: if any(node) { None } else { Some(node.parse().ok()?) },
        limit_ms: limit_ms.parse().ok().filter(|limit_ms| (1..=MAX_WAIT_MS).contains(limit_ms))?,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use pumice_slots::Ticket;

    #[test]
    fn tickets_are_read_back_by_their_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::new(folder.path().join("a/tickets"));
        assert_eq!(store.read().expect("nothing").len(), 0);
        let one = Reservation {
            name: "4g-thp-0".parse().expect("a name"),
            ticket: Ticket::random().expect("random numbers"),
            bytes: 4 << 30,
            pages: Some(PageKind::Thp),
            node: None,
            limit_ms: 600_000,
        };
        let two = Reservation { pages: None, node: Some(1), ..one };
        for _ in 0..2 {
            store.write([&one, &two].into_iter()).expect("written");
            assert_eq!(store.read().expect("ours"), [one, two]);
        }
        fs::write(store.path(), format!("{HEAD}\n{}x y\n{}", line(&one), line(&two)))
            .expect("written");
        assert_eq!(store.read().expect("ours"), [one, two], "a bad line is left out");
        fs::write(store.path(), "pumice tickets 2\n").expect("written");
        assert!(store.read().is_err());
        store.write([].into_iter()).expect("written");
        let open = fs::Permissions::from_mode(0o644);
        fs::set_permissions(store.path(), open).expect("ours");
        assert!(store.read().is_err(), "others could have read it");
    }
}
