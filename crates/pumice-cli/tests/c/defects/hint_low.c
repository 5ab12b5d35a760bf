/* MAP_32BIT with a hint above 2 GiB: the kernel ignores the hint. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
int main(void) {
    enum { LEN = 8 << 20 };
    void *at = mmap(0, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(at, LEN);
    char *low = mmap(at, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    printf("below 4 GiB: %d\n", low != MAP_FAILED && (unsigned long)low < 1ul << 32);
    return 0;
}
