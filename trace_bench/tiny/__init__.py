"""The tiny agent: a Qwen3-architecture transformer that the project trains itself and ships."""

from pathlib import Path

MODEL_FOLDER = Path(__file__).parent / "model"
