// Virtual memory management behind the door; the partition is 64 MiB.
#include "virtual.h"

int main(void) {
    struct properties properties = {1, 1, {1, 0}, NULL, {0}}, seen;
    struct access both = {{1, 0}, 3};
    struct location nowhere = {1, 7};
    uint64_t one, two, same, base, block;
    unsigned long long flags = 9;
    size_t unit, all;
    int there = 0;
    void *context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetAttribute(&there, 102, 0));
    NEED(there == 1);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuMemGetAllocationGranularity(&unit, &properties, 0));
    all = left();
    OURS(all == 64 << 20);

    // More addresses than the partition has memory: addresses cost nothing.
    size_t room = 256 * unit;
    CHECK(cuMemAddressReserve(&base, room, 0, 0, 0));
    OURS(left() == all);
    CHECK(cuMemCreate(&one, 2 * unit, &properties, 0));
    CHECK(cuMemCreate(&two, unit, &properties, 0));
    OURS(left() == all - 3 * unit);
    OURS(cuMemCreate(&same, 64 << 20, &properties, 0) == 2);  // CUDA_ERROR_OUT_OF_MEMORY
    OURS(cuMemAlloc_v2(&block, all - 2 * unit) == 2);
    CHECK(cuMemMap(base, 2 * unit, 0, one, 0));
    CHECK(cuMemMap(base + 2 * unit, unit, 0, two, 0));
    NEED(cuMemMap(base, 2 * unit, 0, one, 0) != 0);
    NEED(cuMemMap(base + room, unit, 0, two, 0) == 1);
    NEED(cuMemSetAccess(base, 4 * unit, &both, 1) == 1);  // a part of it is not mapped
    CHECK(cuMemSetAccess(base, 3 * unit, &both, 1));
    CHECK(cuMemGetAccess(&flags, &both.location, base + unit));
    NEED(flags == 3);
    NEED(cuMemGetAccess(&flags, &nowhere, base) == 101);

    // Both pieces are one block of memory.
    unsigned char *bytes = malloc(3 * unit), *back = malloc(3 * unit);
    for (size_t at = 0; at < 3 * unit; at++) bytes[at] = (unsigned char)(at * 31 >> 3);
    CHECK(cuMemcpyHtoD_v2(base, bytes, 3 * unit));
    CHECK(cuMemsetD8_v2(base + 2 * unit - 8, 0x5a, 16));
    memset(bytes + 2 * unit - 8, 0x5a, 16);
    CHECK(cuMemcpy((uint64_t)(uintptr_t)back, base, 3 * unit));
    NEED(memcmp(bytes, back, 3 * unit) == 0);
    NEED(cuMemFree_v2(base) == 1);
    NEED(cuMemAddressFree(base, room) == 1);  // it is in use
    NEED(cuMemUnmap(base, unit) == 1);        // half of a mapping

    // Memory lives until it is released and mapped nowhere.
    CHECK(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(base + 5)));
    NEED(same == one);
    CHECK(cuMemGetAllocationPropertiesFromHandle(&seen, one));
    NEED(memcmp(&seen, &properties, sizeof seen) == 0);
    CHECK(cuMemRelease(one));
    CHECK(cuMemRelease(one));
    OURS(cuMemRelease(one) == 1);
    OURS(left() == all - 3 * unit);
    CHECK(cuMemUnmap(base, 3 * unit));
    OURS(left() == all - unit);

    // What was unmapped keeps its bytes, and can lie elsewhere.
    CHECK(cuMemMap(base + 8 * unit, unit, 0, two, 0));
    CHECK(cuMemSetAccess(base + 8 * unit, unit, &both, 1));
    CHECK(cuMemcpyDtoH_v2(back, base + 8 * unit, unit));
    NEED(memcmp(bytes + 2 * unit, back, unit) == 0);
    CHECK(cuMemUnmap(base + 8 * unit, unit));
    CHECK(cuMemRelease(two));
    CHECK(cuMemAddressFree(base, room));
    NEED(cuMemAddressFree(base, room) == 1);
    CHECK(cuCtxSynchronize());
    OURS(left() == all);

    properties.location = nowhere;
    NEED(cuMemCreate(&one, unit, &properties, 0) == 101);
    puts("results right");
    return 0;
}
