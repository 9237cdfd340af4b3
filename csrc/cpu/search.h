// Searching and checking index arrays, and cutting loops into chunks.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_SEARCH_H_
#define JSPARSE_CPU_SEARCH_H_

#include <stdint.h>

#include "abi.h"
#include "cpu/support.h"

// First p in [lo, hi) with crd[p] >= x, or hi.
template <typename I>
static inline int64_t js_lower_bound(const I* crd, int64_t lo, int64_t hi, int64_t x) {
  while (lo < hi) {
    const int64_t mid = lo + (hi - lo) / 2;
    if (crd[mid] < x) {
      lo = mid + 1;
    } else {
      hi = mid;
    }
  }
  return lo;
}

// The same from a position that is not far: doubled steps find the interval that a binary search goes on in, so that
// it costs the logarithm of the distance.
template <typename I>
static inline int64_t js_gallop(const I* crd, int64_t lo, int64_t hi, int64_t x) {
  if (lo >= hi || crd[lo] >= x) return lo;
  int64_t step = 1;
  while (lo + step < hi && crd[lo + step] < x) {
    lo += step;
    step *= 2;
  }
  const I* p = crd + lo + 1;  // crd[lo] is below x; n elements that may be, too
  for (int64_t n = (lo + step < hi ? lo + step : hi) - lo - 1; n > 0;) {
    const int64_t half = (n + 1) / 2;
    p += p[half - 1] < x ? half : 0;
    n -= half;
  }
  return p - crd;
}

// Reports the first p in [lo, hi] where pos[p] is negative, above `limit`, or (p > lo) below pos[p - 1]; whether there
// was one.
template <typename I>
JS_SUPPORT bool js_bad_pos(js_context* ctx, int32_t operand, int32_t level, const I* pos, int64_t lo, int64_t hi,
                           int64_t limit);

// Reports the first p in [lo, hi) where crd[p] is outside [0, extent); whether there was one.
template <typename I>
JS_SUPPORT bool js_bad_crd(js_context* ctx, int32_t operand, int32_t level, const I* crd, int64_t lo, int64_t hi,
                           int64_t extent);

// Start of chunk k of `chunks` of [lo, hi), each with about as many entries (a row counts as one besides its entries).
template <typename I>
JS_SUPPORT int64_t js_balance(const I* pos, int64_t lo, int64_t hi, int64_t k, int64_t chunks);

// Start of chunk k of `chunks` equal parts of [lo, hi).
static inline int64_t js_even(int64_t lo, int64_t hi, int64_t k, int64_t chunks) {
  if (k <= 0) return lo;
  if (k >= chunks) return hi;
  return lo + (int64_t)((double)(hi - lo) * (double)k / (double)chunks);
}

// A fiber of one of several operands that are visited together; `pos` is of the level below, null if it has none.
struct js_fiber {
  const void* crd;
  const void* pos;
  int64_t lo, hi;
  int64_t crd_bytes, pos_bytes;
};

static inline void js_list_fibers(js_fiber*) {}
static inline int64_t js_width(int) { return 0; }
template <typename I>
static inline int64_t js_width(const I*) {
  return sizeof(I);
}
template <typename I, typename P, typename... Rest>
static inline void js_list_fibers(js_fiber* f, const I* crd, P pos, int64_t lo, int64_t hi, Rest... rest) {
  f->crd = crd;
  f->pos = (const void*)(intptr_t)pos;
  f->lo = lo;
  f->hi = hi;
  f->crd_bytes = sizeof(I);
  f->pos_bytes = js_width(pos);
  js_list_fibers(f + 1, rest...);
}

// Start of chunk k of `chunks` of the coordinates [0, extent), each with about as many entries of all `n` fibers.
JS_SUPPORT int64_t js_share_of(int64_t k, int64_t chunks, int64_t extent, const js_fiber* fibers, int64_t n);

// The same of fibers given as crd, pos, lo, hi one after the other.
template <typename... Fibers>
static inline int64_t js_share(int64_t k, int64_t chunks, int64_t extent, Fibers... fibers) {
  js_fiber list[sizeof...(fibers) / 4];
  js_list_fibers(list, fibers...);
  return js_share_of(k, chunks, extent, list, sizeof...(fibers) / 4);
}

// p, or the next position after it that starts a group of equal coordinates in [lo, hi).
template <typename I>
static inline int64_t js_group_start(const I* crd, int64_t p, int64_t lo, int64_t hi) {
  while (p > lo && p < hi && crd[p] == crd[p - 1]) ++p;
  return p;
}

#endif  // JSPARSE_CPU_SEARCH_H_
