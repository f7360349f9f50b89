"""How this package touches vLLM: each touched attribute is one data record."""
