/* What the programs about mmap share: regions of several kinds, parts of them to operate on, and
   a look at every page. What is printed names no address and nothing that the kernel leaves open. */
#ifndef MMAP_H
#define MMAP_H

#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Missing from older headers. */
#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum { PAGE = 4096, GUARD = 16, FILE_PAGES = 4096, SMALL = 300, LARGE = 1100, BIGGEST = 8192 };
enum { RW = PROT_READ | PROT_WRITE, ANON = MAP_PRIVATE | MAP_ANONYMOUS };

/* Pages hold a word that says where they come from, at both ends, and zeros between. */
#define OLD_WORD 0x0101010100000000u
#define FILE_WORD 0x0f0f0f0f00000000u
#define MIXED 1u

static int file = -1;

/* Faults. */

static _Thread_local sigjmp_buf after_fault;
static _Thread_local volatile sig_atomic_t expecting;
static _Thread_local siginfo_t fault;

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (!expecting) {
        printf("a fault that nobody expected: signal %d, code %d\n", number, info->si_code);
        fflush(stdout);
        abort();
    }
    fault = *info;
    siglongjmp(after_fault, 1);
}

enum access { READ, WRITE, CALL };

/* Whether an access ends in a fault; writing writes what is there. */
static inline int faults(char *at, enum access access) {
    expecting = 1;
    int caught = sigsetjmp(after_fault, 0);
    if (!caught) {
        if (access == CALL) ((void (*)(void))at)();
        else {
            char found = *(volatile char *)at;
            if (access == WRITE) *(volatile char *)at = found;
        }
    }
    expecting = 0;
    CHECK(!caught || fault.si_addr == at);
    return caught;
}

static inline const char *fault_name(char *at, enum access access) {
    if (!faults(at, access)) return "no fault";
    if (fault.si_signo == SIGBUS) return "SIGBUS";
    return fault.si_code == SEGV_ACCERR ? "SEGV_ACCERR" : "SEGV_MAPERR";
}

/* Results. */

static inline const char *error_name(int error) {
    static const struct { int error; const char *name; } names[] = {
        {EACCES, "EACCES"}, {EAGAIN, "EAGAIN"}, {EBADF, "EBADF"}, {EBUSY, "EBUSY"},
        {EEXIST, "EEXIST"}, {EFAULT, "EFAULT"}, {EINVAL, "EINVAL"}, {EIO, "EIO"},
        {ENODEV, "ENODEV"}, {ENOMEM, "ENOMEM"}, {EOPNOTSUPP, "EOPNOTSUPP"},
        {EOVERFLOW, "EOVERFLOW"}, {EPERM, "EPERM"},
    };
    static char other[32];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error) return names[i].name;
    snprintf(other, sizeof other, "error %d", error);
    return other;
}

/* The outcome of a call that fails with -1; a success leaves errno alone. */
static inline const char *outcome(long result) {
    if (result == -1) return error_name(errno);
    return errno == 77 ? "ok" : "ok, but errno changed";
}
#define TRY(call) (errno = 77, outcome((long)(call)))

/* Pages. */

static inline void put(char *page, uint64_t word) {
    ((volatile uint64_t *)page)[0] = word;
    ((volatile uint64_t *)page)[PAGE / 8 - 1] = word;
}

/* The word a page holds (0 if it is all zero), or MIXED. */
static inline uint64_t content(const char *page) {
    const uint64_t *words = (const uint64_t *)page;
    uint64_t between = 0;
    for (int i = 1; i < PAGE / 8 - 1; i++) between |= words[i];
    return between || words[0] != words[PAGE / 8 - 1] ? MIXED : words[0];
}

static inline void stamp(char *pages, size_t first, size_t count) {
    for (size_t i = 0; i < count; i++) put(pages + i * PAGE, OLD_WORD + first + i);
}

/* A letter for a page: `-` not mapped, `n` not readable, `b` a bus error; else by its content: `o`
   old, `m` old and from elsewhere, `z` zeros, `f` the file's, `x` none of these; capital if it is
   not writable. */
static inline char look(char *page, uint64_t index) {
    unsigned char resident;
    if (mincore(page, PAGE, &resident) != 0) {
        CHECK(errno == ENOMEM);
        return '-';
    }
    if (faults(page, READ)) return fault.si_signo == SIGBUS ? 'b' : 'n';
    uint64_t word = content(page);
    char letter = word == OLD_WORD + index    ? 'o'
                  : word == FILE_WORD + index ? 'f'
                  : word >> 32 << 32 == OLD_WORD ? 'm'
                  : word == 0                 ? 'z'
                                              : 'x';
    return faults(page, WRITE) ? letter - 'a' + 'A' : letter;
}

static void show_letters(const char *letters, size_t count) {
    for (size_t i = 0, next; i < count; i = next) {
        for (next = i; next < count && letters[next] == letters[i]; next++);
        printf(" %zu%c", next - i, letters[i]);
    }
}

/* Prints the state of pages; `first` is the place where they were stamped. */
static inline void show(char *pages, size_t first, size_t count) {
    static char letters[BIGGEST];
    CHECK(count <= BIGGEST);
    for (size_t i = 0; i < count; i++) letters[i] = look(pages + i * PAGE, first + i);
    show_letters(letters, count);
}

static inline char *map(size_t size) {
    char *p = mmap(NULL, size, RW, ANON, -1, 0);
    CHECK(p != MAP_FAILED && (uintptr_t)p % PAGE == 0);
    return p;
}

/* That new memory is zero and can be written; leaves it dirty. Written first, as a page that is
   read first faults twice. */
static inline void check_fresh(char *pages, size_t count) {
    for (size_t i = 0; i < count; i++) {
        ((volatile char *)pages)[i * PAGE + PAGE / 2] = 0;
        CHECK(content(pages + i * PAGE) == 0);
        put(pages + i * PAGE, 0xd1d1d1d1);
    }
}

static inline void map_fresh(size_t count) {
    char *p = map(count * PAGE);
    check_fresh(p, count);
    CHECK(munmap(p, count * PAGE) == 0);
}

/* Regions. Their second half is of another kind than the first, or there are holes in them; all but
   the first kind lie between pages that were mapped once. */

enum kind {
    EXACT, ONE, SPLIT, REFILLED, READONLY, NONE, SHARED, FROM_FILE, HOLED, COMBED, KINDS
};
static const char *const kind_names[] = {
    "exact", "one", "split", "refilled", "read-only", "none", "shared", "file", "holed", "combed",
};

struct region {
    enum kind kind;
    char *base;
    size_t pages;
};
/* The one that is operated on. */
static struct region current;

static inline int is_hole(struct region r, size_t page) {
    if (r.kind == HOLED) return page >= r.pages * 3 / 8 && page < r.pages * 5 / 8;
    return r.kind == COMBED && page + 8 >= r.pages / 2 && page < r.pages / 2 + 8 && page % 2;
}

static inline void put_fixed(char *at, size_t pages, int protection, int flags, size_t first) {
    int fd = flags & MAP_ANONYMOUS ? -1 : file;
    flags |= MAP_FIXED;
    CHECK(mmap(at, pages * PAGE, protection, flags, fd, fd < 0 ? 0 : first * PAGE) == at);
}

static inline struct region make(enum kind kind, size_t pages) {
    size_t guard = kind == EXACT ? 0 : GUARD * PAGE, size = pages * PAGE;
    struct region r = {kind, map(size + 2 * guard) + guard, pages};
    size_t half = pages / 2, rest = pages - half;
    char *second = r.base + half * PAGE;
    if (guard) {
        CHECK(munmap(r.base - guard, guard) == 0);
        CHECK(munmap(r.base + size, guard) == 0);
    }
    stamp(r.base, 0, pages);
    switch (kind) {
    case SPLIT:
        CHECK(mprotect(second, rest * PAGE, PROT_READ) == 0);
        CHECK(mprotect(second, rest * PAGE, RW) == 0);
        break;
    case REFILLED:
        CHECK(munmap(second, rest * PAGE) == 0);
        put_fixed(second, rest, RW, ANON, 0);
        break;
    case SHARED: put_fixed(second, rest, RW, MAP_SHARED | MAP_ANONYMOUS, 0); break;
    case FROM_FILE: put_fixed(second, rest, RW, MAP_PRIVATE, half); break;
    default: break;
    }
    if (kind == REFILLED || kind == SHARED || kind == FROM_FILE) stamp(second, half, rest);
    if (kind == READONLY) CHECK(mprotect(second, rest * PAGE, PROT_READ) == 0);
    if (kind == NONE) CHECK(mprotect(second, rest * PAGE, PROT_NONE) == 0);
    for (size_t i = 0; i < pages; i++)
        if (is_hole(r, i)) CHECK(munmap(r.base + i * PAGE, PAGE) == 0);
    return r;
}

/* Unmaps a region with its holes and surroundings. What comes next must be like new. */
static inline void finish(struct region r) {
    size_t guard = r.kind == EXACT ? 0 : GUARD;
    CHECK(munmap(r.base - guard * PAGE, (r.pages + 2 * guard) * PAGE) == 0);
    map_fresh(r.pages + 2 * guard);
}

/* Parts of a region. Those with wild lengths must fail, or do nothing. */

struct part {
    const char *name;
    long offset;
    size_t length;
};
enum { PARTS = 24, INSIDE_PARTS = 10 };

static inline void list_parts(struct region r, struct part parts[PARTS]) {
    long n = r.pages;
    const struct { const char *name; long first, pages; } by_page[] = {
        {"whole", 0, n}, {"head", 0, n / 4}, {"first page", 0, 1}, {"middle", n / 4, n / 2},
        {"middle page", n / 2, 1}, {"second half", n / 2, n - n / 2}, {"tail", n - n / 4, n / 4},
        {"last page", n - 1, 1}, {"odd", 3, n - 8}, {"nine pages", n / 2 - 4, 9},
        {"past the end", n - 4, 8}, {"before the start", -4, 8}, {"around", -4, n + 8},
        {"outside", n + 2, 4},
    };
    const struct part by_byte[] = {
        {"a byte", n / 4 * PAGE, 1},
        {"not whole pages", 0, n * PAGE / 2 - 100},
        {"unaligned", 1, PAGE},
        {"unaligned half page", n / 2 * PAGE + PAGE / 2, PAGE / 2},
        {"nothing", 0, 0},
        {"nothing unaligned", 1, 0},
        {"nothing at the end", n * PAGE, 0},
        {"SIZE_MAX", 0, SIZE_MAX},
        {"SIZE_MAX but a page", 0, SIZE_MAX - PAGE + 1},
        {"up to address 0", 0, -(uintptr_t)r.base},
    };
    int at = 0;
    for (int i = 0; i < 14; i++, at++)
        parts[at] = (struct part){by_page[i].name, by_page[i].first * PAGE, by_page[i].pages * PAGE};
    for (int i = 0; i < 10; i++) parts[at++] = by_byte[i];
    /* Its surroundings are not ours. */
    if (r.kind == EXACT)
        for (int i = 10; i < 14; i++) parts[i].name = NULL;
}

typedef long operation(char *at, size_t length);

/* Does something to each of the first parts of regions of a kind, and shows the effect. */
static inline void over_parts(const char *what, operation *operate, enum kind kind, size_t pages,
                              int count) {
    for (int i = 0; i < count; i++) {
        struct region r = make(kind, pages);
        struct part parts[PARTS];
        list_parts(r, parts);
        if (parts[i].name) {
            current = r;
            errno = 77;
            long result = operate(r.base + parts[i].offset, parts[i].length);
            printf("%s, %s %zu, %s: %s |", what, kind_names[kind], pages, parts[i].name,
                   outcome(result));
            show(r.base, 0, pages);
            puts("");
        }
        finish(r);
    }
}

/* The same over all parts of regions of all kinds. */
static inline void over_all(const char *what, operation *operate) {
    for (int kind = 0; kind < KINDS; kind++) over_parts(what, operate, kind, SMALL, PARTS);
    over_parts(what, operate, EXACT, LARGE, INSIDE_PARTS);
    over_parts(what, operate, HOLED, LARGE, INSIDE_PARTS);
}

/* The same over fewer, for calls that differ little from others. */
static inline void over_some(const char *what, operation *operate) {
    over_parts(what, operate, EXACT, SMALL, INSIDE_PARTS);
    over_parts(what, operate, HOLED, SMALL, INSIDE_PARTS);
    over_parts(what, operate, READONLY, SMALL, 4);
    over_parts(what, operate, FROM_FILE, SMALL, 4);
}

/* First in main. */
static inline void begin(void) {
    static char buffer[1 << 16];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    CHECK(sysconf(_SC_PAGESIZE) == PAGE);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    file = memfd_create("mmap", 0);
    CHECK(file >= 0);
    static char page[PAGE];
    for (size_t i = 0; i < FILE_PAGES; i++) {
        put(page, FILE_WORD + i);
        CHECK(pwrite(file, page, PAGE, i * PAGE) == PAGE);
    }
    /* Whatever is set up at the first request must not come to lie in a hole of ours. */
    for (size_t pages = 256; pages <= BIGGEST; pages *= 2) map_fresh(pages);
    free(malloc(3 << 20));
}

/* Last in main: nothing of what was done to memory before must be left in it, or in the file. */
static inline int end(void) {
    char *maps[16];
    for (int i = 0; i < 16; i++) check_fresh(maps[i] = map((512 + i) * PAGE), 512 + i);
    for (int i = 0; i < 16; i++) CHECK(munmap(maps[i], (512 + i) * PAGE) == 0);
    static char page[PAGE];
    for (size_t i = 0; i < FILE_PAGES; i++) {
        CHECK(pread(file, page, PAGE, i * PAGE) == PAGE);
        CHECK(content(page) == FILE_WORD + i);
    }
    puts("done");
    return 0;
}

static inline void wait_for(pid_t child) {
    int status;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#endif
