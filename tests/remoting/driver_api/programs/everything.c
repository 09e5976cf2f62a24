// A program of the CUDA driver's interface, linked against whatever libcuda.so.1 the loader finds.
// Arguments: a cubin with the kernels of fake_cuda/kernels/test_kernels.cu; "linked" for what nvcc
// -dlink makes of it, which names the parts that were linked as well.
#include "check.h"

int cuDeviceGet(int *, int);
int cuDeviceTotalMem_v2(size_t *, int), cuDeviceGetName(char *, int, int);
int cuCtxGetLimit(size_t *, int), cuCtxSetLimit(int, size_t);
int cuDevicePrimaryCtxRelease_v2(int);
int cuMemAllocHost_v2(void **, size_t), cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuMemsetD32Async(uint64_t, unsigned, size_t, void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuStreamBeginCapture_v2(void *, int), cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long), cuGraphLaunch(void *, void *);
int cuGraphDestroy(void *), cuGraphExecDestroy(void *);
int cuEventCreate(void **, unsigned), cuEventRecord(void *, void *), cuEventSynchronize(void *);
int cuEventQuery(void *), cuEventElapsedTime(float *, void *, void *), cuEventDestroy_v2(void *);
int cuLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetKernel(void **, void *, const char *), cuLibraryUnload(void *);

enum { N = 1000, LARGE = 3 << 20 };
static char bytes[1 << 20];
static const void *parts[] = {bytes, NULL};
static struct {
    uint32_t magic, version;
    const void *data, *parts;
} linked = {0x466243b1, 2, bytes, parts};
static const void *image = bytes;

static void launch_all(void *kernel, void *stream, void **parameters) {
    CHECK(cuLaunchKernel(kernel, (N + 255) / 256, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
}

static void devices(void) {
    int count, device;
    char name[100];
    size_t total, whole, left;
    void *context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    NEED(count == 1);
    CHECK(cuDeviceGet(&device, 0));
    NEED(cuDeviceGet(&device, 1) == 101);
    CHECK(cuDeviceGetName(name, sizeof name, 0));
    NEED(strstr(name, "NVIDIA") != NULL);
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(cuMemGetInfo_v2(&left, &whole));
    size_t limit, again;
    CHECK(cuCtxGetLimit(&limit, 2));  // CU_LIMIT_MALLOC_HEAP_SIZE
    CHECK(cuCtxSetLimit(2, limit * 2));
    CHECK(cuCtxGetLimit(&again, 2));
    NEED(again == limit * 2);
    CHECK(cuCtxSetLimit(2, limit));
    OURS(total == 64 << 20 && whole == total && left == total);
}

static void memory(void) {
    uint64_t a, b;
    size_t left, total;
    uint32_t *host = malloc(LARGE * 4), *back = malloc(LARGE * 4), *pinned;
    for (uint32_t at = 0; at < LARGE; at++) host[at] = at * 2654435761u;
    CHECK(cuMemAlloc_v2(&a, LARGE * 4));
    CHECK(cuMemAlloc_v2(&b, LARGE * 4));
    CHECK(cuMemGetInfo_v2(&left, &total));
    NEED(left == total - 2 * LARGE * 4);
    CHECK(cuMemcpyHtoD_v2(a, host, LARGE * 4));
    CHECK(cuMemcpyDtoDAsync_v2(b, a, LARGE * 4, NULL));
    CHECK(cuMemcpyDtoH_v2(back, b, LARGE * 4));
    NEED(memcmp(host, back, LARGE * 4) == 0);
    CHECK(cuMemsetD8_v2(a, 0x5a, 100));
    CHECK(cuMemcpyDtoH_v2(back, a, 104));
    NEED(back[24] == 0x5a5a5a5a && back[25] == host[25]);
    CHECK(cuMemAllocHost_v2((void **)&pinned, 4096));
    CHECK(cuMemsetD32Async(b, 7, 1024, NULL));
    CHECK(cuMemcpyDtoHAsync_v2(pinned, b, 4096, NULL));
    CHECK(cuCtxSynchronize());
    for (int at = 0; at < 1024; at++) NEED(pinned[at] == 7);
    CHECK(cuMemFreeHost(pinned));
    CHECK(cuMemFree_v2(a));
    // The partition is 64 MiB: one more block of 64 does not fit beside what is left.
    OURS(cuMemAlloc_v2(&a, 64 << 20) == 2);
    CHECK(cuMemAlloc_v2(&a, 48 << 20));
    CHECK(cuMemFree_v2(a));
    CHECK(cuMemFree_v2(b));
    NEED(cuMemFree_v2(b) != 0);
    CHECK(cuMemGetInfo_v2(&left, &total));
    NEED(left == total);
    free(host);
    free(back);
}

static void kernels(void) {
    void *module, *library, *saxpy, *increment, *add, *stream, *other, *start, *end, *graph, *ready;
    uint64_t x, y, numbers, where;
    size_t size;
    float values[N], factor = 3, elapsed;
    int n = N, got[N];
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    CHECK(cuModuleGetFunction(&add, module, "add_offset"));
    CHECK(cuLibraryGetKernel(&increment, library, "increment"));
    NEED(cuModuleGetFunction(&stream, module, "no_such_kernel") == 500);
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuStreamCreate(&other, 1));
    CHECK(cuEventCreate(&start, 0));
    CHECK(cuEventCreate(&end, 0));
    CHECK(cuMemAlloc_v2(&x, sizeof values));
    CHECK(cuMemAlloc_v2(&y, sizeof values));
    CHECK(cuMemAlloc_v2(&numbers, sizeof got));
    for (int at = 0; at < N; at++) values[at] = (float)at;
    CHECK(cuEventRecord(start, stream));
    CHECK(cuMemcpyHtoDAsync_v2(x, values, sizeof values, stream));
    CHECK(cuMemcpyHtoDAsync_v2(y, values, sizeof values, stream));
    memset(values, 0, sizeof values);  // a pageable source may be reused at once
    void *all[] = {&factor, &x, &y, &n};
    launch_all(saxpy, stream, all);
    factor = -1;  // as may the parameters
    CHECK(cuEventRecord(end, stream));
    CHECK(cuStreamWaitEvent(other, end, 0));
    CHECK(cuMemcpyDtoHAsync_v2(values, y, sizeof values, other));
    CHECK(cuStreamSynchronize(other));
    for (int at = 0; at < N; at++) NEED(values[at] == 4.0f * (float)at);
    CHECK(cuEventSynchronize(end));
    CHECK(cuEventQuery(end));
    CHECK(cuEventElapsedTime(&elapsed, start, end));
    NEED(elapsed >= 0);

    void *two[] = {&numbers, &n};
    CHECK(cuMemsetD8_v2(numbers, 0, sizeof got));
    CHECK(cuCtxSynchronize());  // the stream does not wait for the legacy stream by itself
    CHECK(cuStreamBeginCapture_v2(stream, 0));
    launch_all(increment, stream, two);
    launch_all(increment, stream, two);
    CHECK(cuStreamEndCapture(stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&ready, graph, 0));
    for (int at = 0; at < 5; at++) CHECK(cuGraphLaunch(ready, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH_v2(got, numbers, sizeof got));
    for (int at = 0; at < N; at++) NEED(got[at] == 10);
    CHECK(cuGraphExecDestroy(ready));
    CHECK(cuGraphDestroy(graph));

    int offset = 5;
    CHECK(cuModuleGetGlobal_v2(&where, &size, module, "offset"));
    NEED(size == 4);
    CHECK(cuMemcpyHtoD_v2(where, &offset, 4));
    launch_all(add, NULL, two);
    CHECK(cuMemcpyDtoH_v2(got, numbers, sizeof got));
    NEED(got[0] == 15 && got[N - 1] == 15);

    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuStreamDestroy_v2(other));
    CHECK(cuEventDestroy_v2(start));
    CHECK(cuEventDestroy_v2(end));
    CHECK(cuModuleUnload(module));
    CHECK(cuLibraryUnload(library));
    CHECK(cuMemFree_v2(x));
    CHECK(cuMemFree_v2(y));
    CHECK(cuMemFree_v2(numbers));
}

static void fatal_error(void) {
    void *module, *kernel;
    uint64_t a;
    int got;
    CHECK(cuModuleLoadData(&module, image));
    CHECK(cuModuleGetFunction(&kernel, module, "out_of_bounds"));
    CHECK(cuMemAlloc_v2(&a, 4));
    void *one[] = {&a};
    launch_all(kernel, NULL, one);
    NEED(cuCtxSynchronize() == 700);
    NEED(cuMemcpyDtoH_v2(&got, a, 4) == 700);  // and it stays
}

int main(int count, char **arguments) {
    NEED(count == 2 || count == 3);
    FILE *file = fopen(arguments[1], "rb");
    NEED(file != NULL && fread(bytes, 1, sizeof bytes, file) > 0);
    if (count == 3) image = &linked;
    fclose(file);
    devices();
    memory();
    kernels();
    fatal_error();
    puts("results right");
    return 0;
}
