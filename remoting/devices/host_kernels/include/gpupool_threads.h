// What threads of a grid do together: barriers, values passed within a warp, atomic operations.
#pragma once
#pragma GCC system_header

#ifdef GPUPOOL_STRICT
#include "gpupool_strict.h"
#endif

// --- barriers ------------------------------------------------------------------------------------

namespace gpupool {

inline void wait_for_block(bool value) {
  count_threads();
  at_block[running / 32] |= lane_bit(running);
  at_barrier++;
  true_so_far += value;
  wait();
}

template <class T> inline void wait_for_warp(unsigned mask, T value) {
  static_assert(sizeof(T) <= VALUE, "a value of 16 bytes at most is passed within a warp");
  count_threads();
  unsigned warp = running / 32, group = mask & live[warp];
  if (!(mask & lane_bit(running))) fail(719, "a thread waits for a warp's mask without itself");
  memcpy(given[running], &value, sizeof value);
  masks[running] = mask;
  at_warp[warp] |= lane_bit(running);
  if ((at_warp[warp] & group) == group) complete_warp(warp);
  wait();
}

// The value that a lane gave to the barrier that this thread has just left.
template <class T> inline T of_lane(unsigned lane, T own) {
  unsigned me = self();
  if (lane > 31 || !(participants[me] >> lane & 1)) return own;
  T made;
  memcpy(&made, taken[(me & ~31u) + lane], sizeof made);
  return made;
}

}  // namespace gpupool

inline void __syncthreads() { gpupool::wait_for_block(false); }
inline int __syncthreads_count(int value) {
  gpupool::wait_for_block(value != 0);
  return static_cast<int>(gpupool::block_true);
}
inline int __syncthreads_or(int value) {
  gpupool::wait_for_block(value != 0);
  return gpupool::block_true != 0;
}
inline int __syncthreads_and(int value) {
  gpupool::wait_for_block(value != 0);
  return gpupool::block_true == gpupool::block_all;
}
inline void __syncwarp(unsigned mask = 0xffffffffu) { gpupool::wait_for_warp(mask, 0); }
inline void __threadfence() { GP_WATCH(watch_fence()); }
inline void __threadfence_block() { GP_WATCH(watch_fence()); }
inline void __threadfence_system() { GP_WATCH(watch_fence()); }
inline void __nanosleep(unsigned) {}
inline unsigned __activemask() {
  gpupool::count_threads();
  return gpupool::live[gpupool::self() / 32];
}

template <class T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  gpupool::wait_for_warp(mask, value);
  unsigned me = gpupool::self() & 31, first = me & ~(static_cast<unsigned>(width) - 1);
  return gpupool::of_lane(first + (static_cast<unsigned>(lane) & (width - 1)), value);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  gpupool::wait_for_warp(mask, value);
  unsigned me = gpupool::self() & 31, first = me & ~(static_cast<unsigned>(width) - 1);
  return me < first + by ? value : gpupool::of_lane(me - by, value);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  gpupool::wait_for_warp(mask, value);
  unsigned me = gpupool::self() & 31, first = me & ~(static_cast<unsigned>(width) - 1);
  return me + by >= first + width ? value : gpupool::of_lane(me + by, value);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int with, int width = 32) {
  gpupool::wait_for_warp(mask, value);
  unsigned me = gpupool::self() & 31, first = me & ~(static_cast<unsigned>(width) - 1);
  unsigned lane = me ^ static_cast<unsigned>(with);
  return lane >= first + width ? value : gpupool::of_lane(lane, value);
}

inline unsigned __ballot_sync(unsigned mask, int value) {
  gpupool::wait_for_warp(mask, value != 0);
  unsigned made = 0;
  for (unsigned lane = 0; lane < 32; lane++)
    made |= static_cast<unsigned>(gpupool::of_lane(lane, false)) << lane;
  return made;
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline int __all_sync(unsigned mask, int value) { return __ballot_sync(mask, !value) == 0; }
template <class T> inline unsigned __match_any_sync(unsigned mask, T value) {
  gpupool::wait_for_warp(mask, value);
  unsigned made = 0, group = gpupool::participants[gpupool::self()];
  for (unsigned lane = 0; lane < 32; lane++)
    if (group >> lane & 1 && gpupool::of_lane(lane, value) == value) made |= 1u << lane;
  return made;
}

#define GP_WARP(name, expression)                                                         \
  template <class T> inline T name(unsigned mask, T value) {                              \
    gpupool::wait_for_warp(mask, value);                                                        \
    unsigned group = gpupool::participants[gpupool::self()];                              \
    bool any = false;                                                                     \
    T a = value;                                                                          \
    for (unsigned lane = 0; lane < 32; lane++)                                            \
      if (group >> lane & 1) {                                                            \
        T b = gpupool::of_lane(lane, value);                                              \
        a = any ? static_cast<T>(expression) : b;                                         \
        any = true;                                                                       \
      }                                                                                   \
    return a;                                                                             \
  }
GP_WARP(__reduce_add_sync, a + b) GP_WARP(__reduce_min_sync, b < a ? b : a)
GP_WARP(__reduce_max_sync, a < b ? b : a) GP_WARP(__reduce_and_sync, a &b)
GP_WARP(__reduce_or_sync, a | b) GP_WARP(__reduce_xor_sync, a ^ b)
#undef GP_WARP

// --- atomic operations ---------------------------------------------------------------------------

// Threads take turns only at barriers, so nothing comes between reading and writing.
#define GP_ATOMIC_OF(name, expression)                                                    \
  template <class T> inline gpupool::Bare<T> name(T *at, gpupool::Bare<T> value) {         \
    GP_WATCH(watch_access(at, gpupool::ATOMIC | (sizeof #expression == 6)));              \
    gpupool::Bare<T> old = *at;                                                           \
    *at = static_cast<gpupool::Bare<T>>(expression);                                      \
    return old;                                                                           \
  }
#define GP_ATOMIC(name, expression)                                                       \
  GP_ATOMIC_OF(name, expression)                                                          \
  GP_ATOMIC_OF(name##_block, expression)                                                  \
  GP_ATOMIC_OF(name##_system, expression)
GP_ATOMIC(atomicAdd, old + value) GP_ATOMIC(atomicSub, old - value) GP_ATOMIC(atomicExch, value)
GP_ATOMIC(atomicMin, value < old ? value : old) GP_ATOMIC(atomicMax, old < value ? value : old)
GP_ATOMIC(atomicAnd, old &value) GP_ATOMIC(atomicOr, old | value) GP_ATOMIC(atomicXor, old ^ value)
GP_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
GP_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef GP_ATOMIC
#undef GP_ATOMIC_OF

template <class T>
inline gpupool::Bare<T> atomicCAS(T *at, gpupool::Bare<T> expected, gpupool::Bare<T> value) {
  GP_WATCH(watch_access(at, gpupool::ATOMIC));
  gpupool::Bare<T> old = *at;
  if (old == expected) *at = value;
  return old;
}

template <class T> inline T __ldg(const T *at) {
  GP_WATCH(watch_access(at, gpupool::LOOSE));
  return *at;
}
template <class T> inline T __ldca(const T *at) {
  GP_WATCH(watch_access(at, gpupool::LOOSE));
  return *at;
}
template <class T> inline T __ldcg(const T *at) {
  GP_WATCH(watch_access(at, gpupool::LOOSE));
  return *at;
}
template <class T> inline T __ldcs(const T *at) {
  GP_WATCH(watch_access(at, gpupool::LOOSE));
  return *at;
}
template <class T> inline void __stcs(T *at, T value) {
  GP_WATCH(watch_access(at, gpupool::LOOSE | gpupool::WRITE));
  *at = value;
}
template <class T> inline void __stcg(T *at, T value) {
  GP_WATCH(watch_access(at, gpupool::LOOSE | gpupool::WRITE));
  *at = value;
}

inline long long clock64() {
  static long long ticks;
  return ++ticks;
}
inline int clock() { return static_cast<int>(clock64()); }
