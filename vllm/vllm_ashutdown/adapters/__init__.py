"""What knows vLLM: one file per vLLM module that is touched, named after it."""
