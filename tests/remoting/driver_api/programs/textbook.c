// What CUDA's own samples do, and few other programs. Argument: an image with the kernels of
// fake_cuda/kernels/test_kernels.cu. Prints the same without the door.
#include "check.h"

int cuCtxCreate_v4(void **, void *, unsigned, int), cuCtxDestroy_v2(void *), cuCtxGetCurrent(void **);
int cuLibraryLoadFromFile(void **, const char *, void *, void *, unsigned, void *, void *, unsigned);
int cuLibraryGetKernel(void **, void *, const char *), cuFuncSetCacheConfig(void *, int);
int cuKernelSetCacheConfig(void *, int, int), cuLibraryUnload(void *);
int cuGraphCreate(void **, unsigned), cuStreamEndCapture(void *, void **);
int cuStreamBeginCaptureToGraph(void *, void *, void **, const void *, size_t, int);
int cuStreamBeginCapture_v2(void *, int), cuGraphGetNodes(void *, void **, size_t *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *), cuGraphDestroy(void *);
int cuTexObjectDestroy(unsigned long long), cuSurfObjectDestroy(unsigned long long);

struct parameters {  // CUctxCreateParams
    void *affinity;
    int affinity_count;
    void *graphics;
};

static void contexts(void) {
    void *context, *before, *now;
    CHECK(cuCtxGetCurrent(&before));
    CHECK(cuCtxCreate_v4(&context, &(struct parameters){0}, 0, 0));
    CHECK(cuCtxGetCurrent(&now));
    NEED(now == context);
    CHECK(cuCtxDestroy_v2(context));
    CHECK(cuCtxCreate_v4(&context, NULL, 0, 0));
    CHECK(cuCtxDestroy_v2(context));
    CHECK(cuCtxSetCurrent(before));
}

static void caches(const char *image) {
    void *library, *kernel, *module, *function;
    CHECK(cuLibraryLoadFromFile(&library, image, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&kernel, library, "increment"));
    CHECK(cuKernelSetCacheConfig(kernel, 1, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&function, module, "increment"));
    CHECK(cuFuncSetCacheConfig(function, 2));
    CHECK(cuCtxSynchronize());
    CHECK(cuLibraryUnload(library));
    CHECK(cuModuleUnload(module));
}

static void captures(void) {
    void *stream, *graph;
    uint64_t memory;
    size_t count = 0;
    CHECK(cuMemAlloc_v2(&memory, 64));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuGraphCreate(&graph, 0));
    CHECK(cuStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, 2));
    CHECK(cuMemsetD8Async(memory, 0, 64, stream));
    CHECK(cuStreamEndCapture(stream, NULL));
    CHECK(cuGraphGetNodes(graph, NULL, &count));
    printf("%zu node\n", count);
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuMemFree_v2(memory));
}

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    contexts();
    caches(arguments[1]);
    captures();
    CHECK(cuTexObjectDestroy(0));
    CHECK(cuSurfObjectDestroy(0));
    puts("results right");
    return 0;
}
