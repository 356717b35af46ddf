"""Helpers in tests/ (models.py, toy.py) are importable from every test folder."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: one a worker
