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
#include "cpu/support.h"

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

// Makes the set empty, for keys in [0, keyspace).
JS_SUPPORT void js_set_new(js_context* ctx, js_set& s, int64_t keyspace);
// Room for `capacity` keys; whether there is memory.
JS_SUPPORT bool js_set_grow(js_context* ctx, js_set& s, int64_t capacity);
JS_SUPPORT void js_set_insert_hashed(js_context* ctx, js_set& s, int64_t key);
// How many there are; afterwards the set may only be cleared.
JS_SUPPORT int64_t js_set_size(js_context* ctx, js_set& s);
// Sorts what was inserted; returns how many there are.
JS_SUPPORT int64_t js_set_sort(js_context* ctx, js_set& s);

static inline void js_set_clear(js_context*, js_set& s) {
  s.size = 0;
  if (++s.stamp == 0) {  // every 2^32 fibers
    if (s.stamps) memset(s.stamps, 0, (size_t)(s.slots ? s.slots : s.keyspace + 1) * 4);
    s.stamp = 1;
  }
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

static inline int64_t js_set_get(js_context*, const js_set& s, int64_t t) { return s.list[t]; }

#endif  // JSPARSE_CPU_SET_H_
