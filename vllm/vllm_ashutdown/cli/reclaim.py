"""``vllm-ashutdown reclaim``: what dead instances have left, and away with it."""

from __future__ import annotations

import json

from msgspec import structs

from ..core.claims import place
from ..core.reclaim import Reclaimed, Verdict, reclaim

EXIT_LEFT = 1
"""Something is left."""


def show(*, remove: bool, as_json: bool) -> int:
    """Prints what is left, and what became of it.

    Returns:
        0 if nothing is left any more, 1 if something is.
    """
    found = reclaim(remove=remove)
    if as_json:
        words = {
            "directory": str(place()),
            "leftovers": [structs.asdict(one) for one in found.leftovers],
            "alive": list(found.alive),
        }
        print(json.dumps(words, indent=2))
    else:
        print("\n".join(_lines(found)))
    left = len(found.leftovers) - found.count(Verdict.REMOVED)
    return EXIT_LEFT if left else 0


def _lines(found: Reclaimed) -> list[str]:
    lines = []
    for owner in dict.fromkeys(one.owner for one in found.leftovers):
        lines.append(f"{owner} is dead and left")
        lines += [f"  {one}" for one in found.leftovers if one.owner == owner]
    for name in found.alive:
        pid = name.partition("-")[0]
        lines.append(f"pid {pid} is alive: what it has is its own")
    if found.count(Verdict.FOUND):
        lines.append("To take away what was found: vllm-ashutdown reclaim --remove")
    if found.count(Verdict.REFUSED):
        lines.append(
            "What was refused may be someone's. Run this again when the reason is "
            "gone, or remove it by its path if you know better."
        )
    return lines or [f"Nothing is left. (Looked for in {place()})"]
