/* munmap of every part of regions of every kind; that what is mapped after it is new; and sizes. */
#define _GNU_SOURCE
#include "mmap.h"

static long unmap(char *at, size_t length) {
    return munmap(at, length);
}

/* One page at a time, in several orders; what is left must stay. */
static void test_page_by_page(void) {
    static const char *const orders[] = {"upwards", "downwards", "odd before even", "strides of 7"};
    for (int order = 0; order < 4; order++) {
        enum { N = 769 };
        struct region r = make(EXACT, N);
        printf("page by page, %s:", orders[order]);
        for (size_t step = 0; step < N; step++) {
            size_t odd = step < N / 2 ? 2 * step + 1 : 2 * (step - N / 2);
            size_t page = order == 0 ? step : order == 1 ? N - 1 - step : order == 2 ? odd : step * 7 % N;
            CHECK(content(r.base + page * PAGE) == OLD_WORD + page);
            CHECK(munmap(r.base + page * PAGE, PAGE) == 0);
            if (step == N / 3) show(r.base, 0, N);
        }
        puts("");
        /* There is nothing left, which is no error. */
        CHECK(munmap(r.base, N * PAGE) == 0);
        map_fresh(N);
    }
}

static void test_sizes(void) {
    static const size_t near[] = {64 << 10, 1 << 20, 2 << 20, 3 << 20, 4 << 20, 6 << 20};
    static const long off[] = {-PAGE - 1, -PAGE, -1, 0, 1, 100, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE};
    for (size_t i = 0; i < sizeof near / sizeof near[0]; i++)
        for (size_t j = 0; j < sizeof off / sizeof off[0]; j++) {
            size_t size = near[i] + off[j], pages = (size + PAGE - 1) / PAGE;
            for (int round = 0; round < 2; round++) {
                char *p = map(size);
                check_fresh(p, pages);
                stamp(p, 0, pages);
                /* All of the last page is mapped, and goes with the rest. */
                CHECK(content(p + (pages - 1) * PAGE) == OLD_WORD + pages - 1);
                CHECK(munmap(p, size) == 0);
                CHECK(look(p + (pages - 1) * PAGE, 0) == '-' && look(p, 0) == '-');
            }
            printf("size %zu: ok\n", size);
        }
}

/* As allocators align: map more, and give back what is around it. */
static void test_trimmed(void) {
    static const size_t aligns[] = {64 << 10, 1 << 20, 2 << 20, 4 << 20};
    for (int i = 0; i < 16; i++) {
        size_t align = aligns[i % 4], size = aligns[i / 4] + (i % 3) * PAGE, over = size + align;
        char *p = map(over);
        size_t before = -(uintptr_t)p % align;
        if (before) CHECK(munmap(p, before) == 0);
        if (before < align) CHECK(munmap(p + before + size, align - before) == 0);
        p += before;
        check_fresh(p, size / PAGE);
        stamp(p, 0, size / PAGE);
        printf("aligned to %zu:", align);
        show(p, 0, size / PAGE);
        puts("");
        CHECK(munmap(p, size) == 0);
        map_fresh(over / PAGE);
    }
}

/* Two mappings never share a page, and new ones never show what was in old ones. */
static void test_churn(void) {
    enum { SLOTS = 24, ROUNDS = 400 };
    struct { char *base; size_t pages; } slots[SLOTS] = {{0}};
    uint64_t state = 88172645463325252u;
    for (int round = 0; round < ROUNDS; round++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        int slot = state % SLOTS;
        if (slots[slot].base) {
            for (size_t i = 0; i < slots[slot].pages; i++)
                CHECK(content(slots[slot].base + i * PAGE) == OLD_WORD + slot * BIGGEST + i);
            /* In two pieces now and then. */
            size_t head = state >> 20 & 1 ? slots[slot].pages / 3 : 0;
            if (head) CHECK(munmap(slots[slot].base, head * PAGE) == 0);
            CHECK(munmap(slots[slot].base + head * PAGE, (slots[slot].pages - head) * PAGE) == 0);
        }
        slots[slot].pages = 16 + (state >> 32) % 900;
        slots[slot].base = map(slots[slot].pages * PAGE);
        check_fresh(slots[slot].base, slots[slot].pages);
        stamp(slots[slot].base, slot * BIGGEST, slots[slot].pages);
    }
    for (int slot = 0; slot < SLOTS; slot++)
        if (slots[slot].base) CHECK(munmap(slots[slot].base, slots[slot].pages * PAGE) == 0);
    puts("churn: ok");
}

/* Beside malloc, whose memory may come from the same place. */
static void test_beside_malloc(void) {
    for (int round = 0; round < 40; round++) {
        size_t size = (size_t)(1 + round % 5) << 20;
        char *block = malloc(size), *p = map(size);
        memset(block, 0x5a, size);
        check_fresh(p, size / PAGE);
        if (round % 2) free(block);
        CHECK(munmap(p, size / 2) == 0);
        char *zeros = calloc(1, size);
        CHECK(is_zero(zeros, size));
        fill(zeros, size, round);
        CHECK(munmap(p + size / 2, size / 2) == 0);
        char *again = map(size);
        check_fresh(again, size / PAGE);
        CHECK(holds(zeros, size, round));
        if (round % 2 == 0) {
            CHECK(block[0] == 0x5a && memcmp(block, block + 1, size - 1) == 0);
            free(block);
        }
        free(zeros);
        CHECK(munmap(again, size) == 0);
    }
    puts("beside malloc: ok");
}

int main(void) {
    begin();
    over_all("munmap", unmap);
    test_page_by_page();
    test_sizes();
    test_trimmed();
    test_churn();
    test_beside_malloc();
    return end();
}
