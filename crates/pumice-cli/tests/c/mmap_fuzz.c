/* Operations at random on mappings, and after each a comparison with a model of them. Arguments:
   seed, number of operations, MiB mapped at most, number of threads (1 if not given), letters of the
   subjects besides mappings (those that cost the shim nothing for good, if not given):
   n  calls by number   f  more forks    a  attributes that forks heed    s  System V segments
   o  paging out        p  pages that the kernel holds, from the middle on
   l  limits and locks on everything, in the last quarter */
#define _GNU_SOURCE
#include "mmap_fuzz_kernel.h"
#include "mmap_fuzz_pins.h"
#include "mmap_model.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/resource.h>

static const int protections[] = {PROT_NONE, PROT_READ, RW};
static const unsigned char states[] = {CLOSED, READABLE, WRITABLE};

/* What a new mapping is like: mostly private memory to be written. */
struct made {
    int protection, flags, fd;
    off_t offset;
    struct page page;
};

static struct made any_mapping(struct model *m, size_t pages) {
    static const int extras[] = {0, 0, 0, 0, MAP_NORESERVE, MAP_STACK};
    uint64_t kind = below(m, 16), protection = below(m, 8);
    protection = protection > 1 ? 2 : protection;
    struct made made = {protections[protection], ANON, -1, 0, {.state = states[protection]}};
    if (kind == 0) {
        made.flags = MAP_SHARED | MAP_ANONYMOUS;
        made.page.origin = COMMON;
    } else if (kind == 1) {
        size_t first = below(m, FILE_PAGES - pages);
        made.flags = MAP_PRIVATE;
        made.fd = file;
        made.offset = first * PAGE;
        made.page.origin = OF_FILE;
        made.page.base = FILE_WORD + first;
    } else made.flags |= extras[below(m, 6)];
    if (pages <= 64 && below(m, 4) == 0) made.flags |= MAP_POPULATE;
    return made;
}

static void unmap_range(struct model *m, struct slot *s, size_t first, size_t count) {
    CHECK(CALL(m, munmap, s->at + first * PAGE, count * PAGE) == 0);
    set_unmapped(m, s, first, count);
    s->whole = 0;
}

/* All of a slot but what is lost. */
static void unmap_slot(struct model *m, struct slot *s) {
    find_lost(s, 0, s->pages);
    for (size_t i = 0, next; i < s->pages; i = next + 1) {
        for (next = i; next < s->pages && s->page[next].state != LOST; next++);
        if (next > i) unmap_range(m, s, i, next - i);
    }
    s->at = NULL;
    s->pages = 0;
}

static void map_slot(struct model *m, struct slot *s) {
    static const size_t sizes[] = {16, 256, 256, 300, 512, 512, 768, 1024, 2048};
    size_t pages = sizes[below(m, 9)] + (below(m, 2) ? below(m, 20) : 0);
    if (m->mapped + pages > m->most) return;
    int is_segment = m->subjects & SEGMENTS && below(m, 16) == 0;
    struct made made = any_mapping(m, pages);
    char *hint = below(m, 8) ? NULL : m->slot[below(m, SLOTS)].at;
    size_t odd = made.fd < 0 ? below(m, 2) * below(m, PAGE) : 0;
    char *at = is_segment ? attach_new(m, NULL, pages, 0)
                          : (char *)CALL(m, mmap, hint, pages * PAGE - odd, made.protection,
                                         made.flags, made.fd, made.offset);
    if (at == MAP_FAILED && (may_fail(m) || (is_segment && errno == ENOSPC))) return;
    CHECK(at != MAP_FAILED);
    claim(m, at, pages);
    s->at = at;
    s->pages = pages;
    memset(s->page, 0, sizeof s->page);
    if (is_segment) set_segment(m, s, 0, pages);
    else set(m, s, 0, pages, made.page);
    s->whole = 1;
    trace(m, "map", s, 0, pages);
    if (m->subjects & ATTRIBUTES && below(m, 128) == 0) check_attributes(m, s);
    check_range(m, s, 0, pages, 32);
}

static void touch(struct model *m, struct slot *s, size_t first, size_t count) {
    size_t stride = 1 + below(m, 8);
    for (size_t i = first; i < first + count && i < first + 24 * stride; i += stride) {
        struct page *p = &s->page[i];
        if (p->state != WRITABLE || (p->origin == COMMON && m->spare_common)) continue;
        check_page(m, s, i);
        p->word = ++m->words << 8 | 2;
        p->loose = 0;
        put(s->at + i * PAGE, p->word);
    }
}

static void protect(struct model *m, struct slot *s, size_t first, size_t count) {
    /* What can be written may be more than a limit allows. */
    int way = below(m, m->limited ? 2 : 3);
    int result = CALL(m, mprotect, s->at + first * PAGE, count * PAGE, protections[way]);
    CHECK(holes(s, first, count) ? result == -1 && errno == ENOMEM : result == 0);
    for (size_t i = first; i < first + count; i++) {
        if (s->page[i].state < CLOSED) continue;
        /* What lies behind a hole was left out. */
        if (result) CHECK(mprotect(s->at + i * PAGE, PAGE, protections[way]) == 0);
        s->page[i].state = states[way];
    }
    s->whole = s->whole && count == s->pages;
}

/* Drops for certain, or leaves it to the kernel. */
static void drop(struct model *m, struct slot *s, size_t first, size_t count, int advice) {
    int result = CALL(m, madvise, s->at + first * PAGE, count * PAGE, advice);
    int certain = advice == MADV_DONTNEED;
    if (result != 0) {
        CHECK(errno == EINVAL || errno == ENOMEM);
        CHECK(errno == EINVAL || holes(s, first, count));
        /* It went as far as the first page that it was not for. */
        if (errno == EINVAL && certain) CHECK(m->all_locked || locked(s, first, count));
        if (errno == EINVAL) certain = 0;
    }
    for (size_t i = first; i < first + count; i++) {
        struct page *p = &s->page[i];
        if (p->state < CLOSED || p->origin == COMMON) continue;
        if (certain) p->word = p->base;
        p->loose = !certain;
    }
}

static void advise(struct model *m, struct slot *s, size_t first, size_t count) {
    static const int advices[] = {0, 1, 2, 3, 14, 14, 15, 16, 17, 20, 22, 23};
    int advice = advices[below(m, 12)];
    if (advice > 21 && count > 64) return;
    CALL(m, madvise, s->at + first * PAGE, count * PAGE, advice);
    s->whole = 0;
}

static void lock(struct model *m, struct slot *s, size_t first, size_t count) {
    if (count > 64) count = 64;
    if (holes(s, first, count)) return;
    char *at = s->at + first * PAGE;
    int at_faults = below(m, 2);
    int done = (at_faults ? CALL(m, mlock2, at, count * PAGE, MLOCK_ONFAULT)
                          : CALL(m, mlock, at, count * PAGE)) == 0;
    if (!done) CHECK(errno == ENOMEM || errno == EPERM || errno == EAGAIN);
    if (!done || below(m, 4)) {
        CHECK(CALL(m, munlock, at, count * PAGE) == 0);
        done = 0;
    }
    for (size_t i = first; i < first + count; i++) s->page[i].locked = done;
    s->whole = 0;
}

static void map_over(struct model *m, struct slot *s, size_t first, size_t count) {
    struct made made = any_mapping(m, count);
    char *at = s->at + first * PAGE;
    int fixed = MAP_FIXED;
    /* With nothing there either will do. */
    if (holes(s, first, count) == count && below(m, 2)) fixed = MAP_FIXED_NOREPLACE;
    if (m->mapped + count > m->most) return;
    char *p = (char *)CALL(m, mmap, at, count * PAGE, made.protection, made.flags | fixed, made.fd,
                           made.offset);
    if (p != at && fixed == MAP_FIXED_NOREPLACE) {
        if (p != MAP_FAILED) CHECK(CALL(m, munmap, p, count * PAGE) == 0);
        if (p != MAP_FAILED || !may_fail(m)) set(m, s, first, count, (struct page){.state = LOST});
        return;
    }
    /* The kernel may have split what is there before it refused. */
    s->whole = 0;
    if (p == MAP_FAILED && may_fail(m)) return;
    CHECK(p == at);
    set(m, s, first, count, made.page);
}

static void shrink(struct model *m, struct slot *s, size_t first, size_t count) {
    size_t kept = 1 + below(m, count);
    char *at = s->at + first * PAGE;
    char *p = (char *)CALL(m, mremap, at, count * PAGE, kept * PAGE, 0);
    if (p == at) {
        set_unmapped(m, s, first + kept, count - kept);
        if (s->whole && first + count == s->pages) s->pages = first + kept;
        else s->whole = s->whole && kept == count;
    } else CHECK(p == MAP_FAILED && errno == EFAULT && !s->whole);
}

static void grow(struct model *m, struct slot *s) {
    size_t more = 1 + below(m, 300), pages = s->pages;
    if (!s->whole || pages + more > SLOT_PAGES || m->mapped + more > m->most) return;
    if (s->page[0].origin != ANONYMOUS) return;
    char *old = s->at;
    char *at = (char *)CALL(m, mremap, old, pages * PAGE, (pages + more) * PAGE, MREMAP_MAYMOVE);
    if (at == MAP_FAILED) {
        if (errno != ENOMEM && !may_fail(m)) fail(m, s, 0, strerror(errno));
        return;
    }
    s->at = NULL;
    if (at == old) claim(m, at + pages * PAGE, more);
    else claim(m, at, pages + more);
    s->at = at;
    s->pages = pages + more;
    set(m, s, pages, more, (struct page){.state = s->page[0].state, .attributes = s->page[0].attributes});
    check_range(m, s, pages - 1, more, 64);
}

/* A piece of a slot onto a piece of another. */
static void move(struct model *m, struct slot *s, size_t first, size_t count) {
    struct slot *to = &m->slot[below(m, SLOTS)];
    size_t place, room;
    if (!s->whole || to == s || !to->at || !pick(m, to, &place, &room)) return;
    if (count > room) count = room;
    int stay = s->page[first].origin == ANONYMOUS && below(m, 3) == 0 ? MREMAP_DONTUNMAP : 0;
    if (stay && (m->limited || m->mapped + count > m->most)) return;
    char *target = to->at + place * PAGE;
    char *p = (char *)CALL(m, mremap, s->at + first * PAGE, count * PAGE, count * PAGE,
                           MREMAP_MAYMOVE | MREMAP_FIXED | stay, target);
    /* Older kernels don't know how to stay. */
    if (p == MAP_FAILED && stay && errno == EINVAL) return;
    CHECK(p == target);
    for (size_t i = 0; i < count; i++) {
        struct page moved = s->page[first + i], left = {.state = moved.state};
        left.attributes = moved.attributes;
        set(m, to, place + i, 1, moved);
        to->page[place + i] = moved;
        if (stay) set(m, s, first + i, 1, left);
        else set_unmapped(m, s, first + i, 1);
    }
    s->whole = to->whole = 0;
    if (!stay && count == s->pages) s->at = NULL, s->pages = 0;
    trace(m, "move to here", to, place, count);
    check_range(m, to, place, count, 64);
}

/* malloc's memory may come from where mappings do. */
static void note_block(struct model *m, int i, char *at, size_t size) {
    char *from = (char *)((uintptr_t)at / PAGE * PAGE), *end = at + malloc_usable_size(at);
    claim(m, from, (end - from + PAGE - 1) / PAGE);
    fill(at, size, i);
    m->block[i].at = at;
    m->block[i].size = size;
}

static size_t any_size(struct model *m) {
    return (64 << 10) + below(m, 1 << below(m, 22));
}

static char *new_block(struct model *m, size_t size) {
    char *at = NULL;
    switch (below(m, 5)) {
    case 0: return memalign(PAGE << below(m, 11), size);
    case 1:
    case 2: return malloc(size);
    default: at = calloc(1, size);
    }
    CHECK(!at || is_zero(at, size));
    return at;
}

/* Blocks that the C library's own malloc maps, and unmaps when they are freed, where it was told to map all that is
   larger than what a new heap has. */
enum { MAPPED_BLOCK = 512 << 10 };

/* Somebody holds some of its pages from now on. */
static void pin_block(struct model *m, char *block, size_t size) {
    uintptr_t from = ((uintptr_t)block + PAGE - 1) / PAGE * PAGE;
    size_t pages = ((uintptr_t)block + size - from) / PAGE, count = 1 + below(m, HELD_PAGES);
    hold(m, place_for_pin(m), (char *)from + below(m, pages - count) * PAGE, count);
}

static void allocate(struct model *m) {
    int i = below(m, BLOCKS);
    char *old = m->block[i].at, *at;
    size_t size = any_size(m), held = m->block[i].size;
    if (!old) {
        at = new_block(m, size);
        if (!at && may_fail(m)) return;
        CHECK(at != NULL);
        note_block(m, i, at, size);
        return;
    }
    CHECK(holds(old, held, i));
    if (below(m, 2)) {
        if (m->subjects & PINS && held >= MAPPED_BLOCK) pin_block(m, old, held);
        free(old);
        m->block[i].at = NULL;
        return;
    }
    at = realloc(old, size);
    if (!at && may_fail(m)) return;
    CHECK(at != NULL);
    m->block[i].at = NULL;
    /* The last byte of all is not where it was any more. */
    CHECK(holds(at, (held < size ? held - 1 : size) / 64 * 64, i));
    note_block(m, i, at, size);
}

/* The same with memory that nothing else was done to, as most is: all of it is used again. */
static void pin_new(struct model *m) {
    size_t size = (256 + below(m, 600)) * PAGE;
    int is_block = below(m, 2);
    char *at = is_block ? malloc(size) : (char *)CALL(m, mmap, NULL, size, RW, ANON, -1, 0);
    if ((at == MAP_FAILED || !at) && may_fail(m)) return;
    CHECK(at != MAP_FAILED && at);
    uintptr_t from = (uintptr_t)at / PAGE * PAGE;
    claim(m, (char *)from, ((uintptr_t)at + size - from + PAGE - 1) / PAGE);
    fill(at, size, ++m->words);
    pin_block(m, at, size);
    if (is_block) free(at);
    else CHECK(CALL(m, munmap, at, size) == 0);
}

/* Somebody holds pages, and their mapping goes. */
static void pin(struct model *m, struct slot *s, size_t first, size_t count) {
    if (below(m, 2)) {
        pin_new(m);
        return;
    }
    count = pages_to_hold(s, first, count);
    if (count == 0 || !hold(m, place_for_pin(m), s->at + first * PAGE, count)) return;
    switch (m->all_locked || locked(s, first, count) ? below(m, 2) : below(m, 3)) {
    case 0: unmap_slot(m, s); break;
    case 1: unmap_range(m, s, first, count); break;
    default: drop(m, s, first, count, MADV_DONTNEED);
    }
}

static void operate(struct model *m, int may_allocate);

/* Some operations while the process may have less. Other threads' must not fail, so beside them there is a limit
   that nobody gets near. */
static void limit(struct model *m) {
    static const int resources[] = {RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK};
    int resource = resources[below(m, 3)];
    struct rlimit old, less;
    CHECK(getrlimit(resource, &old) == 0);
    less = old;
    less.rlim_cur = m->lose_holes ? 1ul << 46 : below(m, 4) * (48 << 20);
    if (less.rlim_cur > less.rlim_max) return;
    CHECK((below(m, 2) ? CALL(m, setrlimit, resource, &less)
                       : CALL(m, prlimit64, 0, resource, (void *)&less, NULL)) == 0);
    m->limited = !m->lose_holes;
    for (int i = 0; i < 20; i++) operate(m, 1);
    CHECK(CALL(m, setrlimit, resource, &old) == 0);
    m->limited = 0;
    check_all(m);
}

/* Some operations while all that there is is locked, or all that comes too. */
static void lock_all(struct model *m) {
    static const int flags[] = {MCL_CURRENT, MCL_FUTURE, MCL_CURRENT | MCL_FUTURE,
                                MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT};
    if (m->lose_holes) return;
    if (CALL(m, mlockall, flags[below(m, 4)]) != 0) {
        CHECK(errno == ENOMEM || errno == EPERM || errno == EAGAIN);
        return;
    }
    m->all_locked = m->limited = 1;
    for (int i = 0; i < 20; i++) operate(m, 1);
    CHECK((by_name(m) ? munlockall() : syscall(SYS_munlockall)) == 0);
    m->all_locked = m->limited = 0;
    for (int i = 0; i < SLOTS; i++)
        for (size_t page = 0; page < m->slot[i].pages; page++) m->slot[i].page[page].locked = 0;
    check_all(m);
}

static void operate(struct model *m, int may_allocate) {
    m->operation++;
    m->trace[m->operation % TRACES].what = NULL;
    struct slot *s = &m->slot[below(m, SLOTS)];
    size_t first, count;
    uint64_t what = below(m, 100);
    if (what < 4 && may_allocate) {
        allocate(m);
        return;
    }
    if (!s->at) {
        map_slot(m, s);
        return;
    }
    if (what < 8) {
        trace(m, "unmap all", s, 0, s->pages);
        unmap_slot(m, s);
        return;
    }
    if (!pick(m, s, &first, &count)) return;
    /* Some slots stay in one piece, to be moved as such. */
    int splits = (what < 28) || (what >= 40 && what < 56);
    if ((s - m->slot) % 4 == 0 && s->whole && splits) what = 56 + what % 30;
#define DO(limit, call)                      \
    else if (what < (uint64_t)(limit)) {     \
        trace(m, #call, s, first, count);    \
        call;                                \
    }
    if (0) {}
    DO(18, unmap_range(m, s, first, count))
    DO(28, protect(m, s, first, count))
    DO(37, drop(m, s, first, count, MADV_DONTNEED))
    DO(40, drop(m, s, first, count, MADV_FREE))
    DO(44, advise(m, s, first, count))
    DO(46, lock(m, s, first, count))
    DO(56, map_over(m, s, first, count))
    DO(59, shrink(m, s, first, count))
    DO(63, grow(m, s))
    DO(67, move(m, s, first, count))
    DO(m->subjects & ATTRIBUTES ? 70 : 0, attribute(m, s, first, count))
    DO(m->subjects & SEGMENTS ? 72 : 0, attach_over(m, s, first, count))
    DO(m->subjects & SEGMENTS ? 75 : 0, detach(m, s, first, count))
    DO(m->subjects & SWAPPING ? 77 : 0, page_out(m, s, first, count))
    DO(m->subjects & PINS ? 80 : 0, pin(m, s, first, count))
    DO(100, touch(m, s, first, count))
    check_range(m, s, first, count, 48);
}

static void split(struct model *m, int depth);

/* A child sees what its parent saw, goes on by itself, and changes nothing of its parent's. */
static void be_child(struct model *m, int depth) {
    inherit(m);
    m->seed += 1000000;
    m->subjects &= ~(PINS | LIMITS);
    m->random ^= (uint64_t)0x51ab << depth * 16;
    check_all(m);
    /* Beside other threads, the allocator behind the shim's may have been at work in one. */
    for (int i = 0; i < 100; i++) operate(m, !m->lose_holes);
    if (depth < 2 && below(m, 3) == 0) split(m, depth + 1);
    check_all(m);
    _exit(0);
}

static void split(struct model *m, int depth) {
    /* Beside other threads, one of them may have had the C library's locks when a child was made without it. */
    int by_library = by_name(m) && !(depth > 0 && m->lose_holes);
    pid_t child = by_library ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    int spared = m->spare_common;
    m->spare_common = 1;
    if (child == 0) {
        m->lacks_library |= !by_library && m->lose_holes;
        be_child(m, depth);
    }
    if (below(m, 2))
        for (int i = 0; i < 100; i++) operate(m, !m->lose_holes);
    wait_for(child);
    m->spare_common = spared;
    check_all(m);
}

static uint64_t operations;
static int subjects;

static void *run(void *argument) {
    struct model *m = argument;
    m->random = m->seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < 20; i++) next_random(m);
    /* A thread's heap of its own is as large as its first request: MAPPED_BLOCK. */
    free(malloc(64));
    m->subjects = subjects & ~(PINS | LIMITS);
    for (uint64_t i = 1; i <= operations; i++) {
        /* After these the shim recycles nothing any more, so all the rest has its turn before. */
        if (i == operations / 2) m->subjects |= subjects & PINS;
        if (i == operations / 4 * 3) m->subjects |= subjects & LIMITS;
        operate(m, 1);
        if (m->subjects & LIMITS && below(m, 200) == 0) below(m, 3) ? limit(m) : lock_all(m);
        if (i % 4096 == 0 || (subjects & FORKS && below(m, 2048) == 0)) split(m, 0);
        else if (i % 1024 == 0) check_all(m);
    }
    check_all(m);
    let_all_go(m);
    for (int i = 0; i < SLOTS; i++)
        if (m->slot[i].at) unmap_slot(m, &m->slot[i]);
    for (int i = 0; i < BLOCKS; i++) free(m->block[i].at);
    CHECK(m->mapped == 0);
    return NULL;
}

/* So that it need not grow under a limit. */
static void grow_stack(void) {
    volatile char room[256 << 10];
    for (size_t i = 0; i < sizeof room; i += PAGE) room[i] = 0;
}

int main(int count, char **arguments) {
    enum { THREADS = 16 };
    static struct model models[THREADS];
    pthread_t ids[THREADS];
    CHECK(count >= 4);
    uint64_t seed = strtoul(arguments[1], NULL, 10), mib = strtoul(arguments[3], NULL, 10);
    int threads = count > 4 ? atoi(arguments[4]) : 1;
    operations = strtoul(arguments[2], NULL, 10);
    CHECK(threads >= 1 && threads <= THREADS);
    for (const char *letter = count > 5 ? arguments[5] : "nfaso"; *letter; letter++) {
        const char *known = strchr(subject_letters, *letter);
        CHECK(known);
        subjects |= 1 << (known - subject_letters);
    }
    begin();
    grow_stack();
    if (subjects & PINS) CHECK(mallopt(M_MMAP_THRESHOLD, 64 << 10) == 1);
    for (int i = 0; i < threads; i++) {
        models[i].seed = seed * 100 + i;
        models[i].most = mib * 256 / threads;
        models[i].lose_holes = threads > 1;
    }
    if (threads == 1) run(models);
    else {
        for (int i = 0; i < threads; i++)
            CHECK(pthread_create(&ids[i], NULL, run, &models[i]) == 0);
        for (int i = 0; i < threads; i++) CHECK(pthread_join(ids[i], NULL) == 0);
    }
    printf("seed %lu, %lu operations, %d threads: ", seed, operations, threads);
    return end();
}
