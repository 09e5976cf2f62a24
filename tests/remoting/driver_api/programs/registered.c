// A client of CUDA's runtime, of whatever version. Arguments: a fat binary with the
// kernels of fake_cuda/kernels/test_kernels.cu, and how many devices there are.
#include "registered.h"

int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaMemset(void *, int, size_t);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *), cudaStreamCreate(void **);
int cudaStreamSynchronize(void *), cudaStreamDestroy(void *), cudaEventCreate(void **);
int cudaEventRecord(void *, void *), cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *), cudaMallocHost(void **, size_t);
int cudaFreeHost(void *), cudaRuntimeGetVersion(int *), cudaGetLastError(void);

enum { N = 1000 };

static char saxpy;  // what a kernel's stub would be: its address names it

static void use_device(int device) {
    float *x, *y, *host, factor = 2, elapsed;
    void *stream, *start, *end;
    int n = N;
    CHECK(cudaSetDevice(device));
    CHECK(cudaMalloc((void **)&x, N * 4));
    CHECK(cudaMalloc((void **)&y, N * 4));
    CHECK(cudaMallocHost((void **)&host, N * 4));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    for (int at = 0; at < N; at++) host[at] = (float)at;
    CHECK(cudaMemcpyAsync(x, host, N * 4, 1, stream));
    CHECK(cudaMemset(y, 0, N * 4));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaEventRecord(start, stream));
    void *parameters[] = {&factor, &x, &y, &n};
    CHECK(cudaLaunchKernel(&saxpy, (dim3){4, 1, 1}, (dim3){256, 1, 1}, parameters, 0, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaMemcpyAsync(host, y, N * 4, 2, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventSynchronize(end));
    CHECK(cudaEventElapsedTime(&elapsed, start, end));
    for (int at = 0; at < N; at++) {
        if (host[at] != 2 * (float)at) exit(3);
    }
    CHECK(cudaFree(x));
    CHECK(cudaFree(y));
    CHECK(cudaFreeHost(host));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaGetLastError());
}

int main(int count, char **words) {
    int devices = 0, version = 0;
    void **handle = count == 3 ? register_image(words[1]) : NULL;
    if (handle == NULL) return 2;
    __cudaRegisterFunction(handle, &saxpy, "saxpy", "saxpy", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
    CHECK(cudaRuntimeGetVersion(&version));
    CHECK(cudaGetDeviceCount(&devices));
    if (devices != atoi(words[2])) return 4;
    for (int device = 0; device < devices; device++) use_device(device);
    printf("CUDA %d, results right\n", version / 1000);
    __cudaUnregisterFatBinary(handle);
    return 0;
}
