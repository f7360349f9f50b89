"""A real engine in a deployment of Ray Serve's. Run by test_ray_serve.py."""

from __future__ import annotations

import ray
from ray import serve

from tests import resources
from tests.hosts.actors import family
from tests.hosts.cells import aask, make_engine
from tests.hosts.ray_scenes import begin
from tests.hosts.rays import SECONDS, Family
from tests.scenes import Found, Scene, main


@serve.deployment
class Engine:
    """One, in the release that is given; Serve calls ``__del__`` when it goes."""

    def __init__(self, release: int) -> None:
        self.release = release
        self.engine = make_engine()

    async def ask(self) -> tuple[int, list[int]]:
        """The release that has answered, and who is there."""
        await aask(self.engine, "r")
        return self.release, family()

    def __del__(self) -> None:
        self.engine.shutdown()


def _deployed(release: int, before: set[str]) -> Family:
    application = Engine.bind(release)
    handle = serve.run(application, name="engine", route_prefix=None)
    answered, pids = handle.ask.remote().result(timeout_s=SECONDS)
    assert answered == release
    return Family(pids, before)


def redeployed_and_deleted() -> Found:
    """A new release takes the place of the old one, and is deleted then."""
    begin()
    serve.start(proxy_location="Disabled")
    before = resources.memory_names()
    old = _deployed(1, before)
    new = _deployed(2, before)
    left = old.left()
    serve.delete("engine")
    left += new.left()
    serve.shutdown()
    ray.shutdown()
    return {"left": left}


def shut_down() -> Found:
    """Serve itself goes."""
    begin()
    serve.start(proxy_location="Disabled")
    one = _deployed(1, resources.memory_names())
    serve.shutdown()
    left = one.left()
    ray.shutdown()
    return {"left": left}


SCENES: dict[str, Scene] = {
    scene.__name__: scene for scene in (redeployed_and_deleted, shut_down)
}

if __name__ == "__main__":
    main(SCENES)
