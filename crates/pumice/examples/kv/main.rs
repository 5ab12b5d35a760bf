//! A key-value store on pumice's page cache: a B+tree of pages, latched by guards, with a write-ahead log.
//!
//! ```text
//! cargo run --release --example kv -- FOLDER put KEY VALUE
//! cargo run --release --example kv -- FOLDER get KEY
//! cargo run --release --example kv -- FOLDER remove KEY
//! cargo run --release --example kv -- FOLDER scan [FROM]
//! cargo run --release --example kv -- FOLDER check
//! cargo run --release --example kv -- FOLDER load ENTRIES THREADS
//! ```
//!
//! `store` is the part to read; `tests/kv` kills it.

mod store;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use pumice::cache::{self, Cache, Settings};

use store::check::check;
use store::Store;

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// 64 MiB.
const FRAMES: usize = 16 << 10;
/// Entries between two commits of `load`.
const COMMIT_EVERY: u64 = 100;

fn main() -> ExitCode {
    match open_and_run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn open_and_run() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [folder, words @ ..] = &words[..] else { return Err("which folder?".into()) };
    cache::run(&Settings::new(FRAMES), |cache| {
        let store = Store::open(cache, Path::new(folder))?;
        run(cache, &store, words)
    })?
}

fn run(cache: &Cache<'_>, store: &Store, words: &[&str]) -> Result<(), Failed> {
    let task = cache.task()?;
    let session = store.session(&task)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match words {
        ["put", key, value] => {
            let change = session.put(key.as_bytes(), value.as_bytes())?;
            session.commit(change)?;
        }
        ["get", key] => match session.get(key.as_bytes())? {
            Some(value) => println!("{}", text(&value)),
            None => return Err("it is not there".into()),
        },
        ["remove", key] => match session.remove(key.as_bytes())? {
            Some(change) => session.commit(change)?,
            None => return Err("it is not there".into()),
        },
        ["scan"] | ["scan", _] => {
            for entry in session.range(words.get(1).unwrap_or(&"").as_bytes())? {
                let (key, value) = entry?;
                println!("{}\t{}", text(&key), text(&value));
            }
        }
        ["check"] => println!("{:?}", check(&session)?),
        ["load", entries, threads] => load(cache, store, entries.parse()?, threads.parse()?)?,
        _ => {
            return Err(
                "put KEY VALUE, get KEY, remove KEY, scan [FROM], check, load N THREADS".into()
            )
        }
    }
    // So that there is nothing to do when it is opened next.
    session.checkpoint()?;
    Ok(())
}

/// Puts so many entries, by so many threads.
fn load(cache: &Cache<'_>, store: &Store, entries: u64, threads: u64) -> Result<(), Failed> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let one = |thread: u64| {
            move || -> Result<(), Failed> {
                let task = cache.task()?;
                let session = store.session(&task)?;
                for nth in 0..entries / threads {
                    let key = (nth * threads + thread).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let change =
                        session.put(format!("{key:016x}").as_bytes(), &nth.to_le_bytes())?;
                    if nth % COMMIT_EVERY == 0 {
                        session.commit(change)?;
                    }
                }
                Ok(())
            }
        };
        let spawned: Vec<_> = (0..threads).map(|thread| scope.spawn(one(thread))).collect();
        spawned.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    println!("{:.0} entries a second, {} bytes of log", entries as f64 / seconds, store.log_len());
    Ok(())
}
