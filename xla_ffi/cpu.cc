// The CPU handler: one for every kernel, of any arity.
// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "xla_ffi/call.h"
#include "xla_ffi/kernel.h"

namespace jsparse {
namespace {

namespace ffi = xla::ffi;

js_buffer ToBuffer(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions dims = buffer.dimensions();
  return js_buffer{buffer.untyped_data(), dims.begin(), static_cast<int64_t>(dims.size())};
}

ffi::Error MissingAttribute(const char* name) {
  return ffi::Error::InvalidArgument(std::string("jsparse_cpu: attribute '") + name + "' is missing or not a string");
}

// The FFI is a C boundary and its C++ header catches nothing.
template <typename Fn>
ffi::Error Guarded(Fn&& fn) noexcept {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "jsparse_cpu: no memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("jsparse_cpu: ") + error.what());
  }
}

ffi::Error Instantiate(ffi::Dictionary attrs) {
  auto key = attrs.get<std::string_view>("key");
  if (!key.has_value()) return MissingAttribute("key");
  auto recipe = attrs.get<std::string_view>("recipe");
  if (!recipe.has_value()) return MissingAttribute("recipe");
  return LoadKernel(*key, *recipe, &ResolveInPython);
}

ffi::Error Execute(ffi::ThreadPool pool, ffi::Dictionary attrs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  auto key = attrs.get<std::string_view>("key");
  if (!key.has_value()) return MissingAttribute("key");
  js_kernel kernel = FindKernel(*key);
  if (kernel == nullptr) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition, KernelPrefix(*key) + "executed before it was loaded");
  }
  // An array without elements may come without its element type, so an unreadable `extents` is an empty one: a kernel
  // that reads extents is always given them by the same code that generated it.
  auto extents = attrs.get<ffi::Span<const int64_t>>("extents");
  static constexpr int64_t kNoExtents[1] = {0};
  const int64_t* extent = extents.has_value() && extents->size() > 0 ? extents->begin() : kNoExtents;

  Buffers arg(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    arg[i] = ToBuffer(*buffer);
  }
  Buffers ret(rets.size());
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    ret[i] = ToBuffer(**buffer);
  }

  Call<ffi::ThreadPool> call(&pool);
  const KeepDenormals keep;
  const int32_t status = kernel(&call, arg.data(), ret.data(), extent);
  // A fault raised inside a parallel loop counts also where the kernel forgot to return it.
  if (status != JS_OK || call.faulted) {
    auto recipe = attrs.get<std::string_view>("recipe");
    return FaultError(*key, recipe.has_value() ? *recipe : std::string_view(), status, call);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace jsparse

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JsparseCpuInstantiate,
    [](ffi::Dictionary attrs) { return jsparse::Guarded([&] { return jsparse::Instantiate(attrs); }); },
    ffi::Ffi::Bind<ffi::ExecutionStage::kInstantiate>().Attrs());

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    JsparseCpuExecute,
    [](ffi::ThreadPool pool, ffi::Dictionary attrs, ffi::RemainingArgs args, ffi::RemainingRets rets) {
      return jsparse::Guarded([&] { return jsparse::Execute(pool, attrs, args, rets); });
    },
    ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().Attrs().RemainingArgs().RemainingRets());
