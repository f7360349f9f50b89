"""What an engine's program says when its tokens begin to come; for both sides of it."""

FLOWING = "tokens are flowing"
