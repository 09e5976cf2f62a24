// The CUDA runtime's everyday calls, with values that show whether they did what they should.
#include <cuda_runtime.h>

#include <cstdio>
#include <thread>
#include <vector>

#include "check.h"

struct Pair {
    int a;
    double b;
};

__constant__ float constants[16];
__device__ int counter;

__global__ void axpy(float *x, float a, int n, Pair pair) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * a + (float)pair.b + constants[0];
    if (i == 0) counter += pair.a;
}

struct Large {
    float values[1200];
};

__global__ void large(float *out, Large large) { out[threadIdx.x] = large.values[threadIdx.x * 100]; }

static int threads_work() {
    std::vector<int> sums(4, 0);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
        threads.emplace_back([t, &sums] {
            float *memory = nullptr;
            cudaStream_t stream;
            cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
            cudaMalloc(&memory, 4096);
            cudaMemsetAsync(memory, 0, 4096, stream);
            for (int k = 0; k < 200; k++) axpy<<<1, 32, 0, stream>>>(memory, 1.f, 32, Pair{0, 1.0});
            float value = 0;
            cudaMemcpyAsync(&value, memory, 4, cudaMemcpyDeviceToHost, stream);
            cudaStreamSynchronize(stream);
            sums[t] = (int)value;
            cudaFree(memory);
            cudaStreamDestroy(stream);
        });
    }
    for (auto &thread : threads) thread.join();
    printf("RESULT threads %d %d %d %d\n", sums[0], sums[1], sums[2], sums[3]);
    return 0;
}

int main() {
    int n = 1000;
    cudaDeviceProp properties;
    CHECK(cudaGetDeviceProperties(&properties, 0));
    printf("RESULT device %s\nRESULT capability %d %d\n", properties.name, properties.major,
           properties.minor);
    std::vector<float> host(n);
    for (int i = 0; i < n; i++) host[i] = i;
    float *device;
    CHECK(cudaMalloc(&device, n * 4));
    CHECK(cudaMemcpy(device, host.data(), n * 4, cudaMemcpyHostToDevice));
    float ten[16] = {10};
    CHECK(cudaMemcpyToSymbol(constants, ten, sizeof ten));
    Pair pair{3, 0.5};
    axpy<<<8, 128>>>(device, 2.f, n, pair);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    int count;
    CHECK(cudaMemcpy(host.data(), device, n * 4, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpyFromSymbol(&count, counter, 4));
    printf("RESULT kernel %g %d\n", host[7], count);
    cudaStream_t stream;
    cudaEvent_t first, second;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&second));
    float *pinned;
    CHECK(cudaMallocHost(&pinned, 1 << 20));
    for (int i = 0; i < n; i++) pinned[i] = i + 1;
    CHECK(cudaEventRecord(first, stream));
    CHECK(cudaMemcpyAsync(device, pinned, n * 4, cudaMemcpyHostToDevice, stream));
    for (int i = 0; i < 3; i++) axpy<<<8, 128, 0, stream>>>(device, 1.f, n, pair);
    CHECK(cudaMemcpyAsync(pinned, device, n * 4, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaEventRecord(second, stream));
    CHECK(cudaEventSynchronize(second));
    float elapsed;
    CHECK(cudaEventElapsedTime(&elapsed, first, second));
    printf("RESULT stream %g %g %d\n", pinned[0], pinned[999], elapsed > 0);
    // A pinned buffer that the device writes, then reads again in the same stream.
    CHECK(cudaMemcpyAsync(pinned, device, 4000, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaMemcpyAsync(device + 1, pinned, 3996, cudaMemcpyHostToDevice, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host.data(), device, n * 4, cudaMemcpyDefault));
    printf("RESULT echo %g %g\n", host[1], host[999]);
    Large many;
    for (int i = 0; i < 1200; i++) many.values[i] = i;
    large<<<1, 12, 0, stream>>>(device, many);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host.data(), device, 48, cudaMemcpyDefault));
    printf("RESULT large_parameter %g %g\n", host[1], host[11]);
    int blocks;
    cudaFuncAttributes attributes;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, axpy, 128, 0));
    CHECK(cudaFuncGetAttributes(&attributes, axpy));
    printf("RESULT occupancy %d %d\n", blocks, attributes.numRegs);
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaMemsetAsync(device, 0, 4000, stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    axpy<<<8, 128, 0, stream>>>(device, 1.f, n, pair);
    axpy<<<8, 128, 0, stream>>>(device, 2.f, n, pair);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 2; i++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(host.data(), device, n * 4, cudaMemcpyDefault));
    printf("RESULT graph %g\n", host[0]);
    // Rows that lie apart.
    CHECK(cudaMemset2D(device, 64, 7, 32, 10));
    unsigned char rows[10 * 32];
    CHECK(cudaMemcpy2D(rows, 32, device, 64, 32, 10, cudaMemcpyDeviceToHost));
    printf("RESULT rows %d %d\n", rows[0], rows[319]);
    void *huge;
    cudaError_t refused = cudaMalloc(&huge, (size_t)1 << 45);
    printf("RESULT refused %d\n", refused);
    cudaGetLastError();
    size_t size = 40 << 20;
    std::vector<char> source(size), target(size);
    for (size_t i = 0; i < size; i++) source[i] = (char)(i * 7 + (i >> 12));
    char *bulk;
    CHECK(cudaMalloc(&bulk, size));
    CHECK(cudaMemcpy(bulk, source.data(), size, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(target.data(), bulk, size, cudaMemcpyDeviceToHost));
    printf("RESULT bulk %d\n", source == target);
    void *pooled;
    CHECK(cudaMallocAsync(&pooled, 1 << 20, stream));
    CHECK(cudaMemsetAsync(pooled, 1, 1 << 20, stream));
    CHECK(cudaFreeAsync(pooled, stream));
    CHECK(cudaStreamSynchronize(stream));
    cudaPointerAttributes found;
    CHECK(cudaPointerGetAttributes(&found, bulk + 5));
    CHECK(cudaPointerGetAttributes(&found, pinned));
    printf("RESULT pointer %d\n", found.type);
    CHECK(cudaPointerGetAttributes(&found, source.data()));
    printf("RESULT pageable %d\n", found.type);
    if (threads_work()) return 1;
    CHECK(cudaFree(bulk));
    CHECK(cudaFree(device));
    CHECK(cudaFreeHost(pinned));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaDeviceSynchronize());
    printf("RESULT end 1\n");
    return 0;
}
