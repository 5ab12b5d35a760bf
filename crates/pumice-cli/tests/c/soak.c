/* Eight threads that use memory in every way for argv[1] seconds, each checking what it finds, and fork
 * now and then. Then all is freed, and within argv[2] seconds the process must hold no more than argv[3]
 * MiB. Prints the most lines that /proc/self/maps had, and what was resident at most and at the end. */
#define _GNU_SOURCE
#include "check.h"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 8, BLOCKS = 24, MAILBOXES = 32, PAGE = 4096 };
enum kind { NOTHING, ALLOCATED, MAPPED };

struct block {
    enum kind kind;
    char *at;
    size_t size;
    uint64_t seed;
    int is_marked;
};

struct worker {
    pthread_t thread;
    uint64_t random, operations;
    struct block block[BLOCKS];
};

/* Allocations on their way from one thread to another. */
static _Atomic(struct block *) mailboxes[MAILBOXES];
static atomic_bool over;
static pthread_mutex_t splitting = PTHREAD_MUTEX_INITIALIZER;
static struct worker workers[THREADS];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static uint64_t below(struct worker *w, uint64_t limit) {
    w->random ^= w->random << 13;
    w->random ^= w->random >> 7;
    w->random ^= w->random << 17;
    return (w->random >> 11) % limit;
}

/* From a few bytes to 12 MiB, most of them around the thresholds. */
static size_t any_size(struct worker *w) {
    size_t size = (size_t)16 << below(w, 20);
    return 16 + size + below(w, size / 2);
}

static void check(struct block *b) {
    CHECK(holds(b->at, b->size, b->seed));
}

static void renew(struct worker *w, struct block *b) {
    b->seed = below(w, 1 << 30) + 1;
    fill(b->at, b->size, b->seed);
}

static void release(struct block *b) {
    check(b);
    if (b->kind == MAPPED) CHECK(munmap(b->at, b->size) == 0);
    else free(b->at);
    b->kind = NOTHING;
}

static void make(struct worker *w, struct block *b) {
    b->size = any_size(w);
    b->kind = ALLOCATED;
    b->is_marked = 0;
    int is_zeroed = 0;
    switch (below(w, 5)) {
    case 0:
        b->at = calloc(1, b->size);
        is_zeroed = 1;
        break;
    case 1:
        CHECK(posix_memalign((void **)&b->at, 64 << below(w, 10), b->size) == 0);
        break;
    case 2:
        b->size = (b->size + PAGE - 1) / PAGE * PAGE;
        b->at = mmap(NULL, b->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        b->kind = MAPPED;
        is_zeroed = 1;
        CHECK(b->at != MAP_FAILED);
        break;
    default:
        b->at = malloc(b->size);
    }
    CHECK(b->at != NULL);
    if (is_zeroed) CHECK(is_zero(b->at, b->size));
    renew(w, b);
}

static void resize(struct worker *w, struct block *b) {
    size_t size = any_size(w), old = b->size;
    if (b->kind == MAPPED) {
        size = (size + PAGE - 1) / PAGE * PAGE;
        char *at = mremap(b->at, old, size, MREMAP_MAYMOVE);
        if (at == MAP_FAILED) {
            /* Several mappings by now, as far as the kernel knows. */
            CHECK(errno == EFAULT && b->is_marked);
            check(b);
            return;
        }
        b->at = at;
        if (size > old) CHECK(is_zero(b->at + old, size - old));
    } else {
        b->at = realloc(b->at, size);
        CHECK(b->at != NULL);
    }
    size_t kept = size < old ? size : old;
    /* The last byte is the filling's own. */
    CHECK(holds(b->at, kept - kept % 64, b->seed));
    b->size = size;
    renew(w, b);
}

/* Something that leaves a mark on a mapping, which must not outlive it. */
static void mark(struct worker *w, struct block *b) {
    size_t pages = b->size / PAGE, first = below(w, pages), count = 1 + below(w, pages - first);
    char *at = b->at + first * PAGE;
    size_t len = count * PAGE;
    b->is_marked = 1;
    switch (below(w, 7)) {
    case 0:
        CHECK(mprotect(at, len, PROT_READ) == 0);
        check(b);
        CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
        break;
    case 1:
        CHECK(mprotect(at, len, PROT_NONE) == 0);
        CHECK(mprotect(at, len, PROT_READ | PROT_WRITE) == 0);
        break;
    case 2:
        CHECK(madvise(at, len, MADV_DONTNEED) == 0);
        CHECK(is_zero(at, len));
        break;
    case 3:
        CHECK(madvise(at, len, below(w, 2) ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) == 0);
        break;
    case 4:
        CHECK(madvise(at, len, below(w, 2) ? MADV_DONTDUMP : MADV_RANDOM) == 0);
        break;
    case 5:
        CHECK(mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        CHECK(is_zero(at, len));
        break;
    default:
        /* Unmapped from its end, if anything is left then. */
        if (first == 0) return;
        CHECK(munmap(at, b->size - first * PAGE) == 0);
        b->size = first * PAGE;
        CHECK(holds(b->at, b->size - 64, b->seed));
    }
    renew(w, b);
}

/* To another thread, which frees the memory. */
static void send(struct worker *w, struct block *b) {
    struct block *letter = malloc(sizeof *letter);
    CHECK(letter != NULL);
    *letter = *b;
    b->kind = NOTHING;
    letter = atomic_exchange(&mailboxes[below(w, MAILBOXES)], letter);
    if (letter == NULL) return;
    release(letter);
    free(letter);
}

static void operate(struct worker *w) {
    struct block *b = &w->block[below(w, BLOCKS)];
    w->operations++;
    if (b->kind == NOTHING) {
        make(w, b);
        return;
    }
    uint64_t what = below(w, 16);
    if (what < 4) resize(w, b);
    else if (what < 9 && b->kind == MAPPED) mark(w, b);
    else if (what < 11) check(b);
    else if (what < 13) send(w, b);
    else release(b);
}

/* A child finds what its parent had, and goes on for a while. */
static void split(struct worker *w) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int i = 0; i < BLOCKS; i++)
            if (w->block[i].kind != NOTHING) check(&w->block[i]);
        /* Only mappings: other calls need a lock that another thread had. */
        for (int i = 0; i < BLOCKS; i++)
            if (w->block[i].kind == MAPPED) {
                renew(w, &w->block[i]);
                if (below(w, 2)) release(&w->block[i]);
            }
        for (int i = 0; i < 20; i++) {
            size_t size = (1 + below(w, 8)) << 20;
            char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(at != MAP_FAILED && is_zero(at, size));
            fill(at, size, i);
            CHECK(holds(at, size, i) && munmap(at, size) == 0);
        }
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].kind != NOTHING) check(&w->block[i]);
}

static void *work(void *argument) {
    struct worker *w = argument;
    while (!atomic_load(&over)) {
        for (int i = 0; i < 500; i++) operate(w);
        /* One at a time: each child may come to hold a copy of all there is. */
        if (below(w, 32) == 0 && pthread_mutex_trylock(&splitting) == 0) {
            split(w);
            pthread_mutex_unlock(&splitting);
        }
    }
    for (int i = 0; i < BLOCKS; i++)
        if (w->block[i].kind != NOTHING) release(&w->block[i]);
    return NULL;
}

static size_t maps_lines(void) {
    static char buffer[1 << 16];
    size_t lines = 0, got;
    FILE *file = fopen("/proc/self/maps", "r");
    CHECK(file != NULL);
    while ((got = fread(buffer, 1, sizeof buffer, file)) > 0)
        for (size_t i = 0; i < got; i++) lines += buffer[i] == '\n';
    fclose(file);
    return lines;
}

static size_t resident_mib(void) {
    size_t size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%zu %zu", &size, &pages) == 2);
    fclose(file);
    return pages / 256;
}

int main(int count, char **arguments) {
    CHECK(count == 4);
    double until = now() + atof(arguments[1]);
    size_t left_mib = strtoul(arguments[3], NULL, 10), lines = 0, most_mib = 0;
    for (int i = 0; i < THREADS; i++) {
        workers[i].random = (i + 1) * 0x2545f4914f6cdd1du;
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    while (now() < until) {
        usleep(200000);
        size_t found = maps_lines(), mib = resident_mib();
        lines = found > lines ? found : lines;
        most_mib = mib > most_mib ? mib : most_mib;
    }
    atomic_store(&over, 1);
    uint64_t operations = 0;
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
        operations += workers[i].operations;
    }
    for (int i = 0; i < MAILBOXES; i++)
        if (mailboxes[i]) {
            release(mailboxes[i]);
            free(mailboxes[i]);
        }
    /* What other allocators keep is not the question. */
    malloc_trim(0);
    until = now() + atof(arguments[2]);
    while (now() < until && resident_mib() > left_mib) usleep(100000);
    size_t left = resident_mib();
    printf("%lu operations, %zu lines of maps at most, %zu MiB at most, %zu at the end\n", operations, lines,
           most_mib, left);
    CHECK(lines < 5000);
    CHECK(left <= left_mib);
    return 0;
}
