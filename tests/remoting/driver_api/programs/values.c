// Values in memory that streams wait for, and small calls on streams and contexts.
#include <unistd.h>

#include "check.h"

int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuStreamWaitValue32_v2(void *, uint64_t, uint32_t, unsigned);
int cuStreamWaitValue64_v2(void *, uint64_t, uint64_t, unsigned);
int cuStreamWriteValue32(void *, uint64_t, uint32_t, unsigned);
int cuStreamWriteValue32_v2(void *, uint64_t, uint32_t, unsigned);
int cuStreamWriteValue64_v2(void *, uint64_t, uint64_t, unsigned);
int cuStreamBatchMemOp_v2(void *, unsigned, void *, unsigned), cuStreamQuery(void *);
int cuStreamCopyAttributes(void *, void *), cuEventCreate(void **, unsigned);
int cuEventSynchronize(void *), cuCtxRecordEvent(void *, void *), cuCtxWaitEvent(void *, void *);
int cuCtxEnablePeerAccess(void *, unsigned), cuCtxDisablePeerAccess(void *);
int cuCtxSetFlags(unsigned), cuCtxGetFlags(unsigned *), cuCtxGetCurrent(void **);
int cuDeviceGetProperties(int *, int), cuCtxResetPersistingL2Cache(void);
int cuLogsCurrent(unsigned *, unsigned), cuLogsDumpToMemory(unsigned *, char *, size_t *, unsigned);

enum { GEQ = 0, EQUAL = 1, NOT_READY = 600 };

struct operation {
    uint32_t kind, padding;
    uint64_t address, value;
    uint32_t flags, more;
    uint64_t alias, rest;
};

static void *waiting, *writing;

// One stream waits for what another writes, in device memory and in pinned memory.
static void between_streams(uint64_t where) {
    CHECK(cuStreamWaitValue32_v2(waiting, where, 5, GEQ));
    NEED(cuStreamQuery(waiting) == NOT_READY);
    int old = cuStreamWriteValue32(writing, where, 4, 0);  // a driver may want its newer form
    NEED(old == 0 || old == 801);
    CHECK(cuStreamSynchronize(writing));
    NEED(cuStreamQuery(waiting) == NOT_READY);
    CHECK(cuStreamWriteValue32_v2(writing, where, 6, 0));
    CHECK(cuStreamSynchronize(waiting));
    CHECK(cuStreamWaitValue64_v2(waiting, where + 8, 1ULL << 40, EQUAL));
    CHECK(cuStreamWriteValue64_v2(writing, where + 8, 1ULL << 40, 0));
    CHECK(cuStreamSynchronize(waiting));
    struct operation write[] = {{2, 0, where, 9, 0, 0, 0, 0}, {5, 0, where + 8, 10, 0, 0, 0, 0}};
    struct operation wait[] = {{1, 0, where, 9, EQUAL, 0, 0, 0}, {4, 0, where + 8, 10, GEQ, 0, 0, 0}};
    CHECK(cuStreamBatchMemOp_v2(waiting, 2, wait, 0));
    NEED(cuStreamQuery(waiting) == NOT_READY);
    CHECK(cuStreamBatchMemOp_v2(writing, 2, write, 0));
    CHECK(cuStreamSynchronize(waiting));
    // Its second condition held before, so it waits for the first write only.
    CHECK(cuStreamSynchronize(writing));
}

static void by_the_program(uint32_t *pinned) {
    *pinned = 0;
    CHECK(cuStreamWaitValue32_v2(waiting, (uint64_t)(uintptr_t)pinned, 1, GEQ));
    NEED(cuStreamQuery(waiting) == NOT_READY);
    *pinned = 1;  // goes to the worker with the call that waits
    CHECK(cuStreamSynchronize(waiting));
}

static void contexts(void) {
    void *context, *other, *event;
    unsigned flags, iterator;
    int properties[14];
    char text[8];
    size_t size = sizeof text;
    CHECK(cuCtxGetCurrent(&context));
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuEventCreate(&event, 2));
    CHECK(cuCtxRecordEvent(context, event));
    CHECK(cuEventSynchronize(event));
    CHECK(cuCtxWaitEvent(context, event));
    CHECK(cuCtxEnablePeerAccess(other, 0));
    NEED(cuCtxEnablePeerAccess(other, 0) == 704);  // already enabled
    CHECK(cuCtxDisablePeerAccess(other));
    NEED(cuCtxDisablePeerAccess(other) == 705);  // not enabled
    NEED(cuCtxEnablePeerAccess(context, 0) != 0);  // a device is no peer of its own
    CHECK(cuCtxSetFlags(4));
    CHECK(cuCtxGetFlags(&flags));
    NEED((flags & 7) == 4);  // the driver may add others, such as CU_CTX_MAP_HOST
    CHECK(cuCtxResetPersistingL2Cache());
    CHECK(cuDeviceGetProperties(properties, 0));
    NEED(properties[0] == 1024 && properties[3] == 64 && properties[7] == 49152);
    NEED(properties[9] == 32 && properties[11] == 65536 && properties[13] == 512);
    CHECK(cuLogsCurrent(&iterator, 0));
    CHECK(cuLogsDumpToMemory(&iterator, text, &size, 0));
    NEED(size == 0 && text[0] == '\0');
}

int main(void) {
    uint64_t device;
    void *pinned;
    start(0);
    CHECK(cuStreamCreate(&waiting, 1));
    CHECK(cuStreamCreate(&writing, 1));
    CHECK(cuStreamCopyAttributes(waiting, writing));
    CHECK(cuMemAlloc_v2(&device, 64));
    CHECK(cuMemsetD8_v2(device, 0, 64));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemHostAlloc(&pinned, 64, 0));
    memset(pinned, 0, 64);
    between_streams(device);
    between_streams((uint64_t)(uintptr_t)pinned);
    NEED(((uint32_t *)pinned)[0] == 9 && ((uint32_t *)pinned)[2] == 10);
    by_the_program(pinned);
    contexts();
    CHECK(cuCtxSynchronize());
    printf("results right\n");
    return 0;
}
