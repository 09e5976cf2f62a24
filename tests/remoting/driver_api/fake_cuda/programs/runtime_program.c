/* A client of CUDA's runtime without nvcc: what a compiled C program does, through the runtime's API.
 *
 * Built by the slow tests against the libcudart of the nvidia-cuda-runtime wheel. Argument: a cubin or fatbin.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *cudaStream_t, *cudaEvent_t, *cudaLibrary_t, *cudaKernel_t;
typedef struct { unsigned int x, y, z; } dim3;

extern int cudaGetDeviceCount(int *), cudaSetDevice(int), cudaMalloc(void **, size_t), cudaFree(void *),
    cudaMemcpy(void *, const void *, size_t, int),
    cudaMemcpyAsync(void *, const void *, size_t, int, cudaStream_t), cudaMemset(void *, int, size_t),
    cudaStreamCreate(cudaStream_t *), cudaStreamSynchronize(cudaStream_t), cudaStreamDestroy(cudaStream_t),
    cudaEventCreate(cudaEvent_t *), cudaEventRecord(cudaEvent_t, cudaStream_t),
    cudaEventSynchronize(cudaEvent_t), cudaEventElapsedTime(float *, cudaEvent_t, cudaEvent_t),
    cudaMallocHost(void **, size_t), cudaFreeHost(void *), cudaDeviceSynchronize(void), cudaDeviceReset(void),
    cudaLibraryLoadData(cudaLibrary_t *, const void *, void *, void *, unsigned, void *, void *, unsigned),
    cudaLibraryGetKernel(cudaKernel_t *, cudaLibrary_t, const char *), cudaLibraryUnload(cudaLibrary_t),
    cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
extern const char *cudaGetErrorName(int);

#define CHECK(call)                                                                                \
    do {                                                                                           \
        int code_ = (call);                                                                        \
        if (code_ != 0) {                                                                          \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorName(code_));                           \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

static void *read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    char *bytes = calloc(1, 1 << 20);
    if (file == NULL || bytes == NULL || fread(bytes, 1, 1 << 20, file) == 0)
        exit(2);
    fclose(file);
    return bytes;
}

int main(int count, char **arguments) {
    enum { N = 1000 };
    int devices = 0, n = N;
    float *host, *x, *y, a = 2, elapsed;
    cudaStream_t stream;
    cudaEvent_t start, end;
    cudaLibrary_t library;
    cudaKernel_t saxpy;
    if (count != 2)
        return 2;
    CHECK(cudaGetDeviceCount(&devices));
    CHECK(cudaSetDevice(devices - 1));
    CHECK(cudaMallocHost((void **)&host, N * sizeof *host));
    CHECK(cudaMalloc((void **)&x, N * sizeof *x));
    CHECK(cudaMalloc((void **)&y, N * sizeof *y));
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    CHECK(cudaMemcpy(x, host, N * sizeof *x, 1));
    CHECK(cudaMemset(y, 0, N * sizeof *y));
    CHECK(cudaLibraryLoadData(&library, read_file(arguments[1]), NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cudaLibraryGetKernel(&saxpy, library, "saxpy"));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    CHECK(cudaEventRecord(start, stream));
    void *parameters[] = {&a, &x, &y, &n};
    for (int i = 0; i < 3; i++)
        CHECK(cudaLaunchKernel(saxpy, (dim3){4, 1, 1}, (dim3){256, 1, 1}, parameters, 0, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaMemcpyAsync(host, y, N * sizeof *y, 2, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaEventElapsedTime(&elapsed, start, end));
    for (int i = 0; i < N; i++)
        if (host[i] != 6.0f * (float)i)
            return 3;
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaFree(x));
    CHECK(cudaFreeHost(host));
    CHECK(cudaLibraryUnload(library));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaDeviceReset());
    printf("%d devices, results right\n", devices);
    return 0;
}
