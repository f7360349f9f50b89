"""The hosts are an extra: without one of them its tests cannot even be imported."""

from __future__ import annotations

import importlib.util

_NEEDS = {
    "test_jupyter.py": ("ipykernel", "jupyter_client"),
    "test_notebook_example.py": ("ipykernel", "jupyter_client"),
    "test_ray.py": ("ray",),
    "test_ray_serve.py": ("ray", "starlette"),
}

collect_ignore = [
    name
    for name, modules in _NEEDS.items()
    if any(importlib.util.find_spec(one) is None for one in modules)
]
