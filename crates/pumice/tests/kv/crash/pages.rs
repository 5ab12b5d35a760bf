//! A cache without a log: synced data is on the device, however much of the rest a crash leaves. A page that was
//! written since may be half of it and half of what it was; one that was cut off is zeros, or not there. With
//! checksums, a page that is half of something is an error, and no other page is.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use fastrand::Rng;

use pumice::cache::{self, CacheError, Options};

use super::disk::{Disk, Image, SECTOR};
use super::trace::Event;
use super::{crashes, in_memory, record, seed, settings, settings_of_child, wanted, Crash};
use crate::Folder;

const PAGES: u64 = 24;
const STEPS: u64 = 250;
const PAGE: usize = 4096;
/// Where a page's checksum is.
const CHECKSUM: usize = 4088;

/// The action of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Write(usize),
    /// Makes the file so many pages long.
    SetLen(usize),
    Sync,
}

fn step(seed: u64, nth: u64) -> Step {
    let mut random = Rng::with_seed(seed ^ nth << 8);
    match random.u64(..20) {
        0..=2 => Step::Sync,
        3 => Step::SetLen(random.u64(..PAGES) as usize),
        _ => Step::Write(random.u64(..PAGES) as usize),
    }
}

/// The contents of a page that a step has written.
fn content(step: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    let mut random = Rng::with_seed(step);
    page.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.u64(..).to_le_bytes()));
    page[CHECKSUM..].fill(0);
    page
}

/// The process that is traced.
#[test]
#[ignore = "what_was_synced_survives_a_crash runs it, as the process that is traced"]
fn child() {
    let Ok(folder) = std::env::var("KV_FOLDER") else { return };
    let seed: u64 = std::env::var("KV_SEED").expect("a seed").parse().expect("a number");
    cache::run(&settings_of_child(), |cache| {
        let options = Options::new().checksums(CHECKSUM);
        let file = cache.open(&Path::new(&folder).join("pages"), &options).expect("a file");
        let task = cache.task().expect("a task");
        let view = task.view(&file).expect("a view");
        let say = |what: &str, nth: u64| {
            let line = format!("{what} {nth}\n");
            std::io::stdout().write_all(line.as_bytes()).expect("a parent");
        };
        // The output begins a line.
        println!();
        for nth in 1..=STEPS {
            say("begun", nth);
            match step(seed, nth) {
                Step::Write(page) => {
                    let mut guard = view.write_or_grow(page).expect("room");
                    guard[..CHECKSUM].copy_from_slice(&content(nth)[..CHECKSUM]);
                }
                Step::SetLen(pages) => view.set_len((pages * PAGE) as u64).expect("room"),
                Step::Sync => {
                    view.sync().expect("a disk");
                    say("synced", nth);
                }
            }
        }
    })
    .expect("a cache");
}

/// The steps that a page may be of, and lengths of the file, in pages: as of the last sync, and since.
#[derive(Clone, Default)]
struct Allowed {
    steps: Vec<BTreeSet<u64>>,
    lens: BTreeSet<usize>,
    /// As of the last step.
    now: Vec<u64>,
    len: usize,
}

impl Allowed {
    fn new() -> Allowed {
        let zeros = BTreeSet::from([0]);
        let pages = PAGES as usize;
        let (steps, now) = (vec![zeros; pages], vec![0; pages]);
        Allowed { steps, lens: BTreeSet::from([0]), now, len: 0 }
    }

    fn begun(&mut self, seed: u64, nth: u64) {
        match step(seed, nth) {
            Step::Write(page) => {
                self.len = self.len.max(page + 1);
                self.set(page, nth);
            }
            Step::SetLen(pages) => {
                (pages..PAGES as usize).for_each(|page| self.set(page, 0));
                self.len = pages;
            }
            Step::Sync => {}
        }
        self.lens.insert(self.len);
    }

    fn set(&mut self, page: usize, step: u64) {
        self.now[page] = step;
        self.steps[page].insert(step);
    }

    fn synced(&mut self) {
        self.lens = BTreeSet::from([self.len]);
        self.steps = self.now.iter().map(|&step| BTreeSet::from([step])).collect();
    }

    fn hear(&mut self, seed: u64, news: &[Event]) {
        for event in news {
            let Event::Said(line) = event else { continue };
            match line.split_once(' ').map(|(what, nth)| (what, nth.parse::<u64>())) {
                Some(("begun", Ok(nth))) => self.begun(seed, nth),
                Some(("synced", Ok(_))) => self.synced(),
                _ => {}
            }
        }
    }

    /// Each sector of a file is of a step that it may be of. Which pages are whole, of one step.
    fn check(&self, file: &[u8]) -> Result<Vec<bool>, String> {
        let (least, most) = (self.lens.first(), self.lens.last());
        let pages = file.len().div_ceil(PAGE);
        if least.is_none_or(|&least| pages < least) || most.is_none_or(|&most| pages > most) {
            return Err(format!("{} bytes, and {:?} pages may be there", file.len(), self.lens));
        }
        let mut whole = Vec::new();
        for (number, page) in file.chunks(PAGE).enumerate() {
            let contents: Vec<_> =
                self.steps[number].iter().map(|&step| Allowed::of(step)).collect();
            for at in (0..page.len()).step_by(SECTOR) {
                let sector = at..(at + SECTOR).min(page.len()).min(CHECKSUM);
                let is_one = |content: &[u8; PAGE]| content[sector.clone()] == page[sector.clone()];
                if !contents.iter().any(is_one) {
                    return Err(format!(
                        "page {number} at {at} is of none of the steps {:?}",
                        self.steps[number]
                    ));
                }
            }
            let end = page.len().min(CHECKSUM);
            whole.push(contents.iter().any(|content| content[..end] == page[..end]));
        }
        Ok(whole)
    }

    fn of(step: u64) -> [u8; PAGE] {
        if step == 0 {
            [0; PAGE]
        } else {
            content(step)
        }
    }
}

/// Opens it: pages that are whole are read, others are errors that name them.
fn open(path: &Path, file: &[u8], whole: &[bool]) -> Result<(), String> {
    let looked = cache::run(&settings(), |cache| {
        let options = Options::new().existing().checksums(CHECKSUM);
        let opened = cache.open(path, &options).map_err(|error| error.to_string())?;
        let task = cache.task().expect("a task");
        let view = task.view(&opened).expect("a view");
        for (number, bytes) in file.chunks(PAGE).enumerate() {
            match view.read(number) {
                Ok(page) if page[..] == *bytes && whole[number] => {}
                Err(CacheError::Checksum { page, .. }) if page == number && !whole[number] => {}
                other => {
                    let is_whole = whole[number];
                    return Err(format!("page {number}, whole: {is_whole}, is {:?}", other.err()));
                }
            }
        }
        Ok(())
    });
    looked.map_err(|error| error.to_string())?
}

#[test]
fn what_was_synced_survives_a_crash() {
    let seed = seed();
    let mut random = Rng::with_seed(seed);
    // They are looked at in place, but for some.
    let wanted = wanted() * 10;
    let replay = in_memory("pages");
    let (mut looked_at, mut torn, mut lives) = (0, 0, 0);
    while looked_at < wanted {
        let folder = Folder::make("crash-pages");
        let own = random.u64(..);
        let Some(events) = record("crash::pages::child", &folder, &[("KV_SEED", own.to_string())])
        else {
            return;
        };
        lives += 1;
        let mut allowed = Allowed::new();
        let disk = Disk::new(Image::default());
        crashes(&events, disk, &mut random, |news, Crash { image, .. }, random| {
            allowed.hear(own, news);
            let file = image.file("pages").unwrap_or(&[]);
            let mut result = allowed.check(file).inspect(|whole| {
                torn += whole.iter().filter(|whole| !**whole).count();
            });
            if let Ok(whole) = &result {
                if random.u64(..50) == 0 && image.file("pages").is_some() {
                    image.write(&replay, None);
                    let opened = open(&replay.join("pages"), file, whole);
                    result = opened.map(|()| Vec::new());
                }
            }
            if let Err(error) = result {
                image.write(&replay, None);
                panic!("seed {seed}, life {lives}: {error}; see {}", replay.display());
            }
            looked_at += 1;
            looked_at < wanted
        });
    }
    let _ = std::fs::remove_dir_all(&replay);
    println!("{looked_at} states of {lives} processes, {torn} pages torn");
    assert!(torn > 0);
}
