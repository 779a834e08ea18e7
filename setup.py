"""Compiles the kernels. Everything else about the package is in pyproject.toml.

Without a compiler the package installs pure and says so at start-up; EVERLOG_REQUIRE_KERNELS=1 makes that an error.
EVERLOG_SANITIZE=1 builds them with AddressSanitizer for `make fuzz`. In place, exactly those are compiled whose
sources, or whose `.pxd` files that they cimport, have changed: build/stamps says of each what it was compiled from.
"""

import contextlib
import glob
import hashlib
import os
import sys

from setuptools import setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))
from everlog._kernels import KERNELS, sources_of

REQUIRED = os.environ.get("EVERLOG_REQUIRE_KERNELS") == "1"
SANITIZE = os.environ.get("EVERLOG_SANITIZE") == "1"
FLAGS = ["-O1", "-g", "-fsanitize=address", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3"]
LINK = ["-fsanitize=address"] if SANITIZE else []
# A newcomer's first build says nothing that nobody need do; who changes a kernel looks (CONTRIBUTING.md).
SHOWN = os.environ.get("EVERLOG_KERNEL_WARNINGS") == "1"
QUIET = ["-Wno-unused-function", "-Wno-unreachable-code"]
QUIET += [] if SHOWN else ["-Wno-sign-compare", "-Wno-array-bounds"]
IN_PLACE = "--inplace" in sys.argv
STAMPS = "build/stamps"


def stamp_of(name):
    """Return what a kernel is compiled from, in short: its sources, how it is compiled, and by what."""
    from Cython import __version__ as cython

    digest = hashlib.sha256(f"{cython} {sys.version} {FLAGS}".encode())
    for path in ["setup.py", *sources_of(name)]:
        with open(path, "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()


def compiled(name):
    """Return the files that a kernel was compiled to in place."""
    return glob.glob(f"src/{name.replace('.', '/')}.*.so")


def is_stale(name):
    """Return whether a kernel is to be compiled: it was not, or from something else; without a stamp, times tell."""
    there = compiled(name)
    try:
        with open(f"{STAMPS}/{name}") as file:
            return not there or file.read() != stamp_of(name)
    except FileNotFoundError:
        newest = max(map(os.path.getmtime, sources_of(name)))
        return not there or min(map(os.path.getmtime, there)) < newest


def forget(name):
    """Remove what a kernel was compiled to, with its stamp."""
    for path in [f"{STAMPS}/{name}", *compiled(name)]:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def forget_others():
    """Remove what is left of modules that are no kernels any more: Python would take it before their `.py`."""
    for name in set(os.listdir(STAMPS)) - set(KERNELS) if os.path.isdir(STAMPS) else ():
        forget(name)


def extensions(names):
    from Cython.Build import cythonize
    from setuptools import Extension

    modules = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.py"],
            extra_compile_args=[*FLAGS, *QUIET],
            extra_link_args=LINK,
        )
        for name in names
    ]
    directives = {
        "language_level": 3,
        "boundscheck": False,
        "wraparound": False,
        "cdivision": True,
        "initializedcheck": False,
        "annotation_typing": False,
    }
    return cythonize(
        modules, include_path=["src"], build_dir="build/cython", compiler_directives=directives, force=IN_PLACE
    )


class BuildKernels(build_ext):
    """Builds every kernel, or none: a half-compiled package would be slow without saying where."""

    def run(self):
        stamps = {one.name: stamp_of(one.name) for one in self.extensions or ()} if IN_PLACE else {}
        self.force = self.force or IN_PLACE
        try:
            super().run()
        except Exception as error:
            if REQUIRED:
                raise
            print(f"everlog: kernels were not compiled ({error}); installing interpreted", file=sys.stderr)
            for output in self.get_outputs():
                with contextlib.suppress(FileNotFoundError):
                    os.remove(output)
            for name in KERNELS if IN_PLACE else ():
                forget(name)
            return
        os.makedirs(STAMPS, exist_ok=True)
        for name, stamp in stamps.items():
            with open(f"{STAMPS}/{name}", "w") as file:
                file.write(stamp)


def kernels():
    if os.environ.get("EVERLOG_NO_KERNELS") == "1":
        return []  # the Makefile compiles them in a step of its own
    try:
        if not IN_PLACE:
            return extensions(KERNELS)
        forget_others()
        stale = [name for name in KERNELS if "--force" in sys.argv or is_stale(name)]
        return extensions(stale) if stale else []
    except Exception as error:
        if REQUIRED:
            raise
        print(f"everlog: kernels were not compiled ({error}); installing interpreted", file=sys.stderr)
        return []


setup(ext_modules=kernels(), cmdclass={"build_ext": BuildKernels})
