"""Puts the settings files of conf/ into the built package, as trace_bench/conf.

Everything else is declared in pyproject.toml. An editable install reads conf/ where it lies.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            source = Path(__file__).resolve().parent / "conf"
            target = Path(self.build_lib) / "trace_bench" / "conf"
            shutil.copytree(source, target, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConf})
