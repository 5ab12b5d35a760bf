//! The contents of a page: its number, how often it was written, and words that follow from both.

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use tempfile::TempPath;

use pumice_frames::addr::FRAME_SIZE;
use pumice_paging::reclaim::Policy;
use pumice_paging::reclaim::SwapPager;

/// From `PUMICE_SEED`, or another each time; printed, so that a failure says it.
pub fn seed(name: &str) -> u64 {
    let given = std::env::var("PUMICE_SEED").ok().and_then(|text| text.parse().ok());
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |at| at.as_nanos() as u64);
    let seed = given.unwrap_or_else(now);
    eprintln!("{name}: PUMICE_SEED={seed}");
    seed
}

/// A page that was never written is zero.
pub fn fill(bytes: &mut [u8; FRAME_SIZE], page: usize, version: u32) {
    let mut random = Rng::with_seed((page as u64) << 32 | u64::from(version));
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.u64(..).to_le_bytes());
    }
    bytes[..8].copy_from_slice(&(page as u64).to_le_bytes());
    bytes[8..16].copy_from_slice(&u64::from(version).to_le_bytes());
}

/// How often the page was written, if all of its bytes agree.
pub fn version(bytes: &[u8; FRAME_SIZE], page: usize) -> Option<u32> {
    let word = |at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight"));
    let version = u32::try_from(word(1)).ok()?;
    if version == 0 {
        return bytes.iter().all(|&byte| byte == 0).then_some(0);
    }
    let mut expected = [0; FRAME_SIZE];
    fill(&mut expected, page, version);
    (expected == *bytes).then_some(version)
}

/// Describes how a page is wrong.
pub fn describe(bytes: &[u8; FRAME_SIZE], page: usize, wanted: u32) -> String {
    let word = |at: usize| u64::from_le_bytes(bytes[8 * at..8 * at + 8].try_into().expect("eight"));
    let mut expected = [0; FRAME_SIZE];
    if wanted > 0 {
        fill(&mut expected, page, wanted);
    }
    let wrong = bytes.iter().zip(&expected).filter(|(is, should)| is != should).count();
    let whole = version(bytes, word(0) as usize);
    format!(
        "page {page}, version {wanted}: it says page {}, version {} ({}); {wrong} bytes differ",
        word(0),
        word(1),
        whole.map_or("torn", |_| "whole")
    )
}

/// Ends a pager's thread also where a test fails, which waits for its threads.
pub struct Ending<'p, P: Policy + Send>(pub &'p SwapPager<P>);

impl<P: Policy + Send> Drop for Ending<'_, P> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// A path for a swap file, which goes with this.
pub struct Scratch(pub TempPath);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let prefix = format!("pumice-paging-{name}-");
        let unmade = tempfile::Builder::new().prefix(&prefix).make(|_| Ok(()));
        Scratch(unmade.expect("a path for a temporary file").into_temp_path())
    }
}
