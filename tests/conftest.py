"""What every test has: the plugin laid over the installed vLLM."""

from __future__ import annotations

import vllm_ashutdown

vllm_ashutdown.register()
