// Kernels of test_array_door_kernels.py, which are compiled once.
#include <cupy/complex.cuh>
#include <cuda_fp16.h>
#define SCALED(name, T) extern "C" __global__ void name(T *x, T by) { x[threadIdx.x] *= by; }
SCALED(scale_float, float)
SCALED(scale_double, double)

__constant__ float weights[4];
__device__ int launches;

extern "C" {

__global__ void where(int *out) {  // a comment with __global__ void nothing(int x) {
  const char *text = "__global__ void neither(";
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
  if (block == 0 && thread == 0 && text[0]) atomicAdd(&launches, 1);
}

__global__ void __launch_bounds__(256) reversed(const int *x, int *out) {
  extern __shared__ __align__(16) int turned[];
  turned[blockDim.x - 1 - threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = turned[threadIdx.x];
}

__global__ void warps(const int *x, int *out) {
  int value = x[threadIdx.x], lane = threadIdx.x & 31;
  for (int by = 16; by; by /= 2) value += __shfl_down_sync(0xffffffff, value, by);
  if (lane == 0) out[threadIdx.x / 32] = value;
  int up = __shfl_up_sync(0xffffffff, x[threadIdx.x], 1);
  int crossed = __shfl_xor_sync(0xffffffff, lane, 5), first = __shfl_sync(0xffffffff, lane, 7, 8);
  unsigned odd = __ballot_sync(0xffffffff, lane & 1);
  if (threadIdx.x == 35) {
    out[4] = up, out[5] = crossed, out[6] = first, out[7] = odd == 0xaaaaaaaau;
    out[8] = __popc(odd) + __clz(1) + __ffs(8);
  }
  int many = __syncthreads_count(threadIdx.x % 3 == 0);
  if (threadIdx.x == 0) out[9] = many;
}

__global__ void never_together(int *out) {
  if (threadIdx.x == 0) __syncwarp(); else __syncthreads();
  *out = 1;
}

__global__ void asserts(int *x) { assert(x[threadIdx.x] > 0); }

__global__ void weighted(float *x) { x[threadIdx.x] *= weights[threadIdx.x]; }

__global__ void numbers(const complex<double> *z, complex<double> *out, half *h, double *d) {
  complex<double> w = z[0];
  out[0] = w * conj(w) + 1.5;
  out[1] = exp(w) / w;
  out[2] = pow(w, 2) - sqrt(w);
  h[1] = h[0] * 2 + __float2half(0.25f);
  d[0] = norm(w) + abs(w) + arg(w);
  d[1] = rsqrt(4.0) + min(3, 2) + max(1.5f, 2.5f) + fmaf(2, 3, 4) + sinpi(1.0) + pow(2.0f, 3);
  d[2] = __int_as_float(__float_as_int(1.5f)) + __mulhi(1 << 30, 8) + abs(-3) + exp10(2.0);
}

__global__ void all_kinds(bool yes, int i, long long large, double d, complex<double> z, double *o)
{
  o[0] = yes, o[1] = i, o[2] = (double)large, o[3] = d, o[4] = z.real(), o[5] = z.imag();
}

struct Pair { double x; float y[6]; };
__global__ void structures(Pair one, double *out) {
  out[0] = one.x;
  for (int at = 0; at < 6; at++) out[1 + at] = one.y[at];
}

__global__ void inverses(const double *x, double *out) {
  out[0] = erfcinv(x[0]), out[1] = erfinv(x[0]), out[2] = normcdf(x[0]), out[3] = normcdfinv(x[0]);
}

}

template <typename T> __global__ void filled(T *x, T value) { x[threadIdx.x] = value; }
namespace inner { __global__ void hidden(int *x) { *x = 4; } }
__global__ void mangled(int *x) { *x = 5; }
