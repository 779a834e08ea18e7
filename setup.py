"""Compiles the kernels. Everything else about the package is in pyproject.toml.

Without a compiler the package installs pure and says so at start-up; EVERLOG_REQUIRE_KERNELS=1 makes that an error.
EVERLOG_SANITIZE=1 builds them with AddressSanitizer for `make fuzz`.
"""

import contextlib
import os
import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
from everlog._kernels import KERNELS

REQUIRED = os.environ.get("EVERLOG_REQUIRE_KERNELS") == "1"
SANITIZE = os.environ.get("EVERLOG_SANITIZE") == "1"
FLAGS = ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3"]
LINK = ["-fsanitize=address"] if SANITIZE else []


def extensions():
    from Cython.Build import cythonize
    from setuptools import Extension

    modules = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.py"],
            extra_compile_args=[*FLAGS, "-Wno-unused-function", "-Wno-unreachable-code"],
            extra_link_args=LINK,
        )
        for name in KERNELS
    ]
    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "annotation_typing": False,
    }
    return cythonize(modules, include_path=["src"], build_dir="build/cython", compiler_directives=directives)


class BuildKernels(build_ext):
    """Builds every kernel, or none: a half-compiled package would be slow without saying where."""

    def run(self):
        try:
            super().run()
        except Exception as error:
            if REQUIRED:
                raise
            print(f"everlog: kernels were not compiled ({error}); installing interpreted", file=sys.stderr)
            for output in self.get_outputs():
                with contextlib.suppress(FileNotFoundError):
                    os.remove(output)


def kernels():
    if os.environ.get("EVERLOG_NO_KERNELS") == "1":
        return []  # the Makefile compiles them in a step of its own
    try:
        return extensions()
    except Exception as error:
        if REQUIRED:
            raise
        print(f"everlog: kernels were not compiled ({error}); installing interpreted", file=sys.stderr)
        return []


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels})
