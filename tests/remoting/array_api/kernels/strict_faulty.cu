#include <cooperative_groups.h>
extern "C" {
__global__ void past_the_end(float *x) { x[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
__global__ void negative(const float *x, float *y) { y[threadIdx.x] = x[(int)threadIdx.x - 1]; }
__global__ void at_null(float *x) { x[threadIdx.x] = 1; }
__global__ void misaligned(const char *x, float *y) {
  y[threadIdx.x] = *(const float *)(x + 1 + 4 * threadIdx.x);
}
__global__ void atomic_outside(int *x, int n) { atomicAdd(&x[n], 1); }
__global__ void wrong_pitch(const float *x, float *y, int width, int height) {
  int i = threadIdx.x, j = threadIdx.y;
  y[i * height + j] = x[j * (width + 1) + i];
}
__global__ void too_little_shared(const float *x, float *y) {
  extern __shared__ float tile[];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
__global__ void past_static_shared(const float *x, float *y) {
  __shared__ float only[32];
  only[threadIdx.x * 512] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = only[0];
}
__global__ void copied_past_the_end(const float *x, float *y, int n) {
  if (threadIdx.x == 0) memcpy(y, x, (n + 1) * sizeof(float));
}

__global__ void no_barrier(const float *x, float *y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
__global__ void reduction_without_barrier(const float *x, float *y) {
  __shared__ float sums[64];
  sums[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int half = 32; half; half /= 2)
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  if (threadIdx.x == 0) *y = sums[0];
}
__global__ void no_second_barrier(const float *x, float *y, int n) {
  __shared__ float tile[64];
  float sum = 0;
  for (int from = 0; from < n; from += 64) {
    tile[threadIdx.x] = x[from + threadIdx.x];
    __syncthreads();
    for (int i = 0; i < 64; i++) sum += tile[i];
  }
  y[threadIdx.x] = sum;
}
__global__ void all_write_one(int *x) { x[0] = blockIdx.x * blockDim.x + threadIdx.x; }
__global__ void histogram(const int *x, int *bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) bins[x[i]] += 1;
}
__global__ void stencil_in_place(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float sum = 0;
  for (int j = i - 1; j <= i + 1; j++) sum += x[min(max(j, 0), n - 1)];
  __syncthreads();
  x[i] = sum;
}
__device__ unsigned int blocks_done;
__global__ void last_block_without_fence(const float *x, volatile float *parts, float *y) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    *(float *)(parts + blockIdx.x) = x[blockIdx.x];
    last = atomicInc(&blocks_done, gridDim.x - 1) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += ((const float *)parts)[i];
    *y = sum;
  }
}
__global__ void warp_without_sync(const int *x, int *y) {
  __shared__ int held[32];
  held[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = held[threadIdx.x ^ 1];
}
__global__ void warp_is_no_block(const int *x, int *y) {
  __shared__ int held[64];
  held[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = held[63 - threadIdx.x];
}
__global__ void volatile_warp(const float *x, float *y) {
  __shared__ volatile float sums[64];
  sums[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x + 32];
  for (int half = 16; half; half /= 2) sums[threadIdx.x] += sums[threadIdx.x + half];
  if (threadIdx.x == 0) *y = sums[0];
}
__global__ void tile_is_no_block(const int *x, int *y) {
  __shared__ int held[32];
  auto tile = cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
  held[threadIdx.x] = x[threadIdx.x];
  tile.sync();
  y[threadIdx.x] = held[(threadIdx.x + 8) % 32];
}
__global__ void reset_without_barrier(const int *x, int *y) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  atomicAdd(&count, x[threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) *y = count;
}
__global__ void read_after_atomics(int *total, int *y) {
  atomicAdd(total, 1);
  if (threadIdx.x == 0) *total = 7;
  y[threadIdx.x] = 1;
}

__global__ void adds_to(const float *x, float *y) { y[threadIdx.x] += x[threadIdx.x]; }
__global__ void adds_atomically(const float *x, float *y) { atomicAdd(y, x[threadIdx.x]); }
__global__ void divergent(float *y) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  else __syncwarp();
  y[threadIdx.x] = 1;
}
__global__ void mask_without_itself(int *y) { y[threadIdx.x] = __shfl_sync(0xffff, 1, 0); }
__global__ void half_shared(float *y) {
  __shared__ float most[10000];
  extern __shared__ float more[];
  most[threadIdx.x] = more[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = most[31 - threadIdx.x];
}
__global__ void __launch_bounds__(64) bounded(float *y) { y[threadIdx.x] = 1; }
__global__ void sets(float *y) { y[threadIdx.x] = threadIdx.x; }
__global__ void copies(const float *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }
}
