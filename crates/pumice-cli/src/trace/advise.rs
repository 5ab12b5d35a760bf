//! Advice on many pages of a program, by few stops of its thread.
//!
//! A call in a stopped thread costs two stops. `process_madvise` on the caller's own memory takes 1,024 pages at once,
//! where the kernel lets it give any advice (6.13). The list of pages lies in memory that is mapped in the program for
//! it, and unmapped again. Older kernels get a call for each page.

use super::inject::Stopped;

/// Pages of a call: the kernel's limit on vectors (`UIO_MAXIOV`).
const MOST: usize = 1024;
const ENTRY_BYTES: usize = 16;
const LIST_BYTES: u64 = (MOST * ENTRY_BYTES) as u64;
/// Stands for the caller's own process since Linux 6.15 (`PIDFD_SELF_THREAD`), so that no descriptor is opened.
const SELF: i64 = -10_000;
/// Fewer are advised one by one.
const FEW: usize = 4;

/// Advises on pages of `len` bytes at these addresses. Returns the results as of `madvise`, in order; fewer if the
/// thread is gone.
pub fn advise(stopped: &mut Stopped<'_>, pages: &[u64], len: u64, advice: i32) -> Vec<i64> {
    let mut results = Vec::with_capacity(pages.len());
    if pages.len() > FEW {
        advise_many(stopped, pages, len, advice, &mut results);
    }
    for &at in &pages[results.len()..] {
        let arguments = [at, len, advice as u64, 0, 0, 0];
        let Some(result) = stopped.call(libc::SYS_madvise, arguments) else { break };
        results.push(result);
    }
    results
}

/// Adds the results of all pages, or of none where the kernel can't.
fn advise_many(
    stopped: &mut Stopped<'_>,
    pages: &[u64],
    len: u64,
    advice: i32,
    results: &mut Vec<i64>,
) -> Option<()> {
    let list = map(stopped, LIST_BYTES, libc::PROT_READ | libc::PROT_WRITE, 0)?;
    let mut advise_as = |stopped: &mut Stopped<'_>, own: i64| {
        for chunk in pages[results.len()..].chunks(MOST) {
            let entry = |at: &u64| [at.to_ne_bytes(), len.to_ne_bytes()].concat();
            let text: Vec<u8> = chunk.iter().flat_map(entry).collect();
            stopped.write(list, &text)?;
            let mut call = |done: usize| {
                let from = list + (done * ENTRY_BYTES) as u64;
                let count = (chunk.len() - done) as u64;
                let arguments = [own as u64, from, count, advice as u64, 0, 0];
                stopped.call(libc::SYS_process_madvise, arguments)
            };
            advise_chunk(chunk.len(), len, results, &mut call)?;
        }
        Some(())
    };
    if advise_as(stopped, SELF).is_none() {
        let pid = stopped.pid() as u64;
        let opened = stopped.call(libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0]);
        if let Some(own) = opened.filter(|&own| own >= 0) {
            advise_as(stopped, own);
            stopped.call(libc::SYS_close, [own as u64, 0, 0, 0, 0, 0]);
        }
    }
    unmap(stopped, list, LIST_BYTES)
}

/// Calls until all pages of a chunk have a result. `None` where the kernel can't, or the thread is gone.
fn advise_chunk(
    count: usize,
    len: u64,
    results: &mut Vec<i64>,
    call: &mut dyn FnMut(usize) -> Option<i64>,
) -> Option<()> {
    // `ESRCH`: the main thread has ended before the others.
    let cannot = [libc::EINVAL, libc::ENOSYS, libc::EPERM, libc::EBADF, libc::ESRCH];
    let cannot = cannot.map(|it| -i64::from(it));
    let mut done = 0;
    while done < count {
        // The bytes before the first page that could not be advised on, or that page's error.
        let result = call(done)?;
        if result > 0 {
            let advised = (result as u64 / len).clamp(1, (count - done) as u64) as usize;
            results.extend(std::iter::repeat_n(0, advised));
            done += advised;
        } else if done == 0 && cannot.contains(&result) {
            return None;
        } else {
            results.push(result.min(-1));
            done += 1;
        }
    }
    Some(())
}

/// Maps memory in the program.
pub fn map(stopped: &mut Stopped<'_>, len: u64, rights: i32, flags: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    let no_file = u64::MAX;
    let at = stopped.call(libc::SYS_mmap, [0, len, rights as u64, flags as u64, no_file, 0])?;
    u64::try_from(at).ok()
}

/// Unmaps it.
pub fn unmap(stopped: &mut Stopped<'_>, at: u64, len: u64) -> Option<()> {
    stopped.call(libc::SYS_munmap, [at, len, 0, 0, 0, 0]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The results, where these pages can't be advised on and the kernel stops at each.
    fn results(count: usize, bad: &[usize], first: Option<i64>) -> (Option<()>, Vec<i64>) {
        let mut results = Vec::new();
        let mut call = |done: usize| {
            let end = (done..count).find(|page| bad.contains(page)).unwrap_or(count);
            let advised = ((end - done) * 4096) as i64;
            first.or(Some(if advised > 0 { advised } else { -i64::from(libc::ENOMEM) }))
        };
        let done = advise_chunk(count, 4096, &mut results, &mut call);
        (done, results)
    }

    #[test]
    fn each_page_has_its_result() {
        let error = -i64::from(libc::ENOMEM);
        assert_eq!(results(3, &[], None), (Some(()), vec![0, 0, 0]));
        assert_eq!(results(4, &[0, 2], None), (Some(()), vec![error, 0, error, 0]));
        assert_eq!(results(2, &[0, 1], None), (Some(()), vec![error, error]));
        assert_eq!(results(2, &[], Some(-i64::from(libc::EINVAL))), (None, vec![]));
    }
}
