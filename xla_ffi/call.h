// One call of a kernel: its threads, its memory, its buffers.  Knows the ABI, nothing of XLA or Python.
// SPDX-License-Identifier: Apache-2.0
//
// Kernels run on many threads at once, often on a thread of the very pool that helps them.  Two rules follow:
//   - A call never waits for work that it queued on the pool and nobody has started: if every worker did so, nobody
//     would be left to start it.  See Job.
//   - Everything that a call needs belongs to the call.  See Call.
#ifndef JSPARSE_XLA_FFI_CALL_H_
#define JSPARSE_XLA_FFI_CALL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#include "csrc/abi.h"

namespace jsparse {

// ---------------------------------------------------------------------------------------------------------------------
// parallel

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One parallel loop.  The caller and the helpers take chunks until none is left; the caller then waits only for chunks
// that somebody is running at that moment.  A helper that gets its turn late finds no chunk, and touches nothing but
// the Job, which it owns a share of: the call, with its buffers and frame, may be long over.
class Job {
 public:
  using Body = void (*)(void* frame, int64_t chunk);

  Job(int64_t chunks, Body body, void* frame) : chunks_(chunks), body_(body), frame_(frame) {}

  void Work() noexcept {
    int64_t ran = 0;
    for (int64_t c = Take(); c < chunks_; c = Take()) {
      body_(frame_, c);
      ++ran;
    }
    if (ran == 0) return;
    if (done_.fetch_add(ran, std::memory_order_acq_rel) + ran == chunks_) {
      // The empty critical section orders this after a waiter's check and before its sleep.
      { std::lock_guard<std::mutex> lock(mutex_); }
      all_done_.notify_all();
    }
  }

  void Wait() {
    // The other chunks were cut as even as ours, so the wait is mostly short: spin before going to sleep.
    for (int spins = 0; spins < 2000; ++spins) {
      if (Done()) return;
      Pause();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return Done(); });
  }

 private:
  // The load keeps late helpers from driving the counter up.
  int64_t Take() {
    if (next_.load(std::memory_order_relaxed) >= chunks_) return chunks_;
    return next_.fetch_add(1, std::memory_order_relaxed);
  }
  bool Done() const { return done_.load(std::memory_order_acquire) == chunks_; }

  const int64_t chunks_;
  const Body body_;
  void* const frame_;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

// XLA has its threads flush denormals to zero; a kernel keeps them, and leaves the mode as it found it.
class KeepDenormals {
 public:
  KeepDenormals(const KeepDenormals&) = delete;
  KeepDenormals& operator=(const KeepDenormals&) = delete;
#if defined(__SSE__)
  KeepDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ & ~0x8040u); }  // FTZ is bit 15, DAZ bit 6
  ~KeepDenormals() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_;
#elif defined(__aarch64__)
  KeepDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(saved_ & ~(uint64_t{1} << 24)));  // FZ is bit 24
  }
  ~KeepDenormals() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#else
  KeepDenormals() {}
#endif
};

// ---------------------------------------------------------------------------------------------------------------------
// scratch

constexpr size_t kAlign = 64;
constexpr size_t kKeepBytes = size_t{4} << 20;        // what a thread keeps between calls
constexpr int64_t kRefuseBytes = int64_t{1} << 46;    // beyond any machine; keeps the sums below from overflowing

// Memory that the thread running a call keeps for its next call.
struct Arena {
  char* block = nullptr;
  size_t capacity = 0;
  bool lent = false;

  ~Arena() { std::free(block); }
};

inline Arena& ThreadArena() {
  thread_local Arena arena;
  return arena;
}

// The memory of one call: first from the arena of the thread that the call runs on, then from the allocator.
// `Allocate` may be called by every thread that takes part in the call.
class Scratch {
 public:
  Scratch() {
    Arena& arena = ThreadArena();
    if (arena.lent) return;  // a call inside a call on this thread: cannot happen today, costs one test
    arena.lent = true;
    arena_ = &arena;
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  ~Scratch() {
    size_t overflow = 0;
    for (Block* block = overflow_.load(std::memory_order_acquire); block != nullptr;) {
      Block* next = block->next;
      overflow += block->bytes;
      std::free(block);
      block = next;
    }
    if (arena_ == nullptr) return;
    // A call like this one should next time find everything in the arena.
    const size_t wanted = std::min(used_.load(std::memory_order_relaxed), arena_->capacity) + overflow;
    if (overflow > 0 && wanted <= kKeepBytes) {
      std::free(arena_->block);
      arena_->block = static_cast<char*>(std::aligned_alloc(kAlign, wanted));
      arena_->capacity = arena_->block == nullptr ? 0 : wanted;
    }
    arena_->lent = false;
  }

  void* Allocate(int64_t bytes) noexcept {
    if (bytes < 0 || bytes > kRefuseBytes) return nullptr;
    const size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
    if (arena_ != nullptr && size <= arena_->capacity) {
      const size_t offset = used_.fetch_add(size, std::memory_order_relaxed);
      if (offset + size <= arena_->capacity) return arena_->block + offset;
    }
    void* memory = std::aligned_alloc(kAlign, kAlign + size);
    if (memory == nullptr) return nullptr;
    auto* block = new (memory) Block{overflow_.load(std::memory_order_relaxed), size};
    while (!overflow_.compare_exchange_weak(block->next, block, std::memory_order_release,
                                            std::memory_order_relaxed)) {
    }
    return static_cast<char*>(memory) + kAlign;
  }

 private:
  struct Block {  // heads a piece of memory from the allocator; the caller's part starts kAlign bytes on
    Block* next;
    size_t bytes;
  };
  static_assert(sizeof(Block) <= kAlign);

  Arena* arena_ = nullptr;
  std::atomic<size_t> used_{0};
  std::atomic<Block*> overflow_{nullptr};
};

// ---------------------------------------------------------------------------------------------------------------------
// one call

// What a kernel sees as its js_context, and what stands behind it.  `Pool` has `num_threads()` and `Schedule(task)`.
template <typename Pool>
struct Call : js_context {
  explicit Call(Pool* thread_pool) : js_context{}, pool(thread_pool) {
    num_threads = std::max<int64_t>(1, pool->num_threads());
    parallel = &Parallel;
    scratch = [](js_context* c, int64_t bytes) { return static_cast<Call*>(c)->memory.Allocate(bytes); };
  }

  static void Parallel(js_context* c, int64_t chunks, Job::Body body, void* frame) {
    const int64_t helpers = std::min(chunks, c->num_threads) - 1;
    std::shared_ptr<Job> job = helpers > 0 ? NewJob(chunks, body, frame) : nullptr;
    if (job == nullptr) {
      for (int64_t chunk = 0; chunk < chunks; ++chunk) body(frame, chunk);
      return;
    }
    static_cast<Call*>(c)->Help(job, helpers);
    job->Work();
    job->Wait();
  }

  // Null if there is no memory: then the caller does all the work.
  static std::shared_ptr<Job> NewJob(int64_t chunks, Job::Body body, void* frame) noexcept {
    try {
      return std::make_shared<Job>(chunks, body, frame);
    } catch (...) {
      return nullptr;
    }
  }

  // Helpers that cannot be queued are not needed, and once one is queued the loop must go on.
  void Help(const std::shared_ptr<Job>& job, int64_t helpers) noexcept {
    try {
      for (int64_t i = 0; i < helpers; ++i) {
        pool->Schedule([job] {
          const KeepDenormals keep;
          job->Work();
        });
      }
    } catch (...) {
    }
  }

  Pool* pool;
  Scratch memory;
};

// `count` buffers, on the stack unless there are unusually many.
class Buffers {
 public:
  explicit Buffers(size_t count) {
    if (count > kInline) more_.resize(count);
    data_ = more_.empty() ? inline_ : more_.data();
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  js_buffer& operator[](size_t i) { return data_[i]; }
  const js_buffer* data() const { return data_; }

 private:
  static constexpr size_t kInline = 16;
  js_buffer inline_[kInline];
  std::vector<js_buffer> more_;
  js_buffer* data_;
};

}  // namespace jsparse

#endif  // JSPARSE_XLA_FFI_CALL_H_
