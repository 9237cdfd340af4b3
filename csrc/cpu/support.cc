// SPDX-License-Identifier: Apache-2.0
#include "cpu/support.h"

#include <stdint.h>
#include <string.h>

#include "abi.h"
#include "cpu/search.h"
#include "cpu/set.h"
#include "cpu/sort.h"

// ------------------------------------------------------------------ search.h
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

template <typename I>
bool js_bad_pos(js_context* ctx, int32_t operand, int32_t level, const I* pos, int64_t lo, int64_t hi, int64_t limit) {
  const int64_t p = js_find_bad_pos(pos, lo, hi, limit);
  return p >= 0 && js_raise(ctx, JS_POS_NOT_MONOTONE, operand, level, p, pos[p], limit);
}

template <typename I>
bool js_bad_crd(js_context* ctx, int32_t operand, int32_t level, const I* crd, int64_t lo, int64_t hi, int64_t extent) {
  const int64_t p = js_find_bad_crd(crd, lo, hi, extent);
  return p >= 0 && js_raise(ctx, JS_CRD_OUT_OF_RANGE, operand, level, p, crd[p], extent);
}

template <typename I>
int64_t js_balance(const I* pos, int64_t lo, int64_t hi, int64_t k, int64_t chunks) {
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

static int64_t js_index(const void* x, int64_t bytes, int64_t at) {
  return bytes == 4 ? ((const int32_t*)x)[at] : ((const int64_t*)x)[at];
}

// Entries of fibers with coordinates below v, and those below them.
static int64_t js_before(int64_t v, const js_fiber* fibers, int64_t n) {
  int64_t total = 0;
  for (const js_fiber* f = fibers; f < fibers + n; ++f) {
    const int64_t p = f->crd_bytes == 4 ? js_lower_bound((const int32_t*)f->crd, f->lo, f->hi, v)
                                        : js_lower_bound((const int64_t*)f->crd, f->lo, f->hi, v);
    total += p - f->lo;
    if (f->pos) total += js_index(f->pos, f->pos_bytes, p) - js_index(f->pos, f->pos_bytes, f->lo);
  }
  return total;
}

int64_t js_share_of(int64_t k, int64_t chunks, int64_t extent, const js_fiber* fibers, int64_t n) {
  if (k <= 0) return 0;
  if (k >= chunks) return extent;
  const int64_t want = (int64_t)((double)js_before(extent, fibers, n) * (double)k / (double)chunks);
  int64_t a = 0, b = extent;
  while (a < b) {
    const int64_t mid = a + (b - a) / 2;
    if (js_before(mid, fibers, n) < want) {
      a = mid + 1;
    } else {
      b = mid;
    }
  }
  return a;
}

// -------------------------------------------------------------------- sort.h
template <typename P, typename I>
void js_sort_by(js_context* ctx, P* perm, const I* crd, int64_t n) {
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

// --------------------------------------------------------------------- set.h
static void* js_set_memory(js_context* ctx, int64_t bytes) {
  void* p = ctx->scratch(ctx, bytes);
  if (!p) js_raise(ctx, JS_OUT_OF_MEMORY, -1, 0, 0, bytes, 0);
  return p;
}

bool js_set_grow(js_context* ctx, js_set& s, int64_t capacity) {
  int64_t* list = (int64_t*)js_set_memory(ctx, capacity * 8);
  int64_t* spare = (int64_t*)js_set_memory(ctx, capacity * 8);
  if (!list || !spare) return false;
  if (s.size) memcpy(list, s.list, (size_t)s.size * 8);
  s.list = list;
  s.spare = spare;
  s.capacity = capacity;
  if (!s.slots) return true;
  const int64_t slots = capacity * 2;
  int64_t* keys = (int64_t*)js_set_memory(ctx, slots * 8);
  uint32_t* stamps = (uint32_t*)js_set_memory(ctx, slots * 4);
  if (!keys || !stamps) return false;
  memset(stamps, 0, (size_t)slots * 4);
  s.keys = keys;
  s.stamps = stamps;
  s.slots = slots;
  s.stamp = 1;
  for (int64_t t = 0; t < s.size; ++t) {
    uint64_t h = (uint64_t)list[t] * 0x9e3779b97f4a7c15u;
    int64_t at = (int64_t)(h >> 20) & (slots - 1);
    while (stamps[at] == s.stamp) at = (at + 1) & (slots - 1);
    stamps[at] = s.stamp;
    keys[at] = list[t];
  }
  return true;
}

static int64_t js_set_words(int64_t bits) { return bits / 64 + 1; }

void js_set_new(js_context* ctx, js_set& s, int64_t keyspace) {
  memset(&s, 0, sizeof(s));
  s.keyspace = keyspace;
  s.stamp = 1;
  const int64_t flat = (int64_t)1 << 18, direct = (int64_t)1 << 22;
  s.slots = 1;  // says 'hashed', also if memory is refused: then what is inserted is dropped
  if (keyspace <= direct) {
    const int64_t lower = js_set_words(keyspace), words = lower + js_set_words(lower);
    s.bits = (uint64_t*)js_set_memory(ctx, words * 8);
    if (!s.bits) return;
    memset(s.bits, 0, (size_t)words * 8);
    s.upper = s.bits + lower;
    if (keyspace > flat) {
      s.stamps = (uint32_t*)js_set_memory(ctx, (keyspace + 1) * 4);
      if (!s.stamps) return;
      memset(s.stamps, 0, (size_t)(keyspace + 1) * 4);
    }
    s.slots = 0;
  }
  if (js_set_grow(ctx, s, 1024)) s.flat = keyspace <= flat;
}

void js_set_insert_hashed(js_context* ctx, js_set& s, int64_t key) {
  if (ctx->faulted) return;
  if (s.size == s.capacity && !js_set_grow(ctx, s, s.capacity * 2)) return;
  uint64_t h = (uint64_t)key * 0x9e3779b97f4a7c15u;
  int64_t at = (int64_t)(h >> 20) & (s.slots - 1);
  while (s.stamps[at] == s.stamp) {
    if (s.keys[at] == key) return;
    at = (at + 1) & (s.slots - 1);
  }
  s.stamps[at] = s.stamp;
  s.keys[at] = key;
  s.list[s.size++] = key;
}

// Lists the keys whose bits are set, in order, and clears the bits.  Words have few: two are written without a test
// of how many there are, whose outcome could not be foreseen.
static int64_t js_set_read_bits(js_context* ctx, js_set& s, int64_t first, int64_t last) {
  int64_t t = 0;
  for (int64_t top = first; top <= last; ++top) {
    for (uint64_t m = s.upper[top]; m; m &= m - 1) {
      const int64_t word = top * 64 + __builtin_ctzll(m), next = t + __builtin_popcountll(s.bits[word]);
      if (next + 2 > s.capacity) {
        s.size = t;
        if (!js_set_grow(ctx, s, s.capacity * 2)) return 0;
      }
      uint64_t b = s.bits[word];
      s.bits[word] = 0;
      s.list[t] = word * 64 + __builtin_ctzll(b);
      b &= b - 1;
      s.list[t + 1] = word * 64 + __builtin_ctzll(b | (uint64_t)1 << 63);
      if (__builtin_expect(next > t + 2, 0)) {
        for (t += 2, b &= b - 1; b; b &= b - 1) s.list[t++] = word * 64 + __builtin_ctzll(b);
      }
      t = next;
    }
    s.upper[top] = 0;
  }
  return t;
}

int64_t js_set_size(js_context*, js_set& s) {
  if (!s.flat) return s.size;
  int64_t n = 0;
  for (int64_t top = 0; top <= s.keyspace >> 12; ++top) {
    for (uint64_t m = s.upper[top]; m; m &= m - 1) {
      const int64_t word = top * 64 + __builtin_ctzll(m);
      n += __builtin_popcountll(s.bits[word]);
      s.bits[word] = 0;
    }
    s.upper[top] = 0;
  }
  return n;
}

int64_t js_set_sort(js_context* ctx, js_set& s) {
  if (ctx->faulted) return 0;
  if (s.flat) return js_set_read_bits(ctx, s, 0, s.keyspace >> 12);
  const int64_t n = s.size;
  if (n <= 8) {
    for (int64_t t = 1; t < n; ++t) {
      const int64_t x = s.list[t];
      int64_t u = t;
      for (; u > 0 && s.list[u - 1] > x; --u) s.list[u] = s.list[u - 1];
      s.list[u] = x;
    }
    return n;
  }
  if (!s.slots) {
    int64_t first = s.list[0], last = first;
    for (int64_t t = 1; t < n; ++t) {
      first = s.list[t] < first ? s.list[t] : first;
      last = s.list[t] > last ? s.list[t] : last;
    }
    if ((last >> 12) - (first >> 12) <= n * 4) {
      for (int64_t t = 0; t < n; ++t) js_set_mark(s, s.list[t]);
      return js_set_read_bits(ctx, s, first >> 12, last >> 12);
    }
  }
  uint64_t most = 0;
  for (int64_t t = 0; t < n; ++t) most |= (uint64_t)s.list[t];
  int64_t *from = s.list, *to = s.spare;
  for (int shift = 0; shift < 64 && (most >> shift); shift += 8) {
    int64_t start[256];
    memset(start, 0, sizeof(start));
    for (int64_t t = 0; t < n; ++t) ++start[((uint64_t)from[t] >> shift) & 255];
    int64_t sum = 0;
    for (int b = 0; b < 256; ++b) {
      const int64_t count = start[b];
      start[b] = sum;
      sum += count;
    }
    for (int64_t t = 0; t < n; ++t) to[start[((uint64_t)from[t] >> shift) & 255]++] = from[t];
    int64_t* swap = from;
    from = to;
    to = swap;
  }
  s.list = from;
  s.spare = to;
  return n;
}

#define JS_INDEXED(I)                                                                                 \
  template bool js_bad_pos(js_context*, int32_t, int32_t, const I*, int64_t, int64_t, int64_t);       \
  template bool js_bad_crd(js_context*, int32_t, int32_t, const I*, int64_t, int64_t, int64_t);       \
  template int64_t js_balance(const I*, int64_t, int64_t, int64_t, int64_t);                          \
  template void js_sort_by(js_context*, I*, const int32_t*, int64_t);                                 \
  template void js_sort_by(js_context*, I*, const int64_t*, int64_t)
JS_INDEXED(int32_t);
JS_INDEXED(int64_t);
