"""One macro per kind of target; every BUILD file of the tree uses these and nothing else."""

load("@local_tf//:flags.bzl", "TF_COPTS")

# What `-Wall -Wextra` finds in our own sources is an error; system headers are exempt.
_COPTS = ["-std=c++17", "-Wall", "-Wextra", "-Werror"]
_RUNNER = "//tools/bazel:run_module.py"
_CONFTEST = ["//tests:conftest"]

def tss_py_library(name, srcs = None, data = [], deps = []):
    """A Python module.

    Args:
      name: target name; the module is <name>.py unless `srcs` says otherwise.
      srcs: source files; an `__init__.py` belongs to the target named after its directory.
      data: files needed at run time, e.g. a `tss_op_library`.
      deps: targets of the modules which this one imports.
    """
    native.py_library(
        name = name,
        srcs = [name + ".py"] if srcs == None else srcs,
        srcs_version = "PY3",
        data = data,
        deps = deps,
    )

def _module_test(name, srcs, args, data, deps, size, tags):
    """A test target that runs `python -m <args>` from the root of its runfiles."""
    native.py_test(
        name = name,
        srcs = srcs + [_RUNNER],
        main = _RUNNER,
        args = args,
        data = data,
        deps = deps + _CONFTEST,
        python_version = "PY3",
        size = size,
        srcs_version = "PY3",
        tags = tags,
    )

def tss_py_test(name, data = [], deps = [], size = "medium", source_tree = False, tags = []):
    """Runs pytest on <name>.py.

    Args:
      name: name of the test file without `.py`.
      data: files which the test reads, e.g. an example's config.
      deps: targets of the modules which the test imports; nothing else can be imported.
      size: Bazel's limit of time: small 1 min, medium 5 min, large 15 min.
      source_tree: whether the test reads files of the checkout which no target lists. Such a
        test runs outside the sandbox, and again each time.
      tags: further Bazel tags, e.g. `cpu:2` for a test that starts two busy processes; `thorough` for one that
        only `make check` runs, and not `make test`.
    """
    src = name + ".py"
    _module_test(
        name = name,
        srcs = [src],
        args = ["pytest", "$(location %s)" % src],
        data = data,
        deps = deps,
        size = size,
        tags = tags + (["external", "local"] if source_tree else []),
    )

def tss_multiprocess_suite(name, tests, workers = 0, hosts = "", thorough = False):
    """Runs several files under real Horovod processes, in one launch, which imports TensorFlow once in each.

    Args:
      name: target name.
      tests: names of libraries of this package.
      workers: number of workers, placed as tests/multiprocess/run.py says.
      hosts: instead of `workers`: horovodrun's `-H`.
      thorough: whether only `make check` runs it, and not `make test`.
    """
    srcs = [test + ".py" for test in tests]
    placed = ["--hosts", hosts] if hosts else []
    for host in hosts.split(",") if hosts else []:
        workers += int(host.split(":")[1])
    _module_test(
        name = name,
        srcs = srcs,
        args = ["tests.multiprocess.run", "-np", str(workers)] + placed +
               ["$(location %s)" % src for src in srcs],
        data = [],
        deps = tests + ["//tests/multiprocess:run"],
        size = "large",
        # Bazel counts a test as one core unless told; a starved Horovod job times out.
        tags = ["cpu:%d" % workers] + (["thorough"] if thorough else []),
    )

def tss_cc_library(name, srcs = [], hdrs = [], deps = [], copts = []):
    """A C++ algorithm: no TensorFlow header, so that it is tested and reused without it.

    Args:
      name: target name.
      srcs: sources.
      hdrs: headers that other targets include, as "<directory>/<file>" from the root.
      deps: libraries whose headers these files include.
      copts: flags for these sources alone, e.g. `-mavx2` for a kernel chosen at run time.
    """
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _COPTS + copts,
        deps = deps,
    )

def tss_cc_test(name, srcs = None, deps = [], size = "small"):
    """A GoogleTest program; `bazel test --config=sanitizers` instruments it.

    Args:
      name: target name; the source is <name>.cc unless `srcs` says otherwise.
      srcs: source files.
      deps: libraries under test.
      size: Bazel's limit of time.
    """
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        copts = _COPTS,
        deps = deps + ["//tools/bazel:gtest_main"],
        size = size,
        tags = ["cc"],
    )

def tss_op_library(name, srcs, deps = []):
    """TensorFlow custom operations: the shared library <name>.so for `tf.load_op_library`.

    Compiled with the flags that the installed TensorFlow states. `//:native` lists every such
    library; set-up copies them next to their Python wrappers.

    Args:
      name: name of the library without `.so`.
      srcs: kernels and op definitions.
      deps: `tss_cc_library` targets of the algorithms.
    """
    native.cc_binary(
        name = name + ".so",
        srcs = srcs,
        copts = TF_COPTS,
        linkshared = True,
        deps = deps + ["@local_tf//:framework"],
    )

def tss_sources(name, srcs):
    """Sources that something else than Bazel compiles, e.g. CUDA by `make cuda`.

    Args:
      name: target name.
      srcs: the files.
    """
    native.filegroup(
        name = name,
        srcs = srcs,
    )
