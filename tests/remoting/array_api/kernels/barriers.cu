// Kernels of test_grids_of_hosts.py: barriers of blocks, votes and shuffles of warps.
__device__ int place() {
  int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  return block * blockDim.x * blockDim.y * blockDim.z + thread;
}
__device__ int deep(int left) {
  volatile char held[1000];
  held[left] = left;
  int below = left ? deep(left - 1) : (__syncthreads(), 0);
  return below + held[left];
}
extern "C" {
__global__ void places(int *out) {
  __syncthreads();
  __syncwarp(__activemask());
  out[place()] = place() + threadIdx.z;
}
__global__ void sums(int *out) {
  __shared__ int held[1024];
  int t = threadIdx.x;
  double mine = t / 4.;
  held[t] = t;
  __syncthreads();
  for (int half = blockDim.x / 2; half; half /= 2) {
    if (t < half) held[t] += held[t + half];
    __syncthreads();
  }
  out[place()] = held[0] + int(4 * mine);
}
__global__ void some_end(int *out) {  // thread t leaves after t rounds
  __shared__ int left[1024];
  int rounds = 0;
  for (; rounds < (int)threadIdx.x; rounds++) left[rounds] = __syncthreads_count(threadIdx.x & 1);
  out[place()] = rounds ? left[rounds - 1] : 0;
}
__global__ void votes(int *out) {
  int t = threadIdx.x, all = __syncthreads_and(t >= 0), none = __syncthreads_and(t > 0);
  out[place()] = all + 2 * none + 4 * __syncthreads_or(t == 9) + 8 * __syncthreads_or(t < 0);
}
__global__ void stacks(int *out) { out[place()] = deep(100); }
__global__ void half_warps(int *out) {
  int t = threadIdx.x, sum = t;
  unsigned mask = t & 1 ? 0xaaaaaaaau : 0x55555555u;
  for (int by = 16; by > 1; by /= 2) sum += __shfl_xor_sync(mask, sum, by);
  out[place()] = sum;
}
__global__ void lanes_end(int *out) {
  int lane = threadIdx.x & 31;
  if (lane >= 20) return;
  out[place()] = __popc(__ballot_sync(~0u, lane < 10));
}
__global__ void stuck(int *out) { if (threadIdx.x == 5) __syncwarp(); else __syncthreads(); }
__global__ void unknown(int *out) { __syncthreads(); assert(threadIdx.x != 7); __syncthreads(); }
}
