"""The daemon's own dispatcher: the operators of all libraries, with placeholders for kernels."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from opdispatch import Dispatcher, OperatorName, Registration
from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.errors import InternalError
from opdispatch_server.daemon.libraries.kernel_route import KernelRoute
from opdispatch_server.lifted_kernels import LiftedKernels

if TYPE_CHECKING:
    from opdispatch_server.daemon.libraries.version import LibraryVersion


class OperatorRegistry:
    """The operators of all libraries, which change by whole libraries, one publication at a time.

    What goes through all registrations of a library, ``own``, ``check``, ``publish`` and
    ``disown``, is called from worker threads, one thread at a time, and handles one registration
    after another: a single step of C code for all of them would hold the interpreter lock, and so
    block the event loop. The other methods are for the event loop. ``on_published`` is called by
    such a thread, after a publication, with the operators for which something has been registered.
    ``on_epoch`` is called in the event loop, when an epoch begins.

    Note [Two epochs]
        The dispatcher's epoch changes at the very instant of a publication, in the middle of a step
        of the event loop. ``epoch`` changes when the states of the versions have followed (see
        LibraryPublication). A cache of facts about the dispatcher alone belongs to an epoch of the
        former, a cache that also depends on the versions to one of the latter.
    """

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(compiles=False)
        self.epoch = 0
        self.on_published: Callable[[Collection[OperatorName]], None] = lambda names: None
        self.on_epoch: Callable[[], None] = lambda: None
        self._owners: dict[Registration, LibraryVersion] = {}

    def begin_epoch(self) -> None:
        """Begin an epoch: the versions' states have followed a publication.

        See Note [Two epochs].
        """
        self.epoch += 1
        self.on_epoch()

    def own(self, version: LibraryVersion) -> None:
        """Record the owner of the registrations of ``version``, before they are published."""
        for registration in version.registrations:
            self._owners[registration] = version

    def disown(self, version: LibraryVersion) -> None:
        """Forget the registrations of ``version``, after they have been withdrawn."""
        for registration in version.registrations:
            self._owners.pop(registration, None)
        handles, version.handles = version.handles, []
        while handles:
            handles.pop()

    def find_owner(self, registration: Registration | None) -> LibraryVersion | None:
        """Return the version that made a registration; None for one that every dispatcher has."""
        return self._owners.get(registration) if registration is not None else None

    def find_kernel(self, registration: Registration) -> tuple[LibraryVersion, int] | None:
        """Return the version that has the kernel of a registration, and its index in the batch.

        None for a kernel that every process has, such as the fallback of autograd.
        """
        route = registration.kernel.function if registration.kernel is not None else None
        if not isinstance(route, KernelRoute):
            return None
        owner = self._owners.get(registration)
        if owner is None:
            raise InternalError(f"{registration} is of no library")
        return owner, route.place

    def check(
        self, registrations: Sequence[Registration], replacing: Sequence[RegistrationHandle]
    ) -> None:
        """Raise the RegistrationError that ``publish`` would; change nothing."""
        with self.dispatcher.transaction() as transaction:
            self._swap(registrations, replacing)
            transaction.rollback()

    def publish(
        self,
        registrations: Sequence[Registration],
        replacing: Sequence[RegistrationHandle],
        above: Sequence[Sequence[RegistrationHandle]] = (),
    ) -> list[list[RegistrationHandle]]:
        """Replace the registrations that the handles own by ``registrations``, in one publication.

        The new kernels go below those of ``above``, which are in order. Returns the handles of the
        new registrations, then those of each in ``above``. Raises RegistrationError, and then
        nothing has changed.
        """
        with self.dispatcher.transaction():
            lifted = [LiftedKernels(handles, registrations) for handles in above]
            published = [self._swap(registrations, replacing)]
            published += [kernels.put_back(self.dispatcher) for kernels in lifted]
        names = (r.schema.name if r.schema is not None else r.name for r in registrations)
        self.on_published({name for name in names if name is not None})
        return published

    def _swap(
        self, registrations: Sequence[Registration], replacing: Sequence[RegistrationHandle]
    ) -> list[RegistrationHandle]:
        for handle in reversed(replacing):
            handle.close()
        return [self.dispatcher.register(registration) for registration in registrations]
