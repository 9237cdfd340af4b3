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
template <typename P, typename I>
static __attribute__((noinline)) void js_sort_by(js_context* ctx, P* perm, const I* crd, int64_t n) {
  enum { kBits = 11, kBuckets = 1 << kBits };
  if (n < 2) return;
  uint64_t most = 0;
  int sorted = 1;
  for (int64_t q = 0; q < n; ++q) {
    const uint64_t c = (uint64_t)crd[perm[q]];
    if (c > most) most = c;
    if (q && crd[perm[q - 1]] > crd[perm[q]]) sorted = 0;
  }
  if (sorted) return;
  P* other = (P*)ctx->scratch(ctx, n * (int64_t)sizeof(P));
  if (!other) {
    js_raise(ctx, JS_OUT_OF_MEMORY, -1, 0, 0, n * (int64_t)sizeof(P), 0);
    return;
  }
  P *from = perm, *to = other;
  for (int shift = 0; shift < 64 && (most >> shift); shift += kBits) {
    int64_t start[kBuckets];
    memset(start, 0, sizeof(start));
    for (int64_t q = 0; q < n; ++q) ++start[((uint64_t)crd[from[q]] >> shift) & (kBuckets - 1)];
    int64_t sum = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const int64_t count = start[b];
      start[b] = sum;
      sum += count;
    }
    for (int64_t q = 0; q < n; ++q) {
      const P p = from[q];
      to[start[((uint64_t)crd[p] >> shift) & (kBuckets - 1)]++] = p;
    }
    P* swap = from;
    from = to;
    to = swap;
  }
  if (from != perm) memcpy(perm, from, (size_t)n * sizeof(P));
}

#endif  // JSPARSE_CPU_SORT_H_
