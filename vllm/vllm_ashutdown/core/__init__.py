"""The shutdown itself: order, modes, budget, report. Knows asyncio, not vLLM."""
