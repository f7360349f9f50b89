"""The records, by what they are about. :mod:`..registry` has them in one list."""
