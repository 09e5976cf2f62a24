// Host functions, and the host's pinned memory under kernels. Argument: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu. Prints the same without the door.
#include <pthread.h>
#include <unistd.h>

#include "check.h"

int cuLaunchHostFunc(void *, void (*)(void *), void *);
int cuStreamAddCallback(void *, void (*)(void *, int, void *), void *, unsigned);
int cuMemHostAlloc(void **, size_t, unsigned), cuMemFreeHost(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *), cuCtxGetCurrent(void **);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *);
int cuStreamWaitEvent(void *, void *, unsigned), cuEventSynchronize(void *);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);
int cuArrayCreate_v2(void **, const void *), cuArrayDestroy(void *);
int cuMemcpyHtoAAsync_v2(void *, size_t, const void *, size_t, void *);
int cuMemcpyAtoH_v2(void *, void *, size_t, size_t);

enum { N = 1024 };

static void *module, *increment;
static uint64_t device, other;
static int *in, *out;

static void add_one(void *stream, uint64_t where, int n) {
    void *parameters[] = {&where, &n};
    launch(increment, (unsigned)n, parameters, stream);
}

static void copy_and_double(void *unused) {
    (void)unused;
    usleep(2000);  // what does not wait for this comes too early
    for (int at = 0; at < N; at++) in[at] = 2 * out[at];
}

static void write_slowly(void *where) {
    usleep(120000);  // longer than callers wait for one before they go on
    *(int *)where += 1000;
}

static void count(void *number) { ++*(int *)number; }

static void call_cuda(void *result) {
    uint64_t address;
    *(int *)result = cuMemAlloc_v2(&address, 64);
}

static void note(void *stream, int status, void *data) {
    *(void **)data = stream;
    if (status != 0) printf("status %d\n", status);
}

// A kernel, a download, a function that reads and writes, an upload, a kernel: in one stream.
static void in_order(void *stream) {
    int answer[N];
    for (int at = 0; at < N; at++) out[at] = in[at] = -1;
    CHECK(cuMemsetD8_v2(device, 0, sizeof answer));
    CHECK(cuCtxSynchronize());
    for (int round = 0; round < 3; round++) {
        add_one(stream, device, N);
        CHECK(cuMemcpyDtoHAsync_v2(out, device, sizeof answer, stream));
        CHECK(cuLaunchHostFunc(stream, copy_and_double, NULL));
        CHECK(cuMemcpyHtoDAsync_v2(device, in, sizeof answer, stream));
    }
    add_one(stream, device, N);
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(answer, device, sizeof answer));
    printf("in order %d %d\n", answer[0], answer[N - 1]);
}

static void across_streams(void) {
    void *first, *second, *event;
    int answer[N];
    CHECK(cuStreamCreate(&first, 1));
    CHECK(cuStreamCreate(&second, 1));
    CHECK(cuEventCreate(&event, 2));
    for (int at = 0; at < N; at++) out[at] = 21;
    CHECK(cuLaunchHostFunc(first, copy_and_double, NULL));
    CHECK(cuEventRecord(event, first));
    CHECK(cuStreamWaitEvent(second, event, 0));
    CHECK(cuMemcpyHtoDAsync_v2(device, in, sizeof answer, second));
    CHECK(cuStreamSynchronize(second));
    CHECK(cuMemcpyDtoH_v2(answer, device, sizeof answer));
    printf("across streams %d\n", answer[7]);
    CHECK(cuStreamDestroy_v2(first));
    CHECK(cuStreamDestroy_v2(second));
}

// An array takes what a function before has written, and what a kernel has.
static void to_array(void *stream) {
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } ints = {N, 0, 0x0a, 1};
    int *both, answer[2];
    void *array;
    CHECK(cuArrayCreate_v2(&array, &ints));
    in[7] = 4;
    CHECK(cuLaunchHostFunc(stream, write_slowly, in + 7));
    CHECK(cuMemcpyHtoAAsync_v2(array, 0, in, N * sizeof(int), stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyAtoH_v2(&answer[0], array, 28, sizeof(int)));
    CHECK(cuMemHostAlloc((void **)&both, 64, 2));
    *both = 10;
    add_one(stream, (uint64_t)(uintptr_t)both, 1);
    CHECK(cuMemcpyHtoAAsync_v2(array, 0, both, sizeof(int), stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyAtoH_v2(&answer[1], array, 0, sizeof(int)));
    printf("to an array %d %d\n", answer[0], answer[1]);
    CHECK(cuMemFreeHost(both));
    CHECK(cuArrayDestroy(array));
}

// More than any queue holds, with calls in between that need the worker's attention.
static void many(void *stream) {
    int calls = 0;
    CHECK(cuMemsetD8_v2(device, 0, 4));
    CHECK(cuCtxSynchronize());
    for (int at = 0; at < 500; at++) {
        CHECK(cuLaunchHostFunc(stream, count, &calls));
        for (int more = 0; more < 5; more++) add_one(stream, device, 1);
    }
    CHECK(cuStreamSynchronize(stream));
    int sum = 0;
    CHECK(cuMemcpyDtoH_v2(&sum, device, 4));
    printf("many %d %d\n", calls, sum);
}

static void with_other_calls(void *stream, const char *image) {
    static char large[1 << 20];
    int calls = 0;
    void *again;
    uint64_t memory;
    for (int at = 0; at < 20; at++) {
        CHECK(cuLaunchHostFunc(stream, count, &calls));
        CHECK(cuModuleLoad(&again, image));
        CHECK(cuMemAlloc_v2(&memory, sizeof large));
        CHECK(cuMemcpyHtoDAsync_v2(memory, large, sizeof large, stream));
        CHECK(cuMemFree_v2(memory));
        CHECK(cuModuleUnload(again));
    }
    CHECK(cuStreamSynchronize(stream));
    printf("with other calls %d\n", calls);
}

// The driver keeps some calls until the functions are over, and the worker with them.
static void slow(void *stream, const char *image) {
    void *again;
    int *both;
    uint64_t memory;
    CHECK(cuMemHostAlloc((void **)&both, 64, 1));
    memset(both, 0, 64);
    for (int at = 0; at < 2; at++) {
        CHECK(cuModuleLoad(&again, image));
        CHECK(cuMemAlloc_v2(&memory, 1 << 20));
        for (int more = 0; more < 2; more++) {
            CHECK(cuLaunchHostFunc(stream, write_slowly, both));
            add_one(stream, (uint64_t)(uintptr_t)both, 1);
        }
        CHECK(cuModuleUnload(again));
        CHECK(cuMemFree_v2(memory));
    }
    CHECK(cuStreamSynchronize(stream));
    printf("slow %d\n", both[0]);
    CHECK(cuMemFreeHost(both));
}

static void callbacks(void *stream) {
    void *seen = NULL;
    int status = 0;
    CHECK(cuStreamAddCallback(stream, note, &seen, 0));
    CHECK(cuLaunchHostFunc(stream, call_cuda, &status));
    CHECK(cuStreamSynchronize(stream));
    printf("callback %d, calls of CUDA %d, refused %d %d\n", seen == stream, status,
           cuStreamAddCallback(stream, note, &seen, 1), cuLaunchHostFunc(stream, NULL, NULL));
}

static void captured(void *stream) {
    void *graph, *exec;
    int calls = 0, refused, sum = 0;
    CHECK(cuMemsetD8_v2(device, 0, 4));
    CHECK(cuCtxSynchronize());
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    add_one(stream, device, 1);
    CHECK(cuLaunchHostFunc(stream, count, &calls));
    add_one(stream, device, 1);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    for (int at = 0; at < 4; at++) CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&sum, device, 4));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    refused = cuStreamAddCallback(stream, note, &sum, 0);
    cuStreamEndCapture(stream, &graph);
    printf("captured %d %d, callback %d\n", calls, sum, refused);
}

static void write_mapped(void *where) { *(int *)where = 1000; }

static void write_more(void *where) { *(int *)where += 1000; }

// Pinned memory under its own address, as kernels and fills use it natively.
static void pinned(void *stream) {
    int *both, answer = 0;
    uint64_t seen;
    CHECK(cuMemHostAlloc((void **)&both, 64, 1));
    memset(both, 0, 64);
    CHECK(cuMemsetD32Async((uint64_t)(uintptr_t)both, 7, 4, stream));
    add_one(stream, (uint64_t)(uintptr_t)(both + 1), 2);
    CHECK(cuStreamSynchronize(stream));
    printf("pinned %d %d %d %d %d\n", both[0], both[1], both[2], both[3], both[4]);
    // A kernel behind a host function sees what that wrote, and the program what the kernel wrote.
    CHECK(cuLaunchHostFunc(stream, write_mapped, both));
    add_one(stream, (uint64_t)(uintptr_t)both, 1);
    CHECK(cuMemcpyDtoDAsync_v2(other, (uint64_t)(uintptr_t)both, 4, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(&answer, other, 4));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, both, 0));
    printf("behind a host function %d %d\n", both[0], answer);
    CHECK(cuMemFreeHost(both));
}

// One launch that no queue holds: the driver keeps its caller until most of the functions have run.
static void large_graph(void *stream) {
    void *graph, *exec, *beside;
    int *both, *late, calls = 0;
    CHECK(cuMemHostAlloc((void **)&both, 64, 1));
    CHECK(cuMemHostAlloc((void **)&late, 64, 1));
    CHECK(cuStreamCreate(&beside, 1));
    memset(both, 0, 64);
    memset(late, 0, 64);
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    for (int at = 0; at < 100; at++) {
        CHECK(cuLaunchHostFunc(stream, at % 2 ? count : write_more, at % 2 ? &calls : both));
        add_one(stream, (uint64_t)(uintptr_t)both, 1);
    }
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphDestroy(graph));
    for (int round = 0; round < 2; round++) {
        CHECK(cuGraphLaunch(exec, stream));
        add_one(beside, (uint64_t)(uintptr_t)late, 1);
    }
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamSynchronize(beside));
    printf("large graph %d %d %d\n", calls, both[0], late[0]);
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuMemFreeHost(both));
    CHECK(cuMemFreeHost(late));
}

int main(int words, char **word) {
    void *stream;
    NEED(words == 2);
    start(0);
    CHECK(cuModuleLoad(&module, word[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuMemAlloc_v2(&device, N * sizeof(int)));
    CHECK(cuMemAlloc_v2(&other, N * sizeof(int)));
    CHECK(cuMemHostAlloc((void **)&in, N * sizeof(int), 0));
    CHECK(cuMemHostAlloc((void **)&out, N * sizeof(int), 0));
    CHECK(cuStreamCreate(&stream, 1));
    in_order(stream);
    in_order(NULL);
    across_streams();
    to_array(stream);
    many(stream);
    with_other_calls(stream, word[1]);
    slow(stream, word[1]);
    callbacks(stream);
    captured(stream);
    pinned(stream);
    large_graph(stream);
    return 0;
}
