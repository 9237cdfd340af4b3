// Filling and scanning arrays.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_MEMORY_H_
#define JSPARSE_CPU_MEMORY_H_

#include <stdint.h>
#include <string.h>

// Asks for the cache lines of x[at .. at + n); never faults.
template <typename T>
static inline void js_prefetch(const T* x, int64_t at, int64_t n) {
  const char* p = (const char*)x + at * (int64_t)sizeof(T);
  for (int64_t b = 0; b < n * (int64_t)sizeof(T); b += 64) __builtin_prefetch(p + b);
}

template <typename T>
static inline void js_fill_zero(T* x, int64_t lo, int64_t hi) {
  if (lo < hi) memset((void*)(x + lo), 0, (size_t)(hi - lo) * sizeof(T));
}

// y[to .. to + n) = x[from .. from + n).
template <typename T>
static inline void js_copy(T* y, int64_t to, const T* x, int64_t from, int64_t n) {
  if (n > 0) memcpy((void*)(y + to), (const void*)(x + from), (size_t)n * sizeof(T));
}

// x[1 .. n] hold counts; they become running sums, so that x is a `pos` array.
template <typename I>
static inline void js_copy_scan(I* x, int64_t n) {
  for (int64_t p = 0; p < n; ++p) x[p + 1] = (I)(x[p] + x[p + 1]);
}

// x[0 .. n] ascends but for zeros, which become the number before.
template <typename I>
static inline void js_copy_max(I* x, int64_t n) {
  for (int64_t p = 0; p < n; ++p) x[p + 1] = x[p + 1] > x[p] ? x[p + 1] : x[p];
}

#endif  // JSPARSE_CPU_MEMORY_H_
