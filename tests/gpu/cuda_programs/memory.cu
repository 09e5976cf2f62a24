// Memory that is not plain: pools, arrays, textures, surfaces, managed memory; and printf.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <unistd.h>
#include <vector>

#include "check.h"

__managed__ int counters[1000];

__global__ void add(int *data, int value, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] += value;
}

__global__ void tally(int n) {
    if (threadIdx.x < n) counters[threadIdx.x] += threadIdx.x;
}

__global__ void blend(cudaTextureObject_t texture, cudaSurfaceObject_t surface, int width,
                      int height) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= width * height) return;
    float between = tex2D<float>(texture, i % width + 1.0f, i / width + 0.5f);
    surf2Dwrite(between, surface, i % width * (int)sizeof(float), i / width);
}

__global__ void greet(int n) {
    if (threadIdx.x == 0) printf("RESULT printed a kernel says %d and %.2f\n", n, n / 4.0);
}

static long sum(const int *data, int n) {
    long total = 0;
    for (int i = 0; i < n; i++) total += data[i];
    return total;
}

static int pools() {
    cudaMemPool_t pool;
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    cudaStream_t stream;
    int *data, host[1000];
    unsigned long long keep = ~0ull, used;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMemPoolCreate(&pool, &properties));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    for (int turn = 0; turn < 100; turn++) {
        CHECK(cudaMallocFromPoolAsync(&data, 64 << 20, pool, stream));
        CHECK(cudaMemsetAsync(data, 0, 64 << 20, stream));
        add<<<4, 256, 0, stream>>>(data, turn, 1000);
        CHECK(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, stream));
        CHECK(cudaFreeAsync(data, stream));
    }
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
    printf("RESULT pool %ld %llu\n", sum(host, 1000), used);
    CHECK(cudaMemPoolTrimTo(pool, 0));
    CHECK(cudaMemPoolDestroy(pool));
    return 0;
}

static int textures() {
    const int width = 300, height = 200;
    cudaArray_t from, to;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    std::vector<float> values(width * height), found(width * height);
    for (int i = 0; i < width * height; i++) values[i] = (float)(i % 977);
    size_t row = width * sizeof(float);
    CHECK(cudaMallocArray(&from, &format, width, height));
    CHECK(cudaMallocArray(&to, &format, width, height, cudaArraySurfaceLoadStore));
    CHECK(cudaMemcpy2DToArray(from, 0, 0, values.data(), row, row, height, cudaMemcpyHostToDevice));
    cudaResourceDesc of = {};
    cudaTextureDesc how = {};
    of.resType = cudaResourceTypeArray;
    of.res.array.array = from;
    how.filterMode = cudaFilterModeLinear;
    how.addressMode[0] = how.addressMode[1] = cudaAddressModeClamp;
    cudaTextureObject_t texture;
    cudaSurfaceObject_t surface;
    CHECK(cudaCreateTextureObject(&texture, &of, &how, nullptr));
    of.res.array.array = to;
    CHECK(cudaCreateSurfaceObject(&surface, &of));
    blend<<<(width * height + 255) / 256, 256>>>(texture, surface, width, height);
    CHECK(cudaMemcpy2DFromArray(found.data(), row, to, 0, 0, row, height, cudaMemcpyDeviceToHost));
    double total = 0;
    for (float value : found) total += value;
    printf("RESULT texture %.3f %.3f %.3f\n", found[1], found[12345], total);
    CHECK(cudaDestroyTextureObject(texture));
    CHECK(cudaDestroySurfaceObject(surface));
    CHECK(cudaFreeArray(from));
    CHECK(cudaFreeArray(to));

    cudaExtent extent = make_cudaExtent(64, 48, 20);
    cudaArray_t volume;
    std::vector<float> box(64 * 48 * 20), part(30 * 20 * 10);
    for (size_t i = 0; i < box.size(); i++) box[i] = (float)i;
    CHECK(cudaMalloc3DArray(&volume, &format, extent));
    cudaMemcpy3DParms in = {}, out = {};
    in.srcPtr = make_cudaPitchedPtr(box.data(), 64 * sizeof(float), 64, 48);
    in.dstArray = volume;
    in.extent = extent;
    in.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&in));
    out.srcArray = volume;
    out.srcPos = make_cudaPos(5, 6, 7);
    out.dstPtr = make_cudaPitchedPtr(part.data(), 30 * sizeof(float), 30, 20);
    out.extent = make_cudaExtent(30, 20, 10);
    out.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3D(&out));
    printf("RESULT volume %.0f %.0f\n", part[0], part[part.size() - 1]);
    CHECK(cudaFreeArray(volume));
    return 0;
}

static int managed() {
    const int n = 8 << 20;
    int *data;
    CHECK(cudaMallocManaged(&data, n * sizeof(int)));
    for (int i = 0; i < n; i++) data[i] = i & 1023;
    add<<<(n + 255) / 256, 256>>>(data, 1, n);
    CHECK(cudaDeviceSynchronize());
    long first = sum(data, n);
    data[77] = 1000000;
    add<<<(n + 255) / 256, 256>>>(data, 2, n);
    CHECK(cudaDeviceSynchronize());
    printf("RESULT managed %ld %ld %d\n", first, sum(data, n), data[77]);
    CHECK(cudaFree(data));
    for (int i = 0; i < 1000; i++) counters[i] = 5;
    tally<<<1, 1000>>>(1000);
    CHECK(cudaDeviceSynchronize());
    printf("RESULT managed_variable %ld\n", sum(counters, 1000));
    return 0;
}

// Files are read straight into memory that kernels see.
static int filled() {
    const int n = 1 << 18;
    std::vector<int> numbers(n, 3);
    int *managed, *mapped;
    FILE *file = tmpfile();
    if (file == nullptr || fwrite(numbers.data(), sizeof(int), n, file) != n || fflush(file)) return 1;
    CHECK(cudaMallocManaged(&managed, 2 * n * sizeof(int)));
    rewind(file);
    size_t got = fread(managed + 1000, sizeof(int), n, file);
    add<<<(2 * n + 255) / 256, 256>>>(managed, 1, 2 * n);
    CHECK(cudaDeviceSynchronize());
    printf("RESULT file_to_managed %zu %ld\n", got, sum(managed, 2 * n));
    CHECK(cudaFree(managed));
    CHECK(cudaHostAlloc(&mapped, n * sizeof(int), cudaHostAllocMapped));
    for (int round = 0; round < 3; round++) {
        long bytes = pread(fileno(file), mapped, n * sizeof(int), 0);
        for (int more = 0; more < 3; more++) add<<<(n + 255) / 256, 256>>>(mapped, round, n);
        CHECK(cudaDeviceSynchronize());
        printf("RESULT file_to_mapped_%d %ld %ld\n", round, bytes, sum(mapped, n));
    }
    CHECK(cudaFreeHost(mapped));
    fclose(file);
    return 0;
}

int main() {
    size_t heap;
    CHECK(cudaFree(nullptr));
    CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 64 << 20));
    CHECK(cudaDeviceGetLimit(&heap, cudaLimitMallocHeapSize));
    printf("RESULT heap %zu\n", heap);
    if (pools() || textures() || managed() || filled()) return 1;
    greet<<<1, 32>>>(7);
    CHECK(cudaDeviceSynchronize());
    return 0;
}
