/* What the fuzzer has the kernel do to mappings besides mapping them: attributes that forks and core
   dumps heed, System V segments, paging out. */
#ifndef MMAP_FUZZ_KERNEL_H
#define MMAP_FUZZ_KERNEL_H

#include "mmap_model.h"
#include <sys/shm.h>

/* How many pages from the first on are private memory, or nothing. */
static size_t private_pages(struct slot *s, size_t first, size_t count) {
    size_t pages = 0;
    while (pages < count) {
        struct page *p = &s->page[first + pages];
        if (p->state >= CLOSED && p->origin != ANONYMOUS) break;
        pages++;
    }
    return pages;
}

/* Sets or takes off advice that a fork heeds. */
static void attribute(struct model *m, struct slot *s, size_t first, size_t count) {
    static const struct { int advice; unsigned char set, cleared; } kinds[] = {
        {MADV_DONTFORK, NO_FORK, 0}, {MADV_DOFORK, 0, NO_FORK},
        {MADV_WIPEONFORK, WIPED, 0}, {MADV_KEEPONFORK, 0, WIPED},
    };
    int kind = below(m, 4);
    if (kinds[kind].set == WIPED) count = private_pages(s, first, count);
    if (count == 0) return;
    int result = CALL(m, madvise, s->at + first * PAGE, count * PAGE, kinds[kind].advice);
    CHECK(holes(s, first, count) ? result == -1 && errno == ENOMEM : result == 0);
    for (size_t i = first; i < first + count; i++) {
        if (s->page[i].state < CLOSED) continue;
        s->page[i].attributes |= kinds[kind].set;
        s->page[i].attributes &= ~kinds[kind].cleared;
    }
    s->whole = s->whole && count == s->pages;
}

/* A child's view of its parent's memory. */
static void inherit(struct model *m) {
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &m->slot[i];
        for (size_t page = 0; page < s->pages; page++) {
            struct page *p = &s->page[page];
            p->locked = 0;
            if (p->state < CLOSED) continue;
            if (p->attributes & NO_FORK) {
                if (!faults(s->at + page * PAGE, READ)) fail(m, s, page, "was not to be inherited");
                set_unmapped(m, s, page, 1);
                s->whole = 0;
            } else if (p->attributes & WIPED) {
                p->word = p->base;
                p->loose = 0;
            }
        }
    }
}

/* New memory has no attribute of the memory before it: the kernel lists them. */
static void check_attributes(struct model *m, struct slot *s) {
    if (m->limited || m->all_locked || m->lacks_library) return;
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[1024];
    int here = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        uintptr_t from, to, at = (uintptr_t)s->at;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) here = at >= from && at < to;
        if (!here || strncmp(line, "VmFlags:", 8)) continue;
        static const char *const unwanted[] = {" lo", " dc", " wf", " dd", " rr", " sr", " um", " uw"};
        for (int i = 0; i < 8; i++)
            if (strstr(line, unwanted[i])) fail(m, s, 0, line);
    }
    fclose(maps);
}

/* Content must stay, with swap or without. */
static void page_out(struct model *m, struct slot *s, size_t first, size_t count) {
    int result = CALL(m, madvise, s->at + first * PAGE, count * PAGE, MADV_PAGEOUT);
    if (result == 0) return;
    if (errno == EINVAL) CHECK(m->all_locked || locked(s, first, count));
    else CHECK(errno == ENOMEM && holes(s, first, count));
}

/* A new segment at an address, or where the kernel likes. */
static char *attach_new(struct model *m, char *at, size_t pages, int flags) {
    int id = shmget(IPC_PRIVATE, pages * PAGE - below(m, PAGE), IPC_CREAT | 0600);
    if (id < 0) {
        CHECK(errno == ENOSPC || errno == ENOMEM || errno == ENOSYS);
        return MAP_FAILED;
    }
    char *result = (char *)CALL(m, shmat, id, at, flags);
    int error = errno;
    CHECK(shmctl(id, IPC_RMID, NULL) == 0);
    errno = error;
    return result;
}

static void set_segment(struct model *m, struct slot *s, size_t first, size_t count) {
    struct page page = {.state = WRITABLE, .origin = COMMON, .segment = ++m->segments};
    for (size_t i = 0; i < count; i++) {
        page.segment_page = i;
        set(m, s, first + i, 1, page);
    }
}

static void attach_over(struct model *m, struct slot *s, size_t first, size_t count) {
    if (m->mapped + count > m->most) return;
    char *at = s->at + first * PAGE;
    size_t missing = holes(s, first, count);
    int replaces = missing < count || below(m, 2);
    /* Over something, it must be asked for. */
    if (missing < count && below(m, 4) == 0) {
        CHECK(attach_new(m, at, count, 0) == MAP_FAILED);
        CHECK(errno == EINVAL || errno == ENOSPC || may_fail(m));
        return;
    }
    char *p = attach_new(m, at, count, replaces ? SHM_REMAP : 0);
    /* The kernel may have split what is there before it refused. */
    s->whole = 0;
    if (p == MAP_FAILED) {
        int error = errno;
        if (missing == count) find_lost(s, first, count);
        errno = error;
        CHECK(replaces ? errno == ENOSPC || may_fail(m) : errno == EINVAL || errno == ENOSPC || may_fail(m));
        if (!replaces && errno == EINVAL) set(m, s, first, count, (struct page){.state = LOST});
        return;
    }
    CHECK(p == at);
    set_segment(m, s, first, count);
    s->whole = 0;
}

/* Detaches the segment that a page of the range belongs to: as the kernel does, all of its pages that lie where
   they would if it had been attached at that address. */
static void detach(struct model *m, struct slot *s, size_t first, size_t count) {
    size_t page = first, base;
    while (page < first + count && !s->page[page].segment) page++;
    if (page == first + count || s->page[page].segment_page > page) return;
    base = page - s->page[page].segment_page;
    for (page = base; page < s->pages; page++)
        if (s->page[page].segment && s->page[page].segment_page == page - base) break;
    /* Others' segments may be where something of ours was. */
    if (m->lose_holes && page > base) return;
    uint64_t segment = s->page[page].segment;
    CHECK(CALL(m, shmdt, s->at + base * PAGE) == 0);
    for (; page < s->pages; page++)
        if (s->page[page].segment == segment && s->page[page].segment_page == page - base)
            set_unmapped(m, s, page, 1);
    s->whole = 0;
}

#endif
