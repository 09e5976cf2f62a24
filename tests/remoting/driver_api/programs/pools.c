// Memory pools behind the door; two devices with partitions of 64 MiB.
#include "check.h"

struct location {
    int type, id;
};
struct properties {
    int type, handles;
    struct location location;
    void *security;
    size_t size_max;
    unsigned char rest[56];
};
struct access {
    struct location location;
    int flags;
};

int cuMemPoolCreate(void **, const struct properties *), cuMemPoolDestroy(void *);
int cuMemPoolGetAttribute(void *, int, void *), cuMemPoolSetAttribute(void *, int, void *);
int cuMemPoolTrimTo(void *, size_t), cuMemPoolSetAccess(void *, const struct access *, size_t);
int cuMemPoolGetAccess(int *, void *, const struct location *);
int cuMemGetDefaultMemPool(void **, const struct location *, int);
int cuMemGetMemPool(void **, const struct location *, int);
int cuMemSetMemPool(const struct location *, int, void *);
int cuDeviceGetDefaultMemPool(void **, int), cuDeviceGetMemPool(void **, int);
int cuDeviceSetMemPool(int, void *);
int cuMemAllocFromPoolAsync(uint64_t *, size_t, void *, void *);
int cuMemPoolExportToShareableHandle(void *, void *, int, unsigned long long);

#define MIB ((size_t)1 << 20)

int main(void) {
    struct properties properties = {1, 0, {1, 0}, NULL, 0, {0}};
    struct location here = {1, 0}, there = {1, 1}, host = {2, 0};
    struct access both[2] = {{{1, 0}, 3}, {{1, 1}, 3}}, reading = {{1, 1}, 1};
    uint64_t one, two, three, value, for_ever = UINT64_MAX;
    void *pool, *other, *standard, *same;
    int flags = 9, descriptor, narrow = 5;
    start(0);
    size_t all = left();
    OURS(all == 64 * MIB);

    // A pool has one handle, whoever asks for it.
    CHECK(cuDeviceGetDefaultMemPool(&standard, 0));
    CHECK(cuDeviceGetMemPool(&same, 0));
    NEED(same == standard);
    CHECK(cuMemGetDefaultMemPool(&same, &here, 1));
    NEED(same == standard);
    OURS(cuMemGetMemPool(&same, &host, 1) == 801);
    CHECK(cuMemPoolCreate(&pool, &properties));
    CHECK(cuMemSetMemPool(&here, 1, pool));
    CHECK(cuDeviceGetMemPool(&same, 0));
    NEED(same == pool);
    OURS(cuDeviceSetMemPool(1, pool) == 101);
    NEED(cuMemPoolDestroy(standard) == 1);
    properties.location = host;
    OURS(cuMemPoolCreate(&other, &properties) == 801);
    properties.location = there;
    CHECK(cuMemPoolCreate(&other, &properties));

    CHECK(cuMemPoolSetAttribute(pool, 1, &(int){0}));
    CHECK(cuMemPoolGetAttribute(pool, 1, &narrow));
    NEED(narrow == 0);
    CHECK(cuMemPoolGetAccess(&flags, pool, &there));
    NEED(flags == 0);
    OURS(cuMemPoolSetAccess(pool, &reading, 1) == 801);
    CHECK(cuMemPoolSetAccess(pool, both, 2));
    CHECK(cuMemPoolGetAccess(&flags, pool, &there));
    NEED(flags == 3);
    NEED(cuMemPoolExportToShareableHandle(&descriptor, pool, 1, 0) == 1);

    // What a pool keeps is counted, until it is synchronised, trimmed or wanted elsewhere. Sizes are
    // multiples of what an H200's pools take at a time.
    CHECK(cuMemAllocAsync(&one, 32 * MIB, NULL));
    OURS(left() == all - 32 * MIB);
    CHECK(cuMemAllocFromPoolAsync(&two, 32 * MIB, standard, NULL));
    OURS(left() == all - 64 * MIB);
    OURS(cuMemAllocAsync(&three, 32 * MIB, NULL) == 2);
    CHECK(cuMemsetD8_v2(one, 3, 32 * MIB));
    CHECK(cuMemFreeAsync(two, NULL));
    CHECK(cuStreamSynchronize(NULL));
    OURS(left() == all - 32 * MIB);  // the default pool keeps nothing beyond a synchronisation
    CHECK(cuMemPoolSetAttribute(pool, 4, &for_ever));
    CHECK(cuMemFreeAsync(one, NULL));
    CHECK(cuStreamSynchronize(NULL));
    OURS(left() == all - 32 * MIB);  // this one keeps everything
    CHECK(cuMemPoolGetAttribute(pool, 5, &value));
    NEED(value == 32 * MIB);
    CHECK(cuMemPoolGetAttribute(pool, 7, &value));
    NEED(value == 0);
    CHECK(cuMemAllocAsync(&one, 16 * MIB, NULL));
    OURS(left() == all - 32 * MIB);  // out of what it has
    CHECK(cuMemFreeAsync(one, NULL));
    CHECK(cuStreamSynchronize(NULL));
    CHECK(cuMemPoolTrimTo(pool, 0));
    OURS(left() == all);
    CHECK(cuMemAllocAsync(&one, 64 * MIB, NULL));
    CHECK(cuMemFreeAsync(one, NULL));
    CHECK(cuStreamSynchronize(NULL));
    OURS(left() == all - 64 * MIB);
    CHECK(cuMemAlloc_v2(&two, 48 * MIB));  // the pool gives back what it does not use
    OURS(left() == all - 48 * MIB);
    CHECK(cuMemFree_v2(two));

    // Freed in the order of the stream, and wanted again at once.
    for (int turn = 0; turn < 20; turn++) {
        CHECK(cuMemAllocAsync(&one, 40 * MIB, NULL));
        CHECK(cuMemFreeAsync(one, NULL));
    }
    // A pool that is destroyed goes with the last of its memory.
    CHECK(cuMemAllocAsync(&one, 8 * MIB, NULL));
    CHECK(cuMemPoolTrimTo(pool, 0));
    CHECK(cuMemPoolDestroy(pool));
    OURS(cuMemPoolDestroy(pool) == 400);
    CHECK(cuDeviceGetMemPool(&same, 0));
    NEED(same == standard);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree_v2(one));  // memory of a pool may be freed like any other
    CHECK(cuCtxSynchronize());
    OURS(left() == all);

    // A limit of the pool's own.
    properties.location = here;
    properties.size_max = 32 * MIB;
    CHECK(cuMemPoolCreate(&pool, &properties));
    OURS(cuMemAllocFromPoolAsync(&one, 64 * MIB, pool, NULL) == 2);
    CHECK(cuMemAllocFromPoolAsync(&one, 32 * MIB, pool, NULL));
    CHECK(cuMemFreeAsync(one, NULL));
    CHECK(cuCtxSynchronize());
    OURS(left() == all);
    CHECK(cuMemPoolDestroy(pool));

    // One that may be shared gives nothing back before its end, as the programming guide says, unless
    // the driver does (580). What is kept counts. Here is nobody to share it with.
    properties.handles = 8;
    NEED(cuMemPoolCreate(&pool, &properties) == 801);
    properties.handles = 1;
    CHECK(cuMemPoolCreate(&pool, &properties));
    NEED(cuMemPoolExportToShareableHandle(&descriptor, pool, 1, 0) == 801);
    CHECK(cuMemAllocFromPoolAsync(&one, 32 * MIB, pool, NULL));
    CHECK(cuMemFreeAsync(one, NULL));
    CHECK(cuMemPoolTrimTo(pool, 0));
    CHECK(cuCtxSynchronize());
    bool keeps = left() != all;
    OURS(left() == all - (keeps ? 32 : 0) * MIB);
    NEED(cuMemAlloc_v2(&two, 40 * MIB) == (keeps ? 2 : 0));
    if (!keeps) CHECK(cuMemFree_v2(two));
    CHECK(cuMemPoolDestroy(pool));
    OURS(left() == all);
    puts("results right");
    return 0;
}
