//! Every function and every system call that changes memory, rights, namespaces, limits or the holders of pages is in
//! the table below: the shim sees it by name, by number or both, or need not, for a reason. A call that a newer C
//! library or kernel brings fails the test until somebody has thought about it.
//!
//! Functions are those that the installed C libraries export and whose names have to do with it ([`STEMS`]); numbers
//! are those of the kernel's headers, all of them. Names are looked for among the shim's exports. Numbers are looked
//! for in its sources, in the functions that are asked about each call by number; the programs in `c/limits`,
//! `c/mmap_*` and `c/seccomp` show that being asked works.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, SymbolKind};

/// How the shim gets to see a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Name,
    Number,
    Both,
    NotNeeded(&'static str),
    /// It should be, or its helpers should end before it.
    NotYet(&'static str),
}

use Seen::{Both, Name, NotNeeded, NotYet, Number};

/// The calls of the family, blanks between those of which the same is true.
const CALLS: &[(&str, Seen)] = &[
    // Mappings.
    ("mmap munmap mremap mprotect pkey_mprotect madvise process_madvise mincore msync", Both),
    ("mlock mlock2 munlock mlockall remap_file_pages mseal", Both),
    ("mmap64 posix_madvise", Name),
    ("mbind set_mempolicy_home_node", Number),
    ("munlockall", NotNeeded("after mlockall nothing is served any more, so it unlocks the program's own")),
    ("brk sbrk", NotNeeded("the C library's heap, which the shim's addresses never are in")),
    ("map_shadow_stack", NotNeeded("the kernel's, at none of the heap's addresses unless asked for there")),
    ("pkey_alloc pkey_free pkey_get pkey_set", NotNeeded("rights are a register's; memory with a key is tainted")),
    ("userfaultfd", NotYet("a registered range keeps its handler when it is unmapped: docs/mappings.md")),
    ("memfd_create memfd_secret shm_open shm_unlink", NotNeeded("files: what is done with them is mmap")),
    ("get_mempolicy migrate_pages move_pages membarrier", NotNeeded("no content and no attribute changes")),
    ("set_mempolicy", NotNeeded("of the thread; helpers set their own, and memory is where it is touched")),
    ("process_vm_readv process_vm_writev process_mrelease ptrace", NotNeeded("of contents, or of a process that ends")),
    // Segments.
    ("shmat shmdt", Both),
    ("shmget shmctl", NotNeeded("of the segment, and of no address")),
    // Allocations.
    ("malloc calloc realloc reallocarray free cfree aligned_alloc memalign posix_memalign valloc pvalloc", Name),
    ("free_sized free_aligned_sized malloc_usable_size mallinfo mallinfo2 malloc_stats", Name),
    ("malloc_info", NotYet("its XML does not count what is served")),
    ("malloc_trim mallopt", NotNeeded("the next allocator's own business")),
    ("__libc_malloc __libc_calloc __libc_realloc __libc_free __libc_memalign __libc_valloc __libc_pvalloc",
        NotNeeded("where a program has a free of its own over these, nothing is served: c/limits/own_free.c")),
    // User, groups, capabilities, root directory.
    ("setuid setgid setreuid setregid setresuid setresgid setgroups setfsuid setfsgid capset", Both),
    ("seteuid setegid initgroups", Name),
    ("chroot pivot_root prctl", Both),
    ("getuid geteuid getgid getegid getresuid getresgid getgroups capget euidaccess issetugid", NotNeeded("asks")),
    ("getgrgid getgrgid_r getpwuid getpwuid_r getpgid setpgid", NotNeeded("databases, or the whole process's")),
    ("iopl ioperm", Both),
    ("keyctl", Number),
    ("add_key request_key", NotNeeded("of keys, and of no thread's rights")),
    ("lsm_set_self_attr", Number),
    ("personality", NotNeeded("how later mappings and programs are made, which helpers do not do")),
    ("arch_prctl modify_ldt", NotNeeded("registers, and descriptors that are the whole process's")),
    ("setpriority sched_setattr ioprio_set", NotNeeded("of one thread, and helpers have classes of their own")),
    // Filters, Landlock, namespaces.
    ("seccomp landlock_restrict_self", Number),
    ("landlock_create_ruleset landlock_add_rule", NotNeeded("nothing is restricted yet")),
    ("unshare setns", Both),
    // Limits.
    ("setrlimit", Both),
    ("prlimit64", Both),
    ("prlimit setrlimit64", Name),
    ("ulimit", NotNeeded("glibc's sets the size of files, and musl's no other")),
    ("vlimit", NotYet("glibc's old one sets the limit on data")),
    ("getrlimit getrlimit64", NotNeeded("asks")),
    // Calls that may hold pages.
    ("setsockopt vmsplice sendto sendmsg sendmmsg", Both),
    ("send", Name),
    ("io_setup io_uring_setup io_uring_register", Number),
    ("io_submit io_uring_enter io_destroy", NotNeeded("nothing is pinned but by a context that was set up before")),
    ("splice tee", NotNeeded("hand on what is in a pipe, and no pages of the process's")),
    // Other doors and other processes.
    ("syscall", Name),
    ("fork vfork clone clone3 forkpty pthread_atfork", NotNeeded("a child finds its word wiped: pumice_heap::process")),
    ("execve execveat", NotNeeded("all of it ends")),
];

/// Parts of the names of functions that have to do with all this...
const STEMS: &str = "alloc align free mmap munmap mremap madvise mprotect mlock munlock mincore msync mseal \
    pkey brk shm remap mall setre setfs uid gid groups capset limit unshare setns chroot pivot_root prctl \
    seccomp landlock splice setsockopt process_ fork clone syscall personality iopl ioperm memfd mbind \
    keyctl io_uring io_setup";

/// ... and those that have it by chance.
const OTHER_FUNCTIONS: &str = "fallocate fallocate64 posix_fallocate posix_fallocate64 freeaddrinfo freeifaddrs \
    freelocale globfree globfree64 if_freenameindex inet6_option_alloc obstack_free regfree setfsent \
    strpbrk wcspbrk wordfree xdr_free cuserid pthread_getcpuclockid pthread_gettid_np";

/// System calls, to Linux 6.19, that have nothing to do with it.
const OTHER_CALLS: &str = "
    _sysctl accept accept4 access acct adjtimex afs_syscall alarm bind bpf cachestat chdir chmod
    chown clock_adjtime clock_getres clock_gettime clock_nanosleep clock_settime close close_range
    connect copy_file_range creat create_module delete_module dup dup2 dup3 epoll_create
    epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd
    eventfd2 exit exit_group faccessat faccessat2 fadvise64 fallocate fanotify_init fanotify_mark
    fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr file_getattr
    file_setattr finit_module flistxattr flock fremovexattr fsconfig fsetxattr fsmount fsopen fspick
    fstat fstatfs fsync ftruncate futex futex_requeue futex_wait futex_waitv futex_wake futimesat
    get_kernel_syms get_robust_list get_thread_area getcpu getcwd getdents getdents64 getitimer
    getpeername getpgrp getpid getpmsg getppid getpriority getrandom getrusage getsid
    getsockname getsockopt gettid gettimeofday getxattr getxattrat init_module inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch io_cancel io_getevents io_pgetevents ioctl
    ioprio_get kcmp kexec_file_load kexec_load kill lchown lgetxattr link linkat listen listmount
    listns listxattr listxattrat llistxattr lookup_dcookie lremovexattr lseek lsetxattr
    lsm_get_self_attr lsm_list_modules lstat mkdir mkdirat mknod mknodat mount mount_setattr
    move_mount mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget
    msgrcv msgsnd name_to_handle_at nanosleep newfstatat nfsservctl open open_by_handle_at open_tree
    open_tree_attr openat openat2 pause perf_event_open pidfd_getfd pidfd_open pidfd_send_signal
    pipe pipe2 poll ppoll pread64 preadv preadv2 pselect6 putpmsg pwrite64 pwritev pwritev2
    query_module quotactl quotactl_fd read readahead readlink readlinkat readv reboot recvfrom
    recvmmsg recvmsg removexattr removexattrat rename renameat renameat2 restart_syscall rmdir rseq
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_tgsigqueueinfo sched_get_priority_max sched_get_priority_min
    sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setparam sched_setscheduler sched_yield security select semctl semget
    semop semtimedop sendfile set_robust_list set_thread_area
    set_tid_address setdomainname sethostname setitimer setsid settimeofday setxattr
    setxattrat shutdown sigaltstack signalfd signalfd4 socket socketpair stat statfs statmount statx
    swapoff swapon symlink symlinkat sync sync_file_range syncfs sysfs sysinfo syslog tgkill time
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create
    timerfd_gettime timerfd_settime times tkill truncate tuxcall umask umount2 uname unlink unlinkat
    uselib ustat utime utimensat utimes vhangup vserver wait4 waitid write writev
";

fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_whitespace()
}

fn entries() -> impl Iterator<Item = (&'static str, Seen)> {
    CALLS.iter().flat_map(|&(names, seen)| words(names).map(move |name| (name, seen)))
}

/// The functions that a library exports.
fn exports(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).unwrap_or_else(|error| panic!("{library:?}: {error}"));
    let file = object::File::parse(&*bytes).unwrap_or_else(|error| panic!("{library:?}: {error}"));
    let is_variable = |kind| matches!(kind, SymbolKind::Data | SymbolKind::Tls);
    let functions = file.dynamic_symbols().filter(|symbol| !is_variable(symbol.kind()));
    let defined = functions.filter(|symbol| !symbol.is_undefined());
    defined.map(|symbol| symbol.name().expect("names are text").to_owned()).collect()
}

/// The C libraries that are installed: the one that this runs with, and musl.
fn c_libraries() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    let own = maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..])));
    let is_libc = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libc.so") || name.starts_with("libc-2") || name.starts_with("ld-musl")
    };
    let musl = ["x86_64", "aarch64"].map(|arch| PathBuf::from(format!("/lib/ld-musl-{arch}.so.1")));
    let musl = musl.into_iter().filter(|path| path.is_file());
    own.filter(is_libc).chain(musl).collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn every_function_of_the_c_libraries_has_been_thought_about() {
    let known: BTreeSet<_> =
        entries().map(|(name, _)| name).chain(words(OTHER_FUNCTIONS)).collect();
    let libraries = c_libraries();
    assert!(!libraries.is_empty(), "this runs with a C library");
    for library in libraries {
        let unknown: Vec<_> = exports(&library)
            .into_iter()
            .filter(|name| !name.starts_with('_') && words(STEMS).any(|stem| name.contains(stem)))
            .filter(|name| !known.contains(&name.as_str()))
            .collect();
        assert!(
            unknown.is_empty(),
            "{} exports {unknown:?}. Add each to CALLS in {}: seen by Name if the shim is to define it, \
             NotNeeded with the reason if not; or to OTHER_FUNCTIONS.",
            library.display(),
            file!(),
        );
    }
}

#[test]
fn names_that_are_seen_are_exported_and_no_others() {
    let exported = exports(&crate::shim::shim_file());
    for (name, seen) in entries() {
        let by_name = matches!(seen, Name | Both);
        assert_eq!(exported.contains(name), by_name, "{name} is {seen:?} by the table");
    }
    let known: BTreeSet<_> = entries().map(|(name, _)| name.to_owned()).collect();
    let unknown: Vec<_> = exported.difference(&known).collect();
    assert_eq!(unknown, ["__asan_default_options"], "exported, and not in CALLS");
}

/// The system calls of this architecture, by the kernel's headers, and their numbers.
fn kernel_calls() -> Vec<(String, u32)> {
    let arguments = ["-E", "-dM", "-include", "sys/syscall.h", "-x", "c", "/dev/null"];
    let output = std::process::Command::new("cc").args(arguments).output();
    let output = output.expect("tests need a C compiler");
    let text = String::from_utf8(output.stdout).expect("headers are text");
    let call = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(call).collect()
}

#[test]
fn every_system_call_has_been_thought_about() {
    let known: BTreeSet<_> = entries().map(|(name, _)| name).chain(words(OTHER_CALLS)).collect();
    let calls = kernel_calls();
    assert!(calls.iter().any(|(name, _)| name == "mmap"), "the kernel's headers are installed");
    // Numbers that stand for no call.
    let counts = ["syscalls", "arch_specific_syscall"];
    let unknown: Vec<_> = calls
        .iter()
        .filter(|(name, _)| !known.contains(name.as_str()) && !counts.contains(&name.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "the kernel has {unknown:?}. Add each to CALLS in {}: seen by Number (and in a `by_number` of \
         crates/pumice-preload/src) if it changes memory, rights, namespaces or limits, NotNeeded with \
         the reason if it need not be; or to OTHER_CALLS.",
        file!(),
    );
    let twice: Vec<_> =
        entries().filter(|(name, _)| words(OTHER_CALLS).any(|it| it == *name)).collect();
    assert!(twice.is_empty(), "{twice:?} are in both tables");
}

/// The calls that the shim's sources name where they are asked about a call by number.
fn seen_by_number() -> BTreeSet<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pumice-preload/src");
    let mut found = BTreeSet::new();
    for file in ["mapping", "segments", "limits", "rights", "pins", "seccomp"] {
        let path = sources.join(file).with_extension("rs");
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        // The constant for what linux-raw-sys has no name for everywhere.
        let text = text.replace(" MSEAL =>", " __NR_mseal =>");
        let starts = ["fn by_number", "fn changed_by_number", "fn before_call"];
        let bodies = starts.into_iter().filter_map(|start| text.split_once(start));
        for (_, rest) in bodies {
            let body = rest.split_once("\n}\n").map_or(rest, |(body, _)| body);
            for call in body.split("__NR_").skip(1) {
                let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                found.insert(call.chars().take_while(|&letter| is_of_name(letter)).collect());
            }
        }
    }
    found
}

#[test]
fn numbers_that_are_seen_are_in_the_sources_and_no_others() {
    let by_number = seen_by_number();
    let calls: BTreeSet<_> = kernel_calls().into_iter().map(|(name, _)| name).collect();
    for (name, seen) in entries() {
        let claimed = matches!(seen, Number | Both);
        assert_eq!(by_number.contains(name), claimed, "{name} is {seen:?} by the table");
        // A call with both a name and a number is seen by both.
        assert!(seen != Name || !calls.contains(name), "{name} is a system call, too");
    }
    let known: BTreeSet<_> = entries().map(|(name, _)| name.to_owned()).collect();
    let unknown: Vec<_> = by_number.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?} are seen by number, and not in CALLS");
}
