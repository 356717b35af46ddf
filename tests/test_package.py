"""What is installed is complete: settings and data files travel with the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a wheel holds it."""
    place = tmp_path_factory.mktemp("package")
    command = ["setup.py", "-q", "egg_info", "--egg-base", str(place), "build_py", "-d"]
    done = subprocess.run(
        [sys.executable, *command, str(place / "lib")], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return place / "lib"


def python(built: Path, place: Path, *words: str) -> str:
    """What an interpreter with the built package says, started in a folder."""
    env = {**os.environ, "PYTHONPATH": str(built)}
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def relative(folder: Path, pattern: str) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob(pattern) if p.is_file()}


def test_settings_files_are_in_the_package(built: Path) -> None:
    expected = relative(ROOT / "conf", "*")
    assert relative(built / "trace_bench" / "conf", "*") == expected
    assert "config.yaml" in expected


def test_the_built_package_writes_a_file_to_begin_with(built: Path, tmp_path: Path) -> None:
    python(built, tmp_path, "-m", "trace_bench.new", "env", "desk")
    assert (tmp_path / "desk.py").read_text() == (ROOT / "examples" / "desk.py").read_text()


@pytest.mark.parametrize("pattern", ["*.py", "*.json", "*.jinja", "*.safetensors"])
def test_code_and_data_are_in_the_package(built: Path, pattern: str) -> None:
    source = relative(ROOT / "trace_bench", pattern)
    assert source <= relative(built / "trace_bench", pattern)


@pytest.mark.slow
def test_the_built_package_finds_its_settings(built: Path, tmp_path: Path) -> None:
    code = (
        "import trace_bench.settings.compose as c\n"
        "from trace_bench.settings.choices import conf_dir\n"
        "print(conf_dir())\n"
        "print(c.compose(['method=base']))"
    )
    said = python(built, tmp_path, "-c", code)
    assert said.splitlines()[0] == str(built / "trace_bench" / "conf")


def test_readme_has_the_two_commands_that_ci_takes_from_it() -> None:
    blocks = (ROOT / "README.md").read_text().split("```bash\n")[1:]
    first, second = (block.split("```")[0].strip() for block in blocks[:2])
    assert first.endswith("&& .venv/bin/python -m trace_bench method=trace env=toolsandbox")
    assert second.endswith("&& .venv/bin/pytest -n auto --dist loadscope")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
