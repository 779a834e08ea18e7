"""What a kernel is compiled from: `make kernels` compiles it again when one of these files has changed."""

from pathlib import Path

import pytest

from everlog import _kernels


def _lay(root: Path, **files: str) -> None:
    for name, text in files.items():
        stem, _, suffix = name.rpartition("_")
        path = root / "everlog" / f"{stem}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_its_own_files_and_every_pxd_that_these_cimport(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_kernels, "SOURCE_ROOT", str(tmp_path))
    _lay(
        tmp_path,
        a_py="from everlog.d import other\n",  # an import at run time
        a_pxd="cimport cython\nfrom everlog.b cimport one\n",
        b_py="",
        b_pxd="from libc.stdint cimport uint32_t\ncimport everlog.c\n",
        c_pxd="from everlog.b cimport one\n",
        d_py="",
        d_pxd="",
    )
    found = [Path(one).relative_to(tmp_path / "everlog").as_posix() for one in _kernels.sources_of("everlog.a")]
    assert found == ["a.py", "a.pxd", "b.pxd", "c.pxd"]


@pytest.mark.parametrize("name", _kernels.KERNELS)
def test_every_kernel_has_its_files(name: str) -> None:
    assert all(Path(one).is_file() for one in _kernels.sources_of(name))
