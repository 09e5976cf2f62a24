// Prints what CUDA says of pointers and streams, and what ends with a context.
#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuPointerGetAttribute(void *, int, uint64_t), cuMemGetAddressRange_v2(uint64_t *, size_t *, uint64_t);
int cuCtxCreate_v2(void **, unsigned, int), cuCtxDestroy_v2(void *), cuCtxGetCurrent(void **);
int cuDevicePrimaryCtxReset_v2(int), cuStreamGetCtx(void *, void **);
int cuStreamGetAttribute(void *, int, void *), cuStreamSetAttribute(void *, int, const void *);
int cuStreamCopyAttributes(void *, void *);
int cuDeviceGetDefaultMemPool(void **, int), cuMemAllocFromPoolAsync(uint64_t *, size_t, void *, void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **), cuGraphDestroy(void *);

enum { CONTEXT = 1, IPC = 10, HANDLES = 14, POOL = 17, SIZE = 4 << 20 };

static void describe(const char *what, uint64_t address) {
    void *pool = NULL;
    int ipc = -1;
    uint64_t handles = 9;
    CHECK(cuPointerGetAttribute(&ipc, IPC, address));
    CHECK(cuPointerGetAttribute(&handles, HANDLES, address));
    CHECK(cuPointerGetAttribute(&pool, POOL, address));
    printf("%s: processes %d, handles %d, of a pool %d\n", what, ipc, (int)handles, pool != NULL);
}

static void pointers(void *stream) {
    uint64_t device, managed, pooled;
    void *pinned, *pool, *of;
    CHECK(cuMemAlloc_v2(&device, 4096));
    CHECK(cuMemAllocManaged(&managed, 4096, 1));
    CHECK(cuMemHostAlloc(&pinned, 4096, 0));
    CHECK(cuMemAllocAsync(&pooled, 4096, stream));
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    describe("device memory", device);
    describe("managed memory", managed);
    describe("pinned memory", (uint64_t)(uintptr_t)pinned);
    describe("a pool's memory", pooled);
    CHECK(cuPointerGetAttribute(&of, POOL, pooled));
    NEED(of == pool);
    CHECK(cuMemFreeAsync(pooled, stream));
    CHECK(cuMemAllocFromPoolAsync(&pooled, 4096, pool, stream));
    CHECK(cuPointerGetAttribute(&of, POOL, pooled));
    NEED(of == pool);
    CHECK(cuMemFreeAsync(pooled, stream));
}

static void attributes(void *stream) {
    int given[16] = {2}, found[16] = {0};
    void *other;
    CHECK(cuStreamSetAttribute(stream, 3, given));  // CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY
    given[0] = -1;
    CHECK(cuStreamSetAttribute(stream, 8, given));  // CU_LAUNCH_ATTRIBUTE_PRIORITY
    CHECK(cuStreamCreate(&other, 0));
    CHECK(cuStreamCopyAttributes(other, stream));
    CHECK(cuStreamGetAttribute(other, 3, found));
    printf("another waits by policy %d", found[0]);
    CHECK(cuStreamGetAttribute(other, 8, found));
    printf(" and has the priority %d\n", found[0]);
    CHECK(cuStreamDestroy_v2(other));
}

// A graph's memory from a pool that is named.
static void captured(void *stream) {
    void *pool, *graph;
    uint64_t memory;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuMemAllocFromPoolAsync(&memory, 4096, pool, stream));
    CHECK(cuMemFreeAsync(memory, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphDestroy(graph));
}

static void contexts(void) {
    static char registered[8192];
    void *made, *stream, *of, *pinned, *before;
    uint64_t memory, managed, base;
    size_t size;
    CHECK(cuCtxGetCurrent(&before));
    size_t free = left();
    for (int round = 0; round < 20; round++) {
        CHECK(cuCtxCreate_v2(&made, 0, 0));
        CHECK(cuMemAlloc_v2(&memory, SIZE));
        CHECK(cuMemAllocManaged(&managed, SIZE, 1));
        CHECK(cuMemHostAlloc(&pinned, SIZE, 0));
        CHECK(cuMemHostRegister_v2(registered, sizeof registered, 0));
        CHECK(cuStreamCreate(&stream, 0));
        CHECK(cuStreamGetCtx(stream, &of));
        NEED(of == made);
        CHECK(cuStreamGetCtx(NULL, &of));
        NEED(of == made);
        CHECK(cuPointerGetAttribute(&of, CONTEXT, memory));
        NEED(of == made);
        CHECK(cuStreamDestroy_v2(stream));
        CHECK(cuCtxDestroy_v2(made));
        CHECK(cuCtxGetCurrent(&of));
        NEED(of == before);
        NEED(cuMemGetAddressRange_v2(&base, &size, memory) != 0);
    }
    printf("contexts kept memory: %d\n", left() < free);
    CHECK(cuMemAlloc_v2(&memory, SIZE));
    CHECK(cuDevicePrimaryCtxReset_v2(0));
    start(0);
    NEED(cuMemGetAddressRange_v2(&base, &size, memory) != 0);
    printf("a reset freed more than that: %d\n", left() > free);
}

int main(void) {
    void *stream;
    start(0);
    CHECK(cuStreamCreate(&stream, 1));
    pointers(stream);
    attributes(stream);
    captured(stream);
    contexts();
    puts("results right");
    return 0;
}
