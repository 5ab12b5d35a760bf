//! The states that a crash may leave files in, given the requests made of them.
//!
//! A change that was begun may be there. It is there for certain when a sync of its file, or of its name's folder, that
//! was begun after it was done, is done itself. Of all others any may be missing, also where later ones are there, and
//! of a write any of its sectors. Names in a folder come and go each by itself. File systems promise more than that: a
//! store that is right here is right on all of them (after ALICE, OSDI 2014).

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fastrand::Rng;

use super::trace::{Call, Event};

/// The bytes that a device writes whole.
pub const SECTOR: usize = 512;

/// Files by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    names: BTreeMap<PathBuf, usize>,
    files: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Change {
    Write {
        file: usize,
        offset: usize,
        bytes: Vec<u8>,
    },
    SetLen {
        file: usize,
        len: usize,
    },
    Grow {
        file: usize,
        len: usize,
    },
    /// A name is this file's, or nobody's.
    Name {
        name: PathBuf,
        file: Option<usize>,
    },
}

/// A change that may be lost.
#[derive(Clone, Debug)]
struct Pending {
    call: usize,
    change: Change,
    is_done: bool,
}

/// Files that somebody changes.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// The contents that are certain.
    durable: Image,
    pending: Vec<Pending>,
    /// Names as programs see them.
    names: BTreeMap<PathBuf, usize>,
    /// Syncs that are not done: the changes that will be certain.
    syncs: HashMap<usize, Vec<usize>>,
}

/// Which of the changes that may be lost are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    All,
    None,
    /// All but one, by its place.
    AllBut(usize),
    /// None but one.
    Only(usize),
    /// Any, by chance, and of writes any sectors.
    Any,
}

impl Image {
    /// The files in a folder, and in folders in it.
    pub fn read(folder: &Path) -> Image {
        let mut image = Image::default();
        image.add(folder, Path::new(""));
        image
    }

    fn add(&mut self, folder: &Path, below: &Path) {
        for entry in fs::read_dir(folder.join(below)).expect("a folder") {
            let entry = entry.expect("a folder");
            let name = below.join(entry.file_name());
            if entry.file_type().expect("ours").is_dir() {
                self.add(folder, &name);
            } else {
                self.names.insert(name, self.files.len());
                self.files.push(fs::read(entry.path()).expect("ours"));
            }
        }
    }

    /// Makes a folder hold this; `last` is what it held.
    pub fn write(&self, folder: &Path, last: Option<&Image>) {
        let last = last.filter(|_| folder.exists());
        if last.is_none() {
            let _ = fs::remove_dir_all(folder);
        }
        for (name, _) in last.iter().flat_map(|last| &last.names) {
            if !self.names.contains_key(name) {
                let _ = fs::remove_file(folder.join(name));
            }
        }
        for (name, &file) in &self.names {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("room");
            let open = fs::OpenOptions::new().write(true).create(true).truncate(true).open(&path);
            open.expect("ours").write_all_at(&self.files[file], 0).expect("room");
        }
    }

    /// A file's bytes.
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        self.names.get(Path::new(name)).map(|&file| &self.files[file][..])
    }

    fn apply(&mut self, change: &Change, mut is_kept: impl FnMut(usize) -> bool) {
        let last = match *change {
            Change::Write { file, .. }
            | Change::SetLen { file, .. }
            | Change::Grow { file, .. } => Some(file),
            Change::Name { file, .. } => file,
        };
        let files = last.map_or(0, |last| last + 1).max(self.files.len());
        self.files.resize_with(files, Vec::new);
        match change {
            Change::Write { file, offset, bytes } => {
                let to = &mut self.files[*file];
                to.resize(to.len().max(offset + bytes.len()), 0);
                let mut at = 0;
                while at < bytes.len() {
                    // To the end of the device's sector.
                    let end = ((offset + at) / SECTOR + 1) * SECTOR - offset;
                    let end = end.min(bytes.len());
                    if is_kept(at) {
                        to[offset + at..offset + end].copy_from_slice(&bytes[at..end]);
                    }
                    at = end;
                }
            }
            &Change::SetLen { file, len } => self.files[file].resize(len, 0),
            &Change::Grow { file, len } => {
                let to = &mut self.files[file];
                to.resize(to.len().max(len), 0);
            }
            Change::Name { name, file: Some(file) } => {
                self.names.insert(name.clone(), *file);
            }
            Change::Name { name, file: None } => {
                self.names.remove(name);
            }
        }
    }
}

impl Disk {
    /// With what is there for certain.
    pub fn new(image: Image) -> Disk {
        Disk { names: image.names.clone(), durable: image, ..Disk::default() }
    }

    /// Its process is killed: writes without a sync are there for the next, and may be lost still.
    pub fn killed(&self) -> Disk {
        let mut disk = self.clone();
        disk.syncs.clear();
        for (nth, pending) in disk.pending.iter_mut().enumerate() {
            pending.call = usize::MAX - nth;
            pending.is_done = true;
        }
        disk
    }

    /// The requests that may be lost at this moment.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The next that happened. Whether there are other crashes after it than before it.
    pub fn happen(&mut self, event: &Event) -> bool {
        match event {
            Event::Begun(call, Call::Sync { file }) => {
                let number = self.names.get(file).copied();
                let is_for = |change: &Change| match change {
                    Change::Write { file, .. }
                    | Change::SetLen { file, .. }
                    | Change::Grow { file, .. } => Some(*file) == number,
                    Change::Name { name, .. } => name.parent() == Some(file),
                };
                let done = self.pending.iter().filter(|pending| pending.is_done);
                let certain = done.filter(|pending| is_for(&pending.change));
                self.syncs.insert(*call, certain.map(|pending| pending.call).collect());
                false
            }
            Event::Begun(call, change) => self.begin(*call, change),
            Event::Done(call, result) => self.end(*call, *result),
            Event::Said(_) => true,
        }
    }

    fn begin(&mut self, call: usize, change: &Call) -> bool {
        let find = |file: &PathBuf| *self.names.get(file).expect("it has been seen to be made");
        let change = match change {
            Call::Write { file, offset, bytes } => {
                let (file, offset) = (find(file), *offset as usize);
                Change::Write { file, offset, bytes: bytes.clone() }
            }
            Call::SetLen { file, len } => Change::SetLen { file: find(file), len: *len as usize },
            Call::Grow { file, len } => Change::Grow { file: find(file), len: *len as usize },
            Call::Create { file } if self.names.contains_key(file) => return false,
            Call::Create { file } => {
                let number = self.durable.files.len().max(self.most_named() + 1);
                self.durable.files.resize_with(number + 1, Vec::new);
                self.names.insert(file.clone(), number);
                Change::Name { name: file.clone(), file: Some(number) }
            }
            Call::Remove { file } => {
                self.names.remove(file);
                Change::Name { name: file.clone(), file: None }
            }
            Call::Sync { .. } => return false,
        };
        self.pending.push(Pending { call, change, is_done: false });
        true
    }

    fn most_named(&self) -> usize {
        self.names.values().copied().max().unwrap_or(0)
    }

    fn end(&mut self, call: usize, result: Option<u64>) -> bool {
        if let Some(certain) = self.syncs.remove(&call) {
            if result.is_some() {
                let is_certain = |pending: &Pending| certain.contains(&pending.call);
                let (certain, rest) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition::<Vec<_>, _>(is_certain);
                self.pending = rest;
                for pending in certain {
                    self.durable.apply(&pending.change, |_| true);
                }
            }
            return true;
        }
        let Some(place) = self.pending.iter().position(|pending| pending.call == call) else {
            return false;
        };
        let pending = &mut self.pending[place];
        pending.is_done = true;
        match (&mut pending.change, result) {
            (Change::Write { bytes, .. }, Some(went)) => bytes.truncate(went as usize),
            (_, Some(_)) => {}
            // Nothing was changed.
            (Change::Name { .. }, None) => panic!("a name could not be changed"),
            (_, None) => drop(self.pending.remove(place)),
        }
        false
    }

    /// The contents after a crash now.
    pub fn crash(&self, kept: Kept, random: &mut Rng) -> Image {
        let mut image = self.durable.clone();
        // Of changes of a name, those from one on are lost.
        let mut lost = std::collections::BTreeSet::new();
        for (place, pending) in self.pending.iter().enumerate() {
            let is_there = match kept {
                Kept::All => true,
                Kept::None => false,
                Kept::AllBut(other) => place != other,
                Kept::Only(other) => place == other,
                Kept::Any => random.bool(),
            };
            if let Change::Name { name, .. } = &pending.change {
                if !is_there {
                    lost.insert(name.clone());
                }
                if !lost.contains(name) {
                    image.apply(&pending.change, |_| true);
                }
                continue;
            }
            let is_torn = kept == Kept::Any && random.u64(..4) == 0;
            if is_torn {
                image.apply(&pending.change, |_| random.bool());
            } else if is_there {
                image.apply(&pending.change, |_| true);
            }
        }
        image
    }
}
