// The kernels that this process has loaded, by content key.  Knows dlopen and the ABI, nothing of Python.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_XLA_FFI_KERNEL_H_
#define JSPARSE_XLA_FFI_KERNEL_H_

#include <string>
#include <string_view>

#include "csrc/abi.h"
#include "xla/ffi/api/ffi.h"

namespace jsparse {

// Where a kernel's shared object is, or why there is none (then `error` is not empty).
struct Resolved {
  std::string path;
  std::string error;
};

// Compiles or finds a kernel.  Called from any thread, several at once, also for one and the same key.
using Resolver = Resolved (*)(std::string_view key, std::string_view recipe);

// Makes sure that `key` is loaded, through `resolve` if it is not.
xla::ffi::Error LoadKernel(std::string_view key, std::string_view recipe, Resolver resolve);

// The loaded kernel, or null.  A reader's lock and one search of a map: about 50 ns.
js_kernel FindKernel(std::string_view key);

// What went wrong in a kernel that returned `status`, as a status of XLA; its recipe knows the names.
xla::ffi::Error FaultError(std::string_view key, std::string_view recipe, int32_t status, const js_context& context);

// "jsparse kernel 3fa9c1…: ", with which all messages about a kernel begin.
std::string KernelPrefix(std::string_view key);

// Installed by module.cc: calls the Python resolver.
Resolved ResolveInPython(std::string_view key, std::string_view recipe);

}  // namespace jsparse

// The handlers; module.cc hands them to Python as capsules.
extern "C" XLA_FFI_Error* JsparseCpuInstantiate(XLA_FFI_CallFrame* frame);
extern "C" XLA_FFI_Error* JsparseCpuExecute(XLA_FFI_CallFrame* frame);

#endif  // JSPARSE_XLA_FFI_KERNEL_H_
