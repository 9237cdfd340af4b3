// Registry of loaded kernels, and the words for their faults.
// SPDX-License-Identifier: Apache-2.0
#include "xla_ffi/kernel.h"

#include <dlfcn.h>

#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>

namespace jsparse {
namespace {

namespace ffi = xla::ffi;

struct Registry {
  std::shared_mutex mutex;
  std::map<std::string, js_kernel, std::less<>> kernels;  // std::less<> finds a string_view without a copy
};

// Never destroyed: XLA's threads may still run kernels while the process exits.
Registry& GetRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

// String `n` of those that follow `"name": ` in a recipe (JSON without escapes there), or nothing.
std::string_view Words(std::string_view recipe, const std::string& name, int n) {
  size_t end = recipe.find("\"" + name + "\": ");
  if (end == recipe.npos) return {};
  end += name.size() + 3;
  for (size_t begin = end;; --n, ++end) {
    begin = recipe.find('"', end);
    if (begin == recipe.npos) return {};
    end = recipe.find('"', begin + 1);
    if (end == recipe.npos) return {};
    if (n == 0) return recipe.substr(begin + 1, end - begin - 1);
  }
}

// Word `n` of `text`, or nothing.
std::string_view Word(std::string_view text, int n) {
  for (; n > 0; --n) {
    const size_t space = text.find(' ');
    if (space == text.npos) return {};
    text.remove_prefix(space + 1);
  }
  return text.substr(0, text.find(' '));
}

// "Y[i,k] = A[i,j] * B[j,k]: ", or nothing.
std::string Computes(std::string_view recipe) {
  const std::string_view text = Words(recipe, "computes", 0);
  return text.empty() ? "" : std::string(text) + ": ";
}

// "operand 0, A[i,j]:csr, level 1 (index j): ", as far as the recipe says so.
std::string Where(const js_fault& fault, std::string_view recipe) {
  const std::string_view access = Words(recipe, "accesses", fault.operand + 1);
  std::string text = fault.operand < 0 ? "sparse output" : "operand " + std::to_string(fault.operand);
  if (!access.empty()) text += ", " + std::string(Word(access, 0));
  text += ", level " + std::to_string(fault.level);
  const std::string_view index = Word(access, fault.level + 1);
  if (!index.empty()) text += " (index " + std::string(index) + ")";
  return text + ": ";
}

constexpr const char kDamaged[] = "; the index arrays of this operand are damaged or belong to another shape";

}  // namespace

std::string KernelPrefix(std::string_view key) {
  constexpr size_t kShown = 12;
  std::string shown(key.substr(0, kShown));
  if (key.size() > kShown) shown += "…";
  return "jsparse kernel " + shown + ": ";
}

js_kernel FindKernel(std::string_view key) {
  Registry& registry = GetRegistry();
  std::shared_lock<std::shared_mutex> lock(registry.mutex);
  auto found = registry.kernels.find(key);
  return found == registry.kernels.end() ? nullptr : found->second;
}

ffi::Error LoadKernel(std::string_view key, std::string_view recipe, Resolver resolve) {
  if (FindKernel(key) != nullptr) return ffi::Error::Success();
  // No lock is held here.  Two threads with the same new key both ask, and the resolver, which has to wait for a
  // compiler anyway, makes one answer of it; a lock held while waiting for the interpreter could deadlock.
  Resolved resolved = resolve(key, recipe);
  if (!resolved.error.empty()) {
    return ffi::Error(ffi::ErrorCode::kNotFound, KernelPrefix(key) + resolved.error);
  }
  // The handle is never closed: other threads and other programs run the kernel as long as the process lives.
  void* handle = dlopen(resolved.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* symbol = handle == nullptr ? nullptr : dlsym(handle, "jsparse_kernel");
  if (symbol == nullptr) {
    const char* why = dlerror();
    return ffi::Error(ffi::ErrorCode::kNotFound,
                      KernelPrefix(key) + "cannot load its shared object: " + (why ? why : "unknown error") +
                          "; delete the file to have it compiled again");
  }
  Registry& registry = GetRegistry();
  std::unique_lock<std::shared_mutex> lock(registry.mutex);
  registry.kernels.emplace(std::string(key), reinterpret_cast<js_kernel>(symbol));  // the first one stays
  return ffi::Error::Success();
}

ffi::Error FaultError(std::string_view key, std::string_view recipe, int32_t status, const js_context& context) {
  const js_fault& fault = context.fault;
  const int32_t kind = context.faulted ? fault.kind : -1;
  const std::string position = std::to_string(fault.position);
  const std::string got = std::to_string(fault.got);
  const std::string limit = std::to_string(fault.limit);
  std::string text = KernelPrefix(key) + Computes(recipe);
  switch (kind) {
    case JS_CRD_OUT_OF_RANGE:
      text += Where(fault, recipe) + "crd[" + position + "] is " + got + ", expected 0 <= crd < " + limit + kDamaged;
      return ffi::Error(ffi::ErrorCode::kOutOfRange, text);
    case JS_POS_NOT_MONOTONE: {
      const std::string least =
          fault.position > 0 ? "pos[" + std::to_string(fault.position - 1) + "]" : std::string("0");
      text += Where(fault, recipe) + "pos[" + position + "] is " + got + ", expected a value between " + least + " and " +
              limit + " (non-decreasing, at most the stored entries)" + kDamaged;
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, text);
    }
    case JS_OFFSET:
      text += Where(fault, recipe) + "crd[" + position + "] is " + got + ", expected offsets that ascend, below " + limit +
              " and inside of the matrix" + kDamaged;
      return ffi::Error(ffi::ErrorCode::kOutOfRange, text);
    case JS_FIBER:
      text += Where(fault, recipe) + "fiber " + position + " has " + got + " entries, expected at most " + limit +
              " as in the format; choose one with more";
      return ffi::Error(ffi::ErrorCode::kOutOfRange, text);
    case JS_OUT_OF_MEMORY:
      text += "out of memory: a workspace of " + got + " bytes was refused";
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, text);
    case JS_CAPACITY:
      text += Where(fault, recipe) + "needs " + got + " entries but its capacity is " + limit + "; pass nse=" + got +
              " or more";
      return ffi::Error(ffi::ErrorCode::kOutOfRange, text);
    default:
      text += "failed with status " + std::to_string(status) +
              (context.faulted ? " and fault kind " + std::to_string(kind) : std::string(" and gave no reason"));
      return ffi::Error(ffi::ErrorCode::kInternal, text);
  }
}

}  // namespace jsparse
