/* Pages that the kernel holds for asynchronous I/O: files get what was in a buffer when it was written, and what is
   read into one that was freed comes to nobody else. By number, or in assembler, as libaio and liburing make
   their calls: then a look at the process's files and mappings must find it, and is given time. */
#define _GNU_SOURCE
#include "defect.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <malloc.h>
#include <sys/uio.h>

static int in_assembler, frees_little;

static long call(long number, long a, long b, long c, long d, long e, long f) {
    if (!in_assembler) return syscall(number, a, b, c, d, e, f);
    long result;
#ifdef __x86_64__
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall" : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    result = x0;
#endif
    if (result >= 0 || result < -4095) return result;
    errno = -result;
    return -1;
}

static char *by_malloc(size_t size) { return aligned_alloc(PAGE, size); }
static void by_free(char *at, size_t size) { free(at); }
static void by_munmap(char *at, size_t size) { CHECK(munmap(at, size) == 0); }

enum { SIZE = 1 << 20, NEXT = 4 };

/* What such memory is used for becomes known; and somebody is there to look. */
static void warm_up(char *get(size_t), void put(char *, size_t)) {
    for (int i = 0; i < 4; i++) {
        char *at = get(SIZE);
        fill(at, SIZE, 5);
        put(at, SIZE);
    }
    /* Nobody looks at a process that has freed next to nothing, nor more often than once a second. */
    if (frees_little) usleep(1500000);
    for (int i = 0; i < 6 && in_assembler && !frees_little; i++) {
        char *at = get(8 * SIZE);
        fill(at, 8 * SIZE, 5);
        put(at, 8 * SIZE);
        usleep(250000);
    }
}

/* Others get what there is, and write to it. */
static void scribble(char *get(size_t), char *next[NEXT]) {
    for (int i = 0; i < NEXT; i++) fill(next[i] = get(SIZE), SIZE, 70 + i);
}

static void check_and_put(void put(char *, size_t), char *next[NEXT]) {
    for (int i = 0; i < NEXT; i++) {
        CHECK(holds(next[i], SIZE, 70 + i));
        put(next[i], SIZE);
    }
}

/* libaio's way, past the cache. */
static void aio(char *get(size_t), void put(char *, size_t), int file) {
    aio_context_t context = 0;
    if (call(SYS_io_setup, 8, (long)&context, 0, 0, 0, 0) != 0) return;
    warm_up(get, put);
    static char expected[SIZE], found[SIZE] __attribute__((aligned(PAGE)));
    for (int round = 0; round < 8; round++) {
        char *at = get(SIZE), *next[NEXT];
        fill(at, SIZE, round);
        memcpy(expected, at, SIZE);
        struct iocb request = {.aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = file,
                               .aio_buf = (uintptr_t)at, .aio_nbytes = SIZE};
        struct iocb *requests[] = {&request};
        struct io_event event;
        CHECK(call(SYS_io_submit, context, 1, (long)requests, 0, 0, 0) == 1);
        put(at, SIZE);
        scribble(get, next);
        CHECK(call(SYS_io_getevents, context, 1, 1, (long)&event, 0, 0) == 1);
        CHECK(event.res == SIZE && pread(file, found, SIZE, 0) == SIZE);
        CHECK(memcmp(found, expected, SIZE) == 0);
        check_and_put(put, next);
    }
    CHECK(call(SYS_io_destroy, context, 0, 0, 0, 0, 0) == 0);
}

struct ring {
    int fd;
    char *memory;
    struct io_uring_params params;
    struct io_uring_sqe *entries;
};

static int open_ring(struct ring *ring) {
    *ring = (struct ring){0};
    ring->fd = call(SYS_io_uring_setup, 4, (long)&ring->params, 0, 0, 0, 0);
    if (ring->fd < 0) return 0;
    ring->memory = (char *)call(SYS_mmap, 0, PAGE, RW, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = (void *)call(SYS_mmap, 0, PAGE, RW, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    return 1;
}

/* Submits one request, and waits for what comes of it. */
static int do_one(struct ring *ring, struct io_uring_sqe entry) {
    struct io_sqring_offsets *sq = &ring->params.sq_off;
    struct io_cqring_offsets *cq = &ring->params.cq_off;
    uint32_t *tail = (void *)(ring->memory + sq->tail), mask = ring->params.sq_entries - 1;
    ring->entries[*tail & mask] = entry;
    ((uint32_t *)(ring->memory + sq->array))[*tail & mask] = *tail & mask;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(call(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) == 1);
    uint32_t *head = (void *)(ring->memory + cq->head), mask2 = ring->params.cq_entries - 1;
    struct io_uring_cqe *done = (void *)(ring->memory + cq->cqes);
    int result = done[*head & mask2].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}

/* liburing's way: a buffer that is registered is held until it is no more. */
static void uring(char *get(size_t), void put(char *, size_t), int file) {
    (void)file;
    struct ring ring;
    if (!open_ring(&ring)) return;
    warm_up(get, put);
    static char expected[SIZE], found[SIZE], other[SIZE];
    memset(other, 0xee, SIZE);
    int plain = memfd_create("pins", 0);
    CHECK(pwrite(plain, other, SIZE, SIZE) == SIZE);
    for (int round = 0; round < 3; round++) {
        char *at = get(SIZE), *next[NEXT];
        fill(at, SIZE, round);
        memcpy(expected, at, SIZE);
        struct iovec piece = {at, SIZE};
        if (call(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, (long)&piece, 1, 0, 0) != 0)
            break;
        put(at, SIZE);
        scribble(get, next);
        struct io_uring_sqe entry = {.opcode = IORING_OP_WRITE_FIXED, .fd = plain, .len = SIZE,
                                     .addr = (uintptr_t)at};
        CHECK(do_one(&ring, entry) == SIZE && pread(plain, found, SIZE, 0) == SIZE);
        CHECK(memcmp(found, expected, SIZE) == 0);
        entry.opcode = IORING_OP_READ_FIXED, entry.off = SIZE;
        CHECK(do_one(&ring, entry) == SIZE);
        check_and_put(put, next);
        CHECK(call(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, 0, 0, 0, 0) == 0);
    }
    close(plain), close(ring.fd);
}

/* In a child, which begins where nobody can hold pages. */
static pid_t in_child(void how(char *(size_t), void (char *, size_t), int), int maps, int file) {
    pid_t child = fork();
    if (child) return child;
    maps ? how(map, by_munmap, file) : how(by_malloc, by_free, file);
    exit(0);
}

/* A folder, `assembler` if it is to be, and `little` if next to nothing is freed before. */
int main(int count, char **arguments) {
    guard(30);
    mallopt(M_MMAP_THRESHOLD, 128 << 10);
    in_assembler = count > 2, frees_little = count > 3;
    static char page[PAGE] __attribute__((aligned(PAGE)));
    int files[2], is_direct = 1;
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/pins.%d", count > 1 ? arguments[1] : ".", (int)getpid());
        files[i] = open(path, O_RDWR | O_CREAT | O_DIRECT, 0600);
        is_direct = is_direct && files[i] >= 0 && pwrite(files[i], page, PAGE, 0) == PAGE;
        unlink(path);
    }
    pid_t children[4] = {in_child(uring, 0, -1), in_child(uring, 1, -1)};
    for (int i = 0; i < 2 && is_direct; i++) children[2 + i] = in_child(aio, i, files[i]);
    for (int i = 0; i < (is_direct ? 4 : 2); i++) wait_for(children[i]);
    puts("done");
    return 0;
}
