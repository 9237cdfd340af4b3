// Stable sorting of coordinates: least significant digit first, on a permutation.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_CPU_SORT_H_
#define JSPARSE_CPU_SORT_H_

#include <stdint.h>

#include "abi.h"
#include "cpu/support.h"

template <typename P>
static inline void js_identity(P* perm, int64_t n) {
  for (int64_t q = 0; q < n; ++q) perm[q] = (P)q;
}

// Reorders perm[0 .. n) so that crd[perm[q]] ascends; equal ones keep their order.  Coordinates are not negative.
// Digits of 11 bits: the counters fit the first-level cache; digits above the largest coordinate are not visited.
// Coordinates are fetched once and move along with the permutation: later passes read both in order.
template <typename P, typename I>
JS_SUPPORT void js_sort_by(js_context* ctx, P* perm, const I* crd, int64_t n);

#endif  // JSPARSE_CPU_SORT_H_
