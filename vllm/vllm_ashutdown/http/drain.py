"""The route ``/drain``: POST prepares a drain and waits, GET looks, DELETE undoes it.

Each answers with how the drain stands, as one JSON object. POST says 200 if nothing is
in flight, 202 if its time was out first, 409 if the drain was taken back meanwhile;
DELETE says 409 if a stop has begun.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..core.mode import parse_seconds
from ..core.reading import SERVING
from ..errors import InvalidSettingError
from .preparation import Preparation

METHODS = {
    "POST": "Prepare a drain, or join it, and wait until nothing is in flight.",
    "GET": "Look how the drain stands.",
    "DELETE": "Take a drain back, as long as no stop has begun.",
}
TIMEOUT = "timeout"


class Keys:
    """Who may steer: whoever has one of the server's API keys, or all if it has none.

    vLLM asks for them only at the paths of its own APIs.
    """

    def __init__(self, keys: Iterable[str] = ()) -> None:
        """Keeps digests of the keys: comparing them does not tell their lengths."""
        self._digests = [_digest(key) for key in keys if key]

    def allow(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers is let through."""
        if not self._digests:
            return True
        scheme, _, key = headers.get("authorization", "").partition(" ")
        digest = _digest(key)
        # All are compared, whichever fits: the time does not tell either.
        fits = [secrets.compare_digest(digest, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(fits)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class DrainRoute:
    """The endpoint, for all of its methods."""

    def __init__(
        self, keys: Keys, preparation: Callable[[Request], Preparation | None]
    ) -> None:
        """Serves one application.

        Args:
            keys: Who may steer.
            preparation: Finds the server's drain; ``None`` where it cannot be steered.
        """
        self._keys = keys
        self._preparation = preparation

    async def __call__(self, request: Request) -> Response:
        """One request."""
        if not self._keys.allow(request.headers):
            return JSONResponse({"error": "Unauthorized"}, HTTPStatus.UNAUTHORIZED)
        preparation = self._preparation(request)
        if preparation is None:
            return _error(
                HTTPStatus.NOT_IMPLEMENTED,
                "this server's drain cannot be steered: vllm-ashutdown is switched "
                "off or not listed in VLLM_PLUGINS, or its seam serve_http does not "
                "fit this vLLM. Send the server a SIGTERM instead.",
            )
        if request.method == "POST":
            return await _post(request, preparation)
        if request.method == "DELETE" and not await preparation.take_back():
            return _error(
                HTTPStatus.CONFLICT,
                "a stop has begun, and that is not taken back. Send requests to "
                "another server.",
            )
        return JSONResponse(preparation.reading().plain())


async def _post(request: Request, preparation: Preparation) -> Response:
    try:
        seconds = _seconds(request.query_params.multi_items(), preparation.seconds)
    except InvalidSettingError as error:
        return _error(HTTPStatus.BAD_REQUEST, str(error), param=error.name)
    reading = await preparation.drain(seconds)
    status = HTTPStatus.OK if reading.idle else HTTPStatus.ACCEPTED
    if reading.phase == SERVING:
        status = HTTPStatus.CONFLICT
    return JSONResponse(reading.plain(), status)


def _seconds(query: Iterable[tuple[str, str]], default: float) -> float:
    """What the query says of the time to wait.

    Raises:
        InvalidSettingError: it says something else, or nothing that can be understood.
    """
    found = default
    for number, (name, text) in enumerate(query):
        # A timeout with a typing error in its name would be one without limit.
        if name != TIMEOUT or number:
            raise InvalidSettingError(name, text, f"{TIMEOUT}=SECONDS, once")
        try:
            value: object = float(text)
        except ValueError:
            value = text
        found = parse_seconds(value, TIMEOUT)
    return found


def _error(status: HTTPStatus, message: str, param: str | None = None) -> Response:
    error: dict[str, Any] = {
        "message": message,
        "type": status.phrase,
        "param": param,
        "code": int(status),
    }
    return JSONResponse({"error": error}, status)
