"""Puts conf/ and examples/ into the built package, as trace_bench/conf and trace_bench/examples.

Everything else is declared in pyproject.toml. An editable install reads both where they lie.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target, ignored = Path(self.build_lib) / "trace_bench", shutil.ignore_patterns("__*")
            for name in ("conf", "examples"):
                source = Path(__file__).resolve().parent / name
                shutil.copytree(source, target / name, ignore=ignored, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConf})
