"""Context managers that also decorate functions, as PyTorch's modes do."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import Any, Self


class ModeDecorator(ABC):
    """A mode for a ``with`` block, or for every call of a function that it decorates.

    A generator function runs in the mode, but its caller does not between the steps. Each call has
    a clone of the mode, so that threads and recursive calls do not share one.
    """

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, exc_type: object, exc: object, traceback: object) -> None: ...

    @abstractmethod
    def clone(self) -> ModeDecorator:
        """Return a new mode with the same settings, which has not been entered."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, run in this mode."""
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
                return (yield from self._stepwise(function(*args, **kwargs)))

            return generate
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run(*args: Any, **kwargs: Any) -> Any:
                with self.clone():
                    return await function(*args, **kwargs)

            return run

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return function(*args, **kwargs)

        return call

    def _stepwise(self, generator: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run ``generator`` with the mode entered for each step and left while it waits."""
        resume: Callable[[], Any] = functools.partial(next, generator)
        try:
            while True:
                with self.clone():
                    value = resume()
                try:
                    sent = yield value
                except GeneratorExit:
                    raise
                except BaseException as error:
                    resume = functools.partial(generator.throw, error)
                else:
                    resume = functools.partial(generator.send, sent)
        except StopIteration as end:
            return end.value
        finally:
            with self.clone():
                generator.close()
