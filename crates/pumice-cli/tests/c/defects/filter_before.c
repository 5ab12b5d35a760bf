/* A filter that is there before the program starts: a mapping in several pieces is moved without an ioctl. */
#include "filter.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

int main(int count, char **args) {
    const size_t mib = 1 << 20;
    unsigned none[] = {__NR_ioctl};
    if (count < 2) {
        if (forbid(none, 1)) return 1;
        execl(args[0], args[0], "again", NULL);
        return 2;
    }
    char *at = mmap(NULL, 8 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return 3;
    memset(at, 1, 8 * mib);
    if (mprotect(at, 8 * mib, PROT_READ)) return 4;
    char *moved = mremap(at, 8 * mib, 16 * mib, MREMAP_MAYMOVE);
    int is_right = moved != MAP_FAILED && moved[5 * mib] == 1 && moved[12 * mib] == 0;
    write(1, is_right ? "moved\n" : "wrong\n", 6);
    return 0;
}
