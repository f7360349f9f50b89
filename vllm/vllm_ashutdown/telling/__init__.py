"""How the world outside hears of a stop: metrics, service manager, spans, titles."""
