//! The calls of a process on the files in a folder, in the order in which they are begun and done: by ptrace(2).
//!
//! A call's effect lies between the stop before it and the stop after it, and this thread sees one stop at a time. So
//! of two calls of which one's end was seen before the other's begin, the first came first.
//!
//! A call that changes files in a way that is not known here is an error: nothing is missed.

use std::ffi::c_long;
use std::io;
use std::mem::{size_of, MaybeUninit};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::ptr;

/// A request. Files are named by their paths in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Write {
        file: PathBuf,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        file: PathBuf,
        len: u64,
    },
    /// At least so long.
    Grow {
        file: PathBuf,
        len: u64,
    },
    /// A name for a file, unless there is one.
    Create {
        file: PathBuf,
    },
    Remove {
        file: PathBuf,
    },
    /// `fsync` or `fdatasync`, of a file or of a folder.
    Sync {
        file: PathBuf,
    },
}

/// Of a call, by its number; or a line that the process has said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Begun(usize, Call),
    /// With how many bytes, or 0; `None` where it failed.
    Done(usize, Option<u64>),
    Said(String),
}

/// As the kernel has it (`PTRACE_GET_SYSCALL_INFO`), of the two kinds of stops that are asked for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct SyscallInfo {
    op: u8,
    pad: [u8; 3],
    arch: u32,
    instruction_pointer: u64,
    stack_pointer: u64,
    /// At an entry: the number, and arguments. At an exit: the result, and whether it is an error.
    words: [u64; 7],
}

const GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const ENTRY: u8 = 1;
const EXIT: u8 = 2;

/// A thread between two of its stops.
#[derive(Default)]
struct Thread {
    call: Option<usize>,
    /// A call that is known by its result: the flags of its opening.
    opening: Option<i32>,
    /// One that must fail.
    unknown: Option<String>,
}

struct Tracer<'e> {
    folder: PathBuf,
    events: &'e mut Vec<Event>,
    calls: usize,
    threads: std::collections::HashMap<i32, Thread>,
    /// The part of a line of output that has come.
    said: Vec<u8>,
}

/// Whether this process may trace its children.
pub fn is_possible() -> bool {
    let mut events = Vec::new();
    record(&mut Command::new("true"), Path::new("/nowhere"), &mut events).is_ok()
}

/// Runs a program to its end. Lines that it writes to its standard output are events, too.
///
/// # Errors
/// Where it can't be traced, does not end well, or makes a call that is not known here.
pub fn record(command: &mut Command, folder: &Path, events: &mut Vec<Event>) -> io::Result<()> {
    // SAFETY: it is one system call.
    unsafe { command.pre_exec(|| ptrace(libc::PTRACE_TRACEME, 0, ptr::null_mut(), 0)) };
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let leader = child.id() as i32;
    let mut tracer = Tracer {
        folder: folder.to_owned(),
        events,
        calls: 0,
        threads: std::collections::HashMap::new(),
        said: Vec::new(),
    };
    let mut is_new = true;
    let result = loop {
        let mut status = 0;
        // Of this thread's children only: others are other tests'.
        // SAFETY: the status is ours.
        let thread = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if thread < 0 {
            break Err(io::Error::last_os_error());
        }
        if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
            tracer.threads.remove(&thread);
            if thread != leader {
                continue;
            }
            break match libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
                true => Ok(()),
                false => Err(io::Error::other(format!("it ended with {status:#x}"))),
            };
        }
        if std::mem::take(&mut is_new) {
            let options =
                libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_EXITKILL;
            ptrace(libc::PTRACE_SETOPTIONS, thread, ptr::null_mut(), options as usize)?;
        }
        let signal = libc::WSTOPSIG(status);
        let is_event = status >> 16 != 0;
        let mut to_deliver = 0;
        if signal == libc::SIGTRAP | 0x80 {
            if let Err(error) = tracer.stopped(thread) {
                break Err(error);
            }
        } else if !is_event && signal != libc::SIGTRAP && signal != libc::SIGSTOP {
            to_deliver = signal;
        }
        // A thread may be gone by now.
        let _ = ptrace(libc::PTRACE_SYSCALL, thread, ptr::null_mut(), to_deliver as usize);
    };
    if result.is_err() {
        // SAFETY: no memory is involved.
        unsafe {
            libc::kill(leader, libc::SIGKILL);
            while libc::waitpid(-1, ptr::null_mut(), libc::__WALL | libc::__WNOTHREAD) > 0 {}
        }
    }
    result
}

impl Tracer<'_> {
    fn stopped(&mut self, thread: i32) -> io::Result<()> {
        let mut info = MaybeUninit::<SyscallInfo>::zeroed();
        let at = info.as_mut_ptr().cast();
        ptrace(GET_SYSCALL_INFO, thread, at, size_of::<SyscallInfo>()).ok();
        // SAFETY: any bytes are one, and those that the kernel did not write are zeros.
        let info = unsafe { info.assume_init() };
        match info.op {
            ENTRY => {
                let [number, arguments @ ..] = info.words;
                self.enter(thread, number as c_long, arguments)
            }
            EXIT => self.leave(thread, info.words[0] as i64),
            _ => Ok(()),
        }
    }

    fn enter(&mut self, thread: i32, number: c_long, arguments: [u64; 6]) -> io::Result<()> {
        let [first, second, third, fourth, ..] = arguments;
        let of = |fd: u64| self.file_of(thread, fd as i32);
        let call = match number {
            libc::SYS_write if first == 1 => {
                let text = read_memory(thread, second, third as usize)?;
                self.say(&text);
                None
            }
            libc::SYS_pwrite64 => match of(first) {
                Some(file) => {
                    let bytes = read_memory(thread, second, third as usize)?;
                    Some(Call::Write { file, offset: fourth, bytes })
                }
                None => None,
            },
            libc::SYS_pwritev => match of(first) {
                Some(file) => {
                    let bytes = read_pieces(thread, second, third as usize)?;
                    Some(Call::Write { file, offset: fourth, bytes })
                }
                None => None,
            },
            libc::SYS_ftruncate => of(first).map(|file| Call::SetLen { file, len: second }),
            libc::SYS_fallocate if second == 0 => {
                of(first).map(|file| Call::Grow { file, len: third + fourth })
            }
            libc::SYS_fallocate if second == libc::FALLOC_FL_KEEP_SIZE as u64 => None,
            libc::SYS_fsync | libc::SYS_fdatasync => of(first).map(|file| Call::Sync { file }),
            libc::SYS_openat => {
                self.threads.entry(thread).or_default().opening = Some(third as i32);
                None
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open => {
                self.threads.entry(thread).or_default().opening = Some(second as i32);
                None
            }
            libc::SYS_unlinkat => self.named(thread, second)?.map(|file| Call::Remove { file }),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_unlink => self.named(thread, first)?.map(|file| Call::Remove { file }),
            _ => {
                self.threads.entry(thread).or_default().unknown =
                    self.unknown(thread, number, arguments)?;
                None
            }
        };
        if let Some(call) = call {
            self.begin(thread, call);
        }
        Ok(())
    }

    fn leave(&mut self, thread: i32, result: i64) -> io::Result<()> {
        let state = self.threads.entry(thread).or_default();
        let (call, opening) = (state.call.take(), state.opening.take());
        if let Some(unknown) = state.unknown.take() {
            if result >= 0 {
                return Err(io::Error::other(format!("a call that is not known here: {unknown}")));
            }
        }
        if let Some(number) = call {
            self.events.push(Event::Done(number, (result >= 0).then_some(result as u64)));
        }
        let Some(flags) = opening.filter(|_| result >= 0) else { return Ok(()) };
        let Some(file) = self.file_of(thread, result as i32) else { return Ok(()) };
        if flags & libc::O_CREAT != 0 {
            let number = self.begin(thread, Call::Create { file: file.clone() });
            self.events.push(Event::Done(number, Some(0)));
        }
        if flags & libc::O_TRUNC != 0 {
            let number = self.begin(thread, Call::SetLen { file, len: 0 });
            self.events.push(Event::Done(number, Some(0)));
        }
        self.threads.entry(thread).or_default().call = None;
        Ok(())
    }

    fn begin(&mut self, thread: i32, call: Call) -> usize {
        let number = self.calls;
        self.calls += 1;
        self.events.push(Event::Begun(number, call));
        self.threads.entry(thread).or_default().call = Some(number);
        number
    }

    fn say(&mut self, text: &[u8]) {
        for &byte in text {
            if byte == b'\n' {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.said)).into_owned();
                self.events.push(Event::Said(line));
            } else {
                self.said.push(byte);
            }
        }
    }

    /// A call that could change a file in the folder, in words.
    fn unknown(
        &self,
        thread: i32,
        number: c_long,
        arguments: [u64; 6],
    ) -> io::Result<Option<String>> {
        let [first, second, third, fourth, fifth, _] = arguments;
        let by_descriptor = |fd: u64| self.file_of(thread, fd as i32);
        let file = match number {
            libc::SYS_write | libc::SYS_writev | libc::SYS_pwritev2 | libc::SYS_fallocate => {
                by_descriptor(first)
            }
            libc::SYS_sendfile => by_descriptor(first),
            libc::SYS_copy_file_range | libc::SYS_splice => by_descriptor(third),
            libc::SYS_renameat2 | libc::SYS_renameat | libc::SYS_linkat => {
                self.named(thread, fourth)?.or(self.named(thread, second)?)
            }
            libc::SYS_symlinkat => self.named(thread, third)?,
            libc::SYS_mkdirat => self.named(thread, second)?,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_rename | libc::SYS_link | libc::SYS_symlink => {
                self.named(thread, second)?.or(self.named(thread, first)?)
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_mkdir | libc::SYS_truncate | libc::SYS_creat => self.named(thread, first)?,
            libc::SYS_mmap if third & libc::PROT_WRITE as u64 != 0 => {
                by_descriptor(fifth).filter(|_| fourth & libc::MAP_SHARED as u64 != 0)
            }
            libc::SYS_io_uring_setup | libc::SYS_io_setup => Some(PathBuf::from("a queue")),
            _ => None,
        };
        Ok(file.map(|file| format!("{number} of {}", file.display())))
    }

    /// The file or folder of a descriptor, if it is in the folder.
    fn file_of(&self, thread: i32, fd: i32) -> Option<PathBuf> {
        let path = std::fs::read_link(format!("/proc/{thread}/fd/{fd}")).ok()?;
        path.strip_prefix(&self.folder).ok().map(Path::to_owned)
    }

    /// A file by a name in memory, if it is in the folder.
    fn named(&self, thread: i32, at: u64) -> io::Result<Option<PathBuf>> {
        let mut name = Vec::new();
        let memory = std::fs::File::open(format!("/proc/{thread}/mem"))?;
        let mut byte = [0];
        while name.len() < libc::PATH_MAX as usize {
            memory.read_exact_at(&mut byte, at + name.len() as u64)?;
            if byte[0] == 0 {
                break;
            }
            name.push(byte[0]);
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(&name));
        Ok(path.strip_prefix(&self.folder).ok().map(Path::to_owned))
    }
}

fn read_memory(thread: i32, at: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    std::fs::File::open(format!("/proc/{thread}/mem"))?.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// Of a list of pieces (`iovec`).
fn read_pieces(thread: i32, at: u64, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in read_memory(thread, at, count * 16)?.chunks_exact(16) {
        let word = |at: usize| u64::from_le_bytes(piece[at..at + 8].try_into().expect("a word"));
        bytes.extend(read_memory(thread, word(0), word(8) as usize)?);
    }
    Ok(bytes)
}

fn ptrace(
    request: libc::c_uint,
    thread: i32,
    data: *mut libc::c_void,
    number: usize,
) -> io::Result<()> {
    // The one request that writes to memory has its length and place the other way round.
    let (third, fourth) = match request {
        GET_SYSCALL_INFO => (number, data as usize),
        _ => (data as usize, number),
    };
    // SAFETY: requests that write to `data` write `number` bytes at most; the others write nothing.
    let result = unsafe { libc::ptrace(request, thread, third, fourth) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
