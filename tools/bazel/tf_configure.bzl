"""Repository rule: the TensorFlow of the virtual environment, as Bazel targets."""

_QUERY = """
import json, os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
print(json.dumps({
    "include": tf.sysconfig.get_include(),
    "copts": [f for f in tf.sysconfig.get_compile_flags() if not f.startswith("-I")],
    "linkopts": tf.sysconfig.get_link_flags(),
}))
"""

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

# Whole directories rather than a glob: 16,000 headers would be linked into every sandbox.
cc_library(
    name = "headers",
    hdrs = ["include"],
    includes = ["include"],
)

cc_library(
    name = "framework",
    linkopts = {linkopts},
    deps = [":headers"],
)

py_runtime(
    name = "py3_runtime",
    interpreter_path = "{python}",
    stub_shebang = "#!{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "py_runtime_pair",
    py3_runtime = ":py3_runtime",
)

toolchain(
    name = "py_toolchain",
    toolchain = ":py_runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _tf_configure_impl(rctx):
    # Looking the label up makes Bazel ask again whenever the pinned requirements change.
    rctx.path(Label("//:requirements/dev.txt"))
    root = rctx.path(Label("//:WORKSPACE")).dirname
    python = rctx.os.environ.get("TSS_PYTHON", str(root) + "/.venv/bin/python")
    if not rctx.path(python).exists:
        fail("No Python interpreter at %s: run `make setup`, or name one that has " % python +
             "TensorFlow with --repo_env=TSS_PYTHON=/path/to/python.")
    result = rctx.execute([python, "-c", _QUERY])
    if result.return_code:
        fail("%s cannot import TensorFlow: run `make setup`.\n%s" % (python, result.stderr))
    tf = json.decode(result.stdout)
    rctx.symlink(tf["include"], "include")
    rctx.file("flags.bzl", "TF_COPTS = %r\n" % tf["copts"])
    rctx.file("BUILD", _BUILD.format(
        linkopts = repr(tf["linkopts"]),
        python = python,
    ))

tf_configure = repository_rule(
    implementation = _tf_configure_impl,
    environ = ["TSS_PYTHON"],
)
