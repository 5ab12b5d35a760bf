/* After a filter: setrlimit (the C library's makes prlimit64), a shared mapping (no fstat), process_madvise (no
   process_vm_readv). The argument picks. */
#include "filter.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
int main(int count, char **args) {
    void *warm = malloc(8 << 20);
    free(warm);
    const char *what = count > 1 ? args[1] : "rlimit";
    int zero = open("/dev/zero", O_RDWR), self = syscall(__NR_pidfd_open, getpid(), 0);
    char *memory = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned limit[] = {__NR_setrlimit}, map[] = {__NR_fstat, __NR_newfstatat, __NR_readlinkat, __NR_readlink},
             advise[] = {__NR_process_vm_readv};
    if (!strcmp(what, "rlimit")) {
        if (forbid(limit, 1)) return 1;
        struct rlimit core = {0, 0};
        printf("setrlimit %d\n", setrlimit(RLIMIT_CORE, &core));
    } else if (!strcmp(what, "map")) {
        if (forbid(map, 4)) return 1;
        void *at = mmap(0, 4096, PROT_READ, MAP_SHARED, zero, 0);
        write(1, at == MAP_FAILED ? "failed\n" : "mapped\n", 7);
        _exit(0);
    } else {
        if (forbid(advise, 1)) return 1;
        struct iovec piece = {memory, 4096};
        ssize_t done = syscall(__NR_process_madvise, self, &piece, 1, MADV_COLD, 0);
        printf("process_madvise %zd\n", done);
    }
    return 0;
}
