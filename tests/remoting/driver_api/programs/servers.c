// GPUs of several servers in one program. Arguments: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu, and how many devices there are; the second half is another
// server's. With "lose", the program has the second server ended in the middle.
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int cuDeviceCanAccessPeer(int *, int, int), cuDeviceGetUuid_v2(void *, int);
int cuDeviceGetP2PAttribute(int *, int, int, int);
int cuCtxEnablePeerAccess(void *, unsigned), cuCtxGetDevice(int *), cuCtxSynchronize(void);
int cuLibraryLoadData(void **, const void *, void *, void **, unsigned, void *, void **, unsigned);
int cuLibraryGetKernel(void **, void *, const char *), cuLibraryUnload(void *);
int cuLibraryGetGlobal(uint64_t *, size_t *, void *, const char *);
int cuKernelGetAttribute(int *, int, void *, int);
int cuMemcpyDtoD_v2(uint64_t, uint64_t, size_t);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemcpyPeer(uint64_t, void *, uint64_t, void *, size_t);
int cuMemcpyPeerAsync(uint64_t, void *, uint64_t, void *, size_t, void *);
int cuMemcpyAsync(uint64_t, uint64_t, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *), cuMemsetD32_v2(uint64_t, unsigned, size_t);
int cuPointerGetAttribute(void *, int, uint64_t);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventDestroy_v2(void *);
int cuEventElapsedTime_v2(float *, void *, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamQuery(void *), cuStreamGetCtx(void *, void **);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemAllocManaged(uint64_t *, size_t, unsigned);
int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *), cuGraphGetNodes(void *, void **, size_t *);
int cuDeviceGetDefaultMemPool(void **, int), cuMemPoolGetAttribute(void *, int, void *);
int cuMemAllocFromPoolAsync(uint64_t *, size_t, void *, void *);
int cuArrayCreate_v2(void **, const void *), cuArrayDestroy(void *);
int cuMemcpyHtoA_v2(void *, size_t, const void *, size_t);
int cuMemcpyAtoD_v2(uint64_t, void *, size_t, size_t);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long), cuMemRelease(uint64_t);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long), cuMemUnmap(uint64_t, size_t);
int cuMemSetAccess(uint64_t, size_t, const void *, size_t), cuMemAddressFree(uint64_t, size_t);
int cuMemcpy2D_v2(const void *), cuStreamSynchronize(void *);

enum { N = 1 << 12, BYTES = N * 4, LARGE = 3 << 22, DEVICES_MAX = 8, UNAVAILABLE = 46 };

static int devices, half;
static void *contexts[DEVICES_MAX], *streams[DEVICES_MAX], *modules[DEVICES_MAX];
static void *increments[DEVICES_MAX];  // of each device's module
static void *library, *increment;
static uint64_t memory[DEVICES_MAX];
static int numbers[N], back[N];
static char image[1 << 20];

static void use(int device) { CHECK(cuCtxSetCurrent(contexts[device])); }

static void add_one(void *function, uint64_t where, void *stream) {
    int n = N;
    void *parameters[] = {&where, &n};
    launch(function, N, parameters, stream);
}

// Streams that wait for no other may follow.
static void renew(int device) {
    use(device);
    CHECK(cuMemcpyHtoD_v2(memory[device], numbers, BYTES));
    CHECK(cuCtxSynchronize());
}

static void expect(uint64_t where, int more) {
    memset(back, 0xff, sizeof back);
    CHECK(cuMemcpyDtoH_v2(back, where, BYTES));
    for (int at = 0; at < N; at++) NEED(back[at] == numbers[at] + more);
}

static void prepare(void) {
    unsigned char uuids[DEVICES_MAX][16];
    int count, can, value;
    CHECK(cuDeviceGetCount(&count));
    NEED(count == devices);
    for (int at = 0; at < N; at++) numbers[at] = at * 7;
    for (int device = 0; device < devices; device++) {
        int found;
        CHECK(cuDevicePrimaryCtxRetain(&contexts[device], device));
        use(device);
        CHECK(cuCtxGetDevice(&found));
        NEED(found == device);
        CHECK(cuDeviceGetUuid_v2(uuids[device], device));
        NEED(device == 0 || memcmp(uuids[device], uuids[device - 1], 16) != 0);
        CHECK(cuStreamCreate(&streams[device], 1));
        CHECK(cuMemAlloc_v2(&memory[device], BYTES));
        for (int other = 0; other < device; other++) NEED(memory[other] != memory[device]);
    }
    CHECK(cuDeviceCanAccessPeer(&can, 0, half));
    CHECK(cuDeviceGetP2PAttribute(&value, 2, 0, half));
    NEED(can == 0 && value == 0);
    use(0);
    NEED(cuCtxEnablePeerAccess(contexts[half], 0) == 217);
}

// A library is loaded once and its kernels run everywhere; modules belong to their contexts.
static void kernels(void) {
    use(0);
    CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&increment, library, "increment"));
    for (int device = 0; device < devices; device++) {
        int registers;
        CHECK(cuKernelGetAttribute(&registers, 4, increment, device));
        use(device);
        CHECK(cuModuleLoadData(&modules[device], image));
        CHECK(cuModuleGetFunction(&increments[device], modules[device], "increment"));
        CHECK(cuMemcpyHtoDAsync_v2(memory[device], numbers, BYTES, streams[device]));
        add_one(increment, memory[device], streams[device]);
        add_one(increments[device], memory[device], streams[device]);
        CHECK(cuStreamSynchronize(streams[device]));
    }
    use(0);
    for (int device = 0; device < devices; device++) {
        int found;
        expect(memory[device], 2);  // whatever context is current
        CHECK(cuPointerGetAttribute(&found, 9, memory[device]));
        NEED(found == device);
        CHECK(cuStreamQuery(streams[device]));
    }
    int n = N;
    void *parameters[] = {&memory[0], &n};
    NEED(cuLaunchKernel(increments[half], 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL) == 400);
    NEED(cuLaunchKernel(increment, 1, 1, 1, 32, 1, 1, 0, streams[half], parameters, NULL) == 400);
}

static void variables(void) {
    void *add;
    CHECK(cuLibraryGetKernel(&add, library, "add_offset"));
    for (int device = 0; device < devices; device++) {
        uint64_t address;
        size_t size;
        int value = 10 * (device + 1);
        use(device);
        CHECK(cuLibraryGetGlobal(&address, &size, library, "offset"));
        CHECK(cuMemcpyHtoD_v2(address, &value, sizeof value));
        renew(device);
    }
    for (int device = 0; device < devices; device++) {
        use(device);
        add_one(add, memory[device], NULL);
        expect(memory[device], 10 * (device + 1));
    }
}

static void copies(void) {
    int first = 0, second = half;
    void *source = streams[first], *target = streams[second];
    renew(first);
    add_one(increment, memory[first], NULL);
    CHECK(cuMemcpyDtoD_v2(memory[second], memory[first], BYTES));
    expect(memory[second], 1);
    // In the order of the source's stream.
    CHECK(cuCtxSynchronize());
    add_one(increment, memory[first], source);
    CHECK(cuMemcpyPeerAsync(memory[second], contexts[second], memory[first], contexts[first], BYTES,
                            source));
    add_one(increment, memory[first], source);
    CHECK(cuStreamSynchronize(source));
    expect(memory[second], 2);
    // Of the target's, whichever context is current.
    CHECK(cuMemcpyAsync(memory[second], memory[first], BYTES, target));
    use(second);
    add_one(increment, memory[second], target);
    CHECK(cuStreamSynchronize(target));
    expect(memory[second], 4);
    CHECK(cuMemcpyPeer(memory[first], contexts[first], memory[second], contexts[second], BYTES));
    use(first);
    expect(memory[first], 4);
    // Bytes of the host with the other server's stream, and fills of the other's memory.
    CHECK(cuMemcpyHtoDAsync_v2(memory[second], numbers, BYTES, source));
    CHECK(cuMemcpyDtoHAsync_v2(back, memory[second], BYTES, source));
    NEED(memcmp(back, numbers, BYTES) == 0);
    CHECK(cuMemsetD32_v2(memory[second], 5, N));
    CHECK(cuMemsetD32Async(memory[second], 6, N / 2, NULL));
    CHECK(cuMemcpyDtoH_v2(back, memory[second], BYTES));
    NEED(back[0] == 6 && back[N / 2 - 1] == 6 && back[N / 2] == 5 && back[N - 1] == 5);
    NEED(cuMemsetD32Async(memory[second], 6, N, source) == 1);
}

// More than one piece, and parts of rows.
static void large_copies(void) {
    uint64_t from, to;
    use(0);
    CHECK(cuMemAlloc_v2(&from, LARGE));
    use(half);
    CHECK(cuMemAlloc_v2(&to, LARGE));
    unsigned *bytes = malloc(LARGE), *seen = malloc(LARGE);
    for (unsigned at = 0; at < LARGE / 4; at++) bytes[at] = at * 2654435761u;
    CHECK(cuMemcpyHtoD_v2(from, bytes, LARGE));
    CHECK(cuMemcpy(to, from, LARGE));
    CHECK(cuMemcpyDtoH_v2(seen, to, LARGE));
    NEED(memcmp(bytes, seen, LARGE) == 0);
    struct {
        size_t x, y;
        int kind;
        const void *host;
        uint64_t device;
        void *array;
        size_t pitch;
    } ends[2] = {{16, 1, 2, NULL, from, NULL, 4096}, {0, 0, 2, NULL, to, NULL, 64}};
    struct {
        char ends[sizeof ends];
        size_t width, height;
    } rows = {.width = 64, .height = 5};
    memcpy(rows.ends, ends, sizeof ends);
    CHECK(cuMemcpy2D_v2(&rows));
    CHECK(cuMemcpyDtoH_v2(seen, to, 320));
    for (int row = 0; row < 5; row++) {
        NEED(memcmp((char *)bytes + (row + 1) * 4096 + 16, (char *)seen + row * 64, 64) == 0);
    }
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } wanted = {256, 0, 3, 1};  // CU_AD_FORMAT_UNSIGNED_INT32
    void *array;
    use(0);
    CHECK(cuArrayCreate_v2(&array, &wanted));
    use(half);
    CHECK(cuMemcpyHtoA_v2(array, 0, numbers, 1024));
    CHECK(cuMemcpyAtoD_v2(to, array, 0, 1024));
    CHECK(cuMemcpyDtoH_v2(seen, to, 1024));
    NEED(memcmp(seen, numbers, 1024) == 0);
    CHECK(cuArrayDestroy(array));
    CHECK(cuMemFree_v2(from));
    use(0);
    CHECK(cuMemFree_v2(to));
    NEED(cuMemFree_v2(to) == 1);
    free(bytes);
    free(seen);
}

static void events(void) {
    void *before, *other, *sleep_us;
    float time;
    long long microseconds = 20000;
    void *parameters[] = {&microseconds};
    renew(0);
    CHECK(cuEventCreate(&before, 0));
    CHECK(cuLibraryGetKernel(&sleep_us, library, "sleep_us"));
    CHECK(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, streams[0], parameters, NULL));
    add_one(increment, memory[0], streams[0]);
    CHECK(cuEventRecord(before, streams[0]));
    use(half);
    CHECK(cuEventCreate(&other, 0));
    CHECK(cuStreamWaitEvent(streams[half], before, 0));
    CHECK(cuEventQuery(before));  // the thread has waited for it
    CHECK(cuMemcpyDtoDAsync_v2(memory[half], memory[0], BYTES, streams[half]));
    add_one(increment, memory[half], streams[half]);
    CHECK(cuEventRecord(other, streams[half]));
    use(0);
    CHECK(cuEventSynchronize(other));
    expect(memory[half], 2);
    NEED(cuEventRecord(other, streams[0]) == 400);
    NEED(cuEventElapsedTime_v2(&time, before, other) == 400);
    CHECK(cuEventDestroy_v2(other));
    CHECK(cuEventDestroy_v2(before));
}

static void double_all(void *data) {
    for (int at = 0; at < N; at++) ((int *)data)[at] *= 2;
}

// One pinned buffer that kernels, copies and host functions of both servers use.
static void pinned_memory(void) {
    int *shared;
    use(0);
    CHECK(cuMemHostAlloc((void **)&shared, BYTES, 3));
    memcpy(shared, numbers, BYTES);
    for (int device = 0; device < devices; device += half) {
        use(device);
        add_one(increment, (uint64_t)(uintptr_t)shared, streams[device]);
        CHECK(cuStreamSynchronize(streams[device]));
    }
    for (int at = 0; at < N; at++) NEED(shared[at] == numbers[at] + 2);
    for (int device = 0; device < devices; device += half) {
        renew(device);
        CHECK(cuMemcpyDtoHAsync_v2(shared, memory[device], BYTES, streams[device]));
        CHECK(cuLaunchHostFunc(streams[device], double_all, shared));
        CHECK(cuMemcpyHtoDAsync_v2(memory[device], shared, BYTES, streams[device]));
        add_one(increment, memory[device], streams[device]);
        CHECK(cuStreamSynchronize(streams[device]));
        CHECK(cuMemcpyDtoH_v2(back, memory[device], BYTES));
        for (int at = 0; at < N; at++) NEED(back[at] == 2 * numbers[at] + 1);
    }
    use(0);
    CHECK(cuMemFreeHost(shared));
}

static void managed_memory(void) {
    for (int device = 0; device < devices; device += half) {
        uint64_t address;
        use(device);
        CHECK(cuMemAllocManaged(&address, BYTES, 1));
        int *here = (int *)(uintptr_t)address;
        memcpy(here, numbers, BYTES);
        add_one(increment, address, NULL);
        CHECK(cuCtxSynchronize());
        for (int at = 0; at < N; at++) NEED(here[at] == numbers[at] + 1);
        int other = half - device;
        CHECK(cuMemcpy(memory[other], address, BYTES));
        expect(memory[other], 1);
        use(other);
        CHECK(cuMemFree_v2(address));
    }
}

static void graphs(void) {
    void *graph, *exec;
    size_t count = 0;
    renew(half);
    CHECK(cuStreamBeginCapture_v2(streams[half], 0));
    add_one(increment, memory[half], streams[half]);
    add_one(increments[half], memory[half], streams[half]);
    NEED(cuMemcpyDtoDAsync_v2(memory[half], memory[0], BYTES, streams[half]) == 900);
    CHECK(cuStreamEndCapture(streams[half], &graph));
    use(0);
    CHECK(cuGraphGetNodes(graph, NULL, &count));
    NEED(count == 2);
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NEED(cuGraphLaunch(exec, streams[0]) == 400);
    CHECK(cuGraphLaunch(exec, streams[half]));
    CHECK(cuGraphLaunch(exec, streams[half]));
    CHECK(cuStreamSynchronize(streams[half]));
    expect(memory[half], 4);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
}

static void pools(void) {
    for (int device = 0; device < devices; device += half) {
        void *pool, *other;
        uint64_t address, held = 0;
        use(half - device);
        CHECK(cuDeviceGetDefaultMemPool(&pool, device));
        CHECK(cuDeviceGetDefaultMemPool(&other, half - device));
        NEED(pool != other);
        CHECK(cuMemAllocFromPoolAsync(&address, BYTES, pool, streams[device]));
        CHECK(cuMemcpyHtoDAsync_v2(address, numbers, BYTES, streams[device]));
        CHECK(cuStreamSynchronize(streams[device]));
        expect(address, 0);
        CHECK(cuMemPoolGetAttribute(pool, 5, &held));
        NEED(held > 0);
        CHECK(cuMemFreeAsync(address, streams[device]));
        NEED(cuMemAllocFromPoolAsync(&address, BYTES, other, streams[device]) == 400);
    }
}

static void virtual_memory(void) {
    struct {
        int type, handles, location, device;
        void *windows;
        unsigned char flags[8];
    } properties = {1, 0, 1, half, NULL, {0}};
    struct {
        int location, device, flags;
    } access = {1, half, 3}, far = {1, 0, 3};
    uint64_t handle, address, elsewhere;
    size_t size = 2 << 20;
    use(0);
    CHECK(cuMemCreate(&handle, size, &properties, 0));
    CHECK(cuMemAddressReserve(&elsewhere, size, 0, 0, 0));
    NEED(cuMemMap(elsewhere, size, 0, handle, 0) == 1);
    use(half);
    CHECK(cuMemAddressReserve(&address, size, 0, 0, 0));
    CHECK(cuMemMap(address, size, 0, handle, 0));
    use(0);
    NEED(cuMemSetAccess(address, size, &far, 1) == 101);
    CHECK(cuMemSetAccess(address, size, &access, 1));
    CHECK(cuMemcpyHtoD_v2(address, numbers, BYTES));
    expect(address, 0);
    CHECK(cuMemUnmap(address, size));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemAddressFree(address, size));
    CHECK(cuMemAddressFree(elsewhere, size));
}

// CUDA does not survive a fork, and the parent's connections must.
static void forked(void) {
    int status = -1;
    pid_t child = fork();
    if (child == 0) _exit(cuCtxSynchronize() == 3 && cuInit(0) == 3 ? 0 : 1);
    NEED(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void *work(void *argument) {
    int device = *(int *)argument;
    use(device);
    for (int round = 0; round < 200; round++) {
        add_one(increment, memory[device], streams[device]);
        if (round % 20 == 0) CHECK(cuStreamSynchronize(streams[device]));
    }
    CHECK(cuCtxSynchronize());
    return NULL;
}

static void threads(void) {
    pthread_t made[DEVICES_MAX];
    int which[DEVICES_MAX];
    for (int device = 0; device < devices; device++) {
        renew(device);
        which[device] = device;
        NEED(pthread_create(&made[device], NULL, work, &which[device]) == 0);
    }
    for (int device = 0; device < devices; device++) {
        NEED(pthread_join(made[device], NULL) == 0);
        expect(memory[device], 200);
    }
}

static void lose(void) {
    int n = N;
    void *parameters[] = {&memory[0], &n};
    renew(0);
    kill(getppid(), SIGUSR1);
    use(half);
    int status = 0;
    while (status == 0) {
        cuMemsetD32Async(memory[half], 0, 1, NULL);  // a device without work is not asked
        status = cuCtxSynchronize();
    }
    NEED(cuCtxSynchronize() == UNAVAILABLE);
    NEED(status == UNAVAILABLE && cuStreamSynchronize(streams[half]) == UNAVAILABLE);
    NEED(cuLaunchKernel(increment, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL) == UNAVAILABLE);
    // The other server goes on.
    use(0);
    add_one(increment, memory[0], streams[0]);
    CHECK(cuStreamSynchronize(streams[0]));
    expect(memory[0], 1);
    NEED(cuMemcpyDtoD_v2(memory[half], memory[0], BYTES) == UNAVAILABLE);
    NEED(cuMemcpyDtoD_v2(memory[0], memory[half], BYTES) == UNAVAILABLE);
    NEED(cuEventSynchronize(NULL) == 400);
    // Libraries need no context, and may be loaded wherever there still is a server.
    void *again, *kernel;
    CHECK(cuCtxSetCurrent(NULL));
    CHECK(cuLibraryLoadData(&again, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&kernel, again, "increment"));
    printf("one server lost\n");
}

int main(int count, char **arguments) {
    NEED(count >= 3);
    devices = atoi(arguments[2]);
    half = devices / 2;
    FILE *file = fopen(arguments[1], "rb");
    NEED(file != NULL && fread(image, 1, sizeof image - 1, file) > 0);
    CHECK(cuInit(0));
    prepare();
    kernels();
    if (count > 3) {
        lose();
        return 0;
    }
    variables();
    copies();
    large_copies();
    events();
    pinned_memory();
    managed_memory();
    graphs();
    pools();
    virtual_memory();
    forked();
    threads();
    CHECK(cuLibraryUnload(library));
    printf("results right\n");
    return 0;
}
