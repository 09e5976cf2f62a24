// Conversions of floats to whole numbers as a GPU's instructions do them: what is out of range becomes
// the nearest number of the type. NaN becomes 0; where one of the two types has 64 bits, it becomes
// the number whose highest bit alone is set. A type of less than 32 bits gets the lower bits of a
// number of 32. ARM's instructions do the same, but for NaN; x86's do not.
//
// On x86 GCC checks the range before each conversion (-fsanitize=float-cast-overflow) and calls the
// function below where a value is outside. It notes what the instruction is going to give, and what
// a GPU gives; host_compiler.py lets each conversion put the one in place of the other.
#pragma once
#pragma GCC system_header

#ifdef GPUPOOL_CONVERSIONS
namespace gpupool {

__attribute__((used)) static long long wrong asm("gpupool_wrong"), right asm("gpupool_right");

// As the compiler describes them: 0 and twice the binary logarithm of the bits, and 1 if there is a
// sign; or 1 and the bits.
struct NumberKind { unsigned short floating, size; };
struct Conversion {
  const char *file;
  unsigned line, column;
  const NumberKind *from, *to;
};

}  // namespace gpupool

extern "C" __attribute__((visibility("hidden"), used, noinline, no_sanitize_undefined)) void
__ubsan_handle_float_cast_overflow(const gpupool::Conversion *conversion, unsigned long bits) {
  double x;
  if (conversion->from->size > 64) return;  // no type of a GPU
  if (conversion->from->size == 32) {
    float narrow;
    __builtin_memcpy(&narrow, &bits, sizeof narrow);
    x = narrow;
  } else {
    __builtin_memcpy(&x, &bits, sizeof x);
  }
  bool sign = conversion->to->size & 1, wide = conversion->to->size >> 1 == 6;
  double end = (wide ? 4294967296. * 4294967296 : 4294967296.) / (sign ? 2 : 1);
  bool moved = wide && !sign && x >= end / 2;  // GCC then converts x - 2^63, and adds that again
  // With a blank, and not with a tab as the compiler writes it: these are the instruction's own.
  asm("cvttsd2siq %1, %0" : "=r"(gpupool::wrong) : "x"(moved ? x - end / 2 : x));
  unsigned long long made = static_cast<unsigned long long>(gpupool::wrong);
  if (conversion->to->size < 10 || conversion->to->size == 11) {  // what fits into 32 bits and a sign
    int part;
    asm("cvttsd2sil %1, %0" : "=r"(part) : "x"(x));
    gpupool::wrong = part;
  }
  unsigned long long most = ~0ull >> (wide ? 0 : 32) >> sign;
  if (x != x) made = wide ? 1ull << 63 : conversion->from->size == 64 ? 1ull << 31 : 0;
  else if (x >= end) made = moved ? most ^ 1ull << 63 : most;
  else if (x < (sign ? -end : 0)) made = sign ? ~most : 0;
  gpupool::right = static_cast<long long>(made);
}
#endif

// --- by name -------------------------------------------------------------------------------------

#define GP_TO(from, F, to, T)                                                             \
  inline T __##from##2##to##_rn(F x) { return static_cast<T>(rint(x)); }                  \
  inline T __##from##2##to##_rz(F x) { return static_cast<T>(x); }                        \
  inline T __##from##2##to##_ru(F x) { return static_cast<T>(ceil(x)); }                  \
  inline T __##from##2##to##_rd(F x) { return static_cast<T>(floor(x)); }
#define GP_TO_ALL(from, F)                                                                \
  GP_TO(from, F, int, int) GP_TO(from, F, uint, unsigned)                                 \
  GP_TO(from, F, ll, long long) GP_TO(from, F, ull, unsigned long long)
GP_TO_ALL(float, float) GP_TO_ALL(double, double)

namespace gpupool {

// Rounds to a shorter type: to the nearest number, towards 0, up or down.
template <class T> inline T rounded(long double x, int way) {
  T made = static_cast<T>(x);
  if (way == 'z') way = x > 0 ? 'd' : 'u';
  if (way == 'u' && made < x) return nextafter(made, static_cast<T>(__builtin_inf()));
  if (way == 'd' && made > x) return nextafter(made, -static_cast<T>(__builtin_inf()));
  return made;
}

}  // namespace gpupool

#define GP_FROM(from, F, to, T)                                                           \
  inline T __##from##2##to##_rn(F x) { return static_cast<T>(x); }                        \
  inline T __##from##2##to##_rz(F x) { return gpupool::rounded<T>(x, 'z'); }              \
  inline T __##from##2##to##_ru(F x) { return gpupool::rounded<T>(x, 'u'); }              \
  inline T __##from##2##to##_rd(F x) { return gpupool::rounded<T>(x, 'd'); }
GP_FROM(int, int, float, float) GP_FROM(uint, unsigned, float, float)
GP_FROM(ll, long long, float, float) GP_FROM(ull, unsigned long long, float, float)
GP_FROM(ll, long long, double, double) GP_FROM(ull, unsigned long long, double, double)
GP_FROM(double, double, float, float)
#undef GP_FROM
inline double __int2double_rn(int x) { return x; }
inline double __uint2double_rn(unsigned x) { return x; }
#define GP_NEAREST(name, rounding)                                                        \
  inline long l##name(double x) { return static_cast<long>(rounding(x)); }                \
  inline long l##name##f(float x) { return static_cast<long>(rounding(x)); }              \
  inline long long ll##name(double x) { return static_cast<long long>(rounding(x)); }     \
  inline long long ll##name##f(float x) { return static_cast<long long>(rounding(x)); }
GP_NEAREST(round, round) GP_NEAREST(rint, rint)
#undef GP_NEAREST
