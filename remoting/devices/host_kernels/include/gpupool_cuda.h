// CUDA C++'s names for a processor: what kernels of an emulated GPU are compiled with.
//
// Included before each kernel's source. Threads are run by gpupool_grid.h; arithmetic is the
// processor's. No header of the C++ library is included, because kernels define names of their own.
#pragma once
#pragma GCC system_header

#include "gpupool_grid.h"

// What the names say of functions and variables of a GPU has no meaning here. `__global__`,
// `__shared__` and `__launch_bounds__` are replaced before the compiler sees them; see kernel_source.py.
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1
#define __CUDA_ARCH__ 900
#define CUDART_VERSION 12080
#define CUDART_INF (__builtin_inf())
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_INF_F (__builtin_inff())
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_PI 3.14159265358979323846
#define CUDART_PI_F 3.14159265358979323846f
#ifndef INFINITY
#define INFINITY (__builtin_inff())
#define NAN (__builtin_nanf(""))
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#define M_E 2.7182818284590452354
#endif
#ifndef FLT_MAX
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define DBL_MAX __DBL_MAX__
#define DBL_MIN __DBL_MIN__
#define DBL_EPSILON __DBL_EPSILON__
#define INT_MAX __INT_MAX__
#define INT_MIN (-__INT_MAX__ - 1)
#define UINT_MAX (2u * __INT_MAX__ + 1u)
#define LLONG_MAX __LONG_LONG_MAX__
#define LLONG_MIN (-__LONG_LONG_MAX__ - 1)
#endif
#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : gpupool::fail(710, "a kernel's assertion failed: " #condition))
#define __trap() gpupool::fail(715, "a kernel called __trap()")
#define printf(...) 0

// As a kernel's source on a GPU may define them itself, because they are the same there.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef long long longlong;
typedef unsigned long long ulonglong;

// CUDA's part of the C++ library is the compiler's own.
namespace std {}
namespace cuda {
namespace std {
using namespace ::std;
}
}  // namespace cuda

namespace gpupool {

template <class T> struct Whole { static const bool value = false; };
#define GP_WHOLE(T) template <> struct Whole<T> { static const bool value = true; };
GP_WHOLE(bool) GP_WHOLE(char) GP_WHOLE(signed char) GP_WHOLE(unsigned char) GP_WHOLE(short)
GP_WHOLE(unsigned short) GP_WHOLE(int) GP_WHOLE(unsigned) GP_WHOLE(long) GP_WHOLE(unsigned long)
GP_WHOLE(long long) GP_WHOLE(unsigned long long)
#undef GP_WHOLE

template <bool, class T> struct When {};
template <class T> struct When<true, T> { typedef T type; };
template <class T, class R> using IfWhole = typename When<Whole<T>::value, R>::type;
template <class T> struct Real { static const bool value = Whole<T>::value; };
template <> struct Real<float> { static const bool value = true; };
template <> struct Real<double> { static const bool value = true; };

// The type of a function of two numbers: float for two of them, else double.
template <class A, class B> struct Both { typedef double type; };
template <> struct Both<float, float> { typedef float type; };
template <class A, class B>
using IfMixed = typename When<Real<A>::value && Real<B>::value, typename Both<A, B>::type>::type;

}  // namespace gpupool

// --- vectors -------------------------------------------------------------------------------------

#define GP_VECTORS(T, name)                                                             \
  struct name##1 { T x; };                                                              \
  struct alignas(sizeof(T) < 8 ? 2 * sizeof(T) : 16) name##2 { T x, y; };               \
  struct name##3 { T x, y, z; };                                                        \
  struct alignas(sizeof(T) < 4 ? 4 * sizeof(T) : 16) name##4 { T x, y, z, w; };         \
  inline name##1 make_##name##1(T x) { return name##1{x}; }                             \
  inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                     \
  inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }             \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }
GP_VECTORS(signed char, char) GP_VECTORS(uchar, uchar) GP_VECTORS(short, short)
GP_VECTORS(ushort, ushort) GP_VECTORS(int, int) GP_VECTORS(long, long) GP_VECTORS(ulong, ulong)
GP_VECTORS(longlong, longlong) GP_VECTORS(ulonglong, ulonglong)
GP_VECTORS(float, float) GP_VECTORS(double, double)
struct uint1 { unsigned x; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint1 make_uint1(unsigned x) { return uint1{x}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return uint2{x, y}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return uint3{x, y, z}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return uint4{x, y, z, w};
}
#undef GP_VECTORS

#include "gpupool_math.h"
#include "gpupool_conversions.h"
#include "gpupool_threads.h"
