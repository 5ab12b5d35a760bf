/* Maps memory once and uses it: for slow tools. */
#include "check.h"
#include <sys/mman.h>

int main(void) {
    size_t size = 4 << 20;
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && at[size / 2] == 0);
    at[size / 2] = 1;
    CHECK(munmap(at, size) == 0);
    return 0;
}
