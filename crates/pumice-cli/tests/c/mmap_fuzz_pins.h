/* Pages that the kernel still holds when they are unmapped or freed: in a pipe, in direct I/O on its way, in buffers
   that are registered. What comes out of them later must be what went in, and what goes into them must reach nobody. */
#ifndef MMAP_FUZZ_PINS_H
#define MMAP_FUZZ_PINS_H

#include "mmap_model.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/uio.h>

enum { HELD_PAGES = 16, IN_FILE = 4096 };

/* One pin: pages that somebody holds, and what they held. */
struct pin {
    enum { NO_PIN, IN_PIPE, WRITTEN, READ_INTO, REGISTERED } kind;
    /* Its place in the file, and where the pages lay, by which the ring calls them. */
    size_t size, at;
    uintptr_t from;
    int pipe[2];
    char bytes[HELD_PAGES * PAGE];
};

/* A way to ask for direct I/O: the kernel's own, since libraries for it make the calls as they like. */
struct direct {
    int file, ring, is_ready;
    aio_context_t context;
    char *rings;
    struct io_uring_sqe *entries;
    struct io_uring_params params;
};

enum { PINS_AT_ONCE = 6 };
struct pins {
    struct pin pin[PINS_AT_ONCE];
    struct direct direct;
};
static struct pins all_pins[16];

static struct pins *pins_of(struct model *m) {
    return &all_pins[m->seed % 100];
}

/* Files and rings, at the first pin. What is not to be had stays negative. */
static void prepare(struct model *m, struct direct *d) {
    d->is_ready = 1;
    const char *folder = getenv("TMPDIR");
    d->file = open(folder ? folder : "/tmp", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (d->file >= 0) CHECK(ftruncate(d->file, IN_FILE * PAGE) == 0);
    if (syscall(SYS_io_setup, 32, &d->context) != 0) d->context = 0;
    d->ring = syscall(SYS_io_uring_setup, 8, &d->params);
    if (d->ring < 0) return;
    size_t size = d->params.cq_off.cqes + d->params.cq_entries * sizeof(struct io_uring_cqe);
    size_t length = d->params.sq_off.array + d->params.sq_entries * sizeof(unsigned);
    size = size > length ? size : length;
    d->rings = mmap(NULL, size, RW, MAP_SHARED | MAP_POPULATE, d->ring, IORING_OFF_SQ_RING);
    d->entries = mmap(NULL, 8 * sizeof *d->entries, RW, MAP_SHARED | MAP_POPULATE, d->ring, IORING_OFF_SQES);
    CHECK(d->rings != MAP_FAILED && d->entries != (void *)MAP_FAILED);
    claim(m, d->rings, (size + PAGE - 1) / PAGE);
    claim(m, (char *)d->entries, 1);
}

/* One operation of the ring, to its end. */
static int by_ring(struct direct *d, struct io_uring_sqe entry) {
    unsigned *tail = (unsigned *)(d->rings + d->params.sq_off.tail), at = *tail;
    unsigned *head = (unsigned *)(d->rings + d->params.cq_off.head), taken = *head;
    unsigned mask = *(unsigned *)(d->rings + d->params.sq_off.ring_mask);
    d->entries[at & mask] = entry;
    ((unsigned *)(d->rings + d->params.sq_off.array))[at & mask] = at & mask;
    __atomic_store_n(tail, at + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, d->ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(__atomic_load_n((unsigned *)(d->rings + d->params.cq_off.tail), __ATOMIC_ACQUIRE) != taken);
    unsigned done = *(unsigned *)(d->rings + d->params.cq_off.ring_mask) & taken;
    int result = ((struct io_uring_cqe *)(d->rings + d->params.cq_off.cqes))[done].res;
    __atomic_store_n(head, taken + 1, __ATOMIC_RELEASE);
    return result;
}

static int start_direct(struct direct *d, struct pin *pin, char *from, int kind) {
    struct iocb request = {
        .aio_lio_opcode = kind == WRITTEN ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD,
        .aio_fildes = d->file, .aio_buf = (uintptr_t)from, .aio_nbytes = pin->size,
        .aio_offset = pin->at,
    }, *requests[] = {&request};
    return d->file >= 0 && d->context && syscall(SYS_io_submit, d->context, 1, requests) == 1;
}

/* Has somebody hold pages from an address on. Whether somebody does. */
static int hold(struct model *m, struct pin *pin, char *from, size_t pages) {
    struct direct *d = &pins_of(m)->direct;
    struct iovec piece = {from, pages * PAGE};
    if (!d->is_ready && m->limited) return 0;
    if (!d->is_ready) prepare(m, d);
    pin->size = pages * PAGE;
    pin->from = (uintptr_t)from;
    pin->at = (pin - pins_of(m)->pin) * HELD_PAGES * PAGE;
    memcpy(pin->bytes, from, pin->size);
    int kind = IN_PIPE + below(m, 4);
    if (kind == IN_PIPE) {
        CHECK(pipe2(pin->pipe, O_CLOEXEC | O_NONBLOCK) == 0);
        CHECK(CALL(m, vmsplice, pin->pipe[1], &piece, 1, 0) == (long)pin->size);
    } else if (kind == REGISTERED) {
        for (int i = 0; i < PINS_AT_ONCE; i++)
            if (pins_of(m)->pin[i].kind == REGISTERED) return 0;
        if (d->ring < 0 || d->file < 0) return 0;
        if (syscall(SYS_io_uring_register, d->ring, IORING_REGISTER_BUFFERS, &piece, 1) != 0) return 0;
    } else if (!start_direct(d, pin, from, kind)) return 0;
    pin->kind = kind;
    return 1;
}

/* That what came out is what went in. */
static void check_bytes(struct pin *pin, const char *found) {
    for (size_t i = 0; i < pin->size; i += 8) {
        uint64_t word, was;
        memcpy(&word, found + i, 8);
        memcpy(&was, pin->bytes + i, 8);
        if (word == was) continue;
        printf("held (%d) %zu bytes at %lx, byte %zu: expected %lx, found %lx\n", pin->kind, pin->size,
               pin->from, i, was, word);
        fflush(stdout);
        abort();
    }
}

static void check_file(struct direct *d, struct pin *pin) {
    static _Thread_local char found[HELD_PAGES * PAGE] __attribute__((aligned(PAGE)));
    CHECK(pread(d->file, found, pin->size, pin->at) == (ssize_t)pin->size);
    check_bytes(pin, found);
}

/* Takes out what is held. */
static void let_go(struct model *m, struct pin *pin) {
    static _Thread_local char found[HELD_PAGES * PAGE];
    struct direct *d = &pins_of(m)->direct;
    struct io_event event;
    int kind = pin->kind;
    if (kind == IN_PIPE) {
        CHECK(read(pin->pipe[0], found, pin->size) == (ssize_t)pin->size);
        check_bytes(pin, found);
        close(pin->pipe[0]);
        close(pin->pipe[1]);
    } else if (kind == REGISTERED) {
        struct io_uring_sqe entry = {
            .opcode = IORING_OP_WRITE_FIXED, .fd = d->file, .len = pin->size, .off = pin->at,
            .addr = pin->from,
        };
        CHECK(by_ring(d, entry) == (int)pin->size);
        check_file(d, pin);
        /* And something else into them, which nobody must get to see. */
        entry.opcode = IORING_OP_READ_FIXED;
        entry.off = (IN_FILE - 2 * HELD_PAGES) * PAGE;
        CHECK(by_ring(d, entry) == (int)pin->size);
        CHECK(syscall(SYS_io_uring_register, d->ring, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
    } else {
        /* One at a time, so it is the one. */
        CHECK(syscall(SYS_io_getevents, d->context, 1, 1, &event, NULL) == 1);
        CHECK(event.res == (long long)pin->size);
        if (kind == WRITTEN) check_file(d, pin);
    }
    pin->kind = NO_PIN;
}

/* Pages that are written, in one mapping with each other or not; dropped ones may be anything. */
static size_t pages_to_hold(struct slot *s, size_t first, size_t count) {
    size_t pages = 0;
    while (pages < count && pages < HELD_PAGES) {
        struct page *p = &s->page[first + pages];
        if (p->state != WRITABLE || p->origin != ANONYMOUS || p->loose) break;
        pages++;
    }
    return pages;
}

/* A free place for a pin, if need be by ending one. Of direct I/O there is one at a time. */
static struct pin *place_for_pin(struct model *m) {
    struct pin *pin = &pins_of(m)->pin[below(m, PINS_AT_ONCE)];
    if (pin->kind != NO_PIN) let_go(m, pin);
    for (int i = 0; i < PINS_AT_ONCE; i++) {
        struct pin *other = &pins_of(m)->pin[i];
        if (other->kind == WRITTEN || other->kind == READ_INTO) let_go(m, other);
    }
    return pin;
}

static void let_all_go(struct model *m) {
    for (int i = 0; i < PINS_AT_ONCE; i++)
        if (pins_of(m)->pin[i].kind != NO_PIN) let_go(m, &pins_of(m)->pin[i]);
}

#endif
