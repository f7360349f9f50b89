"""The HTTP side of a stop: who is let in, and how an answer ends that is cut."""
