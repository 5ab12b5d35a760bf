/* The fuzzer's idea of what it has mapped: slots of pages, of each of which is known whether it is
   there, what may be done to it, and what it holds. */
#ifndef MMAP_MODEL_H
#define MMAP_MODEL_H

#include "mmap.h"
#include <sys/syscall.h>

enum { SLOTS = 32, SLOT_PAGES = 2560, BLOCKS = 16, TRACES = 64 };

/* What was unmapped is a hole; what may be somebody else's by now is lost, and left alone. */
enum state { HOLE, LOST, CLOSED, READABLE, WRITABLE };
enum origin { ANONYMOUS, OF_FILE, COMMON };
enum attribute { NO_FORK = 1, WIPED = 2 };

/* What operations there are besides those on mappings of one process: a letter each in the arguments. */
enum subject { NUMBERS = 1, FORKS = 2, ATTRIBUTES = 4, SEGMENTS = 8, SWAPPING = 16, PINS = 32, LIMITS = 64 };
static const char subject_letters[] = "nfasopl";

struct page {
    /* What it holds, and what it falls back to when it is dropped. */
    uint64_t word, base;
    unsigned char state, origin, locked;
    /* Whether it may have been dropped. */
    unsigned char loose;
    /* What a fork heeds. */
    unsigned char attributes;
    /* Of which System V segment it is, if of any, and which page of it. */
    unsigned short segment_page;
    unsigned segment;
};

struct slot {
    char *at;
    size_t pages;
    /* Whether it is one mapping to the kernel, and can be moved as such. */
    int whole;
    struct page page[SLOT_PAGES];
};

struct model {
    uint64_t random, seed, words, operation;
    size_t mapped, most;
    /* Of the subjects, those that there are now. */
    int subjects;
    unsigned segments;
    /* While there is a limit, what asks for memory may fail; while everything is locked, dropping. */
    int limited, all_locked;
    /* Beside other threads, holes are lost at once. */
    int lose_holes;
    /* A child that another thread's hold on the C library's locks may have come to. */
    int lacks_library;
    /* What parent and child share is left as it is while both live. */
    int spare_common;
    struct slot slot[SLOTS];
    struct { char *at; size_t size; } block[BLOCKS];
    struct trace { uint64_t operation; const char *what; int slot; size_t first, count; } trace[TRACES];
};

static uint64_t next_random(struct model *m) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

static uint64_t below(struct model *m, uint64_t limit) {
    return (next_random(m) >> 11) % limit;
}

/* A call of the family by its name, or by its number: the shim must see both. */
static int by_name(struct model *m) {
    return !(m->subjects & NUMBERS) || below(m, 2);
}
#define CALL(m, name, ...) \
    (by_name(m) ? (long)name(__VA_ARGS__) : syscall(SYS_##name, __VA_ARGS__))

/* Whether a call may have failed as it did for want of memory. */
static int may_fail(struct model *m) {
    return m->limited && (errno == ENOMEM || errno == EAGAIN);
}

static void trace(struct model *m, const char *what, struct slot *s, size_t first, size_t count) {
    struct trace *t = &m->trace[m->operation % TRACES];
    *t = (struct trace){m->operation, what, (int)(s - m->slot), first, count};
}

/* Says what went wrong where, and what was done before, for it depends on the seed alone. */
static void fail(struct model *m, struct slot *s, size_t page, const char *what) {
    struct page *p = &s->page[page];
    printf("seed %lu, operation %lu: slot %d, page %zu of %zu (state %d, origin %d, loose %d): %s\n",
           m->seed, m->operation, (int)(s - m->slot), page, s->pages, p->state, p->origin, p->loose,
           what);
    if (p->state >= READABLE)
        printf("expected %lx, or %lx if loose; found %lx\n", p->word, p->base,
               content(s->at + page * PAGE));
    for (uint64_t i = 1; i <= TRACES; i++) {
        struct trace *t = &m->trace[(m->operation + i) % TRACES];
        if (t->what && t->slot == s - m->slot)
            printf("  %lu: %s, page %zu and %zu more\n", t->operation, t->what, t->first, t->count);
    }
    fflush(stdout);
    abort();
}

static void check_page(struct model *m, struct slot *s, size_t page) {
    struct page *p = &s->page[page];
    char *at = s->at + page * PAGE;
    if (p->state < CLOSED) return;
    if (p->state == CLOSED) {
        if (below(m, 16) == 0 && !faults(at, READ)) fail(m, s, page, "can be read");
        return;
    }
    uint64_t found = content(at);
    if (found != p->word && !(p->loose && found == p->base)) fail(m, s, page, "holds something else");
    if (p->state == READABLE && below(m, 16) == 0 && !faults(at, WRITE))
        fail(m, s, page, "can be written");
}

/* The pages of a range and those beside it: at most so many, those that were written first. */
static void check_range(struct model *m, struct slot *s, size_t first, size_t count, size_t most) {
    size_t from = first < 2 ? 0 : first - 2;
    size_t end = first + count + 2 < s->pages ? first + count + 2 : s->pages;
    if (from >= end) return;
    size_t turn = below(m, end - from), size = end - from, checked = 0;
    for (size_t i = 0; i < size && checked < most; i++) {
        size_t page = from + (i + turn) % size;
        int edge = page < first + 2 || page + 4 >= first + count;
        if (edge || s->page[page].word || i % 64 == 0) check_page(m, s, page), checked++;
    }
}

static void check_all(struct model *m) {
    for (int i = 0; i < SLOTS; i++)
        for (size_t page = 0; page < m->slot[i].pages; page++) check_page(m, &m->slot[i], page);
    for (int i = 0; i < BLOCKS; i++)
        if (m->block[i].at) CHECK(holds(m->block[i].at, m->block[i].size, i));
}

/* Records what pages are from now on. */
static void set(struct model *m, struct slot *s, size_t first, size_t count, struct page page) {
    for (size_t i = first; i < first + count; i++) {
        m->mapped -= s->page[i].state >= CLOSED;
        s->page[i] = page;
        if (page.origin == OF_FILE) s->page[i].word = s->page[i].base = page.base + i - first;
        m->mapped += page.state >= CLOSED;
    }
}

static void set_unmapped(struct model *m, struct slot *s, size_t first, size_t count) {
    set(m, s, first, count, (struct page){.state = m->lose_holes ? LOST : HOLE});
}

/* Something has come to lie at an address: not where anything was, and holes there are lost. */
static void claim(struct model *m, char *at, size_t pages) {
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &m->slot[i];
        if (!s->at || at >= s->at + s->pages * PAGE || at + pages * PAGE <= s->at) continue;
        for (size_t page = 0; page < s->pages; page++) {
            char *there = s->at + page * PAGE;
            if (there < at || there >= at + pages * PAGE) continue;
            if (s->page[page].state >= CLOSED) fail(m, s, page, "something is mapped over it");
            s->page[page].state = LOST;
        }
    }
}

/* Holes at whose edges or middle something lies are lost: libraries map for themselves. */
static void find_lost(struct slot *s, size_t first, size_t count) {
    for (size_t i = first, next; i < first + count; i = next) {
        for (next = i + 1; next < first + count && s->page[next].state == s->page[i].state; next++);
        if (s->page[i].state != HOLE) continue;
        size_t places[] = {i, i + (next - i) / 2, next - 1};
        unsigned char byte;
        int lost = 0;
        for (int j = 0; j < 3; j++) lost |= mincore(s->at + places[j] * PAGE, PAGE, &byte) == 0;
        for (size_t page = i; lost && page < next; page++) s->page[page].state = LOST;
    }
}

/* A range of a slot up to the next page that is lost; false if there is none. */
static int pick(struct model *m, struct slot *s, size_t *first, size_t *count) {
    static const size_t most[] = {8, 8, 64, 520, SLOT_PAGES};
    *first = below(m, 4) ? below(m, s->pages) : 0;
    *count = 1 + below(m, most[below(m, 5)]);
    if (below(m, 8) == 0 || *count > s->pages - *first) *count = s->pages - *first;
    find_lost(s, *first, *count);
    for (size_t i = 0; i < *count; i++)
        if (s->page[*first + i].state == LOST) *count = i;
    return *count > 0;
}

/* How many pages of a range are not there. */
static size_t holes(struct slot *s, size_t first, size_t count) {
    size_t found = 0;
    for (size_t i = first; i < first + count; i++) found += s->page[i].state == HOLE;
    return found;
}

static size_t locked(struct slot *s, size_t first, size_t count) {
    size_t found = 0;
    for (size_t i = first; i < first + count; i++) found += s->page[i].locked;
    return found;
}

#endif
