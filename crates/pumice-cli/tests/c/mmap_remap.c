/* mremap of every part of regions of every kind: shrinking, growing, moving, with and without a
   place to move to; and where it must fail. */
#define _GNU_SOURCE
#include "mmap.h"

enum { NEAR_PAGES = 8, FAR_PAGES = 900 };

/* What is left of a region, but for what was a hole or is to be left out: the kernel may have put
   something there. */
static void show_rest(struct region r, long from, long to) {
    static char letters[BIGGEST];
    for (long i = 0; i < (long)r.pages; i++) {
        int skipped = (i >= from && i < to) || is_hole(r, i);
        letters[i] = skipped ? '.' : look(r.base + i * PAGE, i);
    }
    show_letters(letters, r.pages);
}

/* Resizes a part to as many pages. */
static void resize(const char *what, enum kind kind, size_t pages, int part, long change, int flags) {
    struct region r = make(kind, pages);
    struct part parts[PARTS];
    list_parts(r, parts);
    size_t length = parts[part].length;
    long first = parts[part].offset / PAGE, count = (length + PAGE - 1) / PAGE;
    char *at = r.base + parts[part].offset;
    size_t size = change < 0 ? length / 2 : length + change * PAGE;
    if (parts[part].name && size <= (size_t)1 << 40) {
        errno = 77;
        char *p = mremap(at, length, size, flags);
        printf("%s, %s %zu, %s: %s |", what, kind_names[kind], pages, parts[part].name,
               outcome((long)p));
        if (p == MAP_FAILED) show(r.base, 0, pages);
        else {
            size_t now = (size + PAGE - 1) / PAGE;
            /* What was shrunk or kept can stay, and does. */
            CHECK(p == at || change > 0);
            show(p, first, now);
            printf(", the rest:");
            show_rest(r, first, p == at ? first + (long)now : first + count);
            if (p != at) CHECK(count == 0 || look(at, first) == '-');
            CHECK(munmap(p, now * PAGE) == 0);
        }
        puts("");
    }
    finish(r);
}

static void test_sizes(void) {
    static const struct { const char *name; long change; int flags; } ways[] = {
        {"shrink", -1, 0}, {"same size", 0, MREMAP_MAYMOVE},
        {"grow", NEAR_PAGES, MREMAP_MAYMOVE}, {"grow far", FAR_PAGES, MREMAP_MAYMOVE},
    };
    for (int way = 0; way < 4; way++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int part = 0; part < PARTS; part++) {
                int all = kind == ONE || kind == HOLED;
                if (part >= INSIDE_PARTS && !all) continue;
                resize(ways[way].name, kind, SMALL, part, ways[way].change, ways[way].flags);
                if (kind == EXACT && part < 3)
                    resize(ways[way].name, kind, LARGE, part, ways[way].change, ways[way].flags);
            }
    /* Where there is something behind it: head, first page, middle and middle page. */
    for (int part = 1; part < 5; part++) resize("grow in place", ONE, SMALL, part, 1, 0);
}

/* Growing in place is luck, but must be right. */
static void test_in_place(void) {
    for (int kind = 0; kind < 2; kind++) {
        struct region r = make(kind, SMALL);
        size_t pages = SMALL;
        char *p = mremap(r.base, SMALL * PAGE, (SMALL + 5) * PAGE, 0);
        if (p != MAP_FAILED) {
            CHECK(p == r.base);
            check_fresh(r.base + SMALL * PAGE, 5);
            pages += 5;
        } else CHECK(errno == ENOMEM);
        printf("in place or not:");
        show(r.base, 0, SMALL);
        puts("");
        CHECK(munmap(r.base, pages * PAGE) == 0);
    }
}

/* Moves a part to a place: 0 outside, 1 to the middle of another region, 2 into that one's hole,
   3 over shared memory and a file there. */
static void move(enum kind kind, int part, int place, int flags, long change) {
    struct region r = make(kind, SMALL), other = make(ONE, SMALL);
    struct part parts[PARTS];
    list_parts(r, parts);
    if (parts[part].name) {
        size_t outside = 400 * PAGE, length = parts[part].length, size = length + change * PAGE;
        char *reserve = mmap(NULL, outside, PROT_NONE, ANON, -1, 0), *at = r.base + parts[part].offset;
        CHECK(reserve != MAP_FAILED);
        char *target = place == 0 ? reserve + 10 * PAGE : other.base;
        long first = parts[part].offset / PAGE;
        /* So that what follows from there on is the old and the new place of the same pages. */
        if (place != 0 && first >= 0 && first < SMALL) target += first * PAGE;
        stamp(other.base, BIGGEST, SMALL);
        if (place == 2) CHECK(munmap(other.base, SMALL * PAGE) == 0);
        if (place == 3) {
            put_fixed(other.base, 100, RW, MAP_SHARED, 0);
            put_fixed(other.base + 100 * PAGE, 200, RW, MAP_SHARED | MAP_ANONYMOUS, 0);
        }
        errno = 77;
        char *p = mremap(at, length, size, flags | MREMAP_MAYMOVE | MREMAP_FIXED, target);
        printf("move %d %d%s, %s, %s: %s |", place, flags, change ? " and grow" : "",
               kind_names[kind], parts[part].name, outcome((long)p));
        CHECK(p == MAP_FAILED || p == target);
        show(r.base, 0, SMALL);
        printf(", there:");
        /* What failed may have unmapped the target before it did. */
        if (p != MAP_FAILED) {
            if (place == 0) show(target, first, (size + PAGE - 1) / PAGE);
            else show(other.base, 0, SMALL);
        }
        puts("");
        CHECK(munmap(reserve, outside) == 0);
    }
    finish(other);
    finish(r);
}

static void test_moves(void) {
    for (int kind = 0; kind < KINDS; kind++)
        for (int part = 0; part < INSIDE_PARTS; part++) {
            for (int place = 0; place < 4; place++) move(kind, part, place, 0, 0);
            move(kind, part, 0, 0, 7);
            move(kind, part, 1, MREMAP_DONTUNMAP, 0);
        }
    for (int part = INSIDE_PARTS; part < PARTS; part++) move(ONE, part, 0, 0, 0);
}

/* Out of mappings of other kinds into ours. */
static void test_from_elsewhere(void) {
    for (int shared = 0; shared < 2; shared++) {
        struct region r = make(EXACT, LARGE);
        char *p = mmap(NULL, 600 * PAGE, RW, shared ? MAP_SHARED : MAP_PRIVATE, file, 0);
        CHECK(p != MAP_FAILED);
        char *target = r.base + 256 * PAGE;
        CHECK(mremap(p + 256 * PAGE, 300 * PAGE, 300 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target)
              == target);
        printf("from a file:");
        show(r.base, 0, LARGE);
        puts("");
        CHECK(munmap(p, 600 * PAGE) == 0);
        finish(r);
    }
    struct region r = make(EXACT, LARGE), small = make(ONE, 20);
    char *target = r.base + 512 * PAGE;
    CHECK(mremap(small.base, 20 * PAGE, 20 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, target) == target);
    printf("from a small one:");
    show(r.base, 0, LARGE);
    puts("");
    finish(small);
    finish(r);
}

/* Nothing but MREMAP_DONTUNMAP: a copy of the mapping takes the pages, and leaves zeros. */
static void test_leave_behind(void) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct region r = make(kind, SMALL);
        errno = 77;
        /* The address is a hint. Where mremap is a bare system call it must not be left out. */
        char *p = mremap(r.base, 100 * PAGE, 100 * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        printf("leave behind, %s: %s,", kind_names[kind], outcome((long)p));
        show_rest(r, 0, 0);
        if (p != MAP_FAILED) {
            printf(", there:");
            show(p, 0, 100);
            CHECK(munmap(p, 100 * PAGE) == 0);
        }
        puts("");
        finish(r);
    }
}

static void test_errors(void) {
    struct region r = make(ONE, SMALL);
    size_t size = SMALL * PAGE;
    char *b = r.base, *half = b + size / 2;
    enum { MOVE = MREMAP_MAYMOVE, FIXED = MREMAP_MAYMOVE | MREMAP_FIXED };
    printf("flags: %s", TRY(mremap(b, size, size, 8)));
    printf(" %s", TRY(mremap(b, size, size, -1, half)));
    printf(" %s", TRY(mremap(b, size, size, MREMAP_FIXED, half)));
    printf(" %s", TRY(mremap(b, size, size, MREMAP_DONTUNMAP, NULL)));
    printf(" %s", TRY(mremap(b, size, size / 2, MOVE | MREMAP_DONTUNMAP, NULL)));
    printf(", alignment: %s", TRY(mremap(b + 1, size, size, MOVE)));
    printf(" %s", TRY(mremap(b, PAGE, PAGE, FIXED, half + 1)));
    printf(", overlap: %s", TRY(mremap(b, size, size, FIXED, half)));
    printf(" %s", TRY(mremap(half, PAGE * 9, PAGE * 9, FIXED, half - 8 * PAGE)));
    printf(" %s", TRY(mremap(b, size / 2, size / 2, FIXED, b)));
    printf(", sizes: %s", TRY(mremap(b, size, 0, MOVE)));
    printf(" %s", TRY(mremap(b, 0, 0, MOVE)));
    printf(" %s", TRY(mremap(b, 0, size, MOVE)));
    printf(" %s", TRY(mremap(b, 0, size, 0)));
    printf(" %s", TRY(mremap(b, size, SIZE_MAX, MOVE)));
    printf(" %s", TRY(mremap(b, size, SIZE_MAX - PAGE + 1, MOVE)));
    printf(" %s", TRY(mremap(b, size, (size_t)1 << 47, MOVE)));
    printf(" %s", TRY(mremap(b, size, (size_t)1 << 46, MOVE)));
    printf(" %s", TRY(mremap(b, SIZE_MAX, size, MOVE)));
    printf(", places: %s", TRY(mremap(b, PAGE, PAGE, FIXED, (char *)-PAGE)));
    printf(" %s", TRY(mremap(b, PAGE, PAGE, FIXED, (char *)((uintptr_t)1 << 60))));
    printf(" %s", TRY(mremap(b - GUARD * PAGE, PAGE, 2 * PAGE, MOVE)));
    show(r.base, 0, SMALL);
    puts("");
    finish(r);
}

/* Of size 0 shared memory is mapped twice. */
static void test_twice(void) {
    struct region r = make(SHARED, SMALL);
    char *second = r.base + SMALL / 2 * PAGE;
    char *p = mremap(second, 0, SMALL / 2 * PAGE, MREMAP_MAYMOVE);
    CHECK(p != MAP_FAILED && p != second);
    put(p, 7);
    CHECK(content(second) == 7);
    put(second, OLD_WORD + SMALL / 2);
    printf("twice:");
    show(p, SMALL / 2, SMALL / 2);
    show_rest(r, 0, 0);
    puts("");
    CHECK(munmap(p, SMALL / 2 * PAGE) == 0);
    finish(r);
}

/* As a large vector: grown and shrunk with all that can be done to it between. */
static void test_vector(void) {
    size_t pages = 200;
    char *p = map(pages * PAGE);
    stamp(p, 0, pages);
    for (int round = 0; round < 60; round++) {
        size_t next = round % 20 < 13 ? pages + pages / 3 + 1 : pages / 2;
        char *moved = mremap(p, pages * PAGE, next * PAGE, MREMAP_MAYMOVE);
        CHECK(moved != MAP_FAILED);
        p = moved;
        for (size_t i = 0; i < pages && i < next; i++) CHECK(content(p + i * PAGE) == OLD_WORD + i);
        if (next > pages) check_fresh(p + pages * PAGE, next - pages);
        pages = next;
        CHECK(madvise(p + pages / 2 * PAGE, pages / 3 * PAGE, MADV_DONTNEED) == 0);
        check_fresh(p + pages / 2 * PAGE, pages / 3);
        CHECK(mprotect(p, pages / 4 * PAGE, PROT_READ) == 0);
        CHECK(faults(p, WRITE) && content(p) == OLD_WORD);
        CHECK(mprotect(p, pages / 4 * PAGE, RW) == 0);
        stamp(p, 0, pages);
        if (round % 7 == 0) map_fresh(pages);
    }
    CHECK(munmap(p, pages * PAGE) == 0);
    map_fresh(pages);
    puts("vector: ok");
}

int main(void) {
    begin();
    test_sizes();
    test_in_place();
    test_moves();
    test_from_elsewhere();
    test_leave_behind();
    test_errors();
    test_twice();
    test_vector();
    return end();
}
