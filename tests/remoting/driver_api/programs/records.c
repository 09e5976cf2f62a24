// Calls whose records no other program sends, so that the bytes of each can be compared.
#include "graphs.h"
#include "sharing.h"

#include <fcntl.h>
#include <sys/mman.h>

struct launch_attribute {
    int id, padding;
    uint64_t value[8];
};
struct config {
    unsigned grid[3], block[3], shared;
    void *stream;
    const struct launch_attribute *attributes;
    unsigned count;
};

int cuLibraryLoadFromFile(void **, const char *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetModule(void **, void *), cuLibraryGetKernel(void **, void *, const char *);
int cuLibraryGetKernelCount(unsigned *, void *), cuLibraryUnload(void *);
int cuLibraryEnumerateKernels(void **, unsigned, void *);
int cuKernelGetFunction(void **, void *), cuKernelSetAttribute(int, int, void *, int);
int cuLaunchKernelEx(const struct config *, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void *, void **);
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *, void *, int, size_t, unsigned);
int cuOccupancyAvailableDynamicSMemPerBlock(size_t *, void *, int, int);
int cuOccupancyMaxActiveClusters(int *, void *, const struct config *);
int cuFuncSetCacheConfig(void *, int), cuCtxGetCacheConfig(int *), cuCtxSetCacheConfig(int);
int cuGraphKernelNodeCopyAttributes(void *, void *);
int cuMemcpy3D_v2(const struct copy *), cuMemcpyDtoD_v2(uint64_t, uint64_t, size_t);
int cuStreamCreateWithPriority(void **, unsigned, int);
int cuMemsetD16_v2(uint64_t, unsigned short, size_t), cuMemsetD32_v2(uint64_t, unsigned, size_t);
int cuMemsetD16Async(uint64_t, unsigned short, size_t, void *);
int cuMemsetD2D8_v2(uint64_t, size_t, unsigned char, size_t, size_t);
int cuMemsetD2D16_v2(uint64_t, size_t, unsigned short, size_t, size_t);
int cuMemsetD2D32_v2(uint64_t, size_t, unsigned, size_t, size_t);
int cuMemsetD2D8Async(uint64_t, size_t, unsigned char, size_t, size_t, void *);
int cuMemsetD2D16Async(uint64_t, size_t, unsigned short, size_t, size_t, void *);
int cuMemsetD2D32Async(uint64_t, size_t, unsigned, size_t, size_t, void *);
int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);
int cuMemHostGetDevicePointer_v2(uint64_t *, void *, unsigned), cuEventQuery(void *);
int cuDevicePrimaryCtxReset_v2(int);

static void functions(const char *image, void *stream, uint64_t memory) {
    void *library, *module, *kernel, *kernels[4];
    unsigned count;
    int found;
    size_t size;
    CHECK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetModule(&module, library));
    CHECK(cuLibraryGetKernelCount(&count, library));
    CHECK(cuLibraryEnumerateKernels(kernels, 2, library));
    CHECK(cuLibraryGetKernel(&kernel, library, "increment"));
    CHECK(cuKernelSetAttribute(8, 1024, kernel, 0));
    CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&found, kernel, 256, 64, 1));
    CHECK(cuOccupancyAvailableDynamicSMemPerBlock(&size, kernel, 2, 128));
    struct launch_attribute attribute = {.id = 4, .value = {(uint64_t)1 << 32 | 1, 1}};
    struct config config = {{2, 1, 1}, {128, 1, 1}, 64, stream, &attribute, 1};
    CHECK(cuOccupancyMaxActiveClusters(&found, kernel, &config));
    void *parameters[] = {&memory, &(int){256}};
    CHECK(cuLaunchKernelEx(&config, kernel, parameters, NULL));
    CHECK(cuLaunchCooperativeKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, parameters));
    CHECK(cuFuncSetCacheConfig(kernel, 1));
    CHECK(cuCtxSetCacheConfig(2));
    CHECK(cuCtxGetCacheConfig(&found));
    CHECK(cuCtxSynchronize());
    CHECK(cuLibraryUnload(library));
}

static void graphs(const char *image, void *stream, uint64_t memory) {
    void *module, *function, *graph, *inner, *one, *two, *child, *made;
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "increment"));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuGraphCreate(&inner, 0));
    void *parameters[] = {&memory, &(int){256}};
    struct kernel_node node = {function, {1, 1, 1}, {256, 1, 1}, 0, parameters, NULL, NULL, NULL};
    CHECK(cuGraphAddKernelNode_v2(&one, graph, NULL, 0, &node));
    CHECK(cuGraphAddKernelNode_v2(&two, graph, &one, 1, &node));
    CHECK(cuGraphAddEmptyNode(&child, inner, NULL, 0));
    CHECK(cuGraphAddChildGraphNode(&child, graph, &two, 1, inner));
    uint64_t value[8] = {3};  // a priority
    // Whether the driver likes them does not matter here.
    (void)cuGraphKernelNodeSetAttribute(one, 8, value);
    (void)cuGraphKernelNodeGetAttribute(one, 8, value);
    (void)cuGraphKernelNodeCopyAttributes(two, one);
    (void)cuCtxSynchronize();
    CHECK(cuGraphInstantiateWithFlags(&made, graph, 0));
    CHECK(cuGraphUpload(made, stream));
    (void)cuGraphExecChildGraphNodeSetParams(made, child, inner);
    (void)cuCtxSynchronize();
    CHECK(cuGraphLaunch(made, stream));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuGraphExecDestroy(made));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuModuleUnload(module));
}

static void memory_calls(void *stream, uint64_t memory) {
    struct copy copy = {.source = {.kind = 2, .device = memory, .pitch = 64, .height = 4},
                        .target = {.kind = 2, .device = memory + 4096, .pitch = 128, .height = 8},
                        .width = 32, .height = 4, .depth = 2};
    CHECK(cuMemcpyDtoD_v2(memory + 8192, memory, 4096));
    CHECK(cuMemsetD16_v2(memory, 0x1234, 100));
    CHECK(cuMemsetD32_v2(memory, 0x12345678, 100));
    CHECK(cuMemsetD2D8_v2(memory, 64, 7, 16, 3));
    CHECK(cuMemsetD2D16_v2(memory, 64, 7, 16, 3));
    CHECK(cuMemsetD2D32_v2(memory, 64, 7, 16, 3));
    CHECK(cuMemsetD16Async(memory, 0x1234, 100, stream));
    CHECK(cuMemsetD2D8Async(memory, 64, 7, 16, 3, stream));
    CHECK(cuMemsetD2D16Async(memory, 64, 7, 16, 3, stream));
    CHECK(cuMemsetD2D32Async(memory, 64, 7, 16, 3, stream));
    CHECK(cuStreamSynchronize(stream));
    (void)cuMemcpy3D_v2(&copy);  // which not every driver of the tests has
    (void)cuCtxSynchronize();
    // As NCCL maps it; only a worker's host could give such memory.
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/nccl-record%d", (int)getpid());
    int file = open(name, O_RDWR | O_CREAT, 0600);
    NEED(file >= 0 && ftruncate(file, 8192) == 0);
    void *mapped = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    NEED(mapped != MAP_FAILED);
    unlink(name);
    NEED(cuMemHostRegister_v2(mapped, 8192, 2) == 801);
}

// Memory of the host that the device sees, and a device that is reset.
static void ends(void *stream) {
    static char bytes[8192] __attribute__((aligned(4096)));
    uint64_t seen;
    CHECK(cuMemHostRegister_v2(bytes, sizeof bytes, 2));
    CHECK(cuMemHostGetDevicePointer_v2(&seen, bytes, 0));
    CHECK(cuMemHostUnregister(bytes));
    void *event;
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(event, stream));
    (void)cuEventQuery(event);  // which may be over, or not
    CHECK(cuDevicePrimaryCtxReset_v2(0));
}

// What one process has another opens.
static void give(int line) {
    struct properties properties = {1, 1, 1, 0, NULL, {0}};
    struct pool_properties pooled = {1, 1, 1, 0, NULL, 0, {0}};
    struct ipc_handle handles[3] = {{{0}}};
    uint64_t memory, physical;
    void *pool, *event;
    int files[2];
    char byte;
    start(0);
    CHECK(cuMemAlloc_v2(&memory, 4096));
    CHECK(cuEventCreate(&event, 6));
    CHECK(cuEventRecord(event, NULL));
    CHECK(cuIpcGetMemHandle(&handles[0], memory));
    CHECK(cuIpcGetEventHandle(&handles[1], event));
    CHECK(cuMemCreate(&physical, 2 * MIB, &properties, 0));
    CHECK(cuMemExportToShareableHandle(&files[0], physical, 1, 0));
    CHECK(cuMemPoolCreate(&pool, &pooled));
    CHECK(cuMemPoolExportToShareableHandle(&files[1], pool, 1, 0));
    CHECK(cuMemAllocFromPoolAsync(&memory, 4096, pool, NULL));
    CHECK(cuMemPoolExportPointer(&handles[2], memory));
    CHECK(cuCtxSynchronize());
    NEED(write(line, handles, sizeof handles) == (ssize_t)sizeof handles);
    send_file(line, files[0]);
    send_file(line, files[1]);
    NEED(read(line, &byte, 1) == 1);
}

static void take(int line) {
    struct ipc_handle handles[3];
    uint64_t memory;
    void *pool, *event;
    NEED(read(line, handles, sizeof handles) == (ssize_t)sizeof handles);
    int physical = receive_file(line), pooled = receive_file(line);
    start(0);
    CHECK(cuIpcOpenMemHandle_v2(&memory, handles[0], 1));
    CHECK(cuIpcCloseMemHandle(memory));
    CHECK(cuIpcOpenEventHandle(&event, handles[1]));
    (void)cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)physical, 1);
    CHECK(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)pooled, 1, 0));
    CHECK(cuMemPoolImportPointer(&memory, pool, &handles[2]));
    CHECK(cuCtxSynchronize());
    NEED(write(line, "", 1) == 1);
}

static void share(void) {
    int lines[2], status;
    NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t child = fork();
    if (child == 0) {
        take(lines[1]);
        exit(0);
    }
    give(lines[0]);
    NEED(waitpid(child, &status, 0) == child && status == 0);
}

// From server to server, where the workers lose each other.
static void across(void) {
    uint64_t one, two;
    start(1);
    CHECK(cuMemAlloc_v2(&two, 1 << 20));
    start(0);
    CHECK(cuMemAlloc_v2(&one, 1 << 20));
    NEED(cuMemcpy(two, one, 1 << 20) != 0);
}

int main(int count, char **words) {
    void *stream;
    uint64_t memory;
    NEED(count == 3);
    if (strcmp(words[1], "share") == 0) {
        share();
    } else if (strcmp(words[1], "across") == 0) {
        across();
    } else {
        start(0);
        CHECK(cuStreamCreateWithPriority(&stream, 1, -1));
        CHECK(cuMemAlloc_v2(&memory, 1 << 20));
        CHECK(cuMemsetD8_v2(memory, 0, 1 << 20));
        functions(words[2], stream, memory);
        graphs(words[2], stream, memory);
        memory_calls(stream, memory);
        ends(stream);
    }
    puts("results right");
    return 0;
}
