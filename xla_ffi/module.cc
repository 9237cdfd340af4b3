// The Python extension `jsparse._xla_ffi`: hands the handlers to JAX and calls the resolver.
// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "xla_ffi/direct.h"
#include "xla_ffi/kernel.h"

namespace nb = nanobind;

namespace jsparse {
namespace {

// Guarded by the GIL.  Leaked on purpose: a compilation may outlive the interpreter's orderly shutdown.
nb::object& TheResolver() {
  static auto* resolver = new nb::object(nb::none());
  return *resolver;
}

// "ValueError: no compiler found", without a traceback: it becomes the message of XLA's error.
std::string Describe(const nb::python_error& error) {
  std::string name = nb::str(error.type().attr("__name__")).c_str();
  std::string text = nb::str(error.value()).c_str();
  return text.empty() ? name : name + ": " + text;
}

nb::object SetResolver(nb::object resolver) {
  if (!resolver.is_none() && !nb::isinstance<nb::callable>(resolver)) {
    throw nb::type_error("set_resolver: expected a callable (key, recipe) -> path, or None");
  }
  nb::object previous = TheResolver();
  TheResolver() = std::move(resolver);
  return previous;
}

// Handlers by target name and stage, as jax.ffi.register_ffi_target takes them.
nb::dict Registrations() {
  auto capsule = [](XLA_FFI_Handler* handler) {
    return nb::capsule(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET");
  };
  nb::dict cpu;
  cpu["instantiate"] = capsule(&JsparseCpuInstantiate);
  cpu["execute"] = capsule(&JsparseCpuExecute);
  nb::dict targets;
  targets["jsparse_cpu"] = cpu;
  return targets;
}

using Addressed = std::vector<std::pair<uintptr_t, std::vector<int64_t>>>;  // address and extents of each array

std::vector<HostArray> HostArrays(const Addressed& arrays) {
  std::vector<HostArray> out;
  out.reserve(arrays.size());
  for (const auto& [address, dims] : arrays) out.push_back({address, dims});
  return out;
}

std::string Call(const std::string& key, const std::string& recipe, const std::vector<int64_t>& extents,
                 const Addressed& args, const Addressed& results) {
  nb::gil_scoped_release release;
  return CallDirectly(key, recipe, extents, HostArrays(args), HostArrays(results));
}

}  // namespace

// XLA instantiates on threads that do not hold the GIL.
Resolved ResolveInPython(std::string_view key, std::string_view recipe) {
  if (!nb::is_alive()) return {"", "the Python interpreter is shutting down"};
  nb::gil_scoped_acquire gil;
  try {
    nb::object resolver = TheResolver();
    if (resolver.is_none()) return {"", "this process cannot build kernels; import jsparse before running the program"};
    nb::object path = resolver(nb::str(key.data(), key.size()), nb::str(recipe.data(), recipe.size()));
    if (!nb::isinstance<nb::str>(path)) return {"", "its resolver did not return a path (a str)"};
    return {nb::cast<nb::str>(path).c_str(), ""};
  } catch (nb::python_error& error) {
    try {
      return {"", Describe(error)};
    } catch (...) {
      return {"", "its resolver raised an exception that cannot be printed"};
    }
  } catch (const std::exception& error) {
    return {"", std::string("its resolver failed: ") + error.what()};
  }
}

}  // namespace jsparse

NB_MODULE(_xla_ffi, m) {
  m.doc() = "The bridge between XLA and generated kernels.";
  m.attr("abi_version") = JSPARSE_ABI;
  m.def("registrations", &jsparse::Registrations, "Target name -> stage name -> handler capsule.");
  m.def("set_resolver", &jsparse::SetResolver, nb::arg("resolver").none(),
        "Sets the callable (key, recipe) -> path of the shared object; returns the one before.");
  m.def("call", &jsparse::Call, nb::arg("key"), nb::arg("recipe"), nb::arg("extents"), nb::arg("args"),
        nb::arg("results"),
        "Runs a kernel on arrays of the host, each given by address and extents, that live until it returns.  Returns "
        "an empty string, or what went wrong in the words of XLA.");
}
