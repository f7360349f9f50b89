"""An engine that lives as long as a FastAPI application.

    MODEL=... uvicorn fastapi_lifespan:app

It is made in the lifespan and closed at its end: a request that is in flight then ends
with an ``EngineShutdownError``, which the handler below answers with 503.
"""

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

from vllm import SamplingParams
from vllm_ashutdown import EngineShutdownError


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Makes the engine, and closes it however the application ends."""
    arguments = AsyncEngineArgs(model=os.environ["MODEL"], enforce_eager=True)
    async with AsyncLLM.from_engine_args(arguments) as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/complete")
async def complete(request: Request, prompt: str, tokens: int = 16) -> dict[str, str]:
    """The whole answer to ``prompt``."""
    params = SamplingParams(max_tokens=tokens, temperature=0)
    engine = request.app.state.engine
    text = ""
    async for output in engine.generate(prompt, params, uuid.uuid4().hex):
        text = output.outputs[0].text
    return {"text": text}


@app.exception_handler(EngineShutdownError)
async def stopping(request: Request, error: Exception) -> JSONResponse:
    """It is safe to retry elsewhere."""
    return JSONResponse({"error": str(error)}, 503, {"Retry-After": "1"})
