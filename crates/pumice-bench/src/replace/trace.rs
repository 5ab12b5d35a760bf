//! Traces of page references: text, plain or compressed by zstd.
//!
//! A line is a page's number, or as in the traces of the ARC paper (Megiddo and Modha, FAST 2003) `first_page
//! number_of_pages ignored request_number`, which stands for so many consecutive pages. Empty lines and those
//! that begin with `#` are comments. Two comments of `pumice trace` count: `# share 1/16` says that the trace has the
//! references to a sixteenth of the pages only ([`Share`]), and `# page_bytes 4096` how large a page is. Where shares
//! differ, the last one is of the whole trace, and references to pages that are not in it are left out.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use ruzstd::decoding::StreamingDecoder;

use pumice_command::share::Share;
use pumice_command::Failure;

/// References a trace may have: four bytes each, some times over.
const MOST_REFERENCES: usize = 1 << 30;
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// A trace whose pages are numbered from 0 as they come.
#[derive(Debug, Default)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// Pages in order of reference.
    pub references: Vec<u32>,
    /// How many pages there are.
    pub pages: usize,
    /// The share of the pages that is in the trace, unless all are.
    pub share: Option<Share>,
    /// How large a page is, if that is known.
    pub page_bytes: Option<u64>,
    /// The trace that has these as a sample, unless they are all.
    pub whole: Option<Whole>,
}

/// A trace of which one in so many pages is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    pub references: usize,
    pub pages: usize,
    pub one_in: usize,
}

impl Trace {
    /// Of pages that have any numbers.
    pub fn of(name: &str, pages: &[u64]) -> Trace {
        let mut numbers = Numbers::default();
        let references = pages.iter().map(|&page| numbers.of(page)).collect();
        let pages = numbers.0.len();
        Trace { name: name.to_owned(), references, pages, ..Trace::default() }
    }

    /// How many pages one in the trace stands for.
    pub fn one_in(&self) -> u32 {
        self.share.map_or(1, Share::stands_for)
    }

    /// Leaves out the pages that are not in the share. The numbers of a page are those of the file.
    fn keep_share(&mut self, numbers: &Numbers) {
        let Some(share) = self.share else { return };
        let mut new = Numbers::default();
        let mut raw = vec![0; numbers.0.len()];
        numbers.0.iter().for_each(|(&page, &number)| raw[number as usize] = page);
        self.references.retain_mut(|page| {
            let of_file = raw[*page as usize];
            let is_in = share.has(of_file);
            if is_in {
                *page = new.of(of_file);
            }
            is_in
        });
        self.pages = new.0.len();
    }
}

/// Pages, numbered as they come.
#[derive(Default)]
struct Numbers(HashMap<u64, u32>);

impl Numbers {
    fn of(&mut self, page: u64) -> u32 {
        let new = self.0.len() as u32;
        *self.0.entry(page).or_insert(new)
    }
}

/// Reads a trace.
///
/// # Errors
/// The error in a trace, and its line.
pub fn read(path: &Path) -> Result<Trace, Failure> {
    let refuse = |error: &dyn std::fmt::Display| {
        Failure::usage(format!("can't read the trace {}: {error}", path.display()))
    };
    let mut file = BufReader::new(File::open(path).map_err(|error| refuse(&error))?);
    let begins = file.fill_buf().map_err(|error| refuse(&error))?.starts_with(&ZSTD_MAGIC);
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let lines: Box<dyn BufRead> = if begins {
        let decoder = StreamingDecoder::new(file).map_err(|error| refuse(&error))?;
        Box::new(BufReader::with_capacity(1 << 16, decoder))
    } else {
        Box::new(file)
    };
    let trace = parse(lines).map_err(|error| refuse(&error))?;
    if trace.references.is_empty() {
        return Err(refuse(&"it has no references; a line is a page's number"));
    }
    Ok(Trace { name, ..trace })
}

/// The errors of a trace.
#[derive(Debug)]
enum TraceError {
    Read(usize, io::Error),
    Line(usize, String, &'static str),
    TooLong(usize),
}

impl std::fmt::Display for TraceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TraceError::Read(line, error) => write!(f, "line {line}: {error}"),
            TraceError::Line(line, text, wanted) => write!(f, "line {line}: '{text}' {wanted}"),
            TraceError::TooLong(line) => {
                write!(f, "line {line}: more than {MOST_REFERENCES} references; cut it in pieces")
            }
        }
    }
}

/// Characters of a bad line that are shown, and bytes that a good one can have.
const SHOWN_CHARS: usize = 40;
const LONGEST_LINE: u64 = 256;

fn parse(mut text: impl BufRead) -> Result<Trace, TraceError> {
    let mut numbers = Numbers::default();
    let mut trace = Trace::default();
    let mut have_shares_changed = false;
    let mut buffer = Vec::new();
    for number in 1.. {
        buffer.clear();
        let read = text.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut buffer);
        if read.map_err(|error| TraceError::Read(number, error))? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&buffer);
        let line = line.trim();
        let shown = || line.chars().take(SHOWN_CHARS).collect();
        if let Some(comment) = line.strip_prefix('#') {
            if let Some(share) = comment.trim().strip_prefix("share ") {
                let wanted = "is no share, such as '# share 1/16'";
                let share =
                    Share::parse(share).map_err(|_| TraceError::Line(number, shown(), wanted))?;
                have_shares_changed |= trace.share.is_some_and(|before| before != share);
                trace.share = Some(share);
            } else if let Some(bytes) = comment.trim().strip_prefix("page_bytes ") {
                trace.page_bytes = bytes.parse().ok();
            }
            continue;
        }
        if line.is_empty() {
            continue;
        }
        let (first, count) =
            parse_line(line).map_err(|wanted| TraceError::Line(number, shown(), wanted))?;
        if count > (MOST_REFERENCES - trace.references.len()) as u64 {
            return Err(TraceError::TooLong(number));
        }
        for page in first..first + count {
            trace.references.push(numbers.of(page));
        }
    }
    trace.pages = numbers.0.len();
    if have_shares_changed {
        trace.keep_share(&numbers);
    }
    Ok(trace)
}

/// The first page, and how many.
fn parse_line(line: &str) -> Result<(u64, u64), &'static str> {
    const WANTED: &str =
        "is neither a page's number nor 'first_page number_of_pages ignored request_number'";
    let fields: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
    let number = |field: &str| field.parse::<u64>().map_err(|_| WANTED);
    match fields[..] {
        [page] => Ok((number(page)?, 1)),
        [first, count, ignored, request] => {
            let (first, count) = (number(first)?, number(count)?);
            number(ignored)?;
            number(request)?;
            first.checked_add(count).ok_or("names pages past the last number")?;
            Ok((first, count))
        }
        _ => Err(WANTED),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn error(text: &str) -> String {
        parse(text.as_bytes()).expect_err("a bad trace").to_string()
    }

    #[test]
    fn both_formats_are_read() {
        let trace = parse(&b"# a trace\n7\n\n 9 \n7\n"[..]).expect("good");
        assert_eq!((trace.references, trace.pages), (vec![0, 1, 0], 2));
        let trace = parse(&b"10 3 0 1\r\n11 1 0 2\n5 0 0 3"[..]).expect("good");
        assert_eq!((trace.references, trace.pages), (vec![0, 1, 2, 1], 3));
    }

    #[test]
    fn a_share_is_read_and_the_last_one_holds() {
        let trace = parse(&b"# share 1/16\n# page_bytes 65536\n7\n9\n"[..]).expect("good");
        assert_eq!((trace.one_in(), trace.page_bytes, trace.pages), (16, Some(65536), 2));
        let [large, small] = [2, 8].map(|one_in| Share::one_in(one_in).expect("a power of two"));
        let mut text = format!("# share {large}\n");
        let pages: Vec<u64> = (0..5000).filter(|&page| large.has(page)).collect();
        pages.iter().for_each(|page| text += &format!("{page}\n"));
        text += &format!("# share {small}\n");
        let trace = parse(text.as_bytes()).expect("good");
        let left = pages.iter().filter(|&&page| small.has(page)).count();
        assert_eq!((trace.one_in(), trace.pages, trace.references.len()), (8, left, left));
        assert!(left > 100 && left < pages.len() / 3);
        assert!(error("# share 1/3\n1\n").contains("is no share"));
    }

    #[test]
    fn bad_lines_are_named() {
        assert!(error("1\n2\nx\n").starts_with("line 3: 'x' is neither"));
        assert!(error("1 2\n").starts_with("line 1: '1 2'"));
        assert!(error("-1\n").starts_with("line 1"));
        assert!(error("1 1 0 a\n").starts_with("line 1"));
        assert!(error("18446744073709551615 2 0 0").contains("past the last"));
        assert!(error("0 18446744073709551615 0 0").contains("cut it in pieces"));
        assert!(error(&"9".repeat(100_000)).len() < 300);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_bad(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes[..]);
        }
    }
}
