// Types of cuFFT's callbacks.
#pragma once
#pragma GCC system_header

#include <cuComplex.h>

typedef float cufftReal;
typedef double cufftDoubleReal;
typedef cuFloatComplex cufftComplex;
typedef cuDoubleComplex cufftDoubleComplex;

#define GP_CALLBACKS(letter, T)                                                            \
  typedef T (*cufftCallbackLoad##letter)(void *, size_t, void *, void *);                  \
  typedef void (*cufftCallbackStore##letter)(void *, size_t, T, void *, void *);           \
  typedef T (*cufftJITCallbackLoad##letter)(void *, unsigned long long, void *, void *);   \
  typedef void (*cufftJITCallbackStore##letter)(void *, unsigned long long, T, void *, void *);
GP_CALLBACKS(C, cufftComplex) GP_CALLBACKS(Z, cufftDoubleComplex)
GP_CALLBACKS(R, cufftReal) GP_CALLBACKS(D, cufftDoubleReal)
#undef GP_CALLBACKS
