"""Entry point of every Python test target: `python -m MODULE ARGS…` with Bazel's conventions.

Bazel starts a test in the root of its runfiles, which mirror the checkout, and expects a
JUnit report in $XML_OUTPUT_FILE.
"""

import os
import runpy
import sys


def main() -> None:
    # Python puts the directory of this script first, behind its symbolic link: the checkout.
    # Imports must come from the runfiles, or a missing dependency would go unnoticed.
    del sys.path[0]
    # Keras and matplotlib write settings at home, which the sandbox mounts read-only.
    os.environ["HOME"] = os.environ["TEST_TMPDIR"]
    module, *arguments = sys.argv[1:]
    if module == "pytest":
        # The sandbox is read-only and is discarded: a cache of results would be of no use.
        arguments += ["-p", "no:cacheprovider", "--junitxml=" + os.environ["XML_OUTPUT_FILE"]]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
