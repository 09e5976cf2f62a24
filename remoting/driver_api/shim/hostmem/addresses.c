// Addresses of this process that managed memory needs to be free.
#define _GNU_SOURCE
#include "managed.h"

#include <sys/mman.h>

#define HELD (MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE)

void *gp_find_room(size_t size) {
    size_t whole = size + GP_REGION_UNIT;
    unsigned char *got = mmap(NULL, whole, PROT_NONE, HELD, -1, 0);
    if (got == MAP_FAILED) return NULL;
    size_t over = (uintptr_t)got % GP_REGION_UNIT;
    size_t skipped = over == 0 ? 0 : GP_REGION_UNIT - over;
    if (skipped > 0) munmap(got, skipped);
    munmap(got + skipped + size, whole - skipped - size);
    return got + skipped;
}

void *gp_hold(uint64_t address, size_t size) {
    void *wanted = (void *)(uintptr_t)address;
    void *got = mmap(wanted, size, PROT_NONE, HELD | MAP_FIXED_NOREPLACE, -1, 0);
    if (got == wanted) return wanted;
    if (got != MAP_FAILED) munmap(got, size);
    return NULL;
}
