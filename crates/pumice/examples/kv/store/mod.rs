//! A key-value store: a B+tree in a file, on pumice's page cache, with a log that survives crashes.
//!
//! | module | contents |
//! |---|---|
//! | [`node`] | the content of a page |
//! | [`tree`] | a thread's way to the tree: reading, inserting, removing, going through a range |
//! | [`record`] | log records |
//! | [`log`] | the log: group commit, segments, the rule that it goes before the pages |
//! | [`lock`] | the store is one process's at a time |
//! | [`check`] | whether a tree is one |
//!
//! **Writing.** A change latches the pages that it is about, changes them, adds one record of all of it to the log,
//! which gives the pages their `lsn`, and lets go. The cache writes a page whenever it likes, but not before the log
//! is durable up to the page's `lsn` ([`pumice::cache::WriteAhead`]). A change is safe when [`Session::commit`] has
//! returned.
//!
//! **A checkpoint** begins a segment of the log, makes all pages durable, and removes the segments before. The first
//! change of a page after it puts the whole page into the log, so a page that a crash left half written is made anew
//! from there, and nothing has to be read for it.
//!
//! **Opening** takes the store's lock, before it looks at anything, and keeps it while the store is open. It applies
//! what the log has, in order, through the cache, and ends with a checkpoint.
//!
//! Page 0 says what the file is and how many pages there are; page 1 is the root, always.

pub mod check;
pub mod lock;
pub mod log;
pub mod node;
pub mod record;
pub mod tree;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use pumice::cache::{Cache, CacheError, CacheTask, File, Options, View};

use lock::Lock;
use log::{Log, Part};
use node::{Corrupt, Page, Parts};
use record::Change;
pub use tree::Session;

/// The page with the root.
pub const ROOT: u32 = 1;
/// The page that says what the file is.
const META: u32 = 0;
const MAGIC: &[u8; 8] = b"kvtree\0\x02";

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error("the log: {0}")]
    Log(#[from] io::Error),
    #[error("the lock: {0}")]
    Lock(#[source] io::Error),
    #[error("the store {0} is open already, here or in another process: close it there")]
    InUse(PathBuf),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("{0} is no store")]
    NoStore(PathBuf),
    #[error("a key of {key} and a value of {value} bytes are too long")]
    TooLong { key: usize, value: usize },
    #[error("the tree is wrong: {0}")]
    Wrong(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// A tree and its log. Threads use it by [`Session`]s.
#[derive(Debug)]
pub struct Store {
    file: File,
    log: Arc<Log>,
    /// The number of the next page to be made.
    next_page: AtomicU32,
    /// One checkpoint at a time.
    checkpoint: Mutex<()>,
    server: Option<JoinHandle<()>>,
    /// Goes last. The tree may have pages in the cache still that are not written; the log has them, and the next to
    /// open the store waits for the tree's file, which is the cache's until it ends.
    _lock: Lock,
}

impl Store {
    /// Opens the store in a folder, or makes one there: [`Error::InUse`] where it is open already.
    pub fn open(cache: &Cache<'_>, folder: &Path) -> Result<Store> {
        // To open the log cuts off what is half a record, as what another is just adding would be.
        let lock = Lock::take(folder)?;
        let log = Arc::new(Log::open(&folder.join("log"))?);
        let path = folder.join("tree");
        let options = Options::new().write_ahead(log.clone()).checksums(node::CHECKSUM);
        let file = cache.open(&path, &options)?;
        // From here on `Drop` ends the thread.
        let server = std::thread::spawn({
            let log = log.clone();
            move || log.serve()
        });
        let store = Store {
            file,
            log,
            next_page: AtomicU32::new(ROOT + 1),
            checkpoint: Mutex::new(()),
            server: Some(server),
            _lock: lock,
        };
        let task = cache.task()?;
        let view = task.view(&store.file)?;
        if store.recover(&view)? == 0 && store.is_empty(&view)? {
            store.make(&view)?;
        }
        let meta = view.read(META as usize)?;
        if meta[8..16] != MAGIC[..] {
            return Err(Error::NoStore(path));
        }
        let count = u32::from_le_bytes(meta[16..20].try_into().map_err(|_| Corrupt)?);
        drop(meta);
        // Relaxed: nobody else has the store yet.
        store.next_page.fetch_max(count, Ordering::Relaxed);
        store.checkpoint_by(&view)?;
        drop(view);
        Ok(store)
    }

    /// A thread's way in.
    pub fn session<'t, 'c>(&'t self, task: &'t CacheTask<'c>) -> Result<Session<'t, 'c>> {
        Ok(Session::new(self, task.view(&self.file)?))
    }

    /// Bytes of the log that opening would have to go through now.
    pub fn log_len(&self) -> u64 {
        self.log.len()
    }

    /// Applies what the log has: how many records.
    fn recover(&self, view: &View<'_, '_>) -> Result<usize> {
        let mut made = HashSet::new();
        self.log.replay(|body| {
            for part in record::parts(body) {
                let (number, change) = part.ok_or(Corrupt)?;
                // The first of each page is an image.
                if !matches!(change, Change::Image(_)) && !made.contains(&number) {
                    return Err(Corrupt.into());
                }
                let at = number as usize;
                match change {
                    Change::Image(image) => {
                        // Its present contents may be half written.
                        view.write_at(u64::from(number) * image.len() as u64, image)?;
                        made.insert(number);
                    }
                    Change::Put(key, value) => node::put(&mut *view.write(at)?, key, value)?,
                    Change::Remove(key) => {
                        node::remove(&mut *view.write(at)?, key)?;
                    }
                }
                // Relaxed: nobody else has the store yet.
                self.next_page.fetch_max(number + 1, Ordering::Relaxed);
            }
            Ok(())
        })
    }

    /// Whether the file is as it is before anything is written to it: the log comes first.
    fn is_empty(&self, view: &View<'_, '_>) -> Result<bool> {
        Ok(self.file.len() == 0 || view.read(META as usize)?.iter().all(|&byte| byte == 0))
    }

    fn make(&self, view: &View<'_, '_>) -> Result<()> {
        let mut meta = view.write_or_grow(META as usize)?;
        let mut root = view.write_or_grow(ROOT as usize)?;
        meta.fill(0);
        self.describe(&mut meta);
        root.fill(0);
        Parts::default().write(&mut root)?;
        let end = self.log.append(&mut [
            Part { number: META, page: &mut meta, change: None },
            Part { number: ROOT, page: &mut root, change: None },
        ])?;
        drop((meta, root));
        Ok(self.log.flush(end)?)
    }

    fn describe(&self, meta: &mut Page) {
        meta[8..16].copy_from_slice(MAGIC);
        // Relaxed: pages that are made later are found in the log.
        let count = self.next_page.load(Ordering::Relaxed);
        meta[16..20].copy_from_slice(&count.to_le_bytes());
    }

    /// Makes all changes so far durable in the tree's file, and shortens the log.
    fn checkpoint_by(&self, view: &View<'_, '_>) -> Result<()> {
        let _one = self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        let start = self.log.begin_segment()?;
        // Behind the segment's begin: pages that are made after this are in the log from there on.
        let mut meta = view.write(META as usize)?;
        self.describe(&mut meta);
        let mut parts = [Part { number: META, page: &mut meta, change: None }];
        let end = self.log.append(&mut parts)?;
        drop(meta);
        self.log.flush(end)?;
        // All pages that were latched when the segment began, too.
        view.sync()?;
        Ok(self.log.forget(start)?)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // The cache may write all that it still has to write: nobody makes changes any more.
        if let Err(error) = self.log.flush_all() {
            eprintln!("the log could not be written: {error}");
        }
        self.log.stop();
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
    }
}
