//! `{path}`, `{fd}` and `{qemu}` in the program's arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use pumice_slots::PageKind;

use pumice_command::Failure;

const QEMU: &str = "{qemu}";
const NAMES: [&str; 3] = ["{path}", "{fd}", QEMU];

/// The slot that they stand for.
#[derive(Debug)]
pub struct Values {
    /// `{path}`
    pub path: PathBuf,
    /// `{fd}`
    pub descriptor: i32,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// The kind of pages that it is made of.
    pub pages: PageKind,
}

/// A program that is told of no slot would not use it.
pub fn check(line: &[OsString]) -> Result<(), Failure> {
    if NAMES.iter().any(|name| has(line, name)) {
        return Ok(());
    }
    Err(Failure::usage(
        "nothing tells the program of the slot; put {path}, {fd} or {qemu} in its arguments, such as \
         -object {qemu} -machine memory-backend=pumice",
    ))
}

/// A shared slot can only be read. QEMU's object maps the file shared and writes to it, and its memory is left out of a
/// saved state only then.
pub fn check_shared(line: &[OsString]) -> Result<(), Failure> {
    match has(line, QEMU) {
        false => Ok(()),
        true => Err(Failure::usage(
            "this snapshot is shared, and {qemu} needs a slot of its own; let 'pumice serve' keep a number of them, \
             such as web=FILE:4",
        )),
    }
}

fn has(line: &[OsString], name: &str) -> bool {
    let name = name.as_bytes();
    line.iter().any(|word| word.as_bytes().windows(name.len()).any(|at| at == name))
}

impl Values {
    /// The word with its placeholders filled in.
    pub fn fill_in(&self, word: &OsStr) -> OsString {
        let values = [
            self.path.as_os_str().as_bytes().to_vec(),
            self.descriptor.to_string().into_bytes(),
            self.qemu_object().into_bytes(),
        ];
        let (mut rest, mut filled) = (word.as_bytes(), Vec::new());
        'word: while let Some(&first) = rest.first() {
            for (name, value) in NAMES.iter().zip(&values) {
                if let Some(after) = rest.strip_prefix(name.as_bytes()) {
                    filled.extend(value);
                    rest = after;
                    continue 'word;
                }
            }
            filled.push(first);
            rest = &rest[1..];
        }
        OsString::from_vec(filled)
    }

    /// The value of QEMU's `-object`. Without the alignment QEMU maps the file somewhere where no huge page fits.
    fn qemu_object(&self) -> String {
        let path = self.path.display();
        format!(
            "memory-backend-file,id=pumice,size={},mem-path={path},share=on,align={}",
            self.bytes,
            self.pages.alignment()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(word: &str) -> String {
        let slot = Values {
            path: "/proc/7/fd/3".into(),
            descriptor: 3,
            bytes: 1 << 30,
            pages: PageKind::Thp,
        };
        slot.fill_in(OsStr::new(word)).into_string().expect("UTF-8")
    }

    #[test]
    fn each_is_filled_in_wherever_it_stands() {
        assert_eq!(filled("{path}"), "/proc/7/fd/3");
        assert_eq!(filled("a={fd},b={path}"), "a=3,b=/proc/7/fd/3");
        assert_eq!(filled("{other} {pat"), "{other} {pat");
        assert_eq!(
            filled("{qemu},prealloc=on"),
            "memory-backend-file,id=pumice,size=1073741824,mem-path=/proc/7/fd/3,share=on,\
             align=2097152,prealloc=on"
        );
    }

    #[test]
    fn a_program_must_be_told() {
        assert!(check(&["true".into()]).is_err());
        assert!(check(&["cat".into(), "x={path}".into()]).is_ok());
        assert!(check_shared(&["cat".into(), "x={path}".into()]).is_ok());
        assert!(check_shared(&["x={path},{qemu}".into()]).is_err());
    }
}
