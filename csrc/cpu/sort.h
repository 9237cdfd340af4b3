// Stable sorting of coordinates: least significant digit first, on a permutation.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_SORT_H_
#define JSPARSE_CPU_SORT_H_

#include <stdint.h>
#include <string.h>

#include "abi.h"

template <typename P>
static inline void js_identity(P* perm, int64_t n) {
  for (int64_t q = 0; q < n; ++q) perm[q] = (P)q;
}

// Reorders perm[0 .. n) so that crd[perm[q]] ascends; equal ones keep their order.  Coordinates are not negative.
// Digits of 11 bits: the counters fit the first-level cache; digits above the largest coordinate are not visited.
// Coordinates are fetched once and move along with the permutation: later passes read both in order.
template <typename P, typename I>
static __attribute__((noinline)) void js_sort_by(js_context* ctx, P* perm, const I* crd, int64_t n) {
  enum { kBits = 11, kBuckets = 1 << kBits };
  typedef struct {
    I key;
    P at;
  } js_pair;
  if (n < 2) return;
  I most = 0, last = 0;
  int sorted = 1;
  for (int64_t q = 0; q < n; ++q) {
    const I c = crd[perm[q]];
    if (c > most) most = c;
    sorted &= c >= last;
    last = c;
  }
  if (sorted) return;
  const int64_t bytes = 2 * n * (int64_t)sizeof(js_pair);
  js_pair* from = (js_pair*)ctx->scratch(ctx, bytes);
  if (!from) {
    js_raise(ctx, JS_OUT_OF_MEMORY, -1, 0, 0, bytes, 0);
    return;
  }
  js_pair* to = from + n;
  for (int64_t q = 0; q < n; ++q) {
    from[q].key = crd[perm[q]];
    from[q].at = perm[q];
  }
  for (int shift = 0; shift < 64 && ((uint64_t)most >> shift); shift += kBits) {
    int64_t start[kBuckets];
    memset(start, 0, sizeof(start));
    for (int64_t q = 0; q < n; ++q) ++start[((uint64_t)from[q].key >> shift) & (kBuckets - 1)];
    int64_t sum = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const int64_t count = start[b];
      start[b] = sum;
      sum += count;
    }
    for (int64_t q = 0; q < n; ++q) to[start[((uint64_t)from[q].key >> shift) & (kBuckets - 1)]++] = from[q];
    js_pair* swap = from;
    from = to;
    to = swap;
  }
  for (int64_t q = 0; q < n; ++q) perm[q] = from[q].at;
}

#endif  // JSPARSE_CPU_SORT_H_
