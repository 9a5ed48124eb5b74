"""Event loop with virtual time, and the machines that its callbacks belong to.

Nothing waits: when no callback is ready, time jumps to the next timer. Each callback runs on the machine that scheduled
it. A paused machine runs its callbacks when it goes on; a killed one never does.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import traceback
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any, Final, TypeVar

__all__ = ["Machine", "SimulatedLoop", "current_machine"]

T = TypeVar("T")

_MACHINE: Final[ContextVar[Machine | None]] = ContextVar("machine", default=None)
_EPOCH_NS: Final = 1_700_000_000 * 10**9
"""Unix time at which each simulation begins."""


def current_machine() -> Machine | None:
    """Return the machine whose code runs; None for the simulator's own."""
    return _MACHINE.get()


class Machine:
    """One process on a machine of its own."""

    def __init__(self, name: str, loop: SimulatedLoop, *, is_client: bool = False) -> None:
        """Begin to run.

        Args:
            name: For the trace.
            loop: Runs its callbacks.
            is_client: True if it is a client of the members.
        """
        self.name, self.is_client = name, is_client
        self.loop = loop
        self.begun_s = loop.now_s
        """When it began to run."""
        self.is_paused = False
        self.is_dead = False
        self.clock_step_ns = 0
        """Difference of its wall clock to the true time."""
        self.disk_s = 0.0
        """Time that each piece of work in a thread takes."""
        self.steps_left = 0
        """Callbacks until `on_steps` is called; below 1 for never."""
        self.words_left = 0
        """Pieces that it sends to clients until `on_steps` is called; below 1 for never."""
        self.moves_left = 0
        """Sessions that go or come until `on_steps` is called; below 1 for never."""
        self.on_steps: Callable[[], None] = _nothing
        self.context = copy_context()
        """Context of the callbacks that belong to it."""
        self.context.run(_MACHINE.set, self)
        self._waiting: list[_Handle] = []

    def run(self, coroutine: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a task on this machine."""
        return self.loop.create_task(coroutine, name=name, context=self.context)

    def speak(self) -> None:
        """Note that it has sent something to a client."""
        if self.words_left > 0:
            self.words_left -= 1
            if not self.words_left:
                self.on_steps()

    def move(self) -> None:
        """Note that a session is about to go, or has come."""
        if self.moves_left > 0:
            self.moves_left -= 1
            if not self.moves_left:
                self.on_steps()

    def pause(self) -> None:
        """Stop, as SIGSTOP does."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on; callbacks that came due meanwhile run first, in their order."""
        self.is_paused = False
        waiting, self._waiting = self._waiting, []
        self.loop.run_soon(waiting)

    def kill(self) -> None:
        """End for good, as SIGKILL does."""
        self.is_dead = True

    def keep(self, handle: _Handle) -> None:
        """Keep a callback that cannot run now. The one of a dead machine is kept too: its end would run `finally`."""
        self._waiting.append(handle)


class _Future(asyncio.Future[Any]):
    """Future whose place in a set does not depend on its address."""

    def __hash__(self) -> int:
        return _serial(self)


class _Task(asyncio.Task[Any]):
    """Task whose place in a set does not depend on its address."""

    def __hash__(self) -> int:
        return _serial(self)


def _serial(one: Any) -> int:
    """Return the number of a future or task, given when it is asked for first."""
    try:
        number: int = one.serial
    except AttributeError:
        number = one.serial = next(one.get_loop().serials)
    return number


class _Handle(asyncio.TimerHandle):
    """Callback, made without what asyncio does for debugging."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, loop: SimulatedLoop, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._loop, self._callback, self._args = loop, callback, args
        self._cancelled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = _nothing, ()  # what they hold goes now


class _NoSelector:
    """Stands where an event loop has its selector."""

    def close(self) -> None:
        """Do nothing."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """The event loop of all machines of a simulation."""

    def __init__(self) -> None:
        """Begin at 1000 virtual seconds."""
        super().__init__()
        self.now_s = 1000.0
        """Virtual time, monotonic seconds; all machines have the same."""
        self.steps = 0
        """Callbacks that ran."""
        self.failures: list[str] = []
        """Errors that nobody has caught."""
        self.serials = itertools.count()
        """Numbers of futures and tasks, for their places in sets."""
        self._ready: deque[_Handle]
        self._timers: list[tuple[float, int, _Handle]] = []
        """A heap by time; of the same time, the one that was asked for first comes first."""
        self._timer_serials = itertools.count()
        self._selector = _NoSelector()
        self.set_exception_handler(self._note_failure)

    # --- time ---

    def time(self) -> float:
        """Return the virtual time."""
        return self.now_s

    def now_ns(self) -> int:
        """Return the Unix time, as the machine has it whose code runs."""
        machine = current_machine()
        return self.true_ns() + (machine.clock_step_ns if machine is not None else 0)

    def true_ns(self) -> int:
        """Return the Unix time."""
        return _EPOCH_NS + int(self.now_s * 1e9)

    # --- what asyncio asks for ---

    def create_future(self) -> _Future:
        """Return a future."""
        return _Future(loop=self)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do the work of a thread in one callback, after the time that the machine's disk takes."""
        done = self.create_future()

        def work() -> None:
            if done.cancelled():
                return
            try:
                done.set_result(func(*arguments))
            except BaseException as error:
                done.set_exception(error)

        machine = current_machine()
        self.call_later(machine.disk_s if machine is not None else 0.0, work)
        return done

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Do as `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        """Do nothing: there are no threads."""

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        """Run a callback after those that are ready."""
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        """Run a callback after some seconds."""
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> _Handle:
        """Run a callback at a time."""
        handle = _Handle(callback, args, self, context)
        handle._when = when  # type: ignore[attr-defined]
        heapq.heappush(self._timers, (when, next(self._timer_serials), handle))
        return handle

    def run_soon(self, handles: list[_Handle]) -> None:
        """Run callbacks before those that are ready."""
        self._ready.extendleft(reversed(handles))

    def _run_once(self) -> None:
        """Run what is ready until the loop is to stop; when nothing is, let time jump to the next timer."""
        ready, timers = self._ready, self._timers
        while not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not ready:
                if not timers:
                    raise RuntimeError("nothing will ever happen again")
                self.now_s = max(self.now_s, timers[0][0])
            while timers and timers[0][0] <= self.now_s:
                handle = heapq.heappop(timers)[2]
                if not handle._cancelled:
                    ready.append(handle)
            for _ in range(len(ready)):
                one = ready.popleft()
                if one._cancelled:
                    continue
                context = one._context
                machine = context.get(_MACHINE)
                if machine is not None and (machine.is_dead or machine.is_paused):
                    machine.keep(one)
                    continue
                self.steps += 1
                try:
                    context.run(one._callback, *one._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": "a callback failed", "exception": error, "handle": one})
                if machine is not None and machine.steps_left > 0:
                    machine.steps_left -= 1
                    if not machine.steps_left:
                        machine.on_steps()

    def _process_events(self, event_list: object) -> None:
        """Do nothing: there are no sockets."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never waits."""

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> _Task:
        """Return a task."""
        return _Task(coro, loop=self, name=None if name is None else str(name), context=context)

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        handle, error = context.get("handle"), context.get("exception")
        machine = current_machine() if handle is None else handle._context.get(_MACHINE)
        where = machine.name if machine is not None else "simulator"
        frames = traceback.extract_tb(error.__traceback__)[-3:] if error is not None else ()
        at = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)
        self.failures.append(f"{where}: {context.get('message')}: {error!r} {at}")


def _nothing() -> None:
    """Do nothing."""
