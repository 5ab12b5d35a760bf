/* A process that has about as many mappings as it may unmaps or frees what has attributes of its own: it has room again
   afterwards, for as many, round after round. */
#define _GNU_SOURCE
#include "mappings.h"

enum { ROOM = 400, ROUNDS = 3 };

enum { BY_GUARDS, BY_SHARED_PAGES, BY_LOCKS, WAYS };

static int set(int way, char *at, size_t size) {
    if (way == BY_GUARDS) return mprotect(at, PAGE, PROT_NONE) || mprotect(at + size - PAGE, PAGE, PROT_NONE);
    if (way == BY_LOCKS) return mlock(at + 4 * PAGE, PAGE);
    return mmap(at + 4 * PAGE, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED;
}

static char *all[4 * ROOM];

/* Maps until it is refused, and unmaps all, first those between two others: how many there were. */
static size_t map_all(int way, size_t size) {
    size_t count = 0;
    for (int is_refused = 0; !is_refused && count < 4 * ROOM;) {
        char *at = mmap(NULL, size, RW, ANON, -1, 0);
        if (at == MAP_FAILED) break;
        at[size / 2] = 1;
        all[count++] = at;
        is_refused = set(way, at, size);
    }
    for (size_t first = 0; first < 2; first++)
        for (size_t i = first; i < count; i += 2) CHECK(munmap(all[i], size) == 0);
    return count;
}

int main(void) {
    guard(150);
    if (!begin_filling()) return skip("too many mappings are allowed here");
    static const size_t sizes[] = {200 << 10, 2112 << 10};
    for (int way = 0; way < WAYS; way++)
        for (int nth = 0; nth < 2; nth++) {
            fill_up();
            make_room(ROOM);
            size_t first = map_all(way, sizes[nth]);
            CHECK(first > ROOM / 4);
            for (int round = 1; round < ROUNDS; round++) CHECK(map_all(way, sizes[nth]) >= first - first / 8);
        }
    puts("done");
    return 0;
}
