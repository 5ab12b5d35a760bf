/* A block from before there was a heap, with an attribute, or held by a pipe, grows once there is one: the C library
   moves its pages, and does not copy it. */
#include "defect.h"
#include <fcntl.h>
#include <sys/uio.h>

enum { LITTLE = 1024 * 1024, MUCH = 6 * 1024 * 1024 };

/* The status of a child that reads the block. */
static int read_by_child(const volatile char *at) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(at[PAGE]);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static void advised(char *at, int advice) {
    char *page = (char *)((uintptr_t)at & -PAGE);
    CHECK(madvise(page, LITTLE + PAGE, advice) == 0);
    CHECK(at = realloc(at, MUCH));
    printf("%x\n", read_by_child(at));
}

static void locked(char *at) {
    if (mlock(at, LITTLE)) return (void)skip("no memory may be locked");
    CHECK(at = realloc(at, MUCH));
    printf("%d\n", status_of("VmLck:") >= MUCH >> 10);
}

static void held(char *at) {
    int ends[2];
    char got[PAGE];
    struct iovec page = {(char *)(((uintptr_t)at + PAGE) & -PAGE), PAGE};
    CHECK(pipe(ends) == 0 && vmsplice(ends[1], &page, 1, 0) == (ssize_t)PAGE);
    CHECK(at = realloc(at, MUCH));
    memset(at, 'b', MUCH);
    CHECK(read(ends[0], got, PAGE) == (ssize_t)PAGE);
    printf("%c\n", got[100]);
}

/* The C library lets a block grow where it is. */
static void guarded(void) {
    char *at = malloc(100 << 10);
    CHECK(at);
    for (int i = 0; i < 39; i++) free(memset(malloc(100 << 10), 1, 100 << 10));
    CHECK(mprotect((char *)(((uintptr_t)at + 2 * PAGE) & -PAGE), PAGE, PROT_NONE) == 0);
    CHECK(at = realloc(at, 110 << 10));
    puts("grown");
}

int main(int count, char **arguments) {
    guard(60);
    CHECK(count == 2);
    if (arguments[1][0] == 'g') return guarded(), 0;
    char *at = memset(malloc(LITTLE), 7, LITTLE);
    switch (arguments[1][0]) {
    case 'f': advised(at, MADV_DONTFORK); break;
    case 'w': advised(at, MADV_WIPEONFORK); break;
    case 'l': locked(at); break;
    case 'p': held(at); break;
    default: return 2;
    }
    return 0;
}
