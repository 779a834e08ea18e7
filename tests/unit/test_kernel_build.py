"""The build of the kernels: one list, a `.pxd` for each, and a failed compile that is an error or says so."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from everlog import _kernels

SOURCE = Path(_kernels.SOURCE_ROOT)
ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
FEW = ("everlog.base.columns", "everlog.base.topic_table")
ASK = "from everlog import _kernels; print(_kernels.describe())"


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVERLOG_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(folder / "src"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources with nothing compiled in it, and a short list of kernels to save time."""
    shutil.copytree(SOURCE, tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "README.md").touch()
    switch = tmp_path / "src/everlog/_kernels.py"
    text, replaced = re.subn(r"KERNELS = \(.*?\n\)", f"KERNELS = {FEW}", switch.read_text(), flags=re.DOTALL)
    assert replaced == 1
    switch.write_text(text)
    return tmp_path


@pytest.mark.parametrize("name", _kernels.KERNELS)
def test_kernel_has_a_py_and_a_pxd(name: str) -> None:
    path = SOURCE.joinpath(*name.split("."))
    assert path.with_suffix(".py").is_file()
    assert path.with_suffix(".pxd").is_file()


def test_every_pxd_but_that_of_inline_functions_is_in_the_list() -> None:
    found = {path.relative_to(SOURCE) for path in SOURCE.rglob("*.pxd")}
    inline = {path for path in found if "cdef class" not in (SOURCE / path).read_text()}
    listed = {Path(*name.split(".")).with_suffix(".pxd") for name in _kernels.KERNELS}
    assert found - listed <= inline
    assert Path("everlog/base/memory.pxd") in inline


def test_environment_chooses_the_interpreted_twin() -> None:
    done = run("-c", ASK, folder=SOURCE.parent, EVERLOG_PURE="1", PYTHONPATH=str(SOURCE))
    assert (done.returncode, done.stdout.strip()) == (0, "interpreted")


def test_sources_alone_run_interpreted(tree: Path) -> None:
    done = run("-c", ASK, folder=tree)
    assert (done.returncode, done.stdout.strip()) == (0, "interpreted"), done.stderr


def test_compile_that_works_replaces_every_interpreted_kernel(tree: Path) -> None:
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    done = run("setup.py", "-q", "build_ext", "--inplace", folder=tree, EVERLOG_REQUIRE_KERNELS="1")
    assert done.returncode == 0, done.stderr
    assert "warning:" not in done.stdout + done.stderr  # a newcomer's first sight of it
    assert run("-c", ASK, folder=tree).stdout.strip() == "compiled"
    assert run("-c", ASK, folder=tree, EVERLOG_PURE="1").stdout.strip() == "interpreted"


def test_failed_compile_fails_the_build_where_kernels_are_required(tree: Path) -> None:
    done = run("setup.py", "-q", "build_ext", "--inplace", folder=tree, CC="/bin/false", EVERLOG_REQUIRE_KERNELS="1")
    assert done.returncode != 0
    assert not list(tree.rglob("*.so"))


def test_failed_compile_installs_pure_and_says_so_where_they_are_not(tree: Path) -> None:
    done = run("setup.py", "-q", "build_ext", "--inplace", folder=tree, CC="/bin/false")
    assert done.returncode == 0, done.stderr
    assert "kernels were not compiled" in done.stderr
    assert not list(tree.rglob("*.so"))
    assert run("-c", ASK, folder=tree).stdout.strip() == "interpreted"


def test_kernel_that_does_not_translate_is_treated_like_one_that_does_not_compile(tree: Path) -> None:
    with (tree / "src/everlog/base/columns.pxd").open("a") as broken:
        broken.write("cdef class Broken:\n    cdef nothing of the kind\n")
    optional = run("setup.py", "-q", "build_ext", "--inplace", folder=tree)
    assert optional.returncode == 0, optional.stderr
    assert "kernels were not compiled" in optional.stderr
    required = run("setup.py", "-q", "build_ext", "--inplace", folder=tree, EVERLOG_REQUIRE_KERNELS="1")
    assert required.returncode != 0


def test_what_the_program_imports_it_depends_on() -> None:
    """Without extras, and with kernels that could not be compiled."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower() for one in project["dependencies"]}
    distributions = packages_distributions()
    missing = set()
    for path in SOURCE.glob("everlog/**/*.py"):
        if path.relative_to(SOURCE).parts[1] in ("spark", "bench"):  # extras and a C compiler for them
            continue
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"everlog"}:
                if not declared & {one.lower().replace("_", "-") for one in distributions.get(name, [name])}:
                    missing.add((str(path.relative_to(SOURCE)), name))
    assert not missing
