// CUDA's runtime with two devices, which may be of two servers: kernels, variables, copies, events.
#include <cuda_runtime.h>

#include <thread>
#include <vector>

#include "check.h"

enum { N = 1 << 20 };

__device__ int offset = 1;
__constant__ int factor = 3;

__global__ void scale(int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * factor + offset;
}

__global__ void set(int *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = i;
}

static long long sum(const std::vector<int> &values) {
    long long total = 0;
    for (int value : values) total += value;
    return total;
}

static int fill_and_copy() {
    int *memory[2];
    cudaStream_t streams[2];
    cudaEvent_t done;
    std::vector<int> host(N);
    for (int device = 0; device < 2; device++) {
        int value = 10 * (device + 1);
        CHECK(cudaSetDevice(device));
        CHECK(cudaMalloc(&memory[device], N * 4));
        CHECK(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking));
        CHECK(cudaMemcpyToSymbol(offset, &value, sizeof value));
        set<<<N / 256, 256, 0, streams[device]>>>(memory[device], N);
        scale<<<N / 256, 256, 0, streams[device]>>>(memory[device], N);
        CHECK(cudaGetLastError());
        CHECK(cudaStreamSynchronize(streams[device]));
        cudaPointerAttributes where;
        CHECK(cudaPointerGetAttributes(&where, memory[device]));
        CHECK(cudaMemcpy(host.data(), memory[device], N * 4, cudaMemcpyDefault));
        printf("RESULT on_%d %lld %d\n", device, sum(host), where.device);
    }
    // The second device waits for the first, takes its numbers, and goes on.
    CHECK(cudaSetDevice(0));
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    for (int round = 0; round < 20; round++) {
        scale<<<N / 256, 256, 0, streams[0]>>>(memory[0], N);
    }
    CHECK(cudaEventRecord(done, streams[0]));
    CHECK(cudaSetDevice(1));
    CHECK(cudaStreamWaitEvent(streams[1], done, 0));
    CHECK(cudaMemcpyPeerAsync(memory[1], 1, memory[0], 0, N * 4, streams[1]));
    scale<<<N / 256, 256, 0, streams[1]>>>(memory[1], N);
    CHECK(cudaMemcpyAsync(host.data(), memory[1], N * 4, cudaMemcpyDefault, streams[1]));
    CHECK(cudaStreamSynchronize(streams[1]));
    printf("RESULT peer_async %lld %d %d\n", sum(host), host[1], host[N - 1]);
    CHECK(cudaMemcpyPeer(memory[0], 0, memory[1], 1, N * 4));
    CHECK(cudaMemcpy(memory[1], memory[0], N * 2, cudaMemcpyDefault));
    CHECK(cudaSetDevice(0));
    CHECK(cudaMemcpy(host.data(), memory[1], N * 4, cudaMemcpyDeviceToHost));
    printf("RESULT peer %lld\n", sum(host));
    CHECK(cudaMemcpy2D(memory[1], 256, memory[0] + 7, 512, 128, 100, cudaMemcpyDeviceToDevice));
    CHECK(cudaSetDevice(1));  // natively a fill wants the device of its memory
    CHECK(cudaMemset(memory[1], 0, 64));
    CHECK(cudaMemcpy(host.data(), memory[1], N * 4, cudaMemcpyDeviceToHost));
    printf("RESULT rows %lld\n", sum(host));
    for (int device = 0; device < 2; device++) {
        CHECK(cudaFree(memory[device]));  // of whichever device
        CHECK(cudaStreamDestroy(streams[device]));
    }
    CHECK(cudaEventDestroy(done));
    return 0;
}

// A thread for each device, with memory of its own pool and of the host.
static int threads() {
    long long totals[2] = {0, 0};
    std::vector<std::thread> made;
    for (int device = 0; device < 2; device++) {
        made.emplace_back([device, &totals] {
            int *memory = nullptr, *host = nullptr;
            cudaStream_t stream;
            cudaSetDevice(device);
            cudaStreamCreate(&stream);
            cudaMallocHost(&host, N * 4);
            for (int round = 0; round < 20; round++) {
                cudaMallocAsync(&memory, N * 4, stream);
                set<<<N / 256, 256, 0, stream>>>(memory, N);
                for (int k = 0; k < 50; k++) scale<<<N / 256, 256, 0, stream>>>(memory, N);
                cudaMemcpyAsync(host, memory, N * 4, cudaMemcpyDeviceToHost, stream);
                cudaFreeAsync(memory, stream);
                cudaStreamSynchronize(stream);
                for (int at = 0; at < N; at += 97) totals[device] += host[at];
            }
            cudaFreeHost(host);
            cudaStreamDestroy(stream);
        });
    }
    for (auto &thread : made) thread.join();
    CHECK(cudaDeviceSynchronize());
    printf("RESULT threads %lld %lld\n", totals[0], totals[1]);
    return 0;
}

static int managed() {
    for (int device = 0; device < 2; device++) {
        int *numbers;
        CHECK(cudaSetDevice(device));
        CHECK(cudaMallocManaged(&numbers, N * 4));
        for (int at = 0; at < N; at++) numbers[at] = at;
        scale<<<N / 256, 256>>>(numbers, N);
        CHECK(cudaDeviceSynchronize());
        printf("RESULT managed_%d %d %d\n", device, numbers[1], numbers[N - 1]);
        CHECK(cudaFree(numbers));
    }
    return 0;
}

int main() {
    int count = 0;
    CHECK(cudaGetDeviceCount(&count));
    printf("RESULT devices %d\n", count);
    return fill_and_copy() || threads() || managed();
}
