// CUDA's functions of numbers. Half precision is computed in single precision and rounded.
#pragma once
#pragma GCC system_header

#define GP_ONE(name, called)                                                              \
  inline float name(float x) { return __builtin_##called##f(x); }                         \
  inline double name(double x) { return __builtin_##called(x); }                          \
  template <class T> inline gpupool::IfWhole<T, double> name(T x) {                       \
    return __builtin_##called(static_cast<double>(x));                                    \
  }                                                                                       \
  inline float name##f(float x) { return __builtin_##called##f(x); }
GP_ONE(sqrt, sqrt) GP_ONE(cbrt, cbrt) GP_ONE(exp, exp) GP_ONE(exp2, exp2) GP_ONE(expm1, expm1)
GP_ONE(log, log) GP_ONE(log2, log2) GP_ONE(log10, log10) GP_ONE(log1p, log1p) GP_ONE(sin, sin)
GP_ONE(cos, cos) GP_ONE(tan, tan) GP_ONE(asin, asin) GP_ONE(acos, acos) GP_ONE(atan, atan)
GP_ONE(sinh, sinh) GP_ONE(cosh, cosh) GP_ONE(tanh, tanh) GP_ONE(asinh, asinh)
GP_ONE(acosh, acosh) GP_ONE(atanh, atanh) GP_ONE(erf, erf) GP_ONE(erfc, erfc)
GP_ONE(tgamma, tgamma) GP_ONE(lgamma, lgamma) GP_ONE(floor, floor) GP_ONE(ceil, ceil)
GP_ONE(trunc, trunc) GP_ONE(round, round) GP_ONE(rint, rint) GP_ONE(nearbyint, nearbyint)
GP_ONE(fabs, fabs) GP_ONE(logb, logb) GP_ONE(j0, j0) GP_ONE(j1, j1) GP_ONE(y0, y0) GP_ONE(y1, y1)
#undef GP_ONE

#define GP_TWO(name, called)                                                              \
  inline float name(float x, float y) { return __builtin_##called##f(x, y); }             \
  inline double name(double x, double y) { return __builtin_##called(x, y); }             \
  template <class A, class B> inline gpupool::IfMixed<A, B> name(A x, B y) {              \
    return __builtin_##called(static_cast<double>(x), static_cast<double>(y));            \
  }                                                                                       \
  inline float name##f(float x, float y) { return __builtin_##called##f(x, y); }
GP_TWO(pow, pow) GP_TWO(atan2, atan2) GP_TWO(fmod, fmod) GP_TWO(remainder, remainder)
GP_TWO(hypot, hypot) GP_TWO(copysign, copysign) GP_TWO(fmin, fmin) GP_TWO(fmax, fmax)
GP_TWO(fdim, fdim) GP_TWO(nextafter, nextafter)
#undef GP_TWO

#define GP_FROM(name, expression)                                                         \
  inline float name(float x) { return expression; }                                       \
  inline double name(double x) { return expression; }                                     \
  inline float name##f(float x) { return expression; }
GP_FROM(rsqrt, 1 / sqrt(x)) GP_FROM(rcbrt, 1 / cbrt(x)) GP_FROM(exp10, pow(decltype(x)(10), x))
#undef GP_FROM

namespace gpupool {

// The sine and cosine of pi x, exact where they are 0 or 1.
template <class T> inline T sine_pi(T x) {
  T left = remainder(x, T(2));
  if (left == 0 || left == 1 || left == -1) return left * 0;
  if (left > T(0.5)) left = 1 - left;
  if (left < T(-0.5)) left = -1 - left;
  return sin(T(M_PI) * left);
}
template <class T> inline T cosine_pi(T x) {
  T left = fabs(remainder(x, T(2)));
  if (left == T(0.5)) return 0;
  return left > T(0.5) ? -cos(T(M_PI) * (1 - left)) : cos(T(M_PI) * left);
}

}  // namespace gpupool

inline double sinpi(double x) { return gpupool::sine_pi(x); }
inline float sinpi(float x) { return gpupool::sine_pi(x); }
inline float sinpif(float x) { return gpupool::sine_pi(x); }
inline double cospi(double x) { return gpupool::cosine_pi(x); }
inline float cospi(float x) { return gpupool::cosine_pi(x); }
inline float cospif(float x) { return gpupool::cosine_pi(x); }

namespace gpupool {

// The inverse of erfc: a rational approximation of the normal distribution's, made exact by steps
// of Halley's method.
inline double inverse_erfc(double x) {
  if (!(x > 0 && x < 2)) {
    return x == 0 ? __builtin_inf() : x == 2 ? -__builtin_inf() : __builtin_nan("");
  }
  double tail = x < 1 ? x : 2 - x, t = sqrt(-2 * log(tail / 2));
  double y = (t - (2.30753 + 0.27061 * t) / (1 + t * (0.99229 + 0.04481 * t))) * 0.70710678118654752;
  for (int step = 0; step < 3; step++) {
    double error = (erfc(y) - tail) / (1.12837916709551257 * exp(-y * y));
    y += error / (1 - y * error);
  }
  return x < 1 ? y : -y;
}
inline double inverse_erf(double x) {
  if (fabs(x) > 0.5) return x > 0 ? inverse_erfc(1 - x) : -inverse_erfc(1 + x);
  double y = x * 0.88622692545275801;
  for (int step = 0; step < 4; step++) {
    double error = (erf(y) - x) / (1.12837916709551257 * exp(-y * y));
    y -= error / (1 + y * error);
  }
  return y;
}

}  // namespace gpupool

#define GP_DOUBLE(name, expression)                                                       \
  inline double name(double x) { return expression; }                                     \
  inline float name(float value) { double x = value; return static_cast<float>(expression); } \
  inline float name##f(float value) { double x = value; return static_cast<float>(expression); }
GP_DOUBLE(erfcinv, gpupool::inverse_erfc(x)) GP_DOUBLE(erfinv, gpupool::inverse_erf(x))
GP_DOUBLE(normcdf, 0.5 * erfc(x * -0.70710678118654752))
GP_DOUBLE(normcdfinv, -1.41421356237309505 * gpupool::inverse_erfc(2 * x))
GP_DOUBLE(erfcx, x > 25 ? 0.56418958354775629 / x * (1 - 0.5 / (x * x)) : exp(x * x) * erfc(x))
#undef GP_DOUBLE

inline float ldexp(float x, int n) { return __builtin_ldexpf(x, n); }
inline double ldexp(double x, int n) { return __builtin_ldexp(x, n); }
inline float ldexpf(float x, int n) { return __builtin_ldexpf(x, n); }
inline float scalbn(float x, int n) { return __builtin_ldexpf(x, n); }
inline double scalbn(double x, int n) { return __builtin_ldexp(x, n); }
// By way of a variable: strict mode does not see what the C library writes.
inline float frexp(float x, int *n) { int e; x = __builtin_frexpf(x, &e); *n = e; return x; }
inline double frexp(double x, int *n) { int e; x = __builtin_frexp(x, &e); *n = e; return x; }
inline float frexpf(float x, int *n) { int e; x = __builtin_frexpf(x, &e); *n = e; return x; }
inline float modf(float x, float *whole) { float w; x = __builtin_modff(x, &w); *whole = w; return x; }
inline double modf(double x, double *whole) { double w; x = __builtin_modf(x, &w); *whole = w; return x; }
inline int ilogb(float x) { return __builtin_ilogbf(x); }
inline int ilogb(double x) { return __builtin_ilogb(x); }
inline int ilogbf(float x) { return __builtin_ilogbf(x); }
inline float fma(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
inline double fma(double x, double y, double z) { return __builtin_fma(x, y, z); }
inline float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

#define GP_ASKS(name, called)                                                             \
  inline bool name(float x) { return __builtin_##called(x); }                             \
  inline bool name(double x) { return __builtin_##called(x); }                            \
  template <class T> inline gpupool::IfWhole<T, bool> name(T x) {                         \
    return __builtin_##called(static_cast<double>(x));                                    \
  }
GP_ASKS(isnan, isnan) GP_ASKS(isinf, isinf) GP_ASKS(isfinite, isfinite)
GP_ASKS(signbit, signbit)
#undef GP_ASKS

inline int abs(int x) { return x < 0 ? -x : x; }
inline long abs(long x) { return x < 0 ? -x : x; }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline double abs(double x) { return __builtin_fabs(x); }
inline long labs(long x) { return abs(x); }
inline long long llabs(long long x) { return abs(x); }

// As CUDA's, the smaller and the larger of two numbers is the number where the other is NaN.
template <class A, class B> inline auto min(A a, B b) -> decltype(true ? A() : B()) {
  return b < a || a != a ? b : a;
}
template <class A, class B> inline auto max(A a, B b) -> decltype(true ? A() : B()) {
  return a < b || a != a ? b : a;
}

inline void sincos(float x, float *s, float *c) { *s = sin(x), *c = cos(x); }
inline void sincos(double x, double *s, double *c) { *s = sin(x), *c = cos(x); }
inline void sincosf(float x, float *s, float *c) { *s = sin(x), *c = cos(x); }
inline void sincospi(double x, double *s, double *c) { *s = sinpi(x), *c = cospi(x); }
inline float __sinf(float x) { return sin(x); }
inline float __cosf(float x) { return cos(x); }
inline float __tanf(float x) { return tan(x); }
inline float __expf(float x) { return exp(x); }
inline float __exp10f(float x) { return exp10(x); }
inline float __logf(float x) { return log(x); }
inline float __log2f(float x) { return log2(x); }
inline float __log10f(float x) { return log10(x); }
inline float __powf(float x, float y) { return pow(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float __frsqrt_rn(float x) { return 1 / sqrt(x); }
inline float __fsqrt_rn(float x) { return sqrt(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fma(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

// --- bits ----------------------------------------------------------------------------------------

namespace gpupool {

template <class To, class From> inline To same_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "types of one size");
  To made;
  __builtin_memcpy(&made, &value, sizeof made);
  return made;
}

}  // namespace gpupool

inline int __float_as_int(float x) { return gpupool::same_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return gpupool::same_bits<unsigned>(x); }
inline float __int_as_float(int x) { return gpupool::same_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return gpupool::same_bits<float>(x); }
inline long long __double_as_longlong(double x) { return gpupool::same_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return gpupool::same_bits<double>(x); }
inline int __double2hiint(double x) { return static_cast<int>(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return static_cast<int>(__double_as_longlong(x)); }
inline double __hiloint2double(int high, int low) {
  return __longlong_as_double(static_cast<long long>(high) << 32 | static_cast<unsigned>(low));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) {
  return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned made = 0;
  for (int at = 0; at < 32; at++) made |= (x >> at & 1u) << (31 - at);
  return made;
}
inline unsigned long long __brevll(unsigned long long x) {
  return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 |
         __brev(static_cast<unsigned>(x >> 32));
}
inline int __mul24(int x, int y) { return x * y; }
inline unsigned __umul24(unsigned x, unsigned y) { return x * y; }
inline int __mulhi(int x, int y) {
  return static_cast<int>(static_cast<long long>(x) * y >> 32);
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>(static_cast<unsigned long long>(x) * y >> 32);
}
inline long long __mul64hi(long long x, long long y) {
  return static_cast<long long>(static_cast<__int128>(x) * y >> 64);
}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both << (by & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  unsigned long long both = static_cast<unsigned long long>(high) << 32 | low;
  return static_cast<unsigned>(both >> (by & 31));
}

// --- half precision ------------------------------------------------------------------------------

namespace gpupool {

inline float widened(unsigned short bits) {
  unsigned sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31, rest = bits & 0x3ffu;
  if (exponent == 31) return same_bits<float>(sign | 0x7f800000u | rest << 13);
  if (exponent) return same_bits<float>(sign | (exponent + 112) << 23 | rest << 13);
  float made = static_cast<float>(rest) * 5.9604644775390625e-8f;
  return sign ? -made : made;
}

// Rounds to the nearest, and a tie to the even one.
inline unsigned short narrowed(float value) {
  unsigned bits = same_bits<unsigned>(value);
  unsigned short sign = static_cast<unsigned short>(bits >> 16 & 0x8000u);
  unsigned rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<unsigned short>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<unsigned short>(sign | 0x7c00u);
  if (rest < 0x38800000u) {
    // Adding 0.5 aligns the bits of a subnormal number; the processor rounds.
    float moved = same_bits<float>(rest) + 0.5f;
    return static_cast<unsigned short>(sign | (same_bits<unsigned>(moved) - 0x3f000000u));
  }
  unsigned odd = rest >> 13 & 1;
  return static_cast<unsigned short>(sign | ((rest - 0x38000000u + 0xfffu + odd) >> 13));
}

}  // namespace gpupool

class float16 {
 public:
  float16() = default;
  float16(float value) : bits_(gpupool::narrowed(value)) {}
  float16(double value) : bits_(gpupool::narrowed(static_cast<float>(value))) {}
  template <class T, class = gpupool::IfWhole<T, int>>
  float16(T value) : bits_(gpupool::narrowed(static_cast<float>(value))) {}
  operator float() const { return gpupool::widened(bits_); }
  template <class T> float16 &operator+=(T by) { return *this = float16(float(*this) + float(by)); }
  template <class T> float16 &operator-=(T by) { return *this = float16(float(*this) - float(by)); }
  template <class T> float16 &operator*=(T by) { return *this = float16(float(*this) * float(by)); }
  template <class T> float16 &operator/=(T by) { return *this = float16(float(*this) / float(by)); }
  float16 operator-() const { return float16(-float(*this)); }
  static float16 from_bits(unsigned short bits) {
    float16 made;
    made.bits_ = bits;
    return made;
  }
  unsigned short bits() const { return bits_; }

 private:
  unsigned short bits_;
};

inline bool isnan(float16 x) { return isnan(float(x)); }
inline bool isinf(float16 x) { return isinf(float(x)); }
inline bool isfinite(float16 x) { return isfinite(float(x)); }
inline bool signbit(float16 x) { return x.bits() >> 15; }
inline float16 min(float16 a, float16 b) { return b < a || a != a ? b : a; }
inline float16 max(float16 a, float16 b) { return a < b || a != a ? b : a; }
