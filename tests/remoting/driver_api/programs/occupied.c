// Managed memory of a program that has memory of its own where the server's addresses begin.
#include "check.h"

#include <sys/mman.h>

int cuMemAllocManaged(uint64_t *, size_t, unsigned);

#define SIZE ((size_t)4 << 20)
#define OCCUPIED ((size_t)2 << 30)  // as AddressSanitizer has at the end of its shadow

int main(void) {
    uint64_t first, second, small;
    start(0);
    CHECK(cuMemAllocManaged(&first, SIZE, 1));
    CHECK(cuMemFree_v2(first));
    CHECK(cuCtxSynchronize());
    void *wanted = (void *)(uintptr_t)first;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    NEED(mmap(wanted, OCCUPIED, PROT_NONE, how, -1, 0) == wanted);
    CHECK(cuMemAllocManaged(&second, SIZE, 1));
    CHECK(cuMemAllocManaged(&small, 512, 1));
    uint64_t given[2] = {second, small};
    for (int at = 0; at < 2; at++) {
        NEED(given[at] >= first + OCCUPIED || given[at] < first);
        memset((void *)(uintptr_t)given[at], 7, 512);
        CHECK(cuMemsetD8_v2(given[at], 9, 256));
        CHECK(cuCtxSynchronize());
        const unsigned char *bytes = (void *)(uintptr_t)given[at];
        NEED(bytes[0] == 9 && bytes[255] == 9 && bytes[256] == 7);
    }
    CHECK(cuMemFree_v2(second));
    CHECK(cuMemFree_v2(small));
    printf("results right\n");
    return 0;
}
