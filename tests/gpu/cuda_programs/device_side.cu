// What kernels do by themselves: launch kernels, allocate, recurse, wait for the whole grid, share memory
// within a cluster, copy asynchronously, start early behind another, fail an assertion.
#include <cooperative_groups.h>
#include <cooperative_groups/memcpy_async.h>
#include <cub/cub.cuh>
#include <cuda/atomic>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <unistd.h>
#include <sys/wait.h>

#include <cassert>
#include <numeric>
#include <vector>

#include "check.h"

namespace cg = cooperative_groups;

__global__ void leaf(int *out, int by) { atomicAdd(out, by * (threadIdx.x + 1)); }

__global__ void tail(int *out) { out[1] = out[0] * 2; }

// Dynamic parallelism: children in a stream of their own kind, and one behind the whole kernel.
__global__ void parent(int *out) {
    if (threadIdx.x == 0) {
        leaf<<<2, 32, 0, cudaStreamFireAndForget>>>(out, int(blockIdx.x) + 1);
        if (blockIdx.x == 0) tail<<<1, 1, 0, cudaStreamTailLaunch>>>(out);
    }
}

static int children() {
    int *out, found[2];
    CHECK(cudaMalloc(&out, 8));
    CHECK(cudaMemset(out, 0, 8));
    parent<<<3, 32>>>(out);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(found, out, 8, cudaMemcpyDeviceToHost));
    printf("RESULT children %d %d\n", found[0], found[1]);
    CHECK(cudaFree(out));
    return 0;
}

// Memory of the device's own heap, which the host sizes; pointers outlive the kernel.
__device__ int *kept[64];

__global__ void allocate(int size) {
    kept[threadIdx.x] = static_cast<int *>(malloc(size * sizeof(int)));
    if (kept[threadIdx.x])
        for (int i = 0; i < size; i++) kept[threadIdx.x][i] = i + threadIdx.x;
}

__global__ void collect(unsigned long long *sum, int size) {
    unsigned long long own = 0;
    if (kept[threadIdx.x])
        for (int i = 0; i < size; i++) own += kept[threadIdx.x][i];
    atomicAdd(sum, own);
    free(kept[threadIdx.x]);
}

__device__ __noinline__ int depth(int n, volatile int *pad) {
    volatile int here[16];
    here[n & 15] = n;
    return n ? here[n & 15] + depth(n - 1, here) : pad[0] * 0;
}

__global__ void recurse(int *out, int n) {
    volatile int pad[1] = {0};
    out[threadIdx.x] = depth(n, pad);
}

static int heap() {
    unsigned long long *sum, found;
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
    CHECK(cudaMalloc(&sum, 8));
    CHECK(cudaMemset(sum, 0, 8));
    allocate<<<1, 64>>>(5000);
    collect<<<1, 64>>>(sum, 5000);
    CHECK(cudaMemcpy(&found, sum, 8, cudaMemcpyDeviceToHost));
    size_t limit;
    CHECK(cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize));
    printf("RESULT heap %llu %zu\n", found, limit);
    int *out, host[32];
    CHECK(cudaMalloc(&out, sizeof host));
    CHECK(cudaDeviceSetLimit(cudaLimitStackSize, 24 << 10));
    recurse<<<1, 32>>>(out, 200);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(host, out, sizeof host, cudaMemcpyDeviceToHost));
    printf("RESULT recursion %d\n", host[31]);
    return 0;
}

__global__ void rounds(int *data, int n, int *out) {
    cg::grid_group grid = cg::this_grid();
    for (int half = n / 2; half; half /= 2) {
        for (int i = grid.thread_rank(); i < half; i += grid.size()) data[i] += data[i + half];
        grid.sync();
    }
    if (grid.thread_rank() == 0) *out = data[0];
}

__global__ void __cluster_dims__(4, 1, 1) ring(int *out) {
    __shared__ int mine;
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x == 0) mine = 10 * (blockIdx.x + 1);
    cluster.sync();
    if (threadIdx.x == 0)
        out[blockIdx.x] = *cluster.map_shared_rank(&mine, (cluster.block_rank() + 1) % 4);
    cluster.sync();
}

__global__ void staged(const int *in, int *out) {
    __shared__ int tile[256];
    cg::thread_block block = cg::this_thread_block();
    cg::memcpy_async(block, tile, in + blockIdx.x * 256, sizeof tile);
    cg::wait(block);
    out[blockIdx.x * 256 + threadIdx.x] = tile[255 - threadIdx.x];
}

static int groups() {
    const int n = 1 << 16;
    std::vector<int> host(n);
    std::iota(host.begin(), host.end(), 0);
    int *data, *out;
    CHECK(cudaMalloc(&data, n * 4));
    CHECK(cudaMalloc(&out, n * 4));
    CHECK(cudaMemcpy(data, host.data(), n * 4, cudaMemcpyHostToDevice));
    int blocks, count = n;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, rounds, 128, 0));
    void *arguments[] = {&data, &count, &out};
    CHECK(cudaLaunchCooperativeKernel((void *)rounds, dim3(blocks < 2 ? blocks : 2), dim3(128),
                                      arguments, 0, nullptr));
    int sum;
    CHECK(cudaMemcpy(&sum, out, 4, cudaMemcpyDeviceToHost));
    ring<<<8, 32>>>(out);
    int turned[8];
    CHECK(cudaMemcpy(turned, out, sizeof turned, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(data, host.data(), n * 4, cudaMemcpyHostToDevice));
    staged<<<n / 256, 256>>>(data, out);
    CHECK(cudaMemcpy(host.data(), out, n * 4, cudaMemcpyDeviceToHost));
    printf("RESULT groups %d %d %d %d\n", sum, turned[3], turned[4], host[256]);
    return 0;
}

__global__ void first(int *data) {
    data[threadIdx.x] = threadIdx.x;
    cudaTriggerProgrammaticLaunchCompletion();
}

__global__ void second(int *data) {
    cudaGridDependencySynchronize();
    data[threadIdx.x] += 100;
}

static int dependent() {
    int *data, host[32];
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc(&data, sizeof host));
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1);
    config.blockDim = dim3(32);
    config.stream = stream;
    for (int i = 0; i < 50; i++) {
        first<<<1, 32, 0, stream>>>(data);
        config.attrs = &attribute;
        config.numAttrs = 1;
        CHECK(cudaLaunchKernelEx(&config, second, data));
    }
    CHECK(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream));
    CHECK(cudaStreamSynchronize(stream));
    printf("RESULT dependent %d %d\n", host[0], host[31]);
    cudaStreamAttrValue window{};
    window.accessPolicyWindow.base_ptr = data;
    window.accessPolicyWindow.num_bytes = sizeof host;
    window.accessPolicyWindow.hitRatio = 1;
    window.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    window.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    CHECK(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20));
    CHECK(cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &window));
    second<<<1, 32, 0, stream>>>(data);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaCtxResetPersistingL2Cache());
    return 0;
}

static int algorithms() {
    const int n = 1 << 20;
    std::vector<unsigned> host(n);
    for (int i = 0; i < n; i++) host[i] = unsigned(i) * 2654435761u;
    thrust::device_vector<unsigned> values = host;
    thrust::sort(values.begin(), values.end());
    thrust::device_vector<unsigned> sums(n);
    thrust::inclusive_scan(values.begin(), values.end(), sums.begin());
    unsigned least = values[0], total = sums[n - 1];
    unsigned reduced = thrust::reduce(values.begin(), values.end(), 0u, cuda::std::plus<unsigned>());
    printf("RESULT thrust %u %u %u\n", least, total, reduced);
    size_t size = 0;
    int *bins;
    CHECK(cudaMalloc(&bins, 16 * 4));
    const unsigned *in = thrust::raw_pointer_cast(values.data());
    CHECK(cub::DeviceHistogram::HistogramEven(nullptr, size, in, bins, 17, 0u, 1u << 31, n));
    void *scratch;
    CHECK(cudaMallocAsync(&scratch, size, 0));
    CHECK(cub::DeviceHistogram::HistogramEven(scratch, size, in, bins, 17, 0u, 1u << 31, n));
    CHECK(cudaFreeAsync(scratch, 0));
    int found[16];
    CHECK(cudaMemcpy(found, bins, sizeof found, cudaMemcpyDeviceToHost));
    printf("RESULT cub %d %d %d\n", found[0], found[7], found[15]);
    return 0;
}

__global__ void claim(int n) { assert(n < 0); }

__global__ void astray(int *where) { *where = 1; }

// Errors that stay, in processes of their own: what each call says afterwards.
static void broken(const char *kind) {
    fflush(stdout);
    pid_t child = fork();
    if (child) {
        waitpid(child, nullptr, 0);
        return;
    }
    char name[8];
    snprintf(name, sizeof name, "%s", kind);
    execl("/proc/self/exe", "device_side", name, nullptr);
    _exit(1);
}

static int break_it(char kind) {
    int *good;
    CHECK(cudaMalloc(&good, 4));
    if (kind == 'a') claim<<<1, 1>>>(1);
    else astray<<<1, 1>>>(reinterpret_cast<int *>(16));
    int host;
    cudaError_t waited = cudaDeviceSynchronize();
    cudaError_t copied = cudaMemcpy(&host, good, 4, cudaMemcpyDeviceToHost);
    cudaError_t again = cudaMalloc(&good, 4);
    printf("RESULT broken_%c %d %d %d\n", kind, waited, copied, again);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **words) {
    if (count > 1) return break_it(words[1][0]);
    broken("a");
    broken("m");
    return children() || heap() || groups() || dependent() || algorithms();
}
