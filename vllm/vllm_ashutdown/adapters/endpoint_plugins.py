"""vllm.plugins.endpoint_plugins: the route ``/drain``, for who has asked for it.

vLLM loads an endpoint plugin only by its name in ``VLLM_PLUGINS``. This one has a name
of its own, so that listing the plugin itself opens no route.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ..http.drain import METHODS, DrainRoute, Keys
from ..http.middleware import DRAIN_PATH
from ..http.preparation import Preparation

PREPARATION = "ashutdown_preparation"
"""Where an application's state keeps its drain."""


class DrainEndpoint:
    """vLLM's ``EndpointPlugin``.

    Attributes:
        name: For ``VLLM_PLUGINS``.
        required_tasks: It asks for none.
    """

    name = "ashutdown_drain"
    required_tasks: None = None

    def attach_router(self, app: Any) -> None:
        """Adds the route to ``app``, guarded by the server's own API keys."""
        route = DrainRoute(Keys(_keys(app.state)), _preparation)
        for method, summary in METHODS.items():
            app.add_api_route(
                DRAIN_PATH,
                route.__call__,
                methods=[method],
                summary=summary,
                name="drain",
                operation_id=f"{method.lower()}_drain",
                response_model=None,
            )

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Nothing to do: who serves the application puts its drain there."""


def _keys(state: Any) -> list[str]:
    """The keys that vLLM asks for: those of ``--api-key``, else of its variable."""
    from vllm import envs

    given = getattr(getattr(state, "args", None), "api_key", None)
    return [key for key in given or [envs.VLLM_API_KEY] if key]


def _preparation(request: Request) -> Preparation | None:
    found: Preparation | None = getattr(request.app.state, PREPARATION, None)
    return found
