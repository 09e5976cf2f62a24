// CUDA's complex numbers in C, and CuPy's in their place where a program asked to translate them.
#pragma once
#pragma GCC system_header

#ifdef GPUPOOL_TRANSLATE_CUCOMPLEX
#include <cupy/complex.cuh>
typedef complex<float> cuFloatComplex;
typedef complex<double> cuDoubleComplex;
namespace gpupool {
template <class T> inline T real_of(const complex<T> &z) { return z.real(); }
template <class T> inline T imag_of(const complex<T> &z) { return z.imag(); }
inline cuFloatComplex pair(float x, float y) { return cuFloatComplex(x, y); }
inline cuDoubleComplex pair(double x, double y) { return cuDoubleComplex(x, y); }
template <class T> inline complex<T> quotient(const complex<T> &a, const complex<T> &b) {
  return a / b;
}
}  // namespace gpupool
#else
typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
namespace gpupool {
inline float real_of(float2 z) { return z.x; }
inline float imag_of(float2 z) { return z.y; }
inline double real_of(double2 z) { return z.x; }
inline double imag_of(double2 z) { return z.y; }
inline cuFloatComplex pair(float x, float y) { return cuFloatComplex{x, y}; }
inline cuDoubleComplex pair(double x, double y) { return cuDoubleComplex{x, y}; }
// As CUDA does: both are made smaller by the size of the divisor.
template <class Z> inline Z quotient(Z a, Z b) {
  auto s = 1 / (fabs(b.x) + fabs(b.y));
  auto x = a.x * s, y = a.y * s, u = b.x * s, v = b.y * s, scale = 1 / (u * u + v * v);
  return pair((x * u + y * v) * scale, (y * u - x * v) * scale);
}
}  // namespace gpupool
#endif
typedef cuFloatComplex cuComplex;

inline cuFloatComplex make_cuFloatComplex(float x, float y) { return gpupool::pair(x, y); }
inline cuComplex make_cuComplex(float x, float y) { return gpupool::pair(x, y); }
inline cuDoubleComplex make_cuDoubleComplex(double x, double y) { return gpupool::pair(x, y); }

namespace gpupool {

template <class Z> struct Pairs {
  static Z add(Z a, Z b) { return pair(real_of(a) + real_of(b), imag_of(a) + imag_of(b)); }
  static Z sub(Z a, Z b) { return pair(real_of(a) - real_of(b), imag_of(a) - imag_of(b)); }
  static Z mul(Z a, Z b) {
    return pair(real_of(a) * real_of(b) - imag_of(a) * imag_of(b),
                real_of(a) * imag_of(b) + imag_of(a) * real_of(b));
  }
  static Z div(Z a, Z b) { return quotient(a, b); }
  static Z fma(Z a, Z b, Z c) { return add(mul(a, b), c); }
  static Z conj(Z a) { return pair(real_of(a), -imag_of(a)); }
};

}  // namespace gpupool

#define GP_PAIRS(Z, R, suffix)                                                             \
  inline R cuCreal##suffix(Z a) { return gpupool::real_of(a); }                            \
  inline R cuCimag##suffix(Z a) { return gpupool::imag_of(a); }                            \
  inline R cuCabs##suffix(Z a) { return hypot(gpupool::real_of(a), gpupool::imag_of(a)); } \
  inline Z cuCadd##suffix(Z a, Z b) { return gpupool::Pairs<Z>::add(a, b); }               \
  inline Z cuCsub##suffix(Z a, Z b) { return gpupool::Pairs<Z>::sub(a, b); }               \
  inline Z cuCmul##suffix(Z a, Z b) { return gpupool::Pairs<Z>::mul(a, b); }               \
  inline Z cuCdiv##suffix(Z a, Z b) { return gpupool::Pairs<Z>::div(a, b); }               \
  inline Z cuCfma##suffix(Z a, Z b, Z c) { return gpupool::Pairs<Z>::fma(a, b, c); }       \
  inline Z cuConj##suffix(Z a) { return gpupool::Pairs<Z>::conj(a); }
GP_PAIRS(cuDoubleComplex, double, ) GP_PAIRS(cuFloatComplex, float, f)
#ifdef GPUPOOL_TRANSLATE_CUCOMPLEX
GP_PAIRS(cuFloatComplex, float, )
#endif
#undef GP_PAIRS
inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) {
  return gpupool::pair(double(gpupool::real_of(a)), double(gpupool::imag_of(a)));
}
inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) {
  return gpupool::pair(float(gpupool::real_of(a)), float(gpupool::imag_of(a)));
}
