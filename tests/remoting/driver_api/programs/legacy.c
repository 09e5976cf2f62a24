// Launches as before CUDA 4, of several devices together, and contexts that are counted.
#include "check.h"

struct together {
    void *function;
    unsigned grid[3], block[3], shared;
    void *stream;
    void **parameters;
};

int cuFuncSetBlockShape(void *, int, int, int), cuFuncSetSharedSize(void *, unsigned);
int cuParamSetSize(void *, unsigned), cuParamSeti(void *, int, unsigned);
int cuParamSetf(void *, int, float), cuParamSetv(void *, int, void *, unsigned);
int cuLaunch(void *), cuLaunchGrid(void *, int, int), cuLaunchGridAsync(void *, int, int, void *);
int cuLaunchCooperativeKernelMultiDevice(struct together *, unsigned, unsigned);
int cuCtxCreate_v2(void **, unsigned, int), cuCtxAttach(void **, unsigned), cuCtxDetach(void *);
int cuCtxGetCurrent(void **);

#define N 1000

static void old(const char *image) {
    void *module, *saxpy, *fill, *stream;
    uint64_t x, y;
    float found[N];
    CHECK(cuModuleLoad(&module, image));
    CHECK(cuModuleGetFunction(&saxpy, module, "saxpy"));
    CHECK(cuModuleGetFunction(&fill, module, "fill"));
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuMemAlloc_v2(&x, sizeof found));
    CHECK(cuMemAlloc_v2(&y, sizeof found));
    // (float *out, float value, int n)
    CHECK(cuParamSetv(fill, 0, &x, sizeof x));
    CHECK(cuParamSetf(fill, 8, 2.5f));
    CHECK(cuParamSeti(fill, 12, N));
    CHECK(cuParamSetSize(fill, 16));
    printf("no shape %d\n", cuLaunch(fill));
    CHECK(cuFuncSetBlockShape(fill, 256, 1, 1));
    CHECK(cuFuncSetSharedSize(fill, 1024));
    CHECK(cuLaunchGrid(fill, 4, 1));
    CHECK(cuParamSetv(fill, 0, &y, sizeof y));
    CHECK(cuParamSetf(fill, 8, 1));
    CHECK(cuLaunch(fill));  // one block of 256
    // (float a, const float *x, float *y, int n), the addresses at multiples of their size
    CHECK(cuFuncSetBlockShape(saxpy, 128, 1, 1));
    CHECK(cuParamSetf(saxpy, 0, 3));
    CHECK(cuParamSetv(saxpy, 8, &x, sizeof x));
    CHECK(cuParamSetv(saxpy, 16, &y, sizeof y));
    CHECK(cuParamSeti(saxpy, 24, N));
    CHECK(cuParamSetSize(saxpy, 28));
    CHECK(cuMemsetD8_v2(y + 1024, 0, sizeof found - 1024));
    CHECK(cuLaunchGridAsync(saxpy, 8, 1, stream));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH_v2(found, y, sizeof found));
    printf("old %.1f %.1f %.1f %.1f\n", found[0], found[255], found[256], found[N - 1]);
    printf("refused %d %d %d %d %d\n", cuParamSetv(saxpy, 4090, &x, 8), cuParamSetSize(saxpy, 5000),
           cuFuncSetBlockShape(saxpy, 0, 1, 1), cuLaunchGrid(saxpy, 0, 1), cuParamSeti(saxpy, -4, 1));
    CHECK(cuStreamDestroy_v2(stream));
    CHECK(cuMemFree_v2(x));
    CHECK(cuMemFree_v2(y));
    CHECK(cuModuleUnload(module));
}

static void together(const char *image) {
    struct together launches[2];
    uint64_t data[2];
    int n = N, found[N];
    void *parameters[2][2], *module;
    for (int device = 0; device < 2; device++) {
        start(device);
        CHECK(cuModuleLoad(&module, image));
        struct together one = {.grid = {4, 1, 1}, .block = {256, 1, 1}};
        CHECK(cuModuleGetFunction(&one.function, module, "increment"));
        CHECK(cuStreamCreate(&one.stream, 1));
        CHECK(cuMemAlloc_v2(&data[device], sizeof found));
        CHECK(cuMemsetD8_v2(data[device], (unsigned char)(device + 1), sizeof found));
        CHECK(cuCtxSynchronize());
        parameters[device][0] = &data[device];
        parameters[device][1] = &n;
        one.parameters = parameters[device];
        launches[device] = one;
    }
    CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 2, 0));
    CHECK(cuLaunchCooperativeKernelMultiDevice(launches, 1, 3));
    for (int device = 0; device < 2; device++) {
        start(device);
        CHECK(cuStreamSynchronize(launches[device].stream));
        CHECK(cuMemcpyDtoH_v2(found, data[device], sizeof found));
        printf("together %x %x\n", (unsigned)found[0], (unsigned)found[N - 1]);
    }
    launches[1].grid[0] = 5;
    printf("refused %d", cuLaunchCooperativeKernelMultiDevice(launches, 2, 0));
    launches[1] = launches[0];
    printf(" %d %d\n", cuLaunchCooperativeKernelMultiDevice(launches, 2, 0),
           cuLaunchCooperativeKernelMultiDevice(launches, 0, 0));
}

static void contexts(void) {
    void *own, *same, *other;
    CHECK(cuCtxCreate_v2(&own, 0, 0));
    CHECK(cuCtxAttach(&same, 0));
    NEED(same == own);
    printf("attached %d, not current %d", cuCtxAttach(&same, 1), cuCtxDetach(NULL));
    CHECK(cuCtxDetach(own));
    CHECK(cuCtxGetCurrent(&other));
    NEED(other == own);
    CHECK(cuCtxDetach(own));
    CHECK(cuCtxGetCurrent(&other));
    NEED(other != own);
    printf(", gone %d\n", cuCtxDetach(own));
}

int main(int count, char **arguments) {
    NEED(count == 2);
    start(0);
    old(arguments[1]);
    together(arguments[1]);
    contexts();
    return 0;
}
