// Calls of kernels from Python on memory of the host, without an XLA program around them.
// SPDX-License-Identifier: Apache-2.0
#ifndef JSPARSE_XLA_FFI_DIRECT_H_
#define JSPARSE_XLA_FFI_DIRECT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "xla_ffi/kernel.h"

namespace jsparse {

// An array in row-major order; whoever calls keeps it alive.
struct HostArray {
  uintptr_t address;
  std::vector<int64_t> dims;
};

// Runs kernel `key`, built by its recipe if the process has not loaded it.  Returns what went wrong, as XLA would word
// it, or an empty string.  To be called without the GIL.
std::string CallDirectly(const std::string& key, const std::string& recipe, const std::vector<int64_t>& extents,
                         const std::vector<HostArray>& args, const std::vector<HostArray>& results);

}  // namespace jsparse

#endif  // JSPARSE_XLA_FFI_DIRECT_H_
