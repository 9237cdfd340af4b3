// Calls of kernels from Python on memory of the host, without an XLA program around them.
// SPDX-License-Identifier: Apache-2.0
#include "xla_ffi/direct.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif

#include "xla_ffi/call.h"

namespace jsparse {
namespace {

int64_t UsableCores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return std::thread::hardware_concurrency();
}

// Threads for calls that no pool of XLA's stands behind, one less than there are cores: the caller takes part.
class Workers {
 public:
  // Never destroyed: its threads live as long as the process.
  static Workers& Get() {
    static auto* workers = new Workers;
    return *workers;
  }

  int64_t num_threads() const { return cores_; }

  void Schedule(std::function<void()> task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    any_.notify_one();
  }

 private:
  Workers() : cores_(UsableCores()) {
    for (int64_t n = 1; n < cores_; ++n) std::thread([this] { Run(); }).detach();
  }

  void Run() {
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      any_.wait(lock, [this] { return !tasks_.empty(); });
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  const int64_t cores_;
  std::mutex mutex_;
  std::condition_variable any_;
  std::deque<std::function<void()>> tasks_;
};

const char* Name(const xla::ffi::Error& error) {
  const std::optional<xla::ffi::ErrorCode> code = error.errc();
  switch (code.value_or(xla::ffi::ErrorCode::kInternal)) {
    case xla::ffi::ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT: ";
    case xla::ffi::ErrorCode::kOutOfRange:
      return "OUT_OF_RANGE: ";
    case xla::ffi::ErrorCode::kNotFound:
      return "NOT_FOUND: ";
    case xla::ffi::ErrorCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED: ";
    default:
      return "INTERNAL: ";
  }
}

void Fill(Buffers& out, const std::vector<HostArray>& arrays) {
  for (size_t i = 0; i < arrays.size(); ++i) {
    const HostArray& x = arrays[i];
    out[i] = js_buffer{reinterpret_cast<void*>(x.address), x.dims.data(), static_cast<int64_t>(x.dims.size())};
  }
}

}  // namespace

std::string CallDirectly(const std::string& key, const std::string& recipe, const std::vector<int64_t>& extents,
                         const std::vector<HostArray>& args, const std::vector<HostArray>& results) {
  xla::ffi::Error error = LoadKernel(key, recipe, &ResolveInPython);
  if (error.success()) {
    Buffers arg(args.size()), ret(results.size());
    Fill(arg, args);
    Fill(ret, results);
    static constexpr int64_t kNoExtents[1] = {0};
    Call<Workers> call(&Workers::Get());
    const int32_t status =
        FindKernel(key)(&call, arg.data(), ret.data(), extents.empty() ? kNoExtents : extents.data());
    if (status == JS_OK && !call.faulted) return "";
    error = FaultError(key, recipe, status, call);
  }
  return Name(error) + error.message();
}

}  // namespace jsparse
