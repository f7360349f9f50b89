"""One engine for each test that wants one, and nothing left behind by any of them.

VLLM_ENABLE_V1_MULTIPROCESSING=0 MODEL=... pytest test_with_an_engine.py
"""

import os
from collections.abc import Iterator

import pytest

from vllm import LLM, SamplingParams


@pytest.fixture
def llm() -> Iterator[LLM]:
    """Closed when the test is over, also when it has failed."""
    with LLM(os.environ["MODEL"], enforce_eager=True) as one:
        yield one


@pytest.mark.parametrize("start", [417, 120])
def test_it_counts(llm: LLM, start: int) -> None:
    """The tiny model of this project does nothing else."""
    params = SamplingParams(max_tokens=8, temperature=0)
    (answer,) = llm.generate(f"Count on from {start}", params, use_tqdm=False)
    assert answer.outputs[0].text.split()[0] == str(start + 1)
