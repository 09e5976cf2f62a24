#include <cooperative_groups.h>
#include <cupy/complex.cuh>
namespace cg = cooperative_groups;
__constant__ float weights[4];
__device__ unsigned int blocks_done;
__device__ float best[64];
struct Scale { __device__ virtual float of(float x) const { return 2 * x; } };
struct Triple : Scale { __device__ float of(float x) const override { return 3 * x; } };
struct Particle { float x, v; char kind; };

__device__ float warp_sum(float value) {
  for (int by = 16; by; by /= 2) value += __shfl_down_sync(0xffffffff, value, by);
  return value;
}
__device__ void atomic_max(float *at, float value) {
  int *as_int = (int *)at;
  int old = *as_int, assumed;
  do {
    assumed = old;
    old = atomicCAS(as_int, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
  } while (assumed != old);
}
template <class T> __global__ void scaled(T *x, T by, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= by;
}
template <class T, int N> __global__ void block_max(const T *x, T *y) {
  __shared__ T held[N];
  held[threadIdx.x] = x[blockIdx.x * N + threadIdx.x];
  __syncthreads();
  for (int half = N / 2; half; half /= 2) {
    if (threadIdx.x < half) held[threadIdx.x] = max(held[threadIdx.x], held[threadIdx.x + half]);
    __syncthreads();
  }
  if (!threadIdx.x) y[blockIdx.x] = held[0];
}
extern "C" {
__global__ void add(const float *x, const float *y, float *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = x[i] + y[i];
}
__global__ void grid_stride(const float *x, float *y, int n) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    y[i] = 2 * x[i];
}
__global__ void block_sum(const float *x, float *y, int n) {
  __shared__ float sums[64];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  sums[threadIdx.x] = i < n ? x[i] : 0;
  __syncthreads();
  for (int half = blockDim.x / 2; half; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (!threadIdx.x) atomicAdd(y, sums[0]);
}
__global__ void warp_sums(const float *x, float *y) {
  __shared__ float sums[32];
  float sum = warp_sum(x[threadIdx.x]);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0);
    if (!threadIdx.x) *y = sum;
  }
}
__global__ void warp_in_shared(const float *x, float *y) {
  __shared__ float s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  for (int by = 16; by; by /= 2) {
    float other = t % 32 + by < 32 ? s[t + by] : 0;
    __syncwarp();
    s[t] += other;
    __syncwarp();
  }
  if (t % 32 == 0) y[t / 32] = s[t];
}
__global__ void last_warp(const float *x, float *y) {
  __shared__ float s[128];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  if (t < 64) s[t] += s[t + 64];
  __syncthreads();
  if (t < 32) {
    float sum = s[t] + s[t + 32];
    sum = warp_sum(sum);
    if (!t) *y = sum;
  }
}
__global__ void scan(const int *x, int *y, int n) {
  extern __shared__ int buffers[];
  int t = threadIdx.x, out = 0, in = 1;
  buffers[t] = x[t];
  __syncthreads();
  for (int by = 1; by < n; by *= 2) {
    out = 1 - out, in = 1 - out;
    buffers[out * n + t] = buffers[in * n + t] + (t >= by ? buffers[in * n + t - by] : 0);
    __syncthreads();
  }
  y[t] = buffers[out * n + t];
}
__global__ void warp_scan(const int *x, int *y) {
  int lane = threadIdx.x % 32, value = x[threadIdx.x];
  for (int by = 1; by < 32; by *= 2) {
    int other = __shfl_up_sync(0xffffffff, value, by);
    if (lane >= by) value += other;
  }
  y[threadIdx.x] = value;
}
__global__ void transpose(const float *x, float *y, int width, int height) {
  __shared__ float tile[16][17];
  int i = blockIdx.x * 16 + threadIdx.x, j = blockIdx.y * 16 + threadIdx.y;
  if (i < width && j < height) tile[threadIdx.y][threadIdx.x] = x[j * width + i];
  __syncthreads();
  i = blockIdx.y * 16 + threadIdx.x, j = blockIdx.x * 16 + threadIdx.y;
  if (i < height && j < width) y[j * height + i] = tile[threadIdx.x][threadIdx.y];
}
__global__ void histogram(const int *x, int *bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&bins[x[i]], 1);
}
__global__ void shared_histogram(const int *x, int *bins, int n) {
  __shared__ int mine[8];
  if (threadIdx.x < 8) mine[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
    atomicAdd(&mine[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&bins[threadIdx.x], mine[threadIdx.x]);
}
__global__ void stencil(const float *x, float *y, int n) {
  __shared__ float tile[66];
  int i = blockIdx.x * 64 + threadIdx.x, t = threadIdx.x + 1;
  tile[t] = i < n ? x[i] : 0;
  if (t == 1) tile[0] = i ? x[i - 1] : 0;
  if (t == 64) tile[65] = i + 1 < n ? x[i + 1] : 0;
  __syncthreads();
  if (i < n) y[i] = tile[t - 1] + tile[t] + tile[t + 1];
}
__global__ void matmul(const float *a, const float *b, float *c, int n) {
  __shared__ float left[8][8], right[8][8];
  int x = threadIdx.x, y = threadIdx.y, row = blockIdx.y * 8 + y, column = blockIdx.x * 8 + x;
  float sum = 0;
  for (int from = 0; from < n; from += 8) {
    left[y][x] = a[row * n + from + x];
    right[y][x] = b[(from + y) * n + column];
    __syncthreads();
    for (int k = 0; k < 8; k++) sum += left[y][k] * right[k][x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}
__global__ void double_buffer(const float *x, float *y, int tiles) {
  __shared__ float tile[2][32];
  tile[0][threadIdx.x] = x[threadIdx.x];
  float sum = 0;
  for (int i = 0; i < tiles; i++) {
    __syncthreads();
    if (i + 1 < tiles) tile[(i + 1) % 2][threadIdx.x] = x[(i + 1) * 32 + threadIdx.x];
    sum += tile[i % 2][31 - threadIdx.x];
  }
  y[threadIdx.x] = sum;
}
__global__ void last_block(const float *x, volatile float *parts, float *y, int n) {
  __shared__ float sums[32];
  __shared__ bool last;
  float sum = 0;
  for (int i = blockIdx.x * 32 + threadIdx.x; i < n; i += gridDim.x * 32) sum += x[i];
  sum = warp_sum(sum);
  if (!threadIdx.x) {
    parts[blockIdx.x] = sum;
    __threadfence();
    last = atomicInc(&blocks_done, gridDim.x) == gridDim.x - 1;
  }
  __syncthreads();
  if (last) {
    sums[threadIdx.x] = threadIdx.x < gridDim.x ? parts[threadIdx.x] : 0;
    __syncwarp();
    if (!threadIdx.x) {
      float all = 0;
      for (int i = 0; i < 32; i++) all += sums[i];
      *y = all;
      blocks_done = 0;
    }
  }
}
__global__ void last_block_plain(const float *x, float *parts, float *y, unsigned *done) {
  __shared__ unsigned ticket;
  parts[blockIdx.x * blockDim.x + threadIdx.x] = 2 * x[blockIdx.x * blockDim.x + threadIdx.x];
  __threadfence();
  __syncthreads();
  if (!threadIdx.x) ticket = atomicAdd(done, 1u);
  __syncthreads();
  if (ticket == gridDim.x - 1 && !threadIdx.x) {
    float sum = 0;
    for (int i = 0; i < gridDim.x * blockDim.x; i++) sum += parts[i];
    *y = sum;
  }
}
__global__ void groups(const float *x, float *y) {
  cg::thread_block block = cg::this_thread_block();
  auto tile = cg::tiled_partition<16>(block);
  __shared__ float sums[8];
  float value = x[block.thread_rank()];
  for (int by = tile.size() / 2; by; by /= 2) value += tile.shfl_down(value, by);
  if (tile.thread_rank() == 0) sums[block.thread_rank() / 16] = value;
  block.sync();
  if (block.thread_rank() == 0) {
    value = 0;
    for (int i = 0; i < 8; i++) value += sums[i];
    *y = value;
  }
}
__global__ void tiles_in_shared(const int *x, int *y) {
  __shared__ int held[32];
  auto tile = cg::tiled_partition<8>(cg::this_thread_block());
  held[threadIdx.x] = x[threadIdx.x];
  tile.sync();
  y[threadIdx.x] = held[threadIdx.x ^ 7];
}
__global__ void votes(const int *x, unsigned *y) {
  unsigned ballot = __ballot_sync(0xffffffff, x[threadIdx.x] % 3 == 0);
  if (threadIdx.x % 32 == 0) y[threadIdx.x / 32] = __popc(ballot);
}
__global__ void compacted(const int *x, int *y, int *count) {
  bool keep = x[threadIdx.x] % 2;
  unsigned ballot = __ballot_sync(0xffffffff, keep);
  int base = 0, lane = threadIdx.x % 32;
  if (!lane) base = atomicAdd(count, __popc(ballot));
  base = __shfl_sync(0xffffffff, base, 0);
  if (keep) y[base + __popc(ballot & ((1u << lane) - 1))] = x[threadIdx.x];
}
__global__ void same_value(const int *x, int *found) {
  if (x[threadIdx.x] == 7) *found = 1;
}
__global__ void shared_flag(const int *x, int *y) {
  __shared__ bool any;
  any = false;
  __syncthreads();
  if (x[threadIdx.x] > 10) any = true;
  __syncthreads();
  y[threadIdx.x] = any;
}
__global__ void uniform(const float *x, float *y) {
  __shared__ float mean;
  mean = x[0];
  __syncthreads();
  y[threadIdx.x] = x[threadIdx.x] - mean;
}
__global__ void maximum(const float *x, float *y, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) atomic_max(y, x[i]);
}
__global__ void checked_first(const int *x, int *least) {
  if (x[threadIdx.x] < *least) atomicMin(least, x[threadIdx.x]);
}
__global__ void lock(int *taken, double *sum, const double *x) {
  while (atomicCAS(taken, 0, 1) != 0) {}
  __threadfence();
  *sum += x[blockIdx.x * blockDim.x + threadIdx.x];
  __threadfence();
  atomicExch(taken, 0);
}
__global__ void queue(int *next, const int *x, int *y, int n) {
  __shared__ int mine;
  for (;;) {
    if (!threadIdx.x) mine = atomicAdd(next, 1);
    __syncthreads();
    int i = mine;
    __syncthreads();
    if (i >= n) break;
    y[i * blockDim.x + threadIdx.x] = x[i * blockDim.x + threadIdx.x] + i;
  }
}
__global__ void look_back(const int *x, volatile int *sums, volatile int *ready, int *y) {
  int b = blockIdx.x;
  if (threadIdx.x) return;
  int before = 0;
  if (b) {
    while (!ready[b - 1]) {}
    __threadfence();
    before = sums[b - 1];
  }
  sums[b] = before + x[b];
  __threadfence();
  ready[b] = 1;
  y[b] = before;
}
__global__ void columns(const float *x, float *y, int n) {
  extern __shared__ float column[];
  for (int j = 0; j < n; j++) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) column[i] = x[i * n + j];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[j * n + i] = column[n - 1 - i];
    __syncthreads();
  }
}
__global__ void bytes(const unsigned char *x, unsigned char *y, int n) {
  __shared__ unsigned char held[64];
  held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = held[63 - threadIdx.x];
}
__global__ void packed(const unsigned *x, unsigned char *y) {
  unsigned word = x[threadIdx.x];
  for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = word >> 8 * i;
}
__global__ void halves(const short *x, short *y) { y[threadIdx.x] = x[threadIdx.x ^ 1]; }
__global__ void doubles(const double *x, double *y) { y[threadIdx.x] = sqrt(x[threadIdx.x]); }
__global__ void structures(Particle *p, float dt) {
  Particle mine = p[threadIdx.x];
  mine.x += mine.v * dt;
  p[threadIdx.x] = mine;
}
__global__ void padded(Particle *p, Particle *q) {
  p[threadIdx.x].x = p[threadIdx.x].v = threadIdx.x;
  p[threadIdx.x].kind = 1;  // and three bytes behind it have no name
  q[threadIdx.x] = p[threadIdx.x];
}
__global__ void vectors(const float4 *x, float4 *y) {
  float4 v = x[threadIdx.x];
  y[threadIdx.x] = make_float4(v.w, v.z, v.y, v.x);
}
__global__ void constants(const float *x, float *y) {
  const float table[] = {1, 2, 3, 4};
  y[threadIdx.x] = x[threadIdx.x] * weights[threadIdx.x % 4] + table[threadIdx.x % 4];
}
__global__ void globals(const float *x, float *y) {
  best[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = best[63 - threadIdx.x];
}
__global__ void constructed(const float *x, float *y) {
  __shared__ complex<float> held[64];
  held[threadIdx.x] = complex<float>(0, x[threadIdx.x]);
  __syncthreads();
  if (blockIdx.x == 0) y[threadIdx.x] = held[63 - threadIdx.x].imag();
}
__global__ void allocated(const float *x, float *y) {
  float *mine = new float[4];
  memcpy(mine + 1, x + threadIdx.x, sizeof(float));
  asm volatile("" : "+r"(mine));
  y[threadIdx.x] = 2 * mine[1];
  delete[] mine;
}
__global__ void every_fourth(float *x, int at) { x[4 * threadIdx.x + at] *= 2; }
__global__ void virtual_functions(const float *x, float *y) {
  Scale two;
  Triple three;
  const Scale *scale = threadIdx.x % 2 ? &three : &two;
  y[threadIdx.x] = scale->of(x[threadIdx.x]);
}
__global__ void local_arrays(const float *x, float *y) {
  float mine[16];
  for (int i = 0; i < 16; i++) mine[i] = x[threadIdx.x] * i;
  memset(y + 4 * threadIdx.x, 0, 4 * sizeof(float));
  memcpy(y + 4 * threadIdx.x, mine + 3, 3 * sizeof(float));
}
__global__ void sines(const float *x, float *s, float *c, int *e) {
  sincosf(x[threadIdx.x], &s[threadIdx.x], &c[threadIdx.x]);
  frexpf(x[threadIdx.x], &e[threadIdx.x]);
}
__global__ void uneven(float *y, int n) {
  if (threadIdx.x >= n) return;
  y[threadIdx.x] = n;
  __syncthreads();
  y[n + threadIdx.x] = y[n - 1 - threadIdx.x];
}
__global__ void counted(const int *x, int *y) {
  int even = __syncthreads_count(x[threadIdx.x] % 2 == 0);
  if (__syncthreads_or(x[threadIdx.x] > 60)) y[threadIdx.x] = even;
}
__global__ void in_place(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n / 2) {
    float low = x[i];
    x[i] = x[n - 1 - i];
    x[n - 1 - i] = low;
  }
}
__global__ void bitonic(int *x) {
  __shared__ int s[64];
  int t = threadIdx.x;
  s[t] = x[t];
  __syncthreads();
  for (int k = 2; k <= 64; k *= 2)
    for (int j = k / 2; j; j /= 2) {
      int other = t ^ j;
      if (other > t && (s[t] > s[other]) == !(t & k)) {
        int held = s[t];
        s[t] = s[other];
        s[other] = held;
      }
      __syncthreads();
    }
  x[t] = s[t];
}
__global__ void exchanged(int *fresh, const int *x) { atomicExch(&fresh[threadIdx.x], x[threadIdx.x]); }
}
