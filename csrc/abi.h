// The contract between a generated kernel and whoever calls it.  Plain C, no XLA, no Python.
// SPDX-License-Identifier: Apache-2.0
//
// A kernel is one shared object with one symbol, `jsparse_kernel`.  It reads `args`, writes `results`, and returns
// 0, or a nonzero fault kind with the details in `context->fault`.  It is re-entrant: everything it needs beyond the
// buffers comes from `context`, which belongs to one call.
#ifndef JSPARSE_ABI_H_
#define JSPARSE_ABI_H_

#include <stdint.h>

#define JSPARSE_ABI 1  // enters the kernel key: a changed struct below never meets an old object

typedef struct js_buffer {
  void* data;
  const int64_t* dims;
  int64_t rank;
} js_buffer;

enum js_fault_kind {
  JS_OK = 0,
  JS_CRD_OUT_OF_RANGE = 1,  // crd[position] is `got`, must be in [0, limit)
  JS_POS_NOT_MONOTONE = 2,  // pos[position] is `got`, must be in [pos[position - 1], limit]
  JS_OUT_OF_MEMORY = 3,     // a scratch of `got` bytes was refused
  JS_CAPACITY = 4,          // a sparse output needs `got` entries at `level`, its capacity is `limit`
  JS_OFFSET = 5,            // crd[position] of a relative level is `got`, must ascend and be in (-extent below, limit)
  JS_FIBER = 6              // fiber `position` has `got` entries, its level stores `limit` in each
};

typedef struct js_fault {
  int32_t kind;
  int32_t operand;  // which operand, in the order of the einsum string; -1 is the output
  int32_t level;
  int64_t position;
  int64_t got;
  int64_t limit;
} js_fault;

typedef struct js_context js_context;
struct js_context {
  int64_t num_threads;  // threads that `parallel` can use, the caller included; at least 1
  // Runs body(frame, 0) ... body(frame, chunks - 1), in any order, on any threads; returns when all have run.
  void (*parallel)(js_context*, int64_t chunks, void (*body)(void* frame, int64_t chunk), void* frame);
  // 64-byte aligned, uninitialised memory that lives until the kernel returns; null if there is none.  Thread-safe.
  void* (*scratch)(js_context*, int64_t bytes);
  int32_t faulted;  // set atomically by the first js_raise
  js_fault fault;
};

typedef int32_t (*js_kernel)(js_context*, const js_buffer* args, const js_buffer* results, const int64_t* extents);

// Records the first fault of a call; later ones are dropped.  Returns the kind, so that a kernel can return it.
static inline int32_t js_raise(js_context* c, int32_t kind, int32_t operand, int32_t level, int64_t position,
                               int64_t got, int64_t limit) {
  if (!__atomic_exchange_n(&c->faulted, 1, __ATOMIC_ACQ_REL)) {
    c->fault.kind = kind;
    c->fault.operand = operand;
    c->fault.level = level;
    c->fault.position = position;
    c->fault.got = got;
    c->fault.limit = limit;
  }
  return kind;
}

#endif  // JSPARSE_ABI_H_
