// Values that C++ lacks: bfloat16 (storage only), float16, complex numbers with the plain product; and min, max, sizes.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_VALUE_H_
#define JSPARSE_CPU_VALUE_H_

#include <stdint.h>

#include "abi.h"

#ifdef __FLT16_MANT_DIG__
typedef _Float16 js_f16;
#endif

struct js_bf16 {
  uint16_t bits;
};

static inline float js_bf16_to_f32(js_bf16 x) {
  union {
    uint32_t u;
    float f;
  } v;
  v.u = (uint32_t)x.bits << 16;
  return v.f;
}

// Round to nearest, ties to even; a NaN stays a (quiet) NaN.
static inline js_bf16 js_f32_to_bf16(float x) {
  union {
    uint32_t u;
    float f;
  } v;
  v.f = x;
  js_bf16 r;
  if (x != x) {
    r.bits = (uint16_t)((v.u >> 16) | 0x40);
  } else {
    r.bits = (uint16_t)((v.u + 0x7fff + ((v.u >> 16) & 1)) >> 16);
  }
  return r;
}

static inline js_bf16 js_f64_to_bf16(double x) { return js_f32_to_bf16((float)x); }

// The same for vectors: `F` of float, `B` of as many uint16_t.
template <typename F, typename B>
static inline F js_widen_bf16(B x) {
  using Bits = decltype(F{} < F{});
  return (F)(__builtin_convertvector(x, Bits) << 16);
}

template <typename B, typename F>
static inline B js_narrow_bf16(F x) {
  using Bits = decltype(x < x);
  const Bits u = (Bits)x;
  const Bits rounded = u + 0x7fff + ((u >> 16) & 1);
  return __builtin_convertvector(((x == x) ? rounded : (u | 0x400000)) >> 16, B);
}

// float16 in vectors: GCC alone converts them one by one where the instruction is not named.
template <typename F, typename H>
static inline F js_widen_f16(H x) {
#if defined(__F16C__) && !defined(__clang__)
  if constexpr (sizeof(F) == 32) {
    typedef short Half __attribute__((vector_size(16)));
    return (F)__builtin_ia32_vcvtph2ps256((Half)x);
  }
#endif
  return __builtin_convertvector(x, F);
}

template <typename H, typename F>
static inline H js_narrow_f16(F x) {
#if defined(__F16C__) && !defined(__clang__)
  if constexpr (sizeof(F) == 32) {
    typedef float Full __attribute__((vector_size(32)));
    return (H)__builtin_ia32_vcvtps2ph256((Full)x, 0);  // to nearest, ties to even
  }
#endif
  return __builtin_convertvector(x, H);
}

template <typename T>
struct js_complex {
  T re, im;
  js_complex() = default;
  explicit js_complex(T r, T i = 0) : re(r), im(i) {}
  js_complex operator+(js_complex b) const { return js_complex(re + b.re, im + b.im); }
  js_complex operator-(js_complex b) const { return js_complex(re - b.re, im - b.im); }
  js_complex operator-() const { return js_complex(-re, -im); }
  js_complex operator*(js_complex b) const { return js_complex(re * b.re - im * b.im, re * b.im + im * b.re); }
  bool operator!=(js_complex b) const { return re != b.re || im != b.im; }
  js_complex& operator+=(js_complex b) {
    re += b.re;
    im += b.im;
    return *this;
  }
};
typedef js_complex<float> js_c64;
typedef js_complex<double> js_c128;

static inline int64_t js_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t js_max(int64_t a, int64_t b) { return a > b ? a : b; }

// x if `c`, else zero, without a branch: floats have no conditional move.
template <typename T>
static inline T js_keep(bool c, T x) {
  return c ? x : T(0);
}
static inline float js_keep(bool c, float x) {
  union {
    float f;
    uint32_t u;
  } v;
  v.f = x;
  v.u &= -(uint32_t)c;
  return v.f;
}
static inline double js_keep(bool c, double x) {
  union {
    double f;
    uint64_t u;
  } v;
  v.f = x;
  v.u &= -(uint64_t)c;
  return v.f;
}

// Number of elements of a buffer.
static inline int64_t js_size(const js_buffer* b) {
  int64_t n = 1;
  for (int64_t d = 0; d < b->rank; ++d) n *= b->dims[d];
  return n;
}

// Element `k` of a buffer along its first `axes` axes.
static inline js_buffer js_element(const js_buffer* b, int64_t axes, int64_t k, int64_t item) {
  js_buffer e;
  e.dims = b->dims + axes;
  e.rank = b->rank - axes;
  e.data = (char*)b->data + k * js_size(&e) * item;
  return e;
}

#endif  // JSPARSE_CPU_VALUE_H_
