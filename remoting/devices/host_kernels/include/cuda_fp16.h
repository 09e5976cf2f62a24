// Half precision by CUDA's names; it is computed in single precision and rounded.
#pragma once
#pragma GCC system_header

typedef float16 half;
typedef float16 __half;
struct half2 { half x, y; };
typedef half2 __half2;

inline half __float2half(float x) { return half(x); }
inline half __float2half_rn(float x) { return half(x); }
inline half __double2half(double x) { return half(x); }
inline half __int2half_rn(int x) { return half(x); }
inline float __half2float(half x) { return x; }
GP_TO_ALL(half, float)
#define GP_TO_SHORT(to, T, rounding, rounded)                                             \
  inline T __half2##to##_##rounding(half x) {                                             \
    const float least = static_cast<T>(-1) < 0 ? -32768 : 0, whole = rounded(float(x));   \
    return static_cast<T>(whole != whole ? 0 : min(max(whole, least), least + 65535));    \
  }
#define GP_TO_SHORTS(rounding, rounded)                                                   \
  GP_TO_SHORT(short, short, rounding, rounded) GP_TO_SHORT(ushort, unsigned short, rounding, rounded)
GP_TO_SHORTS(rn, rint) GP_TO_SHORTS(rz, trunc) GP_TO_SHORTS(ru, ceil) GP_TO_SHORTS(rd, floor)
#undef GP_TO_SHORTS
#undef GP_TO_SHORT
inline half __ushort_as_half(unsigned short x) { return half::from_bits(x); }
inline unsigned short __half_as_ushort(half x) { return x.bits(); }
inline half2 __floats2half2_rn(float x, float y) { return half2{half(x), half(y)}; }
inline half2 __halves2half2(half x, half y) { return half2{x, y}; }
inline half2 __half2half2(half x) { return half2{x, x}; }
inline half __low2half(half2 x) { return x.x; }
inline half __high2half(half2 x) { return x.y; }
inline float __low2float(half2 x) { return x.x; }
inline float __high2float(half2 x) { return x.y; }
inline half __hadd(half a, half b) { return float(a) + float(b); }
inline half __hsub(half a, half b) { return float(a) - float(b); }
inline half __hmul(half a, half b) { return float(a) * float(b); }
inline half __hdiv(half a, half b) { return float(a) / float(b); }
inline half __hfma(half a, half b, half c) { return fma(float(a), float(b), float(c)); }
inline half __hneg(half a) { return -a; }
inline half __habs(half a) { return fabs(float(a)); }
inline half __hmin(half a, half b) { return min(a, b); }
inline half __hmax(half a, half b) { return max(a, b); }
inline bool __heq(half a, half b) { return float(a) == float(b); }
inline bool __hne(half a, half b) { return float(a) != float(b); }
inline bool __hlt(half a, half b) { return float(a) < float(b); }
inline bool __hle(half a, half b) { return float(a) <= float(b); }
inline bool __hgt(half a, half b) { return float(a) > float(b); }
inline bool __hge(half a, half b) { return float(a) >= float(b); }
inline bool __hisnan(half a) { return isnan(a); }
inline half hsqrt(half a) { return sqrt(float(a)); }
inline half hexp(half a) { return exp(float(a)); }
inline half hlog(half a) { return log(float(a)); }
inline half2 __hadd2(half2 a, half2 b) { return half2{__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
inline half2 __hmul2(half2 a, half2 b) { return half2{__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
inline half2 __hfma2(half2 a, half2 b, half2 c) {
  return half2{__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}
