"""The C++ that translated kernels share: views of arrays, tuples, and Python's arithmetic.

It uses names that both CUDA and the processor's stand-in for it have. Arrays come as a pointer, a
shape and strides, which are numbers among a kernel's arguments, so a kernel is compiled once for
its types. Text of the complex numbers is there only where a kernel has some.
"""

from __future__ import annotations

COMPLEX = r"""
#include <cupy/complex.cuh>
namespace gpjit {
template <class T> __device__ bool before(
    const thrust::complex<T> &a, const thrust::complex<T> &b) {
  return a.real() < b.real() || (a.real() == b.real() && a.imag() < b.imag());
}
template <class T> __device__ bool truth(const thrust::complex<T> &z) {
  return z.real() != 0 || z.imag() != 0;
}
template <class T> __device__ bool both_finite(const thrust::complex<T> &z) {
  return z.real() - z.real() == 0 && z.imag() - z.imag() == 0;
}
template <class T> __device__ bool one_infinite(const thrust::complex<T> &z) {
  return (z.real() == z.real() && z.real() - z.real() != 0) ||
         (z.imag() == z.imag() && z.imag() - z.imag() != 0);
}
template <class T> __device__ thrust::complex<T> complex_power(
    const thrust::complex<T> &a, const thrust::complex<T> &b) {
  return truth(b) ? pow(a, b) : thrust::complex<T>(1);
}
}
"""

HALF = "#include <cuda_fp16.h>\n"

GROUPS = "#include <cooperative_groups.h>\n"

TEXT = r"""
namespace gpjit {
typedef long long Int;

template <class T> __device__ bool before(T a, T b) { return a < b; }

struct Three { unsigned int x, y, z; };
template <class V> __device__ Three three(const V &v) { return Three{v.x, v.y, v.z}; }

template <class... T> struct Pack;
template <> struct Pack<> {
  static __device__ Pack of() { return Pack{}; }
};
template <class H, class... T> struct Pack<H, T...> {
  H head;
  Pack<T...> tail;
  static __device__ Pack of(H head, T... tail) { return Pack{head, Pack<T...>::of(tail...)}; }
};
template <int I, class H, class... T> __device__ auto get(const Pack<H, T...> &from) {
  if constexpr (I == 0) return from.head;
  else return get<I - 1>(from.tail);
}
template <class H, class... T> __device__ Pack<H, T...> joined(H head, const Pack<T...> &tail) {
  return Pack<H, T...>{head, tail};
}
template <int D, int N> __device__ auto numbers(const Int *from) {
  if constexpr (D == N) return Pack<>{};
  else return joined(from[D], numbers<D + 1, N>(from));
}

template <class T, int N> struct View {
  T *data;
  Int shape[N ? N : 1], strides[N ? N : 1];

  template <int D, class... I> __device__ Int offset(const Pack<I...> &at) const {
    if constexpr (sizeof...(I) == 0) return 0;
    else return strides[D] * static_cast<Int>(at.head) + offset<D + 1>(at.tail);
  }
  template <class... I> __device__ T *from(const Pack<I...> &at) const {
    return reinterpret_cast<T *>(reinterpret_cast<char *>(data) + offset<0>(at));
  }
  template <class... I> __device__ T &of(const Pack<I...> &at) const { return *from(at); }
  template <class... I> __device__ T &operator()(I... at) const {
    return of(Pack<I...>::of(at...));
  }
  template <class... I> __device__ View<T, N - static_cast<int>(sizeof...(I))> part(
      const Pack<I...> &at) const {
    const int cut = sizeof...(I);
    View<T, N - cut> made{};
    made.data = from(at);
    for (int d = cut; d < N; d++) {
      made.shape[d - cut] = shape[d];
      made.strides[d - cut] = strides[d];
    }
    return made;
  }
  __device__ Int size() const {
    Int made = 1;
    for (int d = 0; d < N; d++) made *= shape[d];
    return made;
  }
  __device__ auto lengths() const { return numbers<0, N>(shape); }
  __device__ auto steps() const { return numbers<0, N>(strides); }
};

template <class T> __device__ T shift_left(T a, T b) {
  return b < T(0) || b >= T(sizeof(T) * 8) ? T(0) : T(a << b);
}
template <class T> __device__ T shift_right(T a, T b) {
  return b < T(0) || b >= T(sizeof(T) * 8) ? (a < T(0) ? T(-1) : T(0)) : T(a >> b);
}
// Whole numbers: by 0 they give 0, as in CuPy, and by -1 nothing is divided, for it may overflow.
template <class T> __device__ T floor_divide(T a, T b) {
  if (b == 0) return 0;
  if (T(-1) < T(0) && b == T(-1)) return T(0 - a);
  T made = a / b;
  return T(made - ((a < T(0)) != (b < T(0)) && made * b != a));
}
template <class T> __device__ T remainder_of(T a, T b) {
  return b == 0 ? T(0) : T(a - floor_divide(a, b) * b);
}
template <class T> __device__ T rest(T a, T b) {
  return b == 0 || (T(-1) < T(0) && b == T(-1)) ? T(0) : T(a % b);
}
template <class T> __device__ T real_remainder(T a, T b) { return a - floor(a / b) * b; }
template <class T> __device__ T power(T a, T b) {
  if (b < T(0)) return a == T(-1) ? (b & 1 ? T(-1) : T(1)) : T(a == T(1));
  T made = 1;
  for (; b > T(0); b = T(b >> 1), a = T(a * a))
    if (b & 1) made = T(made * a);
  return made;
}
template <class T> __device__ T gcd(T a, T b) {
  while (b != 0) {
    T left = rest(a, b);
    a = b;
    b = left;
  }
  return a < T(0) ? T(-a) : a;
}
template <class T> __device__ T lcm(T a, T b) {
  T shared = gcd(a, b), made = shared == 0 ? T(0) : T(a / shared * b);
  return made < T(0) ? T(-made) : made;
}
template <class T> __device__ T whole_reciprocal(T a) { return a == 0 ? T(0) : T(1 / a); }
// Of the number without its sign, as in NumPy.
template <class T> __device__ int bits(T a) {
  unsigned long long made = static_cast<unsigned long long>(a);
  return __popcll(a < T(0) ? 0ull - made : made);
}
template <class T> __device__ T step(T a, T at_zero) {
  return a != a ? a : a == 0 ? at_zero : T(a > 0);
}
template <class T> __device__ T log_of_sum(T a, T b) {
  return a == b ? a + log(T(2)) : fmax(a, b) + log1p(exp(-fabs(a - b)));
}
template <class T> __device__ T log2_of_sum(T a, T b) {
  return a == b ? a + 1 : fmax(a, b) + log2(1 + exp2(-fabs(a - b)));
}
template <class T> __device__ T magnitude(T a) { return a < T(0) ? T(-a) : a; }
template <class T> __device__ T sign(T a) { return a != a ? a : T((a > T(0)) - (a < T(0))); }
template <class T> __device__ T square(T a) { return T(a * a); }
template <class T> __device__ T maximum(T a, T b) {
  return a != a ? a : b != b ? b : before(a, b) ? b : a;
}
template <class T> __device__ T minimum(T a, T b) {
  return a != a ? a : b != b ? b : before(b, a) ? b : a;
}
template <class T> __device__ T number_maximum(T a, T b) {
  return a != a ? b : b != b ? a : before(a, b) ? b : a;
}
template <class T> __device__ T number_minimum(T a, T b) {
  return a != a ? b : b != b ? a : before(b, a) ? b : a;
}
template <class T> __device__ bool is_nan(T a) { return a != a; }
template <class T> __device__ bool is_finite(T a) { return a - a == 0; }
template <class T> __device__ bool is_infinite(T a) { return a == a && a - a != 0; }
// Less than 0, 0 or more, as `a` is before, is or is behind `b`.
__device__ inline int compared(Int a, unsigned long long b) {
  if (a < 0) return -1;
  unsigned long long whole = static_cast<unsigned long long>(a);
  return whole < b ? -1 : whole > b;
}
__device__ inline int compared(unsigned long long a, Int b) { return -compared(b, a); }

// Threads of a block copy together; CUDA may do so behind their backs, and a wait ends both.
__device__ inline void copied(char *to, const char *from, unsigned int bytes,
                              unsigned int rank, unsigned int count) {
  for (unsigned int at = rank; at < bytes; at += count) to[at] = from[at];
}
}
"""
