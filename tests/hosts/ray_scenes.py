"""Programs with a real engine in an actor of Ray's, one a scene. Run by test_ray.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import ray

from tests import resources
from tests.hosts.actors import WithAsyncLLM, WithLLM
from tests.hosts.rays import OBJECTS, Family
from tests.scenes import Found, Scene, main


def begin(**options: Any) -> None:
    """A cluster of this program's own."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=OBJECTS,
        log_to_driver=False,
        **options,
    )


def _ended_by(kind: type, end: Callable[[Any], object]) -> Found:
    begin()
    before = resources.memory_names()
    actor: Any = ray.remote(kind).remote()
    family = Family(ray.get(actor.ask.remote()), before)
    end(actor)
    found = {"left": family.left()}
    ray.shutdown()
    return found


def exit_actor() -> Found:
    """The actor says that it leaves."""
    return _ended_by(WithLLM, lambda actor: actor.leave.remote())


def exit_actor_with_a_loop() -> Found:
    """The same on the loop that the engine is used on."""
    return _ended_by(WithAsyncLLM, lambda actor: actor.leave.remote())


def terminated() -> Found:
    """The actor is asked to leave."""
    return _ended_by(WithLLM, lambda actor: actor.__ray_terminate__.remote())


def closed_and_killed() -> Found:
    """As it is recommended: closed by a call, and killed then."""

    def end(actor: Any) -> None:
        assert ray.get(actor.close.remote())
        ray.kill(actor)

    return _ended_by(WithAsyncLLM, end)


def killed() -> Found:
    """The actor has no time for anything."""
    return _ended_by(WithLLM, ray.kill)


def driver_ends() -> Found:
    """The program that has made the actor ends; the cluster is another's."""
    begin()
    before = resources.memory_names()
    address = ray.get_runtime_context().gcs_address
    with subprocess.Popen(
        [sys.executable, "-m", __spec__.name, "driver", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdin is not None
        told = next(line for line in driver.stdout if line.startswith("PIDS "))
        family = Family(json.loads(told.removeprefix("PIDS ")), before)
        driver.stdin.close()
        driver.stdout.read()
        assert driver.wait(60) == 0
    found = {"left": family.left()}
    ray.shutdown()
    return found


def driver() -> Found:
    """The program that ends, as soon as nobody speaks to it any more."""
    ray.init(address=sys.argv[2], log_to_driver=False)
    actor: Any = ray.remote(WithAsyncLLM).remote()
    print("PIDS " + json.dumps(ray.get(actor.ask.remote())), flush=True)
    sys.stdin.read()
    return {}


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        exit_actor,
        exit_actor_with_a_loop,
        terminated,
        closed_and_killed,
        killed,
        driver_ends,
    )
}

if __name__ == "__main__":
    main(SCENES | {driver.__name__: driver})
