"""The command ``vllm-ashutdown``."""

from .main import main

__all__ = ["main"]
