"""At its start an instance takes away what dead ones have left, and says so."""

from __future__ import annotations

import logging
from collections import Counter

from .core.reclaim import Reclaimed, Verdict, reclaim

logger = logging.getLogger("vllm.ashutdown")


class _Done:
    once = False


def reclaim_once() -> None:
    """Does it, the first time that this process asks. Never raises."""
    if _Done.once:
        return
    _Done.once = True
    try:
        tell(reclaim(remove=True))
    except OSError as error:
        logger.warning("[shutdown] cannot look for what others have left: %s", error)


def tell(found: Reclaimed) -> None:
    """One line for all that was removed, and one for each thing that was not."""
    removed = [one for one in found.leftovers if one.verdict is Verdict.REMOVED]
    if removed:
        kinds = Counter(one.kind for one in removed)
        owners = dict.fromkeys(one.owner for one in removed)
        logger.info(
            "[shutdown] reclaimed what %s left behind: %s",
            ", ".join(owners),
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        )
    for one in found.leftovers:
        if one.verdict is Verdict.REFUSED:
            logger.warning("[shutdown] %s left %s", one.owner, one)
