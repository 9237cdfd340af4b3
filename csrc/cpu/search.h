// Searching and checking index arrays, and cutting loops into chunks.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_SEARCH_H_
#define JSPARSE_CPU_SEARCH_H_

#include <stdint.h>

#include "abi.h"

// Called once for each chunk: a copy at every call would only cost compile time.
#define JS_ONCE __attribute__((noinline))

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

// First p in [lo, hi] where pos[p] is negative, above `limit`, or (p > lo) below pos[p - 1]; -1 if there is
// none.
template <typename I>
static inline int64_t js_find_bad_pos(const I* pos, int64_t lo, int64_t hi, int64_t limit) {
  if (lo == 0 && pos[0] != 0) return 0;  // entries before the first fiber would be lost
  if (lo > hi) return hi;  // chunks of a damaged array may come out reversed
  int bad = pos[lo] < 0 || pos[hi] > limit;
  for (int64_t p = lo; p < hi; ++p) bad |= pos[p] > pos[p + 1];
  if (!bad) return -1;
  if (pos[lo] < 0 || pos[lo] > limit) return lo;
  for (int64_t p = lo + 1; p <= hi; ++p) {
    if (pos[p] < pos[p - 1] || pos[p] > limit) return p;
  }
  return -1;
}

// First p in [lo, hi) where crd[p] is outside [0, extent); -1 if there is none.
template <typename I>
static inline int64_t js_find_bad_crd(const I* crd, int64_t lo, int64_t hi, int64_t extent) {
  int bad = 0;
  int64_t p = lo;
  if (sizeof(I) == 4) {  // one unsigned comparison finds both negative and too large; eight at a time
    typedef uint32_t u32x8 __attribute__((vector_size(32), aligned(4), may_alias));
    bad = extent <= 0 && lo < hi;
    const uint32_t most = extent <= 0 ? 0 : extent > INT32_MAX ? (uint32_t)INT32_MAX : (uint32_t)(extent - 1);
    const u32x8 limit = {most, most, most, most, most, most, most, most};
    u32x8 seen = {};
    for (; p + 8 <= hi; p += 8) seen |= (u32x8)(*(const u32x8*)(crd + p) > limit);
    for (int lane = 0; lane < 8; ++lane) bad |= seen[lane] != 0;
    for (; p < hi; ++p) bad |= (uint32_t)crd[p] > most;
  } else {
    for (; p < hi; ++p) bad |= (uint64_t)crd[p] >= (uint64_t)extent;
  }
  if (!bad) return -1;
  for (p = lo; p < hi; ++p) {
    if (crd[p] < 0 || crd[p] >= extent) return p;
  }
  return -1;
}

// Reports the first bad element of an index array; whether there was one.
template <typename I>
static JS_ONCE bool js_bad_pos(js_context* ctx, int32_t operand, int32_t level, const I* pos, int64_t lo, int64_t hi,
                               int64_t limit) {
  const int64_t p = js_find_bad_pos(pos, lo, hi, limit);
  return p >= 0 && js_raise(ctx, JS_POS_NOT_MONOTONE, operand, level, p, pos[p], limit);
}
template <typename I>
static JS_ONCE bool js_bad_crd(js_context* ctx, int32_t operand, int32_t level, const I* crd, int64_t lo, int64_t hi,
                               int64_t limit) {
  const int64_t p = js_find_bad_crd(crd, lo, hi, limit);
  return p >= 0 && js_raise(ctx, JS_CRD_OUT_OF_RANGE, operand, level, p, crd[p], limit);
}

// Start of chunk k of `chunks` of [lo, hi), each with about as many entries (a row counts as one besides its entries).
template <typename I>
static JS_ONCE int64_t js_balance(const I* pos, int64_t lo, int64_t hi, int64_t k, int64_t chunks) {
  if (k <= 0) return lo;
  if (k >= chunks) return hi;
  const int64_t first = pos[lo] + lo, total = pos[hi] + hi - first;
  const int64_t want = first + (int64_t)((double)total * (double)k / (double)chunks);
  int64_t a = lo, b = hi;
  while (a < b) {
    const int64_t mid = a + (b - a) / 2;
    if (pos[mid] + mid < want) {
      a = mid + 1;
    } else {
      b = mid;
    }
  }
  return a;
}

// Start of chunk k of `chunks` equal parts of [lo, hi).
static inline int64_t js_even(int64_t lo, int64_t hi, int64_t k, int64_t chunks) {
  if (k <= 0) return lo;
  if (k >= chunks) return hi;
  return lo + (int64_t)((double)(hi - lo) * (double)k / (double)chunks);
}

// Entries of fibers with coordinates below v, and those below them.  A fiber is (crd, pos, lo, hi); pos is an integer
// where no level below has any.
template <typename I>
static inline int64_t js_below(const I* pos, int64_t lo, int64_t p) {
  return pos[p] - pos[lo];
}
static inline int64_t js_below(int64_t, int64_t, int64_t) { return 0; }
static inline int64_t js_before(int64_t) { return 0; }
template <typename I, typename P, typename... Rest>
static inline int64_t js_before(int64_t v, const I* crd, P pos, int64_t lo, int64_t hi, Rest... rest) {
  const int64_t p = js_lower_bound(crd, lo, hi, v);
  return p - lo + js_below(pos, lo, p) + js_before(v, rest...);
}

// Start of chunk k of `chunks` of the coordinates [0, extent), each with about as many entries of all fibers.
template <typename... Fibers>
static JS_ONCE int64_t js_share(int64_t k, int64_t chunks, int64_t extent, Fibers... fibers) {
  if (k <= 0) return 0;
  if (k >= chunks) return extent;
  const int64_t want = (int64_t)((double)js_before(extent, fibers...) * (double)k / (double)chunks);
  int64_t a = 0, b = extent;
  while (a < b) {
    const int64_t mid = a + (b - a) / 2;
    if (js_before(mid, fibers...) < want) {
      a = mid + 1;
    } else {
      b = mid;
    }
  }
  return a;
}

// p, or the next position after it that starts a group of equal coordinates in [lo, hi).
template <typename I>
static inline int64_t js_group_start(const I* crd, int64_t p, int64_t lo, int64_t hi) {
  while (p > lo && p < hi && crd[p] == crd[p - 1]) ++p;
  return p;
}

#endif  // JSPARSE_CPU_SEARCH_H_
