// Groups of threads of one block. A barrier of the whole grid needs a real GPU.
#pragma once
#pragma GCC system_header

namespace cooperative_groups {

struct thread_block {
  static void sync() { __syncthreads(); }
  static unsigned thread_rank() { return gpupool::self(); }
  static unsigned size() { return gpupool::count; }
  static unsigned num_threads() { return gpupool::count; }
  static dim3 group_index() { return dim3(blockIdx.x, blockIdx.y, blockIdx.z); }
  static dim3 thread_index() { return dim3(threadIdx.x, threadIdx.y, threadIdx.z); }
};
inline thread_block this_thread_block() { return thread_block(); }

template <unsigned Size> struct thread_block_tile {
  static_assert(Size && Size <= 32 && !(Size & (Size - 1)), "a tile is a part of a warp");
  static unsigned mask() {
    unsigned first = (gpupool::self() & 31) & ~(Size - 1);
    return (Size == 32 ? 0xffffffffu : (1u << Size) - 1) << first;
  }
  static unsigned thread_rank() { return gpupool::self() & (Size - 1); }
  static unsigned size() { return Size; }
  static unsigned num_threads() { return Size; }
  static void sync() { __syncwarp(mask()); }
  template <class T> static T shfl(T value, int lane) {
    return __shfl_sync(mask(), value, lane, Size);
  }
  template <class T> static T shfl_up(T value, unsigned by) {
    return __shfl_up_sync(mask(), value, by, Size);
  }
  template <class T> static T shfl_down(T value, unsigned by) {
    return __shfl_down_sync(mask(), value, by, Size);
  }
  template <class T> static T shfl_xor(T value, unsigned with) {
    return __shfl_xor_sync(mask(), value, static_cast<int>(with), Size);
  }
  static int any(int value) { return __any_sync(mask(), value); }
  static int all(int value) { return __all_sync(mask(), value); }
};
template <unsigned Size> inline thread_block_tile<Size> tiled_partition(thread_block) {
  return thread_block_tile<Size>();
}
template <class Group> inline void sync(const Group &group) { group.sync(); }

}  // namespace cooperative_groups
