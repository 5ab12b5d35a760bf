/* Memory that is registered with userfaultfd(2), and is not there: nobody else may touch it. The program would have to
   answer a fault that it did not cause, and if it does not, the thread that asks for memory waits for ever. */
#define _GNU_SOURCE
#include "defect.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define SIZE (2 * MIB)
#define COUNT 200

int main(void) {
    char *all[COUNT];
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < 40; i++) CHECK((all[i] = malloc(SIZE)) && memset(all[i], 1, SIZE));
        for (int i = 0; i < 40; i++) free(all[i]);
    }
    int descriptor = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    struct uffdio_api api = {.api = UFFD_API};
    if (descriptor < 0 || ioctl(descriptor, UFFDIO_API, &api)) {
        puts("skipped: no userfaultfd");
        return 0;
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(all[i] = malloc(SIZE));
        char *start = (char *)(((uintptr_t)all[i] + 4095) & ~(uintptr_t)4095);
        size_t len = (SIZE - (start - all[i])) & ~(size_t)4095;
        struct uffdio_register missing = {.range = {(uintptr_t)start, len}, .mode = UFFDIO_REGISTER_MODE_MISSING};
        CHECK(ioctl(descriptor, UFFDIO_REGISTER, &missing) == 0);
        CHECK(madvise(start, len, MADV_DONTNEED) == 0);
    }
    alarm(30);
    for (int i = 0; i < 20000; i++) {
        char *volatile at = malloc(SIZE);
        CHECK(at);
        *at = 1;
        free(at);
    }
    struct uffd_msg fault;
    CHECK(read(descriptor, &fault, sizeof fault) < 0);
    puts("nobody touched it");
    return 0;
}
