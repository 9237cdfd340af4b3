"""The C++ side of the Python environment: headers of Python, jaxlib and nanobind, and nanobind's runtime."""

_FIND = """
import sysconfig
from importlib.util import find_spec
print(sysconfig.get_path("include"))
for package in ("jaxlib", "nanobind"):
    print(find_spec(package).submodule_search_locations[0])
"""

_BUILD = """
load("@rules_cc//cc:defs.bzl", "cc_library")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "python",
    hdrs = glob(["python/**/*.h"]),
    includes = ["python"],
)

cc_library(
    name = "xla_ffi",
    hdrs = glob(["jaxlib/xla/ffi/api/*.h"]),
    includes = ["jaxlib"],
)

cc_library(
    name = "nanobind",
    srcs = ["nanobind/src/nb_combined.cpp"],
    hdrs = glob([
        "nanobind/include/**/*.h",
        "nanobind/ext/robin_map/include/**/*.h",
    ]),
    copts = [
        "-std=c++17",
        "-fno-strict-aliasing",
    ],
    includes = [
        "nanobind/include",
        "nanobind/ext/robin_map/include",
    ],
    textual_hdrs = glob(["nanobind/src/*"]),
    deps = [":python"],
)
"""

def _python_headers_impl(ctx):
    found = ctx.execute([ctx.which("python3"), "-c", _FIND])
    if found.return_code != 0:
        fail("python3 has no jaxlib or no nanobind: " + found.stderr)
    python, jaxlib, nanobind = found.stdout.strip().split("\n")
    ctx.symlink(python, "python")
    ctx.symlink(jaxlib + "/include", "jaxlib")
    ctx.symlink(nanobind, "nanobind")
    ctx.file("BUILD.bazel", _BUILD)

_python_headers = repository_rule(
    implementation = _python_headers_impl,
    configure = True,
    environ = ["PATH"],
)

python_headers = module_extension(
    implementation = lambda _: _python_headers(name = "python_headers"),
)
