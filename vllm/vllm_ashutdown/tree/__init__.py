"""The process tree: who began whom, how they talk, and how they end. No vLLM here."""
