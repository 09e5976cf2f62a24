// Kernels for what is not plain memory: printf, textures, surfaces, managed variables, addresses
// that lie in memory.
// Built by ./build_images.sh; the fake driver knows them by name (../special.c).
#include <cstdio>

extern "C" {

__managed__ int counters[1024];
__device__ char room[3 << 20];

// One block. Each thread says its number, in turn.
__global__ void say(const char *name, int n) {
    for (int i = 0; i < n; i++) {
        if (threadIdx.x == i) printf("%s %d: a kernel says %.1f\n", name, i, i / 2.0);
        __syncthreads();
    }
}

// Element (x, y) of a texture of floats, as the texture gives it.
__global__ void read_texture(cudaTextureObject_t texture, float *out, int width, int height) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < width * height) out[i] = tex2D<float>(texture, i % width + 0.5f, i / width + 0.5f);
}

// The same of one level of a texture with several, whose coordinates go from 0 to 1.
__global__ void read_level(cudaTextureObject_t texture, float *out, int width, int height,
                           int level) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = (i % width + 0.5f) / width, y = (i / width + 0.5f) / height;
    if (i < width * height) out[i] = tex2DLod<float>(texture, x, y, (float)level);
}

__global__ void write_surface(cudaSurfaceObject_t surface, int width, int height) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int x = i % width, y = i / width;
    if (i < width * height) surf2Dwrite(10.0f * y + x, surface, x * (int)sizeof(float), y);
}

__global__ void count(int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) counters[i] += i + 1;
    if (i == 0) room[0] = 1;
}

struct order {
    const int *from;
    int *to;
    long long n;
};

// Follows addresses that it finds in memory, as NCCL's kernels do.
__global__ void carry_out(const struct order *order) {
    for (long long i = threadIdx.x; i < order->n; i += blockDim.x) {
        order->to[i] = order->from[i] + 1;
    }
}
}
