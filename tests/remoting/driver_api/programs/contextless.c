// A thread without a current context: what names a stream, an event, a function, a graph or memory
// needs none, and the rest says so, as an H200's driver does. Argument: a cubin of test_kernels.cu.
#include "check.h"

#include <pthread.h>

enum { INVALID_CONTEXT = 201, INTS = 256 };

int cuCtxGetCurrent(void **), cuCtxGetDevice(int *), cuCtxGetFlags(unsigned *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventQuery(void *);
int cuEventSynchronize(void *), cuEventDestroy_v2(void *), cuEventElapsedTime_v2(float *, void *, void *);
int cuStreamQuery(void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamGetFlags(void *, unsigned *), cuStreamGetCtx(void *, void **);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuLaunchHostFunc(void *, void (*)(void *), void *), cuFuncGetAttribute(int *, int, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *), cuMemHostAlloc(void **, size_t, unsigned);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphExecDestroy(void *), cuGraphDestroy(void *);

static void *stream, *spare, *event, *other, *module, *increment;
static uint64_t numbers, memory;

static void add(void *sum) { *(int *)sum += 1; }

static void *without(void *exec) {
    void *context = &context, *graph, *pinned;
    int device, calls = 0, got[INTS], n = INTS, value;
    unsigned flags;
    uint64_t address;
    float elapsed;
    void *parameters[] = {&numbers, &n};
    CHECK(cuCtxGetCurrent(&context));
    NEED(context == NULL);
    CHECK(cuEventQuery(event));
    CHECK(cuEventRecord(other, stream));
    CHECK(cuEventSynchronize(other));
    CHECK(cuEventElapsedTime_v2(&elapsed, event, other));
    CHECK(cuStreamWaitEvent(stream, event, 0));
    CHECK(cuStreamQuery(stream));
    CHECK(cuStreamGetFlags(stream, &flags));
    CHECK(cuStreamGetCtx(stream, &context));
    NEED(flags == 1 && context != NULL);
    CHECK(cuMemsetD8Async(numbers, 0, INTS * 4, stream));
    launch(increment, INTS, parameters, stream);
    CHECK(cuLaunchHostFunc(stream, add, &calls));
    CHECK(cuMemcpyDtoHAsync_v2(got, numbers, sizeof got, stream));
    CHECK(cuStreamSynchronize(stream));
    NEED(got[0] == 1 && got[INTS - 1] == 1 && calls == 1);
    CHECK(cuMemcpyHtoDAsync_v2(numbers, got, sizeof got, stream));
    CHECK(cuGraphLaunch(exec, stream));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuMemAllocAsync(&address, 4096, stream));
    CHECK(cuMemFreeAsync(address, stream));
    CHECK(cuFuncGetAttribute(&value, 0, increment));
    CHECK(cuMemFree_v2(memory));
    CHECK(cuEventDestroy_v2(other));
    CHECK(cuStreamDestroy_v2(spare));
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuCtxGetCurrent(&context));
    NEED(context == NULL);
    NEED(cuEventRecord(event, NULL) == INVALID_CONTEXT);
    NEED(cuEventCreate(&graph, 0) == INVALID_CONTEXT);
    NEED(cuStreamCreate(&graph, 0) == INVALID_CONTEXT);
    NEED(cuStreamQuery(NULL) == INVALID_CONTEXT);
    NEED(cuStreamSynchronize(NULL) == INVALID_CONTEXT);
    NEED(cuLaunchKernel(increment, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) == INVALID_CONTEXT);
    NEED(cuMemcpyDtoH_v2(got, numbers, 4) == INVALID_CONTEXT);
    NEED(cuMemsetD8_v2(numbers, 0, 4) == INVALID_CONTEXT);
    NEED(cuMemAlloc_v2(&address, 4096) == INVALID_CONTEXT);
    NEED(cuMemHostAlloc(&pinned, 4096, 0) == INVALID_CONTEXT);
    NEED(cuCtxSynchronize() == INVALID_CONTEXT);
    NEED(cuCtxGetDevice(&device) == INVALID_CONTEXT);
    NEED(cuCtxGetFlags(&flags) == INVALID_CONTEXT);
    return NULL;
}

int main(int count, char **arguments) {
    void *graph, *exec;
    pthread_t thread;
    NEED(count == 2);
    start(0);
    CHECK(cuModuleLoad(&module, arguments[1]));
    CHECK(cuModuleGetFunction(&increment, module, "increment"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&spare, 1));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventCreate(&other, 0));
    CHECK(cuMemAlloc_v2(&numbers, INTS * 4));
    CHECK(cuMemAlloc_v2(&memory, 4096));
    CHECK(cuStreamBeginCapture_v2(stream, 2));
    CHECK(cuMemsetD8Async(numbers, 7, 16, stream));
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuEventRecord(event, stream));
    CHECK(cuCtxSynchronize());
    NEED(pthread_create(&thread, NULL, without, exec) == 0);
    NEED(pthread_join(thread, NULL) == 0);
    puts("results right");
    return 0;
}
