//! `pumice run --profile`: memory that a program used in its first second is ready when it starts the next time.
//!
//! A profile is a small file of JSON. The next run reads it and does as with `--ready`. While the program runs, the
//! memory that a process of it has in use is looked at, ten times in the first second and at the end of a
//! shorter run. Memory that lies ready and was never asked for does not count, so an excess is forgotten.
//!
//! A file of the user's own is never taken for a profile: it is refused if it does not begin as one. A file that begins
//! as one and goes on as something else (a disk was full, a newer version wrote it) is written anew. A profile is
//! replaced in one step, so any number of programs may have the same one: the last one that ends has its way.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pumice_heap::stats::{CounterSlot, Tree};
use serde::{Deserialize, Serialize};

use pumice_command::whole_file::write_whole;
use pumice_command::{safe_path, Failure};

/// The first characters of a profile.
const BEGINNING: &str = "{\"pumice_profile\":";
/// The version that this program reads and writes.
const VERSION: u32 = 1;
/// No profile is longer.
const MOST_BYTES: u64 = 64 << 10;
/// The folder of the user's profiles keeps so many; the oldest go.
const MOST_FILES: usize = 256;
/// The time that a profile is about.
const EARLY: Duration = Duration::from_secs(1);
/// How often the program is looked at in that time.
const PAUSE: Duration = Duration::from_millis(100);
/// Less is not worth a thread that populates it.
const LEAST_BYTES: u64 = 4 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    pumice_profile: u32,
    /// The program, for people who look.
    program: String,
    ready_bytes: u64,
}

/// The profile of a program, and this run's additions to it.
#[derive(Debug)]
pub struct Profile {
    file: PathBuf,
    program: String,
    /// Of the runs before, if there were any.
    before: Option<u64>,
    started: Instant,
    /// The most that a process had in use, in bytes.
    used: u64,
}

impl Profile {
    /// The profile in a file; in one of the user's cache folder, if none is named.
    ///
    /// # Errors
    /// Where the file is something else, or can't be read or written.
    pub fn open(file: Option<&Path>, line: &[OsString]) -> Result<Profile, Failure> {
        let file = match file {
            Some(file) => resolved(file),
            None => own_file(line)?,
        };
        let before = read(&file)?;
        let program = line[0].to_string_lossy().into_owned();
        Ok(Profile { file, program, before, started: Instant::now(), used: 0 })
    }

    /// The bytes to have ready, of at most `most`.
    pub fn ready_bytes(&self, most: usize) -> usize {
        let wanted = self.before.unwrap_or(0);
        usize::try_from(wanted).unwrap_or(usize::MAX).min(most)
    }

    /// Notes the memory that the programs have in use. Returns when to look again, until there is no need to.
    pub fn look(&mut self, tree: &Tree) -> Option<Duration> {
        if self.started.elapsed() > EARLY + PAUSE {
            return None;
        }
        let used = tree.slots().iter().map(used_bytes).max().unwrap_or(0);
        self.used = self.used.max(used);
        Some(PAUSE)
    }

    /// When to look for the first time.
    pub fn first_look(&self) -> Duration {
        PAUSE
    }

    /// Writes it, at the end of a program whose largest process had so much resident. Says on standard error if it
    /// can't: the program has run.
    pub fn keep(mut self, tree: &Tree, peak_resident_bytes: u64) {
        self.look(tree);
        let used = match self.used.min(peak_resident_bytes) {
            used if used < LEAST_BYTES => 0,
            used => used,
        };
        let ready_bytes = match self.before {
            // Memory that was not needed this once may be needed again.
            Some(before) if used < before => before - (before - used).div_ceil(2),
            _ => used,
        };
        let is_known =
            self.before == Some(ready_bytes) || self.before.is_none() && ready_bytes == 0;
        if is_known {
            return;
        }
        let program = self.program;
        let content = Content { pumice_profile: VERSION, program, ready_bytes };
        if let Err(failure) = write(&self.file, &content) {
            eprintln!("pumice: --profile: {}", failure.message);
        }
    }
}

/// The memory of a process that was ever asked for, as far as it is known: a share of the pool but for what is zeroed
/// and waits.
fn used_bytes(slot: &CounterSlot) -> u64 {
    slot.pool_split().map_or(0, |split| split.in_use + split.free.unzeroed)
}

/// The file that a link leads to: a link is not to be replaced by a file.
fn resolved(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// One for each program and the first of its arguments that is no option, which may be a script.
fn own_file(line: &[OsString]) -> Result<PathBuf, Failure> {
    let cache = safe_path::user_cache().ok_or_else(|| {
        Failure::usage("--profile: there is no HOME to keep it in; give --profile=FILE")
    })?;
    let folder = safe_path::make(&cache.join("profiles")).map_err(|why| {
        let so = if why.is_unknown() { "" } else { ", so others could write profiles there" };
        Failure::usage(format!("--profile: {why}{so}; give --profile=FILE"))
    })?;
    Ok(folder.join(file_name(line)))
}

fn file_name(line: &[OsString]) -> String {
    let is_option = |word: &&OsString| word.as_encoded_bytes().starts_with(b"-");
    let script = line.iter().skip(1).find(|word| !is_option(word));
    let mut hasher = DefaultHasher::new();
    (&line[0], script).hash(&mut hasher);
    let name = Path::new(&line[0]).file_name().unwrap_or(OsStr::new("program"));
    let name: String =
        name.to_string_lossy().chars().filter(|it| it.is_ascii_alphanumeric()).collect();
    format!("{name:.40}-{:016x}.json", hasher.finish())
}

/// The bytes that it says; `None` for a profile that is not there or says nothing.
fn read(file: &Path) -> Result<Option<u64>, Failure> {
    let shown = file.display();
    let refused = |why: String| Failure::usage(format!("--profile {shown}: {why}"));
    let mut text = Vec::new();
    // Of a pipe that nobody writes to it would wait for ever.
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let opened = match OpenOptions::new().read(true).custom_flags(flags).open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            return match folder.is_none_or(Path::is_dir) {
                true => Ok(None),
                false => Err(refused("no such folder; see mkdir -p".to_owned())),
            };
        }
        Err(error) => return Err(refused(format!("can't be read: {error}"))),
        Ok(opened) => opened,
    };
    let is_file = opened.metadata().is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        return Err(refused("is no file".to_owned()));
    }
    opened
        .take(MOST_BYTES)
        .read_to_end(&mut text)
        .map_err(|error| refused(format!("can't be read: {error}")))?;
    if !text.is_empty() && !text.starts_with(BEGINNING.as_bytes()) {
        return Err(refused("is no profile; remove it, or name another file".to_owned()));
    }
    let content = serde_json::from_slice::<Content>(&text).ok();
    let content = content.filter(|content| content.pumice_profile == VERSION);
    Ok(content.map(|content| content.ready_bytes))
}

fn write(file: &Path, content: &Content) -> Result<(), Failure> {
    let text = serde_json::to_string(content).expect("it has text and numbers only");
    write_whole(file, &(text + "\n"))?;
    if file.parent().is_some_and(|folder| folder.ends_with("pumice/profiles")) {
        forget_oldest(file);
    }
    Ok(())
}

/// Removes the oldest profiles of a folder that has too many. Another process may do the same.
fn forget_oldest(beside: &Path) {
    let entries = beside.parent().and_then(|folder| folder.read_dir().ok()).into_iter().flatten();
    let mut files: Vec<_> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort_unstable();
    let too_many = files.len().saturating_sub(MOST_FILES);
    for (_, oldest) in &files[..too_many] {
        let _ = fs::remove_file(oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_script_has_a_profile_of_its_own() {
        let name = |words: &[&str]| file_name(&line(words));
        let one = name(&["/usr/bin/python3", "-u", "one.py", "1"]);
        assert_eq!(one, name(&["/usr/bin/python3", "one.py", "2"]));
        assert_ne!(one, name(&["/usr/bin/python3", "two.py"]));
        assert_ne!(one, name(&["python3", "one.py"]));
        assert!(one.starts_with("python3-") && one.ends_with(".json"), "{one}");
        assert!(!name(&["/tmp/../.."]).contains('.') || name(&["/tmp/../.."]).ends_with(".json"));
    }

    #[test]
    fn what_is_written_is_read_and_what_is_no_profile_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("p.json");
        assert_eq!(read(&file).expect("nothing there"), None);
        let content =
            Content { pumice_profile: VERSION, program: "p".into(), ready_bytes: 7 << 20 };
        write(&file, &content).expect("writable");
        assert_eq!(read(&file).expect("a profile"), Some(7 << 20));
        let text = fs::read(&file).expect("there");
        assert!(text.starts_with(BEGINNING.as_bytes()));
        for len in BEGINNING.len()..text.len() - 2 {
            fs::write(&file, &text[..len]).expect("writable");
            assert_eq!(read(&file).expect("a profile that was cut off"), None, "{len}");
        }
        let newer = String::from_utf8(text).expect("text").replacen(":1,", ":2,", 1);
        fs::write(&file, newer).expect("writable");
        assert_eq!(read(&file).expect("another version's"), None);
        fs::write(&file, "").expect("writable");
        assert_eq!(read(&file).expect("empty"), None);
        for other in ["{\"ready_bytes\": 3}", "text", "{"] {
            fs::write(&file, other).expect("writable");
            assert!(read(&file).is_err(), "{other}");
        }
        assert!(read(folder.path()).is_err(), "a folder");
        assert!(read(&folder.path().join("no/such")).is_err(), "in no folder");
    }

    #[test]
    fn what_is_not_needed_is_forgotten_half_by_half() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("p.json");
        let tree = Tree::private(1 << 40, 0).expect("memory");
        let run = |used: u64, resident: u64| {
            let mut profile = Profile::open(Some(&file), &line(&["p"])).expect("a profile");
            profile.used = used;
            profile.keep(tree, resident);
            read(&file).expect("a profile").unwrap_or(0)
        };
        assert_eq!(run(0, 1 << 30), 0);
        assert!(!file.exists(), "nothing to say");
        assert_eq!(run(64 << 20, 1 << 30), 64 << 20);
        assert_eq!(run(32 << 20, 1 << 30), 48 << 20);
        assert_eq!(run(128 << 20, 100 << 20), 100 << 20, "no more than was touched");
        assert_eq!(run(1 << 20, 100 << 20), 50 << 20, "next to nothing");
        let open = Profile::open(Some(&file), &line(&["p"])).expect("a profile");
        assert_eq!((open.ready_bytes(1 << 40), open.ready_bytes(1 << 20)), (50 << 20, 1 << 20));
    }

    #[test]
    fn a_folder_of_profiles_is_bounded() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("pumice/profiles");
        fs::create_dir_all(&folder).expect("writable");
        for nth in 0..MOST_FILES + 5 {
            fs::write(folder.join(format!("{nth}.json")), "").expect("writable");
        }
        let content = Content { pumice_profile: VERSION, program: "p".into(), ready_bytes: 1 };
        write(&folder.join("new.json"), &content).expect("writable");
        assert_eq!(folder.read_dir().expect("there").count(), MOST_FILES);
        assert!(folder.join("new.json").exists());
    }
}
