/* Memory that forks are to wipe, two mappings to the kernel for what was done to it before: where it grows all the same,
   the new place is wiped, too. */
#define _GNU_SOURCE
#include "defect.h"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGES = 512 };

static int all_zero(const char *at, size_t pages) {
    for (size_t i = 0; i < pages; i++)
        if (at[i * PAGE]) return 0;
    return 1;
}

int main(void) {
    size_t half = PAGES / 2 * PAGE, pages = PAGES;
    char *at = mmap(NULL, 2 * half, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && madvise(at + half, half, MADV_RANDOM) == 0);
    for (size_t i = 0; i < PAGES; i++) at[i * PAGE] = 1;
    CHECK(madvise(at + half, half, MADV_NORMAL) == 0 && madvise(at, 2 * half, MADV_WIPEONFORK) == 0);
    char *grown = mremap(at, 2 * half, 3 * half, MREMAP_MAYMOVE);
    if (grown != MAP_FAILED) {
        at = grown;
        pages += PAGES / 2;
        CHECK(!all_zero(at, 1) && all_zero(at + 2 * half, PAGES / 2));
        for (size_t i = 0; i < pages; i++) at[i * PAGE] = 2;
    }
    pid_t child = fork();
    if (child == 0) _exit(!all_zero(at, pages));
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    printf("%s\n", status == 0 ? "wiped" : "not wiped");
    return 0;
}
