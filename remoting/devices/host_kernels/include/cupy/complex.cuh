// Complex numbers by the names that CuPy gives them: thrust::complex, and complex.
#pragma once
#pragma GCC system_header

namespace thrust {

template <class T> struct complex {
  typedef T value_type;

  complex(T real = T(), T imag = T()) : real_(real), imag_(imag) {}
  template <class U>
  complex(const complex<U> &other)
      : real_(static_cast<T>(other.real())), imag_(static_cast<T>(other.imag())) {}
  complex(const complex &) = default;
  complex &operator=(const complex &) = default;
  template <class U> complex &operator=(const complex<U> &other) {
    real_ = static_cast<T>(other.real()), imag_ = static_cast<T>(other.imag());
    return *this;
  }
  complex &operator=(T value) {
    real_ = value, imag_ = T();
    return *this;
  }

  T real() const { return real_; }
  T imag() const { return imag_; }
  void real(T value) { real_ = value; }
  void imag(T value) { imag_ = value; }

  template <class U> complex &operator+=(const U &by) { return *this = *this + by; }
  template <class U> complex &operator-=(const U &by) { return *this = *this - by; }
  template <class U> complex &operator*=(const U &by) { return *this = *this * by; }
  template <class U> complex &operator/=(const U &by) { return *this = *this / by; }

 private:
  T real_, imag_;
};

// The type of an operation on a complex number and another number.
template <class A, class B> struct wider { typedef float type; };
template <class B> struct wider<double, B> { typedef double type; };
template <class A> struct wider<A, double> { typedef double type; };
template <> struct wider<double, double> { typedef double type; };
template <class A, class B> using number = complex<typename wider<A, B>::type>;
template <class T> struct is_number { static const bool value = gpupool::Real<T>::value; };
template <> struct is_number<float16> { static const bool value = true; };
template <class A, class B>
using with_number = typename gpupool::When<is_number<B>::value, number<A, B>>::type;

template <class A, class B> inline number<A, B> operator+(const complex<A> &a, const complex<B> &b) {
  return number<A, B>(a.real() + b.real(), a.imag() + b.imag());
}
template <class A, class B> inline number<A, B> operator-(const complex<A> &a, const complex<B> &b) {
  return number<A, B>(a.real() - b.real(), a.imag() - b.imag());
}
template <class A, class B> inline number<A, B> operator*(const complex<A> &a, const complex<B> &b) {
  return number<A, B>(a.real() * b.real() - a.imag() * b.imag(),
                      a.real() * b.imag() + a.imag() * b.real());
}
// Divides by Smith's way, as NumPy does, so that large parts do not overflow.
template <class A, class B> inline number<A, B> operator/(const complex<A> &a, const complex<B> &b) {
  typedef typename wider<A, B>::type R;
  R x = a.real(), y = a.imag(), u = b.real(), v = b.imag();
  if (fabs(u) >= fabs(v)) {
    if (u == 0 && v == 0) return number<A, B>(x / fabs(u), y / fabs(v));
    R ratio = v / u, scale = 1 / (u + v * ratio);
    return number<A, B>((x + y * ratio) * scale, (y - x * ratio) * scale);
  }
  R ratio = u / v, scale = 1 / (v + u * ratio);
  return number<A, B>((x * ratio + y) * scale, (y * ratio - x) * scale);
}
#define GP_MIXED(sign)                                                                     \
  template <class A, class B>                                                              \
  inline with_number<A, B> operator sign(const complex<A> &a, const B &b) {                \
    return a sign complex<typename wider<A, B>::type>(                                     \
        static_cast<typename wider<A, B>::type>(b));                                       \
  }                                                                                        \
  template <class A, class B>                                                              \
  inline with_number<A, B> operator sign(const B &b, const complex<A> &a) {                \
    return complex<typename wider<A, B>::type>(                                            \
        static_cast<typename wider<A, B>::type>(b)) sign a;                                \
  }
GP_MIXED(+) GP_MIXED(-) GP_MIXED(*) GP_MIXED(/)
#undef GP_MIXED
template <class A> inline complex<A> operator+(const complex<A> &a) { return a; }
template <class A> inline complex<A> operator-(const complex<A> &a) {
  return complex<A>(-a.real(), -a.imag());
}
template <class A, class B> inline bool operator==(const complex<A> &a, const complex<B> &b) {
  return a.real() == b.real() && a.imag() == b.imag();
}
template <class A, class B> inline bool operator!=(const complex<A> &a, const complex<B> &b) {
  return !(a == b);
}
template <class A, class B>
inline typename gpupool::When<is_number<B>::value, bool>::type operator==(const complex<A> &a,
                                                                          const B &b) {
  return a.real() == b && a.imag() == 0;
}
template <class A, class B>
inline typename gpupool::When<is_number<B>::value, bool>::type operator!=(const complex<A> &a,
                                                                          const B &b) {
  return !(a == b);
}
// In the order of NumPy: by the real part, then by the imaginary one.
template <class A> inline bool operator<(const complex<A> &a, const complex<A> &b) {
  return a.real() < b.real() || (a.real() == b.real() && a.imag() < b.imag());
}
template <class A> inline bool operator>(const complex<A> &a, const complex<A> &b) { return b < a; }
template <class A> inline bool operator<=(const complex<A> &a, const complex<A> &b) {
  return a.real() < b.real() || (a.real() == b.real() && a.imag() <= b.imag());
}
template <class A> inline bool operator>=(const complex<A> &a, const complex<A> &b) {
  return b <= a;
}

template <class T> inline T real(const complex<T> &z) { return z.real(); }
template <class T> inline T imag(const complex<T> &z) { return z.imag(); }
template <class T> inline T abs(const complex<T> &z) { return hypot(z.real(), z.imag()); }
template <class T> inline T arg(const complex<T> &z) { return atan2(z.imag(), z.real()); }
template <class T> inline T norm(const complex<T> &z) {
  return z.real() * z.real() + z.imag() * z.imag();
}
template <class T> inline complex<T> conj(const complex<T> &z) {
  return complex<T>(z.real(), -z.imag());
}
template <class T> inline complex<T> polar(T length, T angle) {
  return complex<T>(length * ::cos(angle), length * ::sin(angle));
}

inline complex<float> of(float _Complex z) { return complex<float>(__real__ z, __imag__ z); }
inline complex<double> of(double _Complex z) { return complex<double>(__real__ z, __imag__ z); }
inline float _Complex to(const complex<float> &z) {
  float _Complex made;
  __real__ made = z.real();
  __imag__ made = z.imag();
  return made;
}
inline double _Complex to(const complex<double> &z) {
  double _Complex made;
  __real__ made = z.real();
  __imag__ made = z.imag();
  return made;
}
#define GP_COMPLEX(name)                                                                   \
  inline complex<float> name(const complex<float> &z) { return of(__builtin_c##name##f(to(z))); } \
  inline complex<double> name(const complex<double> &z) { return of(__builtin_c##name(to(z))); }
GP_COMPLEX(sqrt) GP_COMPLEX(exp) GP_COMPLEX(log) GP_COMPLEX(sin) GP_COMPLEX(cos) GP_COMPLEX(tan)
GP_COMPLEX(sinh) GP_COMPLEX(cosh) GP_COMPLEX(tanh) GP_COMPLEX(asin) GP_COMPLEX(acos)
GP_COMPLEX(atan) GP_COMPLEX(asinh) GP_COMPLEX(acosh) GP_COMPLEX(atanh)
#undef GP_COMPLEX
template <class T> inline complex<T> log10(const complex<T> &z) {
  return log(z) / T(2.30258509299404568402);
}
template <class A, class B> inline number<A, B> pow(const complex<A> &a, const complex<B> &b) {
  number<A, B> x = a, y = b;
  if (y.real() == 0 && y.imag() == 0) return number<A, B>(1);
  if (x.real() == 0 && x.imag() == 0) return number<A, B>(0);
  return exp(y * log(x));
}
template <class A, class B> inline with_number<A, B> pow(const complex<A> &a, const B &b) {
  return pow(a, number<A, B>(static_cast<typename wider<A, B>::type>(b)));
}
template <class A, class B> inline with_number<A, B> pow(const B &b, const complex<A> &a) {
  return pow(number<A, B>(static_cast<typename wider<A, B>::type>(b)), a);
}
template <class T> inline bool isnan(const complex<T> &z) {
  return ::isnan(z.real()) || ::isnan(z.imag());
}
template <class T> inline bool isinf(const complex<T> &z) {
  return ::isinf(z.real()) || ::isinf(z.imag());
}
template <class T> inline bool isfinite(const complex<T> &z) {
  return ::isfinite(z.real()) && ::isfinite(z.imag());
}

}  // namespace thrust

using thrust::complex;
using thrust::conj;
using thrust::real;
using thrust::imag;
using thrust::arg;
using thrust::norm;
using thrust::polar;
inline float real(float x) { return x; }
inline double real(double x) { return x; }
inline float imag(float) { return 0; }
inline double imag(double) { return 0; }
inline float conj(float x) { return x; }
inline double conj(double x) { return x; }
