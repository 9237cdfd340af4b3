// The touched coordinates of one fiber of a sparse output: insert in any order, take them out ascending.
// SPDX-License-Identifier: Apache-2.0
//
// Keys below `keyspace`.  A small keyspace has a bit for each key, and one for each word of these that is in use:
// inserting tests nothing, reading finds the keys in order.  A larger one has a stamp for each key and lists what is
// new; the largest a hash table with linear probing.  `clear` is O(1): it moves on to the next stamp, and reading
// leaves all bits 0.
#ifndef JSPARSE_CPU_SET_H_
#define JSPARSE_CPU_SET_H_

#include <stdint.h>
#include <string.h>

#include "abi.h"

struct js_set {
  int64_t keyspace, size, capacity;
  uint32_t* stamps;  // direct: by key; hashed: by slot
  int64_t* keys;     // hashed: the key in each slot
  int64_t* list;     // the keys inserted since `clear`
  int64_t* spare;    // as long as `list`, for sorting
  int64_t slots;     // hashed: a power of two; 0 if direct
  uint64_t* bits;    // but hashed: one for each key
  uint64_t* upper;   // one for each 64 of these
  uint32_t stamp;
  bool flat;         // has nothing but the bits
};

static inline void* js_set_memory(js_context* ctx, int64_t bytes) {
  void* p = ctx->scratch(ctx, bytes);
  if (!p) js_raise(ctx, JS_OUT_OF_MEMORY, -1, 0, 0, bytes, 0);
  return p;
}

static __attribute__((noinline)) bool js_set_grow(js_context* ctx, js_set& s, int64_t capacity) {
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

static inline int64_t js_set_words(int64_t bits) { return bits / 64 + 1; }

static __attribute__((noinline)) void js_set_new(js_context* ctx, js_set& s, int64_t keyspace) {
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

static inline void js_set_clear(js_context*, js_set& s) {
  s.size = 0;
  if (++s.stamp == 0) {  // every 2^32 fibers
    if (s.stamps) memset(s.stamps, 0, (size_t)(s.slots ? s.slots : s.keyspace + 1) * 4);
    s.stamp = 1;
  }
}

static __attribute__((noinline)) void js_set_insert_hashed(js_context* ctx, js_set& s, int64_t key) {
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

static inline void js_set_mark(js_set& s, int64_t key) {
  s.bits[key >> 6] |= (uint64_t)1 << (key & 63);
  s.upper[key >> 12] |= (uint64_t)1 << ((key >> 6) & 63);
}

static inline void js_set_insert(js_context* ctx, js_set& s, int64_t key) {
  if (s.flat) {
    js_set_mark(s, key);
    return;
  }
  if (ctx->faulted) return;
  if (s.slots) {
    js_set_insert_hashed(ctx, s, key);
    return;
  }
  if (s.stamps[key] == s.stamp) return;
  if (s.size == s.capacity && !js_set_grow(ctx, s, s.capacity * 2)) return;
  s.stamps[key] = s.stamp;
  s.list[s.size++] = key;
}

// Lists the keys whose bits are set, in order, and clears the bits.  Words have few: two are written without a test
// of how many there are, whose outcome could not be foreseen.
static inline int64_t js_set_read_bits(js_context* ctx, js_set& s, int64_t first, int64_t last) {
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

// How many there are; afterwards the set may only be cleared.
static inline int64_t js_set_size(js_context*, js_set& s) {
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

// Sorts what was inserted; returns how many there are.
static __attribute__((noinline)) int64_t js_set_sort(js_context* ctx, js_set& s) {
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

static inline int64_t js_set_get(js_context*, const js_set& s, int64_t t) { return s.list[t]; }

#endif  // JSPARSE_CPU_SET_H_
